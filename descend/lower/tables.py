"""Layers that look vectors up in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch.nn import functional

from descend.graph import DistEmbedding, Embedding
from descend.lower.indexing import whole_indices
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward


@lowers(Embedding)
@lowers(DistEmbedding)
def embedding(planned: PlannedLayer) -> Forward:
    """A column of the table for each entry; zeros for an index out of range and for padding_idx."""
    layer = cast("Embedding | DistEmbedding", planned.layer)
    count, padding = layer.num_embeddings, layer.padding_idx if isinstance(layer, Embedding) else None

    def forward(x: Tensor, table: Tensor) -> Tensor:
        index, valid = whole_indices(x, count)
        if padding is not None:
            valid = valid & (index != padding)
        return functional.embedding(index, table.t()).where(valid.unsqueeze(-1), 0.0)

    return forward
