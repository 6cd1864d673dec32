"""A study as a job array of Slurm: each task claims trials of one directory until none is left.

DIR/slurm/batch.sh      the script
DIR/slurm/N.log         what task N said

A task that has to leave (time limit, preemption) gets a signal before; its trial is saved if the study saves trials,
and runs again if not, and the task puts itself back into the queue. So does a task that for a while has found no trial
to claim, so that a straggler does not hold the allocations of all.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from descend.arguments import check_number, require
from descend.errors import ConfigurationError
from descend.launch import Job, JobArray, slurm
from descend.runtime.run_directory import write_beside
from descend.study.comparing import open_directory
from descend.study.design import read_study
from descend.study.running.executor_choice import check_name
from descend.study.running.plan import pending
from descend.study.running.trial import RETRIED, require_names
from descend.study.running.trial_store import StudyDirectory, storage_errors

if TYPE_CHECKING:
    from descend.study.design.study import Study

__all__ = ["ArrayOptions", "array_job", "submit_study", "tasks_for"]

_MOST_TASKS = 16  # unless another number is asked for


def tasks_for(study: Study, directory: Path) -> int:
    """Tasks of an array: one for each trial that can run now, up to a bound; 0 where none is left."""
    records = StudyDirectory(directory).records()
    settled = {name: record for name, record in records.items() if record.status not in RETRIED}
    return min(len(pending(study, settled)), _MOST_TASKS)


@dataclass(frozen=True)
class ArrayOptions:
    """How the tasks of a study's array run.

    Args:
        executor: As of `descend study run`, by which each task runs its trials.
        idle_seconds: After so long without a trial to claim a task gives its allocation back and queues again.
        time_limit: Minutes of a task; None for the default of the queue.
        partition: Queue.
        account: The account that is charged.
        reservation: Name of a reservation.
    """

    executor: str = "one"
    idle_seconds: float = 120.0
    time_limit: float | None = None
    partition: str | None = None
    account: str | None = None
    reservation: str | None = None


def array_job(file: Path, directory: Path, study: Study, tasks: int, options: ArrayOptions) -> Job:
    """The job array of a study, with what one of its trials needs for each task.

    Args:
        file: The study, a TOML file.
        directory: Where the study is kept.
        study: What the file says.
        tasks: Number of tasks.
        options: How they run.

    Raises:
        ConfigurationError: the workload has no name, there is no such executor, the directory is local to a node, or
            another argument is wrong.
    """
    require_names(study, "tasks of a job array")
    check_name(options.executor)
    if options.executor == "ray":
        raise ConfigurationError("the tasks of a job array are no Ray cluster: choose another executor")
    require(check_number("idle_seconds", options.idle_seconds, at_least=0))
    needs, place = study.needs, directory.absolute()
    words = [f"--executor={options.executor}", f"--idle-seconds={options.idle_seconds:g}"]
    return Job(
        [sys.executable, "-m", "descend", "study", "run", str(file.absolute()), str(place), *words],
        Path.cwd(),
        time_limit=options.time_limit,
        job_name=study.name,
        partition=options.partition,
        account=options.account,
        reservation=options.reservation,
        environment={"OMP_NUM_THREADS": str(needs.cores)},
        array=JobArray(tasks, place / "slurm", needs.all_cores, needs.memory_bytes, needs.all_gpus),
    )


def submit_study(
    file: Path, directory: Path, tasks: int | None, options: ArrayOptions, *, setup_only: bool = False
) -> str:
    """Write the script of a study's job array into its directory and hand it to sbatch.

    Args:
        file: The study, a TOML file.
        directory: Where the study is kept.
        tasks: Number of tasks; None for one for each trial that can run now, 16 at the most.
        options: How they run.
        setup_only: Write the script and submit nothing.

    Returns:
        What was submitted, or how to submit it, in words.

    Raises:
        ConfigurationError: as `array_job`; the study cannot run, there is no sbatch, or it refuses the job.
    """
    study = read_study(file)
    array_job(file, directory, study, tasks or 1, options)  # what is wrong is said before anything is written
    open_directory(study, directory)
    count = tasks_for(study, directory) if tasks is None else tasks
    if not count:
        return f"nothing is left to run: descend study report {directory}"
    script = directory / "slurm" / "batch.sh"
    with storage_errors(directory):
        script.parent.mkdir(exist_ok=True)
    write_beside(script, slurm.script(array_job(file, directory, study, count, options)))
    command = slurm.submit(str(script))
    if setup_only:
        return f"{script}: {count} tasks; submit it with: {' '.join(command)}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no sbatch on this machine, so {script} was written and not submitted: submit it where Slurm is"
        ) from error
    if done.returncode:
        raise ConfigurationError(f"sbatch refused {script}: {done.stderr.strip()}")
    return f"{done.stdout.strip()}: {count} tasks; see descend study status {directory}, and {script.parent}/N.log"
