"""A run from top to bottom: check the description, lower the graph, open the data, train, evaluate, save."""

from __future__ import annotations

import copy
import hashlib
import warnings
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from descend.callbacks.console import say
from descend.experiment.check import check
from descend.experiment.experiment import Experiment
from descend.experiment.external_metrics import ExternalMetrics
from descend.experiment.graph_task import GraphTask
from descend.experiment.module_run import batches, prepare_module, run_seed
from descend.experiment.optimizer import build_optimizer
from descend.experiment.population import TrainerContext, assign_ranks, execute_population, trainer_seed
from descend.experiment.precision import precision_of
from descend.experiment.ranks import mute_other_ranks, running_of
from descend.experiment.rule import settings
from descend.experiment.runner import Result, Work, execute
from descend.experiment.text import run_text
from descend.graph import Model, TorchModel, Trained, to_text
from descend.lower import lower
from descend.runtime import Communicator, generator, process_group
from descend.strict_keywords import strict_keywords
from descend.train import BatchedIterativeOptimizer, Mode
from descend.train.numerics import Numerics

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import torch

    from descend.data import Batches, DataReader, OpenReader
    from descend.graph import Optimizer
    from descend.train import Trainer

__all__ = ["Result", "prepare", "run"]


@strict_keywords()
def run(
    trainer: Trainer,
    model: Model,
    data_reader: DataReader,
    optimizer: Optimizer,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    reset_optimizer: bool = False,
    weights_only: bool = False,
    trainers: int | None = None,
    procs_per_trainer: int | None = None,
) -> Result:
    """Train `model` and evaluate it on the test samples.

    Args:
        trainer: Mini-batch size, seed and training algorithm.
        model: Layers, weights, objective, metrics and callbacks; or any torch module, by `descend.Model.from_torch`.
        data_reader: The readers of all roles, such as `descend.zoo.digits()`.
        optimizer: The rule for weights without one of their own.
        run_dir: A new or empty directory for the results; None makes a dated one.
        resume: Continue the newest good checkpoint of `run_dir`; without one, begin. What is set differently now is
            shown, and applied or refused.
        reset_optimizer: With `resume`, continue the checkpoint with an optimizer without state.
        weights_only: With `resume`, begin anew with those weights of the checkpoint that fit by name and shape.
        trainers: How many train the model, each by itself but for what the algorithm exchanges; None for one a block of
            ranks. `docs/trainers.md` says more.
        procs_per_trainer: Ranks of a block; None for LBANN_PROCS_PER_TRAINER or all.

    Returns:
        Final weights, history and the reason for stopping.

    Raises:
        ConfigurationError: the description is wrong; nothing was started.
        DataError: a data set or a sample is not what the description says.
        NumericalError: a gradient was not finite; the weights are those before that step.
        Stopped: a signal asked for an end; the state is saved in the run directory.
    """
    experiment = Experiment(trainer, model, data_reader, optimizer)
    continued = run_dir if resume else None
    made: list[Work] = []
    with ExitStack() as stack:
        world = stack.enter_context(process_group())
        stack.enter_context(mute_other_ranks(world))
        shares = assign_ranks(world, trainers, procs_per_trainer, continued)
        if shares.trainers > 1:  # a seed from the clock is one for all
            trainer = replace(trainer, random_seed=run_seed(trainer, continued, world))
            experiment = replace(experiment, trainer=trainer)
        others = len(shares.of_rank(world.rank)) - 1  # copied while nobody trains them
        experiments = iter([experiment, *(copied(experiment) for _ in range(others))])

        def make(seat: TrainerContext | None = None) -> Work:
            own = next(experiments)
            if isinstance(own.model, TorchModel):
                work = stack.enter_context(prepare_module(own, own.model, continued, seat))
            else:
                work = prepare(own, continued, seat)
            made.append(replace(work, reset_optimizer=reset_optimizer, weights_only=weights_only))
            return made[-1]

        if shares.trainers == 1:
            result = execute(make(), run_dir, resume=resume)
        else:
            result = execute_population(make, shares, world, trainer.random_seed or 0, run_dir, resume=resume)
    if isinstance(made[0].task, GraphTask) and (form := made[0].task.form()):
        changes = ", ".join(f"{name} is {kind} now" for name, kind in form.items())
        say(f"the model was changed: {changes}; it is in result.module")
        return result  # the description does not describe these weights
    readers = [cast("OpenReader", cast("Batches", feed).reader) for feed in made[0].data.values()]
    fields = {name: field.shape for reader in readers for name, field in reader.fields.items()}
    model.trained = Trained(fields, result.weights)
    return result


