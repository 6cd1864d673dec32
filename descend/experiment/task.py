"""A lowered graph as the training loop sees it: sums over samples, and how many samples there were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from descend.train.task import Losses, Ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph import Plan
    from descend.lower import LoweredModel
    from descend.train.task import Part

__all__ = ["GraphTask"]


class GraphTask:
    """The objective and the metrics of a graph.

    Every term of an LBANN objective is a scalar for each sample, so a batch's numerator is the sum of the scaled terms
    and its denominator the number of samples.

    Args:
        module: The lowered graph; its forward pass gives the value of each term and metric layer, (samples, 1).
        plan: The checked graph.
    """

    def __init__(self, module: LoweredModel, plan: Plan) -> None:
        self.module = module
        self.units = {metric.name: metric.unit for metric in plan.metrics if metric.unit}
        self._plan = plan

    def losses(self, fields: Mapping[str, torch.Tensor], part: Part) -> Losses:
        """See `descend.train.task.Task.losses`."""
        values = self.module(fields, **part._asdict())
        count = float(len(next(iter(fields.values()))))
        terms = [term.scale * values[term.layer].sum() for term in self._plan.objective.terms]
        metrics = {metric.name: Ratio(values[metric.layer].sum(), count) for metric in self._plan.metrics}
        return Losses(Ratio(torch.stack(terms).sum(), count), metrics)

    def penalty(self) -> torch.Tensor | None:
        """L2 regularization: the sum of scale · Σ w² / 2 over the weights that each term names."""
        weights = self.module.named_weights()
        terms = [
            0.5 * term.scale * weights[name].square().sum() for term in self._plan.objective.l2 for name in term.weights
        ]
        return torch.stack(terms).sum() if terms else None
