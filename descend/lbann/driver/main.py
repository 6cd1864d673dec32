"""The driver from top to bottom: command line → files → experiment → check → run."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from descend import lazy
from descend.errors import ConfigurationError
from descend.errors import main as exit_with_code
from descend.lbann.driver.command_line import parse
from descend.lbann.driver.options import IMPORT_VARIABLE, help_text
from descend.terminal import emit
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.lbann.driver.command_line import CommandLine

__all__ = ["drive", "files_of", "let_readers_import_lbann", "main"]

_AS_LBANN = "descend.lbann.as_lbann"


def main() -> None:
    """Run the driver with the arguments of the process; exit codes are those of `descend.errors`."""

    def show(message: Warning | str, *about: object) -> None:
        emit("warning: " + printable(str(message), keep="\n\t") + "\n", sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        exit_with_code(lambda: drive(sys.argv[1:], os.environ))


def drive(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Do what a command line says, in the current directory.

    Args:
        arguments: Without the name of the program.
        environment: The environment variables.

    Raises:
        ConfigurationError: the arguments, the files or the experiment are wrong; nothing was started.
        Other errors of `descend.errors`, as the run ends.
    """
    line = parse(arguments, environment)
    if line.wants_help:
        sys.stdout.write(help_text())
        return
    files = files_of(line)
    from descend.arguments.leniency import lenient
    from descend.lbann.driver.run import run

    let_readers_import_lbann()
    lazy.provide("begin_reading_process", let_readers_import_lbann.__module__, let_readers_import_lbann.__name__)
    with lenient():
        run(files, line)


def let_readers_import_lbann() -> None:
    """Let `import lbann` in modules of readers find this package, where the environment asks for that."""
    if os.environ.get(IMPORT_VARIABLE) == "1":
        import_module(_AS_LBANN)


def files_of(line: CommandLine) -> list[str]:
    """The files of the experiment that a command line names, those of one trainer with --generate_multi_proto.

    Raises:
        ConfigurationError: parts are missing, in LBANN's words.
    """
    whole, model, optimizer, reader, metadata = (
        line.files.get(name, ()) for name in ("prototext", "model", "optimizer", "reader", "metadata")
    )
    if not (whole or model):
        raise ConfigurationError(
            "Failed to load any prototext files: give --prototext=FILE, or --model=FILE --optimizer=FILE --reader=FILE"
        )
    problems = [
        f"you specified {len(model)} model filenames, and {len(given)} {part} filenames; "
        f"you must specify {len(model)} {part} filenames"
        for part, given in (("optimizer", optimizer), ("reader", reader))
        if not whole and len(given) != len(model)
    ]
    if problems:
        raise ConfigurationError(problems)
    several = [whole, metadata] if whole else [model, optimizer, reader, metadata]
    if not line.get("generate_multi_proto"):
        return [file for files in several for file in files]
    from descend.launch import detect, layout_trainers

    ranks = detect()
    layout = layout_trainers(ranks.world_size, procs_per_trainer=line.get("procs_per_trainer"))
    trainer = layout.of_rank(ranks.rank)[0]
    return [_of_trainer(files, trainer) for files in several if files]


def _of_trainer(files: Sequence[str], trainer: int) -> str:
    """The file of a trainer: its own among several, or one with its number behind the word."""
    if len(files) > 1:
        if trainer >= len(files):
            raise ConfigurationError(f"trainer {trainer} has no file among {', '.join(files)}: name one for each")
        return files[trainer]
    path = Path(files[0])
    return str(path.with_name(path.name.replace("trainer", f"trainer{trainer}")))
