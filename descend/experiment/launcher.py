"""Starts an experiment on many ranks: `descend.launcher.run` with LBANN's arguments.

    status = descend.launcher.run(trainer, model, data_reader, optimizer, nodes=4, procs_per_node=8, time_limit=120)

writes a folder with `experiment.prototext`, `batch.sh`, `out.log` and `err.log`, and the run directory `run` in it. The
scheduler is the one in whose allocation this process runs; an installed client alone is not a sign of one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from descend.arguments import check_choice, require
from descend.errors import DAMAGED_FILE, ConfigurationError
from descend.files import bounded_text
from descend.launch import Job, flux, local, lsf, mpi, pjm, slurm
from descend.launch.cpp_frames import FrameFilter
from descend.launch.job import LEAD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SCHEDULERS", "detected", "job_folder", "run", "run_shown"]

SCHEDULERS: dict[str, Any] = {
    "slurm": slurm,
    "lsf": lsf,
    "flux": flux,
    "pjm": pjm,
    "openmpi": mpi,
    "local": local,
}


def detected(environment: Mapping[str, str] = os.environ) -> str:
    """The scheduler in whose allocation this process is; "local" where there is none."""
    found = [name for name in ("slurm", "lsf", "flux", "pjm") if SCHEDULERS[name].detect(environment)]
    return found[0] if found else "local"


def run(
    trainer: Any,
    model: Any,
    data_reader: Any,
    optimizer: Any,
    work_dir: str | os.PathLike[str] | None = None,
    *,
    nodes: int = 1,
    procs_per_node: int = 1,
    time_limit: float | None = None,
    scheduler: str | None = None,
    job_name: str = "descend",
    partition: str | None = None,
    account: str | None = None,
    reservation: str | None = None,
    launcher_args: Sequence[str] = (),
    procs_per_trainer: int | None = None,
    environment: Mapping[str, str] | None = None,
    overwrite_script: bool = False,
    setup_only: bool = False,
    batch_job: bool = False,
) -> int:
    """Start an experiment on many ranks and wait for it, or submit it to a scheduler.

    Args:
        trainer: As in `descend.run`.
        model: As in `descend.run`.
        data_reader: As in `descend.run`.
        optimizer: As in `descend.run`.
        work_dir: Folder of the job; None makes a dated one under LBANN_EXPERIMENT_DIR or the current folder.
        nodes: Number of machines.
        procs_per_node: Ranks on each.
        time_limit: Minutes, for the scheduler; it has no effect on this machine.
        scheduler: "slurm", "lsf", "flux", "pjm", "openmpi" or "local"; None for the one whose allocation this is.
        job_name: Name of the job.
        partition: Queue.
        account: The account that is charged.
        reservation: Name of a reservation.
        launcher_args: A list of more arguments for the program that starts the ranks.
        procs_per_trainer: Ranks that share a model, which makes several trainers of all ranks; must divide their
            number.
        environment: More environment variables of the job.
        overwrite_script: Replace an existing `batch.sh`.
        setup_only: Write the files and start nothing.
        batch_job: Submit the job and do not wait for it.

    Returns:
        The exit status: that of the ranks, or of the submission.

    Raises:
        ConfigurationError: the experiment is wrong, arguments contradict each other, a folder cannot be written, or the
            scheduler is unknown. Nothing was started.
    """
    from descend.experiment import Experiment, check_experiment

    kind = _scheduler(scheduler)
    check_experiment(Experiment(trainer, model, data_reader, optimizer))
    folder = job_folder(work_dir, job_name, nodes, procs_per_node)
    file, run_dir = str(folder / "experiment.prototext"), str(folder / "run")
    blocks = [] if procs_per_trainer is None else [f"--procs-per-trainer={procs_per_trainer}"]
    job = Job(
        [sys.executable, "-m", "descend", "run", file, "--run-dir", run_dir, "--resume", *blocks],
        folder,
        nodes,
        procs_per_node,
        time_limit,
        job_name,
        partition,
        account,
        reservation,
        launcher_args,
        dict(environment or {}),
        procs_per_trainer,
    )
    _check_lead(folder / "run")
    text = SCHEDULERS[kind].script(job)
    path = _write(folder, text, overwrite_script, (trainer, model, data_reader, optimizer))
    return 0 if setup_only else _start(kind, job, path, batch_job)


def _write(folder: Path, script: str, overwrite: bool, experiment: Sequence[Any]) -> Path:
    """Write the experiment and the script of its job.

    Returns:
        The path of the script.

    Raises:
        ConfigurationError: the script exists and may not be replaced, or the folder cannot be created.
    """
    from descend.experiment import save_prototext

    path = folder / "batch.sh"
    if path.exists() and not overwrite:
        raise ConfigurationError(f"{path} exists already: pass overwrite_script=True, or another work_dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"work_dir {folder} cannot be created: {error.strerror}; choose another") from error
    trainer, model, data_reader, optimizer = experiment
    parts = {"trainer": trainer, "model": model, "data_reader": data_reader, "optimizer": optimizer}
    save_prototext(str(folder / "experiment.prototext"), **parts)
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path


def _check_lead(run_dir: Path) -> None:
    """Refuse a run that cannot save in the time between the signal and the end, according to its last process.

    Raises:
        ConfigurationError: its last save took more than half of that time.
    """
    try:
        end = json.loads(bounded_text(run_dir / "run.json"))["end"]
        seconds = float(end["save_seconds"])
    except DAMAGED_FILE:
        return  # unknown
    if 2 * seconds > LEAD_SECONDS:
        raise ConfigurationError(
            f"the last save of {run_dir} took {seconds:.0f} seconds, and the job gets a signal {LEAD_SECONDS} seconds "
            "before its end, which must be at least twice as long: use faster storage, or save less"
        )


def _scheduler(wanted: str | None) -> str:
    if wanted is None:
        return detected()
    require(check_choice("scheduler", wanted, SCHEDULERS))
    return wanted


def job_folder(work_dir: str | os.PathLike[str] | None, job_name: str, nodes: int, procs_per_node: int) -> Path:
    """The folder that was given, or a dated one that does not exist yet."""
    if work_dir is not None:
        return Path(work_dir).absolute()
    base = Path(os.environ.get("DESCEND_EXPERIMENT_DIR") or os.environ.get("LBANN_EXPERIMENT_DIR") or Path.cwd())
    safe = re.sub(r"[^\w.-]+", "_", job_name)
    stem = f"{datetime.now().astimezone():%Y%m%d_%H%M%S}_{safe}_n{nodes}_ppn{procs_per_node}"
    names = (stem if number == 1 else f"{stem}_{number}" for number in range(1, 10_000))
    return next(base / name for name in names if not (base / name).exists()).absolute()


def _start(kind: str, job: Job, path: Path, batch_job: bool) -> int:
    """Submit the script, or run it: at once where there is nothing to wait for, else in an allocation."""
    module = SCHEDULERS[kind]
    if batch_job:
        if not hasattr(module, "submit"):
            raise ConfigurationError(f"batch_job=True: scheduler '{kind}' has no queue; remove it")
        return subprocess.run(module.submit(str(path)), cwd=job.work_dir, check=False).returncode
    inside = not hasattr(module, "allocate") or module.detect(os.environ)
    command = ["bash", str(path)] if inside else module.allocate(job, str(path))
    environment = {**os.environ, **(local.surroundings(job.procs_per_node) if kind == "local" else {})}
    return run_shown(command, job.work_dir, environment)


def run_shown(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Run a command; its output is shown and written to out.log and err.log."""
    with subprocess.Popen(
        command, cwd=folder, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        copies = [
            threading.Thread(target=_copy, args=(stream, shown, folder / name))
            for stream, shown, name in (
                (process.stdout, sys.stdout, "out.log"),
                (process.stderr, sys.stderr, "err.log"),
            )
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.join()
        return process.wait()


def _copy(stream: IO[str] | None, shown: IO[str], path: Path) -> None:
    choose = FrameFilter()
    with path.open("a", encoding="utf-8") as kept:
        for line in stream or ():
            if choose.shows(line):
                shown.write(line)
                shown.flush()
            kept.write(line)
            kept.flush()
