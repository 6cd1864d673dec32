"""How errors of a run become exit codes of a process."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from descend.errors import DescendError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["exit_code", "main"]

_INTERRUPTED = 130  # what shells report for a process that ended by Ctrl-C


def main(function: Callable[[], object]) -> NoReturn:
    """Call `function` and end the process with the exit code of what came of it.

    0 done, 2 wrong configuration or usage, 3 data, 4 numerical stop, 5 checkpoint or storage, 6 lost a peer, 75 stopped
    on request with its state saved; any other exception keeps its traceback and ends with 1. With DESCEND_TRACEBACK=1
    our own errors show theirs too, and end with the same codes.
    """
    try:
        function()
    except DescendError as error:
        sys.stdout.flush()
        if os.environ.get("DESCEND_TRACEBACK"):
            traceback.print_exception(error)
            sys.exit(error.exit_code)
        if error.said:
            sys.exit(error.exit_code)
        word = "stopped" if error.exit_code == 75 else "error"
        sys.stderr.write("".join(f"{word}: {problem}\n" for problem in error.problems))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was saved after the last checkpoint\n")
        sys.exit(_INTERRUPTED)
    sys.exit(0)


def exit_code(error: BaseException) -> int:
    """The exit code of a process that ends by `error`."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return getattr(error, "exit_code", 1)
