"""Explains an experiment's optimizer: rule, options and learning rates of all weights, without training."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from descend.callbacks.learning_rate import AdaptiveLearningRate, OptimizerwiseAdaptiveLearningRate, rehearse
from descend.experiment.build_optimizer import build_graph_optimizer
from descend.experiment.check import check
from descend.lower import lower
from descend.optim.explain import Explanation, ExplanationRow, explain, points
from descend.runtime import generator
from descend.train import KFAC, AnyOf, BatchedIterativeOptimizer, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from descend.experiment.experiment import Experiment
    from descend.graph import Plan

__all__ = ["explain_experiment"]

UPDATES = 1000  # length of a curve if the run has no limit


def explain_experiment(experiment: Experiment) -> Explanation:
    """One row per weights, in the order of the layers and with frozen ones, totals, and the learning rates over the run
    if callbacks change them.

    Raises:
        ConfigurationError: The description is wrong.
        DataError: Data are missing, damaged or empty; their headers decide the shapes.
    """
    checked = check(experiment)
    plan = checked.plan
    module = lower(plan, partial(generator, 0, "weights"))
    optimizer = build_graph_optimizer(module, plan, experiment.optimizer)
    for group in optimizer.param_groups:
        group["reasons"] = [_reason(plan, name) for name in group["param_names"]]
    explained = explain(optimizer)
    rows = {row.name: row for row in explained.rows}
    tensors = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    ordered = [rows.get(name) or _frozen(name, tensors[name]) for name in plan.weights]
    rates = {name: rows[name].lr for name, _ in module.named_parameters() if name in rows}
    training = checked.readers.get("train")  # a model that is evaluated alone has none
    curves = _curves(experiment, rates, len(training)) if training else ()
    title = experiment.model.name or "the model"
    return replace(explained, title=title, rows=tuple(ordered), curves=curves, notes=_notes(experiment))


def _curves(
    experiment: Experiment, rates: Mapping[str, float], samples: int
) -> tuple[tuple[str, tuple[tuple[int, float], ...]], ...]:
    """The learning rates that callbacks change, one curve for all weights that share it."""
    per_epoch = math.ceil(samples / experiment.trainer.mini_batch_size)
    columns = points(_updates(experiment, per_epoch))
    shared: dict[tuple[float, ...], list[str]] = {}
    for name, rehearsed in rehearse(experiment.model.callbacks, rates, per_epoch, columns).items():
        shared.setdefault(tuple(rehearsed), []).append(name)
    return tuple(
        (f"rate of {_listed(names, len(rates))}", tuple(zip(columns, rehearsed, strict=True)))
        for rehearsed, names in shared.items()
        if len(set(rehearsed)) > 1
    )


def _updates(experiment: Experiment, per_epoch: int) -> int:
    """Length of the curves: the whole run if it is limited by a number of epochs or updates."""
    algorithm = experiment.trainer.training_algo or BatchedIterativeOptimizer()
    if isinstance(algorithm, KFAC):
        algorithm = algorithm.first_order_optimizer
    epochs = algorithm.epochs(experiment.model.epochs)
    limits = [] if epochs is None else [epochs * per_epoch]
    if isinstance(algorithm, BatchedIterativeOptimizer):
        criterion = algorithm.stopping(experiment.model.epochs)
        parts = criterion.criteria if isinstance(criterion, AnyOf) else (criterion,)
        limits += [part.steps for part in parts if isinstance(part, Steps)]
    return min(limits, default=UPDATES) or UPDATES


def _listed(names: Sequence[str], total: int, most: int = 4) -> str:
    if len(names) == total:
        return "all weights"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _notes(experiment: Experiment) -> tuple[str, ...]:
    """Notes about callbacks whose learning rates depend on measurements."""
    kinds = (AdaptiveLearningRate, OptimizerwiseAdaptiveLearningRate)
    return tuple(
        f"{type(callback).__name__} changes learning rates by measurements, which are not in the curves"
        for callback in experiment.model.callbacks
        if isinstance(callback, kinds)
    )


def _reason(plan: Plan, name: str) -> str:
    return "the default optimizer" if plan.weights[name].optimizer is None else "the optimizer of these weights"


def _frozen(name: str, p: Tensor) -> ExplanationRow:
    """The row of weights without an optimizer: with NoOptimizer, of a frozen layer, or running statistics."""
    dtype = str(p.dtype).removeprefix("torch.")
    return ExplanationRow(name, tuple(p.shape), dtype, "none", 0.0, 1.0, 0.0, "rule", None, 0, "frozen")
