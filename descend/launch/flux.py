"""Flux: flux batch for a job, flux alloc for one that is waited for, flux run for its ranks. Tested as text only.

inside an allocation    FLUX_URI, and FLUX_ENCLOSING_ID, which the system's own instance has not
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from descend.launch.job import Job, lines, require_unset

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["allocate", "detect", "script", "submit"]


def detect(environment: Mapping[str, str]) -> bool:
    """Whether this process is inside an allocation."""
    return "FLUX_URI" in environment and "FLUX_ENCLOSING_ID" in environment


def script(job: Job) -> str:
    """The text for flux batch; submits nothing."""
    header = [f"#flux: {shlex.quote(option)}" for option in (*_options(job), "--output=out.log", "--error=err.log")]
    meeting = [
        'export MASTER_ADDR="${MASTER_ADDR:-$(flux run -N 1 -n 1 hostname)}"',
        'export MASTER_PORT="${MASTER_PORT:-29500}"',
    ]
    starter = ["flux", "run", f"--nodes={job.nodes}", f"--ntasks={job.ranks}", "--exclusive"]
    return lines(job, header, meeting, starter, [])


def submit(path: str) -> list[str]:
    """The command that hands a script to the scheduler."""
    return ["flux", "batch", path]


def allocate(job: Job, path: str) -> list[str]:
    """The command that gets an allocation, runs a script in it and waits."""
    return ["flux", "alloc", *_options(job), "bash", path]


def _options(job: Job) -> list[str]:
    require_unset(job, "flux", "reservation", "array")
    given = {
        "job-name": job.job_name,
        "nodes": job.nodes,
        "time-limit": None if job.time_limit is None else f"{job.time_limit:g}m",
        "queue": job.partition,
        "bank": job.account,
    }
    return [f"--{name}={value}" for name, value in given.items() if value is not None]
