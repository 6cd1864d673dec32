"""Reads a command line in LBANN's spelling: `--flag=value`, `--flag value`, and flags without a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest
from descend.lbann.driver.options import OPTIONS, SPELLINGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.lbann.driver.options import Option

__all__ = ["CommandLine", "parse"]

_FILES = ("prototext", "model", "optimizer", "reader", "metadata")
_UNSET = -1  # LBANN's default of some numbers, which a script may pass on
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True)
class CommandLine:
    """What a command line, and the environment, say.

    Attributes:
        files: For each of --prototext, --model, --optimizer, --reader and --metadata the files given.
        values: All other options that are set, by LBANN's name.
        idle: Names of those that were given and have no effect here.
        wants_help: Whether there are no arguments, or one of them asks for help.
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    idle: tuple[str, ...] = ()
    wants_help: bool = False

    def get(self, name: str) -> Any:
        """The value of an option; None where it is not set."""
        return self.values.get(name)


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> CommandLine:
    """Read a command line.

    Args:
        arguments: Without the name of the program.
        environment: The environment variables.

    Raises:
        ConfigurationError: everything that is wrong with the arguments, behind LBANN's own words for it.
    """
    if not arguments or any(word in ("--help", "-h", "-?") for word in arguments):
        return CommandLine(wants_help=True)
    given: list[tuple[Option, Any]] = []
    problems: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in SPELLINGS:
            near = nearest(name, SPELLINGS)
            problems.append(
                f"there is no option '{word}'{near}" if word.startswith("-") else f"'{word}' is not an option"
            )
            continue
        option = OPTIONS[SPELLINGS[name]]
        if not equals:
            text = "true" if option.takes is bool else next(words, None)
        value, problem = _value(option, text)
        problems += [f"--{name}: {problem}"] if problem else []
        given.append((option, value))
    files = {name: tuple(value for option, value in given if option.name == name) for name in _FILES}
    values = {option.name: value for option, value in given if option.name not in _FILES}
    for name, several in files.items():
        if len(several) > 1 and "generate_multi_proto" not in values:
            problems.append(f"--{name} is given {len(several)} times, which only --generate_multi_proto allows")
    found, wrong = _from_environment(environment, values)
    if problems or wrong:
        raise ConfigurationError(["Arguments could not be parsed.", *problems, *wrong])
    values = {name: value for name, value in {**found, **values}.items() if value != _UNSET and value is not False}
    idle = tuple(dict.fromkeys(option.name for option, _ in given if not option.help))
    return CommandLine(files, values, idle)


def _value(option: Option, text: str | None) -> tuple[Any, str]:
    """The value of an option, and what is wrong with it."""
    if text is None:
        return None, f"a value is missing ({option.takes.__name__})"
    if option.takes is bool:
        word = text.casefold()
        return word in _TRUE, "" if word in (*_TRUE, *_FALSE) else f"'{text}' is neither true nor false"
    try:
        return option.takes(text), ""
    except ValueError:
        return None, f"'{text}' is not a number ({option.takes.__name__})"


def _from_environment(environment: Mapping[str, str], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values of options that only environment variables set, and what is wrong with them."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, option in OPTIONS.items():
        text = environment.get(option.variable, "") if option.variable else ""
        if not text or name in given:
            continue
        values[name], problem = _value(option, text)
        problems += [f"environment variable {option.variable}: {problem}"] if problem else []
    return values, problems
