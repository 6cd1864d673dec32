"""A run of a model that is a torch module: the parts of `run`, with the module in the place of a graph."""

from __future__ import annotations

import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from descend.callbacks.name_fields import problems as unknown_names
from descend.data import Batches
from descend.errors import ConfigurationError
from descend.experiment import rule
from descend.experiment.batch_norm import share_unit
from descend.experiment.check import check_parts
from descend.experiment.losses import describe, loss_of
from descend.experiment.metrics import build_metrics
from descend.experiment.module_task import ModuleTask
from descend.experiment.patched_module import device_of, patched_for_training
from descend.experiment.population import TrainerContext, trainer_seed
from descend.experiment.precision import precision_of
from descend.experiment.runner import Work
from descend.experiment.text import run_text
from descend.experiment.unused_parameters import WarnUnusedParameters
from descend.runtime import Communicator, stored_seed
from descend.train import LTFB, BatchedIterativeOptimizer, Mode
from descend.train.layers import layer_names
from descend.train.numerics import Numerics

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable

    from descend.data import OpenReader
    from descend.experiment.experiment import Experiment
    from descend.graph import TorchModel
    from descend.train import Trainer

__all__ = ["batches", "check_names", "prepare_module", "run_seed"]


@contextmanager
def prepare_module(
    experiment: Experiment,
    model: TorchModel,
    continued: str | os.PathLike[str] | None = None,
    seat: TrainerContext | None = None,
) -> Generator[Work]:
    """See `descend.experiment.run.prepare`; the module is as it was when this ends, but for what it has learnt."""
    trainer = experiment.trainer
    process = seat.process if seat else Communicator.current(device_of(model.module))
    whole = run_seed(trainer, continued, process)
    seed = trainer_seed(whole, seat.number) if seat else whole
    readers = check_parts(experiment, whole)
    objective, measured = loss_of(model.loss), build_metrics(model.measures, model.loss)
    callbacks = (*trainer.callbacks, *model.callbacks)
    check_names(model.module, callbacks, list(measured))
    made = rule.build(experiment.optimizer, model.module)
    for part in (objective, *measured.values()):
        part.to(process.device)
    modes = [mode for mode in Mode if mode.role in readers]
    sizes = (trainer.micro_batch_size or None, model.batch_norm_group_size or None)
    unit = share_unit(model.module, *sizes, trainer.mini_batch_size, process.world_size)
    data = {mode: batches(readers[mode.role], trainer, mode, seed, process, unit) for mode in modes}
    autocast, scaler = precision_of(model.amp, process.device)
    task = ModuleTask(model.module, objective, measured, model.targets, autocast)
    algorithm = trainer.training_algo or BatchedIterativeOptimizer()
    if isinstance(algorithm, LTFB):
        algorithm.check(list(measured), list(readers))
    settings = {
        "batch_size": trainer.mini_batch_size,
        "seed": seed,
        "samples": data[Mode.TRAIN].num_samples if Mode.TRAIN in data else None,
        "stop": f"{algorithm!r}, {model.epochs} epochs by default",
        "loss": describe(model.loss),
        "precision": repr(model.amp) if model.amp and model.amp.enabled else None,
        "micro_batch_size": trainer.micro_batch_size or None,
        "batch_norm_group_size": model.batch_norm_group_size or None,
        **({"compile": True} if model.compile else {}),
        **rule.settings(made),
    }
    with patched_for_training(task, seed, next(iter(data.values())), *sizes, process) as training, _compiled(model):
        yield Work(
            name=model.name,
            task=task,
            before_part=training.begin,
            unit=training.unit,
            micro_batch_size=trainer.micro_batch_size or "auto",
            numerics=Numerics(scaler=scaler),
            optimizer=made,
            data=data,
            process=process,
            algorithm=algorithm,
            seed=seed,
            callbacks=(*callbacks, WarnUnusedParameters()),
            default_epochs=model.epochs,
            metrics=tuple(measured),
            files={"experiment.prototext": run_text(experiment)},
            settings=settings,
            running=training.running,
            in_turns=training.in_turns,
        )


@contextmanager
def _compiled(model: TorchModel) -> Generator[None]:
    """The module compiled, where that is wanted, until this ends."""
    if not model.compile:
        yield
        return
    module: Any = model.module
    before = module._compiled_call_impl  # what Module.compile sets, and nothing takes away
    # Layers that draw or count by rules of the run, with NumPy: no compiler is to look into those.
    own = [(part, part.forward) for part in module.modules() if "forward" in vars(part)]
    for part, forward in own:
        part.forward = torch.compiler.disable(forward)
    module.compile()
    try:
        yield
    finally:
        module._compiled_call_impl = before
        for part, forward in own:
            part.forward = forward


def run_seed(trainer: Trainer, continued: str | os.PathLike[str] | None, process: Communicator) -> int:
    """The seed that is given, else that of the run which is continued, else one from the clock; equal on all ranks."""
    return trainer.random_seed or process.on_rank_zero(lambda: stored_seed(continued) or time.time_ns() % 2**31)


def check_names(module: torch.nn.Module, callbacks: Iterable[Any], metrics: Iterable[str]) -> None:
    """Refuse names in callbacks that nothing has.

    Raises:
        ConfigurationError: all of them.
    """
    weights = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    known = {"layer": layer_names(module), "weights": weights, "metric": metrics}
    if found := unknown_names(callbacks, known):
        raise ConfigurationError(found)


def batches(reader: OpenReader, trainer: Trainer, mode: Mode, seed: int, process: Communicator, unit: int) -> Batches:
    """Mini-batches of one mode; samples are shuffled in training alone, where the reader says so."""
    shuffle = mode is Mode.TRAIN and reader.shuffle
    ahead = 0 if trainer.serialize_io else 2
    made = Batches(reader, trainer.mini_batch_size, seed, shuffle, process.rank, process.world_size, ahead, unit=unit)
    made.check_first_sample()  # a damaged file ends the run here, before anything is written
    if mode is Mode.TRAIN:
        for note in made.notes:
            warnings.warn(note, stacklevel=3)
    return made
