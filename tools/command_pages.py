"""The page of the reference with every command, its arguments and options, and the exit codes, from the code itself."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import typer.main

from descend import errors
from descend.__main__ import app
from tools.docstrings import inline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["command_page", "commands", "exit_codes"]

_CODES = {
    0: "finished",
    1: "a check failed (`descend conformance`, `descend study lint`), or an error that is none of the following",
    130: "ended at once by a second Ctrl-C; nothing was saved after the last checkpoint",
}


def commands() -> dict[str, Any]:
    """Every command by its words, such as "study run", in alphabetical order."""
    return dict(sorted(_below(typer.main.get_command(app), "")))


def _below(group: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        full = f"{words} {name}".strip()
        if hasattr(command, "commands"):
            yield from _below(command, full)
        else:
            yield full, command


def exit_codes() -> Mapping[int, str]:
    """Exit codes with what they say; those of errors with the classes that carry them."""
    classes = [getattr(errors, name) for name in errors.__all__]
    carriers: dict[int, list[str]] = {}
    for cls in classes:
        if inspect.isclass(cls) and issubclass(cls, errors.DescendError) and "exit_code" in vars(cls):
            summary = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
            carriers.setdefault(cls.exit_code, []).append(f"`{cls.__name__}`: {summary}")
    return dict(sorted({**{code: " ".join(said) for code, said in carriers.items()}, **_CODES}.items()))


def command_page() -> str:
    """The page as reStructuredText."""
    lines = ["Commands and exit codes", "=======================", ""]
    for words, command in commands().items():
        title = f"descend {words}"
        lines += [title, "-" * len(title), "", _text(command.help), ""]
        lines += [".. code-block:: text", "", f"   {_usage(title, command)}", ""]
        lines += list(_rows(command))
    lines += ["Exit codes", "----------", "", ".. list-table::", ""]
    for code, said in exit_codes().items():
        lines += [f"   * - {code}", f"     - {inline(said)}"]
    return "\n".join([*lines, ""])


def _usage(title: str, command: Any) -> str:
    words = [title, "[OPTIONS]"]
    for argument in _arguments(command):
        word = argument.metavar or argument.name.upper()
        word = word.strip("[]").removesuffix("]...") + ("..." if argument.nargs == -1 else "")
        words.append(word if argument.required else f"[{word}]")
    return " ".join(words)


def _text(said: str | None) -> str:
    """A help text, with options such as --check as code."""
    return inline(re.sub(r"(?<![\w`-])--[a-z][\w-]*", r"`\g<0>`", " ".join((said or "").split())))


def _arguments(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "argument"]


def _options(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "option" and not parameter.hidden]


def _rows(command: Any) -> Iterator[str]:
    parameters = [*_arguments(command), *_options(command)]
    if not parameters:
        return
    yield from (".. list-table::", "   :widths: 30 70", "   :class: options", "")
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            name = f"``{parameter.name.upper()}``"
        else:
            name = ", ".join(f"``{word}``" for word in [*parameter.opts, *parameter.secondary_opts])
        default = parameter.default
        said = _text(parameter.help)
        if default not in (None, False, ()) and not callable(default) and default is not ...:
            said += f" Default: ``{default}``."
        yield f"   * - {name}"
        yield f"     - {said}".rstrip()
    yield ""
