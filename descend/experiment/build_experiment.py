"""Builds the run of an experiment: check the description, lower the graph or take the module, open the data."""

from __future__ import annotations

import copy
import hashlib
import re
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from descend.callbacks.console import say
from descend.data import Batches
from descend.data.loading.torch_data import in_processes
from descend.errors import warn
from descend.experiment.batch_norm import share_unit
from descend.experiment.build import build_run, check_names, say_what_is_skipped
from descend.experiment.build_optimizer import build_graph_optimizer, build_optimizer, optimizer_settings
from descend.experiment.check import check, check_parts
from descend.experiment.cut_layers import cut, cut_weights, needs_whole
from descend.experiment.execution import trainer_seed
from descend.experiment.external_metrics import ExternalMetrics
from descend.experiment.graph_task import GraphTask
from descend.experiment.losses import describe, loss_of
from descend.experiment.metrics import build_metrics
from descend.experiment.module_task import ModuleTask
from descend.experiment.patched_module import WarnUnusedParameters, device_of, patched_for_training
from descend.experiment.runner import RunOptions
from descend.experiment.text import run_text
from descend.graph import Model, TorchModel, to_text
from descend.lower import lower
from descend.runtime import Communicator, generator, stored_seed
from descend.torch_private import compiled_call, set_compiled_call
from descend.train import LTFB, BatchedIterativeOptimizer, Mode
from descend.train.precision import precision_of
from descend.train.run import RunConfig

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Mapping

    from descend.data import OpenReader
    from descend.experiment.check import Checked
    from descend.experiment.experiment import Experiment
    from descend.experiment.runner import TrainerContext
    from descend.graph import Plan
    from descend.lower.module import LoweredModel
    from descend.train import Trainer, TrainingAlgorithm
    from descend.train.run import Run

__all__ = ["build_experiment", "build_graph_run", "copied", "run_seed"]


def copied(experiment: Experiment) -> Experiment:
    """An experiment for another trainer of this process: callbacks and modules have state, so each needs its own."""
    trainer, model = copy.copy(experiment.trainer), copy.copy(experiment.model)
    trainer.callbacks, model.callbacks = copy.deepcopy(trainer.callbacks), copy.deepcopy(model.callbacks)
    if isinstance(model, TorchModel):
        model.module = copy.deepcopy(model.module)
    return replace(experiment, trainer=trainer, model=model)


@contextmanager
def build_experiment(
    experiment: Experiment,
    options: RunOptions,
    context: TrainerContext,
    several: bool = False,
    checked: Checked | None = None,
) -> Generator[Run]:
    """The run of an experiment; nothing is written. A torch module is patched until this ends.

    Args:
        experiment: The description.
        options: Where the run is kept.
        context: The trainer that it is for.
        several: Whether it is one of several; those hold out the same samples.
        checked: What a check of the description gave, with the readers of this run; None checks a graph here.
    """
    if isinstance(experiment.model, TorchModel):
        with _module_run(experiment, experiment.model, options, context, several) as run:
            yield run
    else:
        run = build_graph_run(experiment, options, context, several, checked)
        with _reading(run.data):
            yield run


@contextmanager
def _reading(data: Mapping[Mode, Any]) -> Generator[None]:
    """Worker processes of the feeds end with this."""
    try:
        yield
    finally:
        for feed in data.values():
            feed.close()


