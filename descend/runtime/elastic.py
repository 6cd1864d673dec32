"""torchrun, whose exit code is that of the rank that failed first, and which leaves the last word to that rank.

As a program it takes what torchrun takes. A signal that asks for an end goes to the ranks, which save and end with 75;
torchrun by itself would count that as a failure, and starts nobody again after it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    def passed_on(number: int, frame: Any) -> None:
        setattr(LocalElasticAgent, "_restart_workers", _no_more)  # noqa: B010  # torch has no other way to be told
        for child in _children():
            os.kill(child, number)

    for name in ("api", "errors.error_handler"):
        logging.getLogger(f"torch.distributed.elastic.multiprocessing.{name}").addFilter(_adds_something)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, passed_on)
    try:
        run.main(["--signals-to-handle=SIGHUP,SIGQUIT", *arguments])
    except ChildFailedError as error:
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        return exit_code(failure.exitcode for failure in failures)
    return 0


def _adds_something(record: logging.LogRecord) -> bool:
    """Whether a line of torchrun is to be printed: that a rank was killed, since nobody else may have said so. Where it
    has failed with a code of its own it has said why."""
    return (
        isinstance(record.args, tuple) and bool(record.args) and isinstance(record.args[0], int) and record.args[0] < 0
    )


def _no_more(self: Any, worker_group: Any) -> None:
    """In the place of a restart: whoever has ended by request is not started again."""
    self._remaining_restarts = 0


def _children() -> list[int]:
    """The processes that this one has started and that are still there."""
    found = (task.joinpath("children").read_text().split() for task in Path("/proc/self/task").iterdir())
    return [int(child) for some in found for child in some]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
