"""torchrun (torchelastic) with our exit codes: that of the rank that failed first, whose error is printed last.

As a program it takes torchrun's arguments. A signal that requests a stop is forwarded to the ranks, which write a
checkpoint and exit with 75; torchrun by itself would count that as a failure and restart them.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend import torch_private
from descend.errors import LostPeer
from descend.machine import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["exit_code", "killed_ranks", "main"]


def exit_code(codes: Iterable[int]) -> int:
    """The exit code for several failed ranks: the first that is not just the loss of another rank (6)."""
    own = [code for code in codes if code > 0 and code != LostPeer.exit_code]
    return own[0] if own else LostPeer.exit_code


def main(arguments: Sequence[str]) -> int:
    """Start the ranks and wait for them; returns the exit code."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    def forward(number: int, frame: Any) -> None:
        torch_private.disable_elastic_restarts()
        for child in _children():
            os.kill(child, number)

    for name in ("api", "errors.error_handler"):
        logging.getLogger(f"torch.distributed.elastic.multiprocessing.{name}").addFilter(_is_new_information)
    for number in STOP_SIGNALS:
        signal.signal(number, forward)
    try:
        run.main(["--signals-to-handle=SIGHUP,SIGQUIT", *arguments])
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        sys.stderr.writelines(killed_ranks((rank, failure.pid, failure.exitcode) for rank, failure in failures))
        return exit_code(failure.exitcode for _, failure in failures)
    return 0


def killed_ranks(ended: Iterable[tuple[int, int, int]]) -> list[str]:
    """A line for each rank that was killed: it printed nothing, and others may be ended before they notice.

    Args:
        ended: (rank, process, exit code) of each rank that failed; an exit code below 0 is that of a signal. torchrun
            itself ends the other ranks with SIGTERM, which is no cause.
    """
    names = {number.value: number.name for number in signal.Signals}
    return [
        f"error: rank {rank} (process {process}) was killed by {names.get(-code, f'signal {-code}')}\n"
        for rank, process, code in ended
        if code < 0 and -code != signal.SIGTERM
    ]


def _is_new_information(record: logging.LogRecord) -> bool:
    """Whether to print a line of torchrun: only for a killed rank. One with an exit code has printed its own error."""
    return (
        isinstance(record.args, tuple) and bool(record.args) and isinstance(record.args[0], int) and record.args[0] < 0
    )


def _children() -> list[int]:
    """The child processes of this one, from Linux's /proc, elsewhere by `pgrep`."""
    try:
        lists = [task.joinpath("children").read_text(encoding="utf-8") for task in Path("/proc/self/task").iterdir()]
    except OSError:
        try:
            found = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
        except OSError:
            return []
        lists = [found.stdout]
    return [int(child) for some in lists for child in some.split()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