def build_graph_run(
    experiment: Experiment,
    options: RunOptions | None = None,
    context: TrainerContext | None = None,
    several: bool = False,
    checked: Checked | None = None,
) -> Run:
    """The run of an experiment whose model is a graph; nothing is written.

    Args:
        experiment: The description.
        options: Where the run is kept; None keeps no files.
        context: The trainer that it is for; None for this process by itself.
        several: Whether it is one of several trainers.
        checked: What a check of the description gave, by the seed of the run; None checks it here.
    """
    trainer, model, options = experiment.trainer, experiment.model, options or RunOptions(keep_files=False)
    world = context.communicator if context else Communicator.current()
    number = context.number if context else 0
    if checked is None:
        checked = check(experiment, run_seed(trainer, options.continued, world))
    whole = checked.seed
    for warning in checked.warnings:
        warn(warning)
    seed = trainer_seed(whole, number) if several else whole
    first = whole if trainer.random_init_trainers_identically else seed
    module = lower(checked.plan, partial(generator, first, "weights"), channels_last=model.channels_last)
    module.to(world.device)
    _cut_layers(experiment, checked.plan, module, world, several)
    if model.compile:
        module.compile()
    autocast, scaler = precision_of(model.amp, world.device)
    place = f"{trainer.name or f'trainer{number}'}/{model.name or 'model0'}"  # where LBANN keeps the files of a model
    external = ExternalMetrics(checked.plan.other_metrics, place)
    task = GraphTask(module, checked.plan, seed, autocast, checked.unit, external)
    optimizer = build_graph_optimizer(module, checked.plan, experiment.optimizer)
    unit = checked.unit or 1
    if number == 0:
        say_what_is_skipped(checked.readers.values())
    data = {mode: _batches(checked.readers[mode.role], experiment, mode, seed, world, unit) for mode in checked.modes}
    computed = Model(0, model.layers, model.weights, model.objective_function, model.metrics, name=model.name)
    settings = {  # of the model only what is computed: not callbacks and epochs
        **_settings(experiment, seed, data),
        **{name: True for name in ("compile", "channels_last") if getattr(model, name)},
        "model (SHA-256)": hashlib.sha256(_renumbered(to_text(computed)).encode()).hexdigest(),
        **optimizer_settings(optimizer),
    }
    metrics = [metric.name for metric in (*checked.plan.metrics, *checked.plan.other_metrics)]
    return build_run(
        _config(experiment, options, seed, settings, metrics),
        task=task,
        optimizer=optimizer,
        data=data,
        world=world,
        scaler=scaler,
        micro_batch_size=trainer.micro_batch_size or "auto",
        callbacks=(*trainer.callbacks, *model.callbacks),
        store=context and context.store,
    )


@contextmanager
def _module_run(
    experiment: Experiment, model: TorchModel, options: RunOptions, context: TrainerContext, several: bool
) -> Generator[Run]:
    """The same for a torch module, which is afterwards as it was, but for what it has learnt."""
    trainer = experiment.trainer
    world = replace(context.communicator, device=device_of(model.module))
    whole = run_seed(trainer, options.continued, world)
    seed = trainer_seed(whole, context.number) if several else whole
    readers = check_parts(experiment, whole)
    objective, measured = loss_of(model.loss), build_metrics(model.measures, model.loss)
    callbacks = (*trainer.callbacks, *model.callbacks)
    check_names(model.module, callbacks, list(measured))
    optimizer = build_optimizer(experiment.optimizer, model.module)
    for part in (objective, *measured.values()):
        part.to(world.device)
    modes = [mode for mode in Mode if mode.role in readers]
    sizes = (trainer.micro_batch_size or None, model.batch_norm_group_size or None)
    unit = share_unit(model.module, *sizes, trainer.mini_batch_size, world.world_size)
    if context.number == 0:
        say_what_is_skipped(readers.values())
    data = {mode: _batches(readers[mode.role], experiment, mode, seed, world, unit) for mode in modes}
    autocast, scaler = precision_of(model.amp, world.device)
    task = ModuleTask(model.module, objective, measured, model.targets, autocast)
    algorithm = _algorithm(experiment)
    if isinstance(algorithm, LTFB):
        algorithm.check(list(measured), list(readers))
    settings = {
        **_settings(experiment, seed, data),
        "loss": describe(model.loss),
        **({"compile": True} if model.compile else {}),
        **optimizer_settings(optimizer),
    }
    patching = patched_for_training(task, seed, next(iter(data.values())), *sizes, world)
    with _reading(data), patching as patches, _compiled(model):
        task.patch(patches)
        yield build_run(
            _config(experiment, options, seed, settings, list(measured)),
            task=task,
            optimizer=optimizer,
            data=data,
            world=world,
            scaler=scaler,
            micro_batch_size=trainer.micro_batch_size or "auto",
            callbacks=(*callbacks, WarnUnusedParameters()),
            store=context.store,
        )


