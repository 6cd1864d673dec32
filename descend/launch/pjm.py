"""PJM, the job manager of Fujitsu's machines: pjsub for a job, mpiexec for its ranks. Tested as text only, since PJM is
not freely available.

inside an allocation    PJM_JOBID
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from descend.launch.job import Job, clock, lines, require_unset

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["allocate", "detect", "header", "script", "starter", "submit"]


def detect(environment: Mapping[str, str]) -> bool:
    """Whether this process is inside an allocation."""
    return "PJM_JOBID" in environment


def script(job: Job) -> str:
    """The text for pjsub; submits nothing."""
    require_unset(job, "pjm", "reservation", "array")
    head = header(job.nodes, job.procs_per_node, job.time_limit, job.job_name, job.partition, job.account)
    meeting = ['export MASTER_ADDR="${MASTER_ADDR:-$(hostname)}"', 'export MASTER_PORT="${MASTER_PORT:-29500}"']
    files = ["-o out.log", "-e err.log"]
    return lines(job, [f"#PJM {line}" for line in (*head, *files)], meeting, starter(job.nodes, job.procs_per_node), [])


def starter(nodes: int, procs_per_node: int) -> list[str]:
    """The command that starts the ranks."""
    return ["mpiexec", "-n", str(nodes * procs_per_node)]


def submit(path: str) -> list[str]:
    """The command that hands a script to the scheduler."""
    return ["pjsub", path]


def allocate(job: Job, path: str) -> list[str]:
    """The command that gets an allocation, runs a script in it and waits; the script's header asks for the machines."""
    del job
    return ["pjsub", "--interact", "--sparam", "wait-time=unlimited", path]


def header(
    nodes: int,
    procs_per_node: int,
    time_limit: float | None,
    job_name: str,
    partition: str | None,
    account: str | None,
) -> list[str]:
    """The options of a job, each quoted as in a line of a script; `time_limit` is in minutes."""
    given = [
        ("-N", job_name),
        ("-L", f"node={nodes}"),
        ("--mpi", f"proc={nodes * procs_per_node}"),
        ("-L", None if time_limit is None else f"elapse={clock(time_limit)}"),
        ("-L", None if partition is None else f"rscgrp={partition}"),
        ("-g", account),
    ]
    return [f"{option} {shlex.quote(value)}" for option, value in given if value is not None]
