"""torchrun, whose exit code is that of the rank that failed first, and which leaves the last word to that rank.

As a program it takes what torchrun takes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from descend.errors import LostPeer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["exit_code", "main"]


def exit_code(codes: Iterable[int]) -> int:
    """The code for several ranks that have failed: of those that did not just lose another rank, the first."""
    own = [code for code in codes if code > 0 and code != LostPeer.exit_code]
    return own[0] if own else LostPeer.exit_code


def main(arguments: Sequence[str]) -> int:
    """Start the ranks and wait for them; the exit code."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(list(arguments))
    except ChildFailedError as error:
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        return exit_code(failure.exitcode for failure in failures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