def _renumbered(text: str) -> str:
    """A model's text with the layers that were not named counted from 1, whatever was described before them."""
    numbers: dict[str, int] = {}
    return re.sub(r'"layer(\d+)"', lambda found: f'"layer{numbers.setdefault(found[1], len(numbers) + 1)}"', text)


def _algorithm(experiment: Experiment) -> TrainingAlgorithm:
    return experiment.trainer.training_algo or BatchedIterativeOptimizer()


def _config(
    experiment: Experiment, options: RunOptions, seed: int, settings: Mapping[str, Any], metrics: list[str]
) -> RunConfig:
    """The plain values of the run."""
    model = experiment.model
    return RunConfig(
        name=model.name or "model0",
        seed=seed,
        algorithm=_algorithm(experiment),
        default_epochs=model.epochs,
        settings=settings,
        files={"experiment.prototext": run_text(experiment)},
        metrics=metrics,
        summary_dir=model.summary_dir or "tensorboard",
        resume=options.resume,
        reset_optimizer=options.reset_optimizer,
        weights_only=options.weights_only,
        check_ranks=options.check_ranks,
        say=say,
    )


def _settings(experiment: Experiment, seed: int, data: Mapping[Mode, Batches]) -> dict[str, Any]:
    """What a continuation is compared with."""
    trainer, model = experiment.trainer, experiment.model
    return {
        "batch_size": trainer.mini_batch_size,
        "seed": seed,
        "samples": data[Mode.TRAIN].num_samples if Mode.TRAIN in data else None,
        "stop": f"{_algorithm(experiment)!r}, {model.epochs} epochs by default",
        "precision": repr(model.amp) if model.amp and model.amp.enabled else None,
        "micro_batch_size": trainer.micro_batch_size or None,
        "batch_norm_group_size": model.batch_norm_group_size or None,
    }


@contextmanager
def _compiled(model: TorchModel) -> Generator[None]:
    """The module compiled, where that is wanted, until this ends."""
    if not model.compile:
        yield
        return
    module: Any = model.module
    before = compiled_call(module)
    # Layers that draw or count by rules of the run, with NumPy: no compiler is to look into those.
    own = [(part, part.forward) for part in module.modules() if "forward" in vars(part)]
    for part, forward in own:
        part.forward = torch.compiler.disable(forward)
    module.compile()
    try:
        yield
    finally:
        set_compiled_call(module, before)
        for part, forward in own:
            part.forward = forward


def run_seed(trainer: Trainer, continued: str | os.PathLike[str] | None, process: Communicator) -> int:
    """The seed that is given, else that of the run which is continued, else one from the clock; equal on all ranks."""
    return trainer.random_seed or process.on_rank_zero(lambda: stored_seed(continued) or time.time_ns() % 2**31)


def _cut_layers(experiment: Experiment, plan: Plan, module: LoweredModel, world: Communicator, several: bool) -> None:
    """Cut the weights of layers with a model-parallel layout over ranks, unless something needs them whole."""
    if not (names := cut_weights(plan, world.world_size)):
        return
    if (reason := needs_whole(experiment, plan, names, several)) is not None:
        say(f"{len(names)} weights with a model-parallel layout stay whole on each rank: {reason} needs that")
        return
    cut(module, names, world)


def _batches(
    reader: OpenReader, experiment: Experiment, mode: Mode, seed: int, process: Communicator, unit: int
) -> Batches:
    """Mini-batches of one mode; samples are shuffled in training alone, where the reader says so."""
    trainer, shuffle = experiment.trainer, mode is Mode.TRAIN and reader.shuffle
    workers = getattr(experiment.data_reader, "workers", 0)
    ahead = 0 if trainer.serialize_io or workers else 2
    size, rank, ranks = trainer.mini_batch_size, process.rank, process.world_size
    pooled = in_processes(reader, workers) if workers else None
    stream, close = (pooled.stream, pooled.close) if pooled else (None, None)
    made = Batches(reader, size, seed, shuffle, rank, ranks, ahead, stream, unit=unit, close=close)
    made.check_first_sample()  # a damaged file ends the run here, before anything is written
    if mode is Mode.TRAIN:
        for note in made.notes:
            warn(note)
    return made
