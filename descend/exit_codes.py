"""Maps errors of a run to exit codes of the process."""

from __future__ import annotations

import os
import re
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from descend.errors import DescendError
from descend.terminal import emit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["exit_code", "main", "without_native_frames"]

_NATIVE_FRAME = re.compile(
    r"\s*(frame #\d+: |#\d+ .* from [\w./+-]+:\d+|Exception raised from .* \(most recent call first\):|"
    r"C\+\+ CapturedTraceback:)"
)
_INTERRUPTED = 130  # the exit code that shells report for a process ended by Ctrl-C


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
