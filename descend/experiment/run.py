"""A run from top to bottom: check the description, lower the graph, open the data, train, evaluate, save."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

from descend.experiment.check import check
from descend.experiment.conduct import Result, Work, conduct
from descend.experiment.experiment import Experiment
from descend.experiment.module_run import batches, run_module, run_seed
from descend.experiment.optimizer import build_optimizer
from descend.experiment.precision import precision_of
from descend.experiment.rule import settings
from descend.experiment.task import GraphTask
from descend.experiment.text import run_text
from descend.graph import Model, TorchModel, Trained, to_text
from descend.lower import lower
from descend.runtime import Process, generator
from descend.train import BatchedIterativeOptimizer, Mode
from descend.train.numerics import Numerics

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import torch

    from descend.data import Batches, DataReader
    from descend.graph import Optimizer
    from descend.train import Trainer

__all__ = ["Result", "run"]


def run(
    trainer: Trainer,
    model: Model,
    data_reader: DataReader,
    optimizer: Optimizer,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
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

    Returns:
        Final weights, history and the reason for stopping.

    Raises:
        ConfigurationError: the description is wrong; nothing was started.
        DataError: a data set or a sample is not what the description says.
        NumericalError: a gradient was not finite; the weights are those before that step.
        Stopped: a signal asked for an end; the state is saved in the run directory.
    """
    experiment = Experiment(trainer, model, data_reader, optimizer)
    if isinstance(model, TorchModel):
        return run_module(experiment, model, run_dir, resume)
    seed = run_seed(trainer, run_dir, resume)
    checked = check(experiment, seed)
    process = Process.here()
    module = lower(checked.plan, partial(generator, seed, "weights"), channels_last=model.channels_last)
    module.to(process.device)
    if model.compile:
        module.compile()
    autocast, scaler = precision_of(model.amp, process.device)
    task = GraphTask(module, checked.plan, seed, autocast)
    rule = build_optimizer(module, checked.plan, optimizer)
    data = {mode: batches(checked.readers[mode.role], trainer, mode, seed, process) for mode in checked.modes}
    work = Work(
        name=model.name or "model0",
        task=task,
        before_part=task.begin,
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
    )
    result = conduct(work, run_dir, resume=resume)
    fields = {name: field.shape for reader in checked.readers.values() for name, field in reader.fields.items()}
    model.trained = Trained(fields, result.weights)
    return result


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
