"""A run from top to bottom: check the description, lower the graph, open the data, train, evaluate, save."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch


from descend.callbacks import ProgressBar
from descend.data import Batches
from descend.errors import DescendError, Stopped
from descend.experiment.check import check
from descend.experiment.experiment import Experiment
from descend.experiment.optimizer import build_optimizer
from descend.experiment.task import GraphTask
from descend.experiment.text import experiment_text
from descend.lower import lower
from descend.runtime import Process, RunDirectory, StopRequests, save_checkpoint
from descend.train import BatchedIterativeOptimizer, Callbacks, Event, Mode
from descend.train.loop import Session, evaluate

if TYPE_CHECKING:
    from pathlib import Path

    from descend.data import DataReader
    from descend.graph import Model, Optimizer
    from descend.train import Trainer

__all__ = ["Result", "run"]


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        weights: Every weights object by name, on the CPU.
        history: One row for each pass over samples, as in `metrics.jsonl`.
        reason: Why training stopped, a sentence.
        run_dir: Where description, rows and checkpoints lie.
        module: The trained module.
        steps: Updates applied.
        samples: How many samples there are of each mode.
    """

    weights: dict[str, torch.Tensor]
    history: list[dict[str, Any]]
    reason: str
    run_dir: Path
    module: torch.nn.Module
    steps: int
    samples: dict[str, int]


def run(
    trainer: Trainer,
    model: Model,
    data_reader: DataReader,
    optimizer: Optimizer,
    run_dir: str | os.PathLike[str] | None = None,
) -> Result:
    """Train `model` and evaluate it on the test samples.

    Args:
        trainer: Mini-batch size, seed and training algorithm.
        model: Layers, weights, objective, metrics and callbacks.
        data_reader: The readers of all roles, such as `descend.zoo.digits()`.
        optimizer: The rule for weights without one of their own.
        run_dir: A new or empty directory for the results; None makes a dated one.

    Returns:
        Final weights, history and the reason for stopping.

    Raises:
        ConfigurationError: the description is wrong; nothing was started.
        DataError: a data set or a sample is not what the description says.
        NumericalError: a gradient was not finite; the weights are those before that step.
        Stopped: a signal asked for an end; the state is saved in the run directory.
    """
    experiment = Experiment(trainer, model, data_reader, optimizer)
    checked = check(experiment)
    seed = trainer.random_seed or time.time_ns() % 2**31
    process = Process.here()

    module = lower(checked.plan, seed).to(process.device)
    data = {mode: _batches(checked.readers[mode.role], trainer, mode, seed, process) for mode in _modes(checked.readers)}
    for batches in data.values():
        batches.check_first_sample()
    directory = RunDirectory(run_dir, name=model.name or "model0")
    directory.write_text("experiment.prototext", experiment_text(experiment))
    directory.write_json("run.json", _facts(seed, experiment))

    algorithm = trainer.training_algo or BatchedIterativeOptimizer()
    with StopRequests() as requests:
        session = Session(
            name=model.name or "model0",
            task=GraphTask(module, checked.plan),
            optimizer=build_optimizer(module, checked.plan, optimizer),
            data=data,
            process=process,
            callbacks=Callbacks(_callbacks(model)),
            epochs=algorithm.epochs(model.epochs),
            stop_requested=requests.requested,
            record=directory.append_row,
        )
        reason = _carry_out(session, algorithm, directory, seed)
    weights = {name: tensor.detach().cpu().clone() for name, tensor in module.named_weights().items()}
    return Result(weights, session.history, reason, directory.path, module, session.contexts[Mode.TRAIN].step)


def _modes(readers: Mapping[str, Reader]) -> list[Mode]:
    return [mode for mode in Mode if mode.role in readers]


def _batches(reader: Reader, trainer: Trainer, mode: Mode, seed: int, process: Process) -> Batches:
    """Mini-batches of one mode; samples are shuffled in training alone, as the reader says."""
    shuffle = mode is Mode.TRAIN and reader.shuffle
    return Batches(reader, trainer.mini_batch_size, seed, shuffle, process.rank, process.ranks)


def _callbacks(model: Model) -> tuple[Callback, ...]:
    """The model's callbacks, and on a terminal a progress bar if it has none."""
    given = tuple(model.callbacks)
    return given if any(isinstance(callback, ProgressBar) for callback in given) else (*given, ProgressBar())


def _facts(seed: int, experiment: Experiment) -> dict[str, Any]:
    """What is needed to repeat the run, beside its text."""
    return {
        "descend": version("descend"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "command": sys.argv,
        "random_seed": seed,
        "mini_batch_size": experiment.trainer.mini_batch_size,
    }


def _carry_out(session: Session, algorithm: TrainingAlgorithm, directory: RunDirectory, seed: int) -> str:
    """Train, evaluate the test samples and save; on a signal, save and say so."""
    reason = "ended by an error"
    session.callbacks.fire(Event.BEFORE_RUN, session.view())
    try:
        reason = algorithm.apply(session)
        session.callbacks.fire(Event.AFTER_TRAINING, session.view(reason))
        if Mode.TEST in session.data:
            evaluate(session, Mode.TEST)
        _save(session, directory, seed, reason)
    except Stopped as stopped:
        reason = str(stopped)
        path = _save(session, directory, seed, reason)
        raise Stopped(f"{reason}; everything is saved in {path}") from None
    finally:
        session.callbacks.fire(Event.AFTER_RUN, session.view(reason))
    return reason


def _save(session: Session, directory: RunDirectory, seed: int, reason: str) -> Path:
    """Write the checkpoint of this moment."""
    tensors, plain = flatten(session.optimizer.state_dict())
    state = {
        "contexts": {mode.value: context.state() for mode, context in session.contexts.items()},
        "random_seed": seed,
        "reason": reason,
        "optimizer": plain,
    }
    step = session.contexts[Mode.TRAIN].step
    weights = {**session.task.module.named_weights(), **dict(session.task.module.named_buffers())}
    return save_checkpoint(directory.checkpoints, step, weights, tensors, state)
