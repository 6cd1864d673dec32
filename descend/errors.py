"""Everything that can go wrong, in one tree, and the exit codes of a process that ends by it.

    DescendError                       exit code
    ├── ConfigurationError                 2   found in the description, before anything runs
    │   ├── GraphError                         layers, weights, shapes, objective
    │   ├── TextError                          a prototext, at file:line:column
    │   ├── RuleError                          an optimizer's settings
    │   ├── WrongType                          a value of another type than its field; also a TypeError
    │   ├── Unsupported                        known by name, and not available here
    │   └── MissingExtra                       needs an optional library
    ├── DataError                          3   a data set, a file of it, or a sample
    ├── NumericalError                     4   a non-finite value where none may be
    ├── StorageError                       5   a checkpoint or a run directory
    ├── LostPeer                           6   another rank died or hangs
    ├── Refused                            1   the evidence is too thin for the answer that was asked for
    └── Stopped                           75   ended on request with everything saved; safe to requeue

Every message says what was wrong, where, what was expected and what to do next. Characters that a terminal may obey are
written as escapes, and no line of a message is longer than 2,000 characters, whatever names and values it quotes.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from descend.terminal import emit
from descend.terminal.display import MAX_LINE, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

__all__ = [
    "ConfigurationError",
    "DataError",
    "DescendError",
    "GraphError",
    "LostPeer",
    "MissingExtra",
    "NumericalError",
    "Refused",
    "RuleError",
    "Stopped",
    "StorageError",
    "TextError",
    "Unsupported",
    "WrongType",
    "nearest",
    "table",
]

_NATIVE_FRAME = re.compile(
    r"\s*(frame #\d+: |#\d+ .* from [\w./+-]+:\d+|Exception raised from .* \(most recent call first\):|"
    r"C\+\+ CapturedTraceback:)"
)
_INTERRUPTED = 130  # the exit code that shells report for a process ended by Ctrl-C

# What reading a file of ours and taking its values apart may raise where it is missing, damaged, edited or nested
# thousands deep. Such a file is reported as a StorageError, or passed over where nothing depends on it.
DAMAGED_FILE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


class DescendError(Exception):
    """What all errors of this package have in common: a message for the user and an exit code.

    Args:
        problems: One text, or several found in one pass; each is a line of the message.

    Attributes:
        said: Whether another rank of the run says the same to the user.
        one_line: Whether a problem is one line always, so that a newline in it is a part of a name and written as \\n.
    """

    exit_code: int = 1
    said: bool = False
    one_line: ClassVar[bool] = False

    def __init__(self, problems: str | Iterable[str]) -> None:
        given = (problems,) if isinstance(problems, str) else problems
        self.problems: Sequence[str] = tuple(_safe(problem, self.one_line) for problem in given)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,), self.__dict__


def _safe(problem: str, one_line: bool) -> str:
    """A problem with neither characters that a terminal obeys nor lines without bound."""
    if len(problem) <= MAX_LINE and problem.isprintable():
        return problem
    lines = [problem] if one_line else problem.split("\n")
    # An escape is longer than its character: shortened before, so that only what is shown is escaped, and after.
    return "\n".join(shortened(printable(shortened(line), keep="\t")) for line in lines)


class ConfigurationError(DescendError, ValueError):
    """The description of a run, a graph or an optimizer is wrong. Nothing was started."""

    exit_code = 2


class GraphError(ConfigurationError):
    """A layer, its parameters, the objective function or a metric does not fit."""

    one_line = True


class TextError(ConfigurationError):
    """A prototext cannot be read; each problem begins with file:line:column."""

    one_line = True


class RuleError(ConfigurationError):
    """An optimizer has a setting that is misspelt, of the wrong type or out of range."""


class WrongType(ConfigurationError, TypeError):
    """A value has another type than the field that it is given to."""


class Unsupported(ConfigurationError):
    """A thing that is known by name and not available here; the message says why."""


class MissingExtra(ConfigurationError, ImportError):
    """An optional library is missing; the message says what to install."""


class DataError(DescendError):
    """A data set, one of its files or one of its samples is not what was expected."""

    exit_code = 3


class NumericalError(DescendError, ArithmeticError):
    """A value that is not finite stopped the run before it reached a weight."""

    exit_code = 4


class StorageError(DescendError, OSError):
    """A checkpoint or a run directory cannot be written or cannot be trusted."""

    exit_code = 5


class DirectoryLost(StorageError):
    """A directory is no longer that of this process, which writes nothing more there."""


class LostPeer(DescendError, ConnectionError):
    """Another rank died, hangs or left."""

    exit_code = 6


class Refused(DescendError, ValueError):
    """The evidence does not carry the answer that was asked for; the problems are the reasons."""


class Stopped(DescendError):
    """The run ended on request (a signal, walltime) with its state saved."""

    exit_code = 75


_PACKAGE = str(Path(__file__).parent)
_PYTHON = sysconfig.get_path("stdlib")


def warn(message: str) -> None:
    """Warn at the line of the user's code that led here, however deep in this package, torch or Python that is.

    Where there is no such line, as in a thread of ours, the warning is at the line that calls this.

    Args:
        message: What is the matter, where, and what to do.
    """
    caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # the only way to the callers
    frame: FrameType | None = caller
    while frame is not None and not _is_the_users(frame.f_code.co_filename):
        frame = frame.f_back
    at = frame or caller
    where = at.f_globals
    seen = where.setdefault("__warningregistry__", {})
    module = where.get("__name__") or "<string>"
    warnings.warn_explicit(message, UserWarning, at.f_code.co_filename, at.f_lineno, module, seen)


def _is_the_users(file: str) -> bool:
    """Whether code of this file is neither ours nor torch's nor Python's own."""
    if file.startswith("<frozen") or _is_in(file, _PACKAGE):
        return False
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch and _is_in(file, str(Path(torch).parent)):
        return False
    return not _is_in(file, _PYTHON) or "site-packages" in file or "dist-packages" in file


def _is_in(file: str, folder: str) -> bool:
    return file.startswith(folder + "/")


def nearest(name: str, options: Iterable[str]) -> str:
    """The half-sentence that ends an error about an unknown name.

    Returns:
        "; did you mean 'beta2'?" when an option is close to `name`, else an empty text.
    """
    options = list(options)
    # Case is the commonest slip, so compare without it and answer with the right spelling.
    folded = {option.casefold(): option for option in options}
    begin = [option for option in folded if len(name) > 2 and option.startswith(name.casefold())]
    swapped = [option for option in folded if sorted(option) == sorted(name.casefold())]  # "adma" is adam, not adamax
    close = begin[:1] if len(begin) == 1 else swapped[:1]
    close = close or difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean '{folded[close[0]]}'?" if close else ""


_PACKAGES = {"PIL": "pillow", "vl_convert": "vl-convert-python", "yaml": "pyyaml"}  # where pip has another name


def missing_library(what: str, module: str) -> str:
    """The line of an error about an optional library: `a table needs the library pyarrow: pip install pyarrow`.

    Args:
        what: What needs it.
        module: What is imported, such as "PIL.Image".
    """
    name = module.partition(".")[0]
    package = _PACKAGES.get(name, name)
    return f"{what} needs the library {package}: pip install {package}"


def library(module: str, what: str) -> Any:
    """Import an optional library.

    Args:
        module: Its name, such as "pyarrow.csv".
        what: What needs it, for the message.

    Raises:
        MissingExtra: it is not installed.
    """
    # Tables ask for it several times a column, and `import_module` takes ten times as long as this look.
    there = sys.modules.get(module)
    if there is not None and not getattr(there.__spec__, "_initializing", False):
        return there
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{missing_library(what, module)} ({error})") from error


def table(what: str, rows: Sequence[tuple[str, str, str]], remedy: str, shown: int = 4) -> list[str]:
    """The lines of an error about weights that do not fit: what is expected of each, what was found, and what to do."""
    some = [("weights", "expected", "found"), *rows[:shown]]
    wide = [max(len(row[i]) for row in some) for i in range(2)]
    lines = [f"    {name:<{wide[0]}}  {expected:<{wide[1]}}  {found}" for name, expected, found in some]
    more = [f"    and {len(rows) - shown} more"] if len(rows) > shown else []
    return [what, *lines, *more, remedy]


def main(function: Callable[[], object]) -> NoReturn:
    """Call `function` and end the process with the exit code of its outcome.

    0 done, 2 wrong configuration or usage, 3 data, 4 numerical stop, 5 checkpoint or storage, 6 lost a peer, 75 stopped
    on request with its state saved; any other exception keeps its traceback and ends with 1. With DESCEND_TRACEBACK=1
    our own errors show theirs too, and end with the same codes. Frames of torch's C++ code are not printed.
    """
    try:
        function()
    except DescendError as error:
        emit("", sys.stdout)
        if os.environ.get("DESCEND_TRACEBACK"):
            _print_traceback(error)
            sys.exit(error.exit_code)
        if error.said:
            sys.exit(error.exit_code)
        word = "stopped" if error.exit_code == 75 else "error"
        emit("".join(f"{word}: {without_native_frames(problem)}\n" for problem in error.problems), sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        emit("interrupted: nothing was saved after the last checkpoint\n", sys.stderr)
        sys.exit(_INTERRUPTED)
    except Exception as error:
        emit("", sys.stdout)
        _print_traceback(error)
        sys.exit(1)
    sys.exit(0)


def without_native_frames(text: str) -> str:
    """A message without the stack of torch's C++ code, which begins with "Exception raised from ... (most recent call
    first):" or "C++ CapturedTraceback:" and has a line "frame #0: ..." or "#0 ..." for each function.
    """
    return "\n".join(line for line in text.split("\n") if not _NATIVE_FRAME.match(line))


def _print_traceback(error: BaseException) -> None:
    emit(without_native_frames("".join(traceback.format_exception(error))), sys.stderr)


def exit_code(error: BaseException) -> int:
    """The exit code of a process that ends by `error`."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return getattr(error, "exit_code", 1)
