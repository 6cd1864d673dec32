"""`lbann.run`: writes an experiment and the script that starts the driver on it, and runs or submits that script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.arguments import check_choice, check_path, require
from descend.errors import ConfigurationError
from descend.experiment.launcher import SCHEDULERS, detected, job_folder
from descend.launch.job import check_environment, check_words, quoted
from descend.lbann.core.features import lbann_exe as _driver
from descend.lbann.launcher.batch_script import BatchScript, words
from descend.lbann.proto import save_prototext
from descend.lbann.util import nvprof_command

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

__all__ = ["BatchScript", "make_batch_script", "run"]


def run(
    trainer: Any,
    model: Any,
    data_reader: Any,
    optimizer: Any,
    work_dir: str | os.PathLike[str] | None = None,
    proto_file_name: str | None = None,
    nodes: int = 1,
    procs_per_node: int = 1,
    time_limit: float | None = None,
    scheduler: str | None = None,
    job_name: str = "lbann",
    partition: str | None = None,
    account: str | None = None,
    reservation: str | None = None,
    launcher: str | None = None,
    launcher_args: str | Iterable[str] = (),
    lbann_exe: str | None = None,
    lbann_args: str | Iterable[str] = (),
    procs_per_trainer: int | None = None,
    environment: Mapping[str, Any] | None = None,
    overwrite_script: bool = False,
    setup_only: bool = False,
    batch_job: bool = False,
    nvprof: bool = False,
    nvprof_output_name: str | None = None,
    binary_protobuf: bool = False,
    experiment_dir: str | os.PathLike[str] | None = None,
) -> int:
    """Run the driver on an experiment, in a folder of its own.

    The folder gets `experiment.prototext`, `batch.sh`, `out.log` and `err.log`. Outside of a scheduler's allocation
    the script runs here, one process without any launcher. Other arguments are those of `make_batch_script`.

    Args:
        trainer: A trainer, or its message; `model`, `data_reader` and `optimizer` likewise.
        work_dir: The folder; None makes a dated one in the folder LBANN_EXPERIMENT_DIR, or else here.
        proto_file_name: Name of the experiment's file in it; `experiment.prototext`, or `.protobin`, without one.
        lbann_exe: Command of the driver, as a shell takes it.
        lbann_args: Its arguments; joined with spaces, without quotes.
        procs_per_trainer: Processes of one trainer; all of them without it.
        overwrite_script: Whether a `batch.sh` that exists is replaced.
        setup_only: Write the files and start nothing.
        batch_job: Submit the job and do not wait for it.
        nvprof: Whether the driver runs under NVIDIA's profiler, whose file nvprof_output_name is.
        binary_protobuf: Write the experiment in Protobuf's binary form.
        experiment_dir: Older name of work_dir.

    Returns:
        The exit status of the driver, or that of the submission.

    Raises:
        ConfigurationError: as a problem says: of the script, the scheduler, a folder, or a reader that starts a run.
    """
    _refuse_within_driver()
    kind = detected() if scheduler is None else scheduler
    _check(kind, job_name, work_dir=work_dir or experiment_dir)
    folder = job_folder(work_dir or experiment_dir, job_name, nodes, procs_per_node)
    file = folder / (proto_file_name or f"experiment.proto{'bin' if binary_protobuf else 'text'}")
    if binary_protobuf and "protobin" not in file.name:
        raise ConfigurationError(
            f"proto_file_name={file.name!r}: the driver reads binary files by 'protobin' in the name"
        )
    wanted = (partition, account, reservation, launcher, launcher_args, environment)
    script = make_batch_script(folder, nodes, procs_per_node, time_limit, kind, job_name, *wanted)
    flags = [] if procs_per_trainer is None else [f"--procs_per_trainer={procs_per_trainer}"]
    profiled = list(map(quoted, nvprof_command(folder, nvprof_output_name))) if nvprof else []
    program = [*profiled, lbann_exe or _driver(), *words(lbann_args), f"--prototext={quoted(str(file))}", *flags]
    script.add_parallel_command(program)
    if batch_job:
        script.check_queue()
    if script.path.exists() and not overwrite_script:
        raise ConfigurationError(f"{script.path} exists already: pass overwrite_script=True, or another work_dir")
    _make(folder)
    parts = {"trainer": trainer, "model": model, "data_reader": data_reader, "optimizer": optimizer}
    save_prototext(file, binary=binary_protobuf or "protobin" in file.name, **parts)
    if setup_only:
        script.write()
        return 0
    return script.submit() if batch_job else script.run()


def make_batch_script(
    work_dir: str | os.PathLike[str] | None = None,
    nodes: int = 1,
    procs_per_node: int = 1,
    time_limit: float | None = None,
    scheduler: str | None = None,
    job_name: str = "lbann",
    partition: str | None = None,
    account: str | None = None,
    reservation: str | None = None,
    launcher: str | None = None,
    launcher_args: str | Iterable[str] = (),
    environment: Mapping[str, Any] | None = None,
    script_file: str | os.PathLike[str] | None = None,
) -> BatchScript:
    """A script of a job, without commands.

    Args:
        work_dir: Folder of the job; None makes the name of a dated one.
        nodes: Number of machines.
        procs_per_node: Processes on each.
        time_limit: Minutes; for the scheduler, and without effect here.
        scheduler: slurm, lsf, flux, pjm, openmpi or local; None for the one in whose allocation this process is.
        job_name: Name of the job.
        partition: Queue.
        account: Account that is charged.
        reservation: Name of a reservation.
        launcher: Program that starts the processes; the scheduler's own without one.
        launcher_args: Its arguments; joined with spaces, without quotes.
        environment: Environment variables of the job.
        script_file: The script; batch.sh in the folder without one.

    Raises:
        ConfigurationError: the scheduler is unknown, or a value could not stand on one line of a script.
    """
    kind = detected() if scheduler is None else scheduler
    _check(kind, job_name, work_dir=work_dir, script_file=script_file)
    folder = job_folder(work_dir or None, job_name, nodes, procs_per_node)
    options = {"partition": partition, "account": account, "reservation": reservation}
    script = BatchScript(kind, folder, nodes, procs_per_node, time_limit, job_name, **options)
    script.launcher, script.launcher_args = launcher, words(launcher_args)
    script.path = Path(script_file).absolute() if script_file else folder / "batch.sh"
    require(script.problems(), check_environment(environment or {}))
    for name, value in (environment or {}).items():
        script.add_export(name, value)
    return script


def _check(scheduler: str, job_name: str, **paths: str | os.PathLike[str] | None) -> None:
    """Raise ConfigurationError unless the scheduler is known, the name is one line, and the paths are some."""
    wrong = [check_path(name, path or None, also=(None,)) for name, path in paths.items()]
    require(check_choice("scheduler", scheduler, SCHEDULERS), check_words({"job_name": job_name}), *wrong)


def _refuse_within_driver() -> None:
    """Refuse a run within the import of a reader's module, which would start drivers without end.

    Raises:
        ConfigurationError: a reader of this driver is importing a module.
    """
    from descend.data.formats.python_module import module_in_import  # not for scripts that only describe

    if (module := module_in_import()) is not None:
        raise ConfigurationError(
            f"the driver imports '{module}' for its reader, and that starts another run: put what is not for the "
            "reader under  if __name__ == '__main__':"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"work_dir {folder} cannot be created: {error.strerror}; choose another") from error