def copied(experiment: Experiment) -> Experiment:
    """An experiment for another trainer of this process: callbacks and modules remember, so each needs its own."""
    trainer, model = copy.copy(experiment.trainer), copy.copy(experiment.model)
    trainer.callbacks, model.callbacks = copy.deepcopy(trainer.callbacks), copy.deepcopy(model.callbacks)
    if isinstance(model, TorchModel):
        model.module = copy.deepcopy(model.module)
    return replace(experiment, trainer=trainer, model=model)


def prepare(
    experiment: Experiment, continued: str | os.PathLike[str] | None = None, seat: TrainerContext | None = None
) -> Work:
    """Check an experiment and make everything that its run needs; nothing is written.

    Args:
        experiment: The run.
        continued: The directory of the run that it continues, whose seed it takes if it has none of its own.
        seat: Which of several trainers this is; the samples that are held out are the same for all of them.
    """
    trainer, model, optimizer = experiment.trainer, experiment.model, experiment.optimizer
    process = seat.process if seat else Communicator.current()
    whole = run_seed(trainer, continued, process)
    checked = check(experiment, whole)
    for warning in checked.warnings:
        warnings.warn(warning, stacklevel=2)
    seed = trainer_seed(whole, seat.number) if seat else whole
    first = whole if trainer.random_init_trainers_identically else seed
    module = lower(checked.plan, partial(generator, first, "weights"), channels_last=model.channels_last)
    module.to(process.device)
    if model.compile:
        module.compile()
    autocast, scaler = precision_of(model.amp, process.device)
    task = GraphTask(module, checked.plan, seed, autocast)
    rule = build_optimizer(module, checked.plan, optimizer)
    unit = checked.unit or 1
    data = {mode: batches(checked.readers[mode.role], trainer, mode, seed, process, unit) for mode in checked.modes}
    return Work(
        name=model.name or "model0",
        task=task,
        before_part=task.begin,
        outside=ExternalMetrics(checked.plan.other_metrics, _place(trainer, model, seat), process),
        metrics=[metric.name for metric in (*checked.plan.metrics, *checked.plan.other_metrics)],
        optimizer=rule,
        data=data,
        process=process,
        micro_batch_size=trainer.micro_batch_size or "auto",
        unit=checked.unit,
        numerics=Numerics(scaler=scaler),
        algorithm=trainer.training_algo or BatchedIterativeOptimizer(),
        seed=seed,
        callbacks=(*trainer.callbacks, *model.callbacks),
        summary_dir=model.summary_dir,
        default_epochs=model.epochs,
        files={"experiment.prototext": run_text(experiment)},
        settings=_settings(experiment, seed, rule, data),
        running=running_of(checked.plan),
    )


def _place(trainer: Trainer, model: Model, seat: TrainerContext | None) -> str:
    """Where LBANN keeps the files of a model."""
    return f"{trainer.name or f'trainer{seat.number if seat else 0}'}/{model.name or 'model0'}"


def _settings(
    experiment: Experiment, seed: int, rule: torch.optim.Optimizer, data: Mapping[Mode, Batches]
) -> dict[str, Any]:
    """What a continuation is compared with. Of the model only what is computed counts: not callbacks and epochs."""
    model = experiment.model
    computed = Model(0, model.layers, model.weights, model.objective_function, model.metrics, name=model.name)
    algorithm = experiment.trainer.training_algo or BatchedIterativeOptimizer()
    return {
        "batch_size": experiment.trainer.mini_batch_size,
        "seed": seed,
        "samples": data[Mode.TRAIN].num_samples if Mode.TRAIN in data else None,
        "stop": f"{algorithm!r}, {model.epochs} epochs by default",
        "precision": repr(model.amp) if model.amp and model.amp.enabled else None,
        "micro_batch_size": experiment.trainer.micro_batch_size or None,
        "batch_norm_group_size": model.batch_norm_group_size or None,
        **{name: True for name in ("compile", "channels_last") if getattr(model, name)},
        "model (SHA-256)": hashlib.sha256(to_text(computed).encode()).hexdigest(),
        **settings(rule),
    }
