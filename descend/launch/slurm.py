"""Slurm: sbatch for a job, salloc for one that is waited for, srun for its ranks.

inside an allocation    SLURM_JOB_ID
preemption, walltime    the ranks get SIGTERM before the end and save; the job then puts itself into the queue again
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from descend.launch.job import LEAD_SECONDS, Job, clock, lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.launch.job import JobArray

__all__ = ["allocate", "detect", "script", "submit"]

_WAIT_SECONDS = 90  # from the end of the first rank on; longer than ranks wait for each other


def detect(environment: Mapping[str, str]) -> bool:
    """Whether this process is inside an allocation."""
    return "SLURM_JOB_ID" in environment


def script(job: Job) -> str:
    """The text for sbatch; submits nothing."""
    header = [f"#SBATCH {shlex.quote(option)}" for option in (*_options(job), *_files(job))]
    meeting = [
        'export MASTER_ADDR="${MASTER_ADDR:-$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)}"',
        'export MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}"',
    ]
    # Ranks end each other, and a rank that is through first must not cost another its own exit code.
    ending = ["--kill-on-bad-exit=0", f"--wait={_WAIT_SECONDS}"]
    starter = ["srun", *ending, f"--nodes={job.nodes}", f"--ntasks={job.ranks}"]
    # One task of an array has the number of the array as its own, by which all tasks would be put back.
    own = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" if job.array else "${SLURM_JOB_ID}"
    again = [f'if [ "${{status}}" -eq 75 ]; then scontrol requeue "{own}"; fi']
    # srun does not take over the number of processors from sbatch.
    each = [f"--cpus-per-task={job.array.cores}"] if job.array else []
    return lines(job, header, meeting, [*starter, f"--ntasks-per-node={job.procs_per_node}", *each], again)


def submit(path: str) -> list[str]:
    """The command that hands a script to the scheduler."""
    return ["sbatch", path]


def allocate(job: Job, path: str) -> list[str]:
    """The command that gets an allocation, runs a script in it and waits."""
    return ["salloc", *_options(job), "bash", path]


def _options(job: Job) -> list[str]:
    given = {
        "job-name": job.job_name,
        "nodes": job.nodes,
        "ntasks-per-node": job.procs_per_node,
        "time": None if job.time_limit is None else clock(job.time_limit),
        "partition": job.partition,
        "account": job.account,
        "reservation": job.reservation,
        **(_of_array(job.array) if job.array else {}),
    }
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def _of_array(array: JobArray) -> dict[str, str | int | None]:
    return {
        "array": f"0-{array.tasks - 1}",
        "cpus-per-task": array.cores,
        "mem": None if array.memory_bytes is None else f"{math.ceil(array.memory_bytes / 2**20)}M",
        "gpus-per-node": array.gpus or None,
    }


def _files(job: Job) -> list[str]:
    """The signal goes to the ranks, not to the shell (no "B:"), and a job that is started again adds to its output."""
    files = [f"--output={job.array.logs}/%a.log"] if job.array else ["--output=out.log", "--error=err.log"]
    return [f"--chdir={job.work_dir}", *files, "--open-mode=append", "--requeue", f"--signal=TERM@{LEAD_SECONDS}"]
