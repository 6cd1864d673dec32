"""Starts ranks on this machine with torchrun."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from descend.arguments import check_integer, require
from descend.errors import ConfigurationError
from descend.launch.job import Job, lines, require_unset
from descend.machine import cores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["command", "cores", "script", "surroundings"]


def command(ranks: int, program: Sequence[str], restarts: int = 0) -> list[str]:
    """The command that starts a Python program, a file or `-m MODULE` with its arguments, on `ranks` ranks.

    Raises:
        ConfigurationError: the number of ranks is below 1 or that of restarts below 0.
    """
    require(check_integer("ranks", ranks, 1), check_integer("restarts", restarts, 0))
    options = ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    return [sys.executable, "-m", "descend.runtime.elastic", *options, *program]


def surroundings(ranks: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the ranks: they share the processors, and restarts make a new rendezvous.

    Without TORCH_DISABLE_SHARE_RDZV_TCP_STORE gloo finds the addresses of dead ranks.
    """
    threads = max(1, cores() // ranks)
    own = {"OMP_NUM_THREADS": str(threads), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**own, **environment}


def script(job: Job) -> str:
    """The script of a job on this machine; it is run with bash.

    Raises:
        ConfigurationError: the job has several nodes.
    """
    require_unset(job, "this machine", "array")
    if job.nodes > 1:
        raise ConfigurationError(
            f"{job.nodes} nodes need a scheduler, and this is not an allocation: pass one (scheduler='slurm'), or "
            "nodes=1"
        )
    starter = command(job.procs_per_node, [])
    program = list(job.command[1:])  # torchrun starts Python itself
    return lines(replace(job, command=program), [], [], starter, [])
