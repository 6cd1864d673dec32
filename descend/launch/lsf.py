"""LSF: bsub for a job, jsrun for its ranks. Tested as text only, since LSF is not freely available.

inside an allocation    LSB_JOBID
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from descend.launch.job import Job, lines, require_unset

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["allocate", "detect", "script", "submit"]


def detect(environment: Mapping[str, str]) -> bool:
    """Whether this process is inside an allocation."""
    return "LSB_JOBID" in environment


def script(job: Job) -> str:
    """The text for bsub; submits nothing."""
    require_unset(job, "lsf", "array")
    files = ["-cwd", str(job.work_dir), "-o", "out.log", "-e", "err.log"]
    words = iter([*_options(job), *files])
    header = [f"#BSUB {option} {shlex.quote(value)}" for option, value in zip(words, words, strict=True)]
    meeting = [
        'export MASTER_ADDR="${MASTER_ADDR:-$(jsrun --nrs 1 --tasks_per_rs 1 hostname)}"',
        'export MASTER_PORT="${MASTER_PORT:-$((20000 + LSB_JOBID % 10000))}"',
    ]
    starter = ["jsrun", "--nrs", str(job.nodes), "--rs_per_host", "1", "--tasks_per_rs", str(job.procs_per_node)]
    spread = ["--launch_distribution", "packed", "--cpu_per_rs", "ALL_CPUS", "--gpu_per_rs", "ALL_GPUS"]
    again = ['if [ "${status}" -eq 75 ]; then brequeue "${LSB_JOBID}"; fi']
    return lines(job, header, meeting, [*starter, *spread], again)


def submit(path: str) -> list[str]:
    """The command that submits a script; bsub reads it from standard input, so it runs in a shell."""
    return ["bash", "-c", 'bsub < "$0"', path]


def allocate(job: Job, path: str) -> list[str]:
    """The command that gets an allocation, runs a script in it and waits."""
    return ["bsub", "-Is", *_options(job), "bash", path]


def _options(job: Job) -> list[str]:
    given = {
        "-J": job.job_name,
        "-nnodes": str(job.nodes),
        "-W": None if job.time_limit is None else _minutes(job.time_limit),
        "-q": job.partition,
        "-G": job.account,
        "-U": job.reservation,
    }
    return [word for option, value in given.items() if value is not None for word in (option, value)]


def _minutes(limit: float) -> str:
    minutes = math.ceil(limit)
    return f"{minutes // 60}:{minutes % 60:02}"
