"""Runs the experiment of some files as LBANN's driver does: files are in the current directory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.callbacks import LoadModel
from descend.callbacks.console import say
from descend.errors import warn
from descend.experiment import Experiment, check_experiment, layer_table
from descend.experiment.text import experiment_of, read_parts
from descend.graph import NoOptimizer
from descend.launch import detect, layout_trainers
from descend.lbann.driver.overrides import override
from descend.train import BatchedIterativeOptimizer, Trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.experiment import Checked
    from descend.lbann.driver.command_line import CommandLine

__all__ = ["free_run_dir", "read_experiment", "run"]


def read_experiment(files: Sequence[str], line: CommandLine) -> Experiment:
    """The experiment that some files describe together, with the changes of the command line.

    Raises:
        TextError: everything that is wrong with the files.
    """
    parts = read_parts(*files, edit=lambda message: override(message, line))
    parts.setdefault("optimizer", NoOptimizer())  # LBANN trains nothing without one
    size = line.get("mini_batch_size")
    if "trainer" not in parts and size is not None:
        parts["trainer"] = Trainer(size, random_seed=line.get("random_seed"))
    experiment = experiment_of(parts, files)
    if (epochs := line.get("num_epochs")) is not None:
        _limit_epochs(experiment.trainer, epochs)
    if (folder := line.get("load_model_weights_dir")) is not None:
        experiment.model.callbacks.insert(0, LoadModel(dirs=folder))  # before what looks at weights
    return experiment


def _limit_epochs(trainer: Trainer, epochs: int) -> None:
    """Let a training algorithm that counts epochs make so many."""
    algorithm = trainer.training_algo
    if isinstance(algorithm, BatchedIterativeOptimizer) and algorithm.epoch_count:
        trainer.training_algo = replace(algorithm, epoch_count=epochs)
    elif algorithm is not None:
        warn(
            f"--num_epochs={epochs} holds for the model's epochs, and the training algorithm '{algorithm.name}' has "
            "a limit of its own"
        )


def run(files: Sequence[str], line: CommandLine) -> None:
    """Carry out the experiment of some files.

    Args:
        files: Prototexts; each part of the experiment in one of them.
        line: What the command line changes.

    Raises:
        As `descend.run`.
    """
    if line.idle:
        say(f"accepted and without effect here: {', '.join(f'--{name}' for name in line.idle)}")
    if line.get("disable_cuda"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is imported
    if (threads := line.get("omp_num_threads")) is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # likewise
    _show_trainers(line)
    experiment = read_experiment(files, line)
    checked = check_experiment(experiment, experiment.trainer.random_seed or 0)
    if line.get("verbose"):
        say(str(layer_table(checked)))
    if line.get("exit_after_setup"):
        _set_up(experiment, checked)
        return
    from descend.experiment.run import run_experiment
    from descend.experiment.runner import RunOptions

    options = RunOptions(free_run_dir(Path.cwd()), procs_per_trainer=line.get("procs_per_trainer"))
    run_experiment(experiment, replace(options, working_dir=Path.cwd()), checked)


def _show_trainers(line: CommandLine) -> None:
    """The lines of LBANN's head from which scripts take the number of trainers."""
    ranks = detect()
    layout = layout_trainers(ranks.world_size, procs_per_trainer=line.get("procs_per_trainer"))
    if ranks.rank == 0:
        say("Trainer settings")
        say(f"  Trainers              : {layout.trainers}")
        say(f"  Processes per trainer : {layout.procs_per_trainer}")


def _set_up(experiment: Experiment, checked: Checked) -> None:
    """Build the model, as a run would, and stop."""
    from descend.experiment.build_experiment import build_graph_run

    run: Any = build_graph_run(experiment, checked=checked)
    say(f"exit after setup: model '{run.name}' is built, nothing was trained")


def free_run_dir(folder: Path) -> Path:
    """A new directory for the results of a run: `descend_run`, or the first of `descend_run_2` and so on."""
    number, path = 1, folder / "descend_run"
    while path.exists():
        number += 1
        path = folder / f"descend_run_{number}"
    return path
