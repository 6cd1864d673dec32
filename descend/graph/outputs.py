"""Which layers a model is used for once it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.graph.kinds import Dummy, Evaluation, OperatorLayer, Split, losses
from descend.graph.kinds import operators as ops

if TYPE_CHECKING:
    from descend.graph.plan import Plan, PlannedLayer

__all__ = ["prediction_outputs"]

_LOSSES = tuple(getattr(losses, name) for name in losses.__all__)
_LOSS_OPERATORS = (ops.BinaryCrossEntropy, ops.SigmoidBinaryCrossEntropy, ops.SquaredDifference)


def prediction_outputs(plan: Plan) -> tuple[str, ...]:
    """The layers that the terms of the objective compare with a label: the first parents of its losses.

    A term that is not a loss, and has none above it in the line of first parents, is a prediction itself. Where there
    is no objective, the layers without children are.
    """
    known = {layer.name: layer for layer in plan.layers}
    if not plan.objective.terms:
        ends = (layer.parents[0] for layer in plan.layers if layer.inserted and isinstance(layer.layer, Dummy))
        return tuple(dict.fromkeys(_source(known, name) for name in ends))
    return tuple(dict.fromkeys(_prediction(known, known[term.layer]) for term in plan.objective.terms))


def _prediction(known: dict[str, PlannedLayer], top: PlannedLayer) -> str:
    at, found = top, None
    while at.parents:
        if _is_loss(at):
            found = at.parents[0]
        elif not (found is None or isinstance(at.layer, (Split, Evaluation))):
            break
        at = known[at.parents[0]]
    return _source(known, found or top.name)


def _is_loss(planned: PlannedLayer) -> bool:
    layer = planned.layer
    return isinstance(layer, _LOSSES) or (
        isinstance(layer, OperatorLayer) and any(isinstance(op, _LOSS_OPERATORS) for op in layer.ops)
    )


def _source(known: dict[str, PlannedLayer], name: str) -> str:
    """The layer that a person gave, behind those that the check put in."""
    while known[name].inserted:
        name = known[name].parents[0]
    return name
