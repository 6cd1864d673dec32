"""Layers that drop entries in training."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from descend.graph import Dropout, SeluDropout
from descend.lower.forward_context import stream_of
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.forward_context import ForwardContext
    from descend.lower.registry import Forward


@lowers(Dropout, with_pass=True)
def dropout(planned: PlannedLayer) -> Forward:
    """x / q where an entry is kept and 0 elsewhere; x in evaluation."""
    q = cast("Dropout", planned.layer).keep_prob
    stream = stream_of(planned.name)

    def forward(at: ForwardContext, x: Tensor) -> Tensor:
        if not at.training or not 0 < q < 1:
            return x
        return (x / q).where(at.chance(stream, planned.output_shape, q), 0.0)

    return forward


@lowers(SeluDropout, with_pass=True)
def selu_dropout(planned: PlannedLayer) -> Forward:
    """a x + b where an entry is kept and a α' + b elsewhere; x in evaluation."""
    layer = cast("SeluDropout", planned.layer)
    q, dropped = layer.keep_prob, layer.dropped_value()
    stream = stream_of(planned.name)

    def forward(at: ForwardContext, x: Tensor) -> Tensor:
        if not at.training or not 0 < q < 1:
            return x
        a = (q + dropped**2 * q * (1 - q)) ** -0.5
        return a * x.where(at.chance(stream, planned.output_shape, q), dropped) - a * (1 - q) * dropped

    return forward
