"""Where data enter the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.graph import Input
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward


@lowers(Input)
def input_layer(planned: PlannedLayer) -> Forward:
    """The field as it comes; single numbers become tensors of one entry."""
    shape = planned.output_shape

    def forward(x: Tensor) -> Tensor:
        return x if x.shape[1:] == shape else x.reshape(-1, *shape)

    return forward
