"""The objective and the metrics of a plan: which nodes are read, and which weights are regularized."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from descend.arguments.leniency import Deviation
from descend.arguments.parameter_filter import ParameterInfo, matches
from descend.errors import nearest
from descend.graph.checking.problems import name_of
from descend.graph.metrics import Metric
from descend.graph.plan import PlannedL2, PlannedMetric, PlannedObjective, PlannedTerm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.graph.checking.nodes import NodeGraph
    from descend.graph.checking.problems import ProblemList
    from descend.graph.checking.weight_table import WeightTable
    from descend.graph.model import Model
    from descend.graph.objective import L2WeightRegularization, ObjectiveFunction

__all__ = ["numbered", "planned_metrics", "planned_objective"]


def planned_objective(
    objective: ObjectiveFunction | None, graph: NodeGraph, weights: WeightTable, problems: ProblemList
) -> PlannedObjective:
    """The terms with the nodes that they read, and the L2 terms with their weights."""
    if objective is None:
        return PlannedObjective((), ())
    for term in objective.terms:
        if not math.isfinite(term.scale):
            problems.add(term.where, f"an objective term has scale_factor {term.scale!r}; expected a finite number")
        elif term.scale == 0:
            problem = f"the objective term {term!r} has scale_factor 0, as one that is not set has"
            if problems.refuses(Deviation.ZERO_SCALE, term.where, problem):
                problems.add(term.where, f"{problem}: write scale_factor: 1, or take the term out")
    read = [(term, graph.evaluation(term)) for term in objective.layer_terms]
    return PlannedObjective(
        terms=tuple(PlannedTerm(name_of(term.layer), term.scale, node.layer.name) for term, node in read if node),
        l2=tuple(PlannedL2(_regularized(term, weights, problems), term.scale) for term in objective.l2_terms),
    )


def planned_metrics(model: Model, graph: NodeGraph) -> tuple[PlannedMetric, ...]:
    """The metrics that read a layer, each with its node; of several with one name the later ones have a number."""
    read = [(metric, graph.evaluation(metric)) for metric in model.metrics if isinstance(metric, Metric)]
    names = numbered([metric.name for metric, _ in read])
    return tuple(
        PlannedMetric(name, name_of(metric.layer), metric.unit, node.layer.name)
        for name, (metric, node) in zip(names, read, strict=True)
        if node
    )


def numbered(names: Sequence[str]) -> list[str]:
    """Names of which none is there twice: "loss", "loss (2)", "loss (3)"."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _regularized(term: L2WeightRegularization, table: WeightTable, problems: ProblemList) -> tuple[str, ...]:
    """Names of the weights of an L2 term, without those that it excludes."""
    planned = table.planned
    names = tuple(map(name_of, term.weights)) or tuple(name for name, one in planned.items() if one.trainable)
    chosen = [
        ParameterInfo(name, len(planned[name].shape), name in table.biases, name in table.norms)
        for name in names
        if term.exclude and name in planned
    ]
    for rule in term.exclude if chosen else ():
        if not any(matches(rule, one) for one in chosen):
            near = nearest(rule, ["bias", "norm", *names])
            problems.add(term.where, f"the regularization leaves out '{rule}', which none of its weights is{near}")
    for name in names:
        if name not in planned and not problems:  # a layer that does not fit has made no weights yet
            near = problems.near(name, planned)
            problems.add(term.where, f"the regularization names weights '{name}' that no layer uses{near}")
    left_out = {one.name for one in chosen if any(matches(rule, one) for rule in term.exclude)}
    return tuple(name for name in names if name not in left_out)
