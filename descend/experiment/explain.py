"""What an experiment's optimizer does to each weights object, without training and without reading samples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from descend.experiment.check import check
from descend.experiment.optimizer import build_optimizer
from descend.lower import lower
from descend.optim.explain import Explanation, Row, explain
from descend.runtime import generator

if TYPE_CHECKING:
    from torch import Tensor

    from descend.experiment.experiment import Experiment
    from descend.graph import Plan

__all__ = ["explain_experiment"]


def explain_experiment(experiment: Experiment) -> Explanation:
    """One row for each weights object, in the order of the layers, frozen ones included; totals; the rates.

    Raises:
        ConfigurationError: The description is wrong.
        DataError: Data are missing, damaged or empty; their headers decide the shapes.
    """
    plan = check(experiment).plan
    module = lower(plan, partial(generator, 0, "weights"))
    optimizer = build_optimizer(module, plan, experiment.optimizer)
    for group in optimizer.param_groups:
        group["reasons"] = [_reason(plan, name) for name in group["param_names"]]
    explained = explain(optimizer)
    rows = {row.name: row for row in explained.rows}
    tensors = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    ordered = [rows.get(name) or _frozen(name, tensors[name]) for name in plan.weights]
    return replace(explained, title=experiment.model.name or "the model", rows=tuple(ordered))


def _reason(plan: Plan, name: str) -> str:
    return "the default optimizer" if plan.weights[name].optimizer is None else "the optimizer of these weights"


def _frozen(name: str, p: Tensor) -> Row:
    """The row of weights that no optimizer holds: under NoOptimizer, of a frozen layer, or running statistics."""
    dtype = str(p.dtype).removeprefix("torch.")
    return Row(name, tuple(p.shape), dtype, "none", 0.0, 1.0, 0.0, "rule", None, 0, "frozen")
