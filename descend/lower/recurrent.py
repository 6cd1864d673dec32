"""Layers that walk along a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from descend.graph import GRU
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward


@lowers(GRU)
def gru(planned: PlannedLayer) -> Forward:
    """torch's own, whose gates, order and weights are LBANN's."""
    layers: int = planned.layer.setting("num_layers")

    def forward(sequence: Tensor, hidden: Tensor, *weights: Tensor) -> Tensor:
        if not len(sequence):  # torch's kernel takes no empty batch
            return sequence[:, :, :1].expand(0, *planned.output_shape)
        start = hidden.reshape(len(hidden), layers, -1).transpose(0, 1).contiguous()
        differentiable = torch.is_grad_enabled()  # cuDNN has a gradient of its training mode alone
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        return torch.gru(sequence, start, list(weights), True, layers, 0.0, differentiable, False, True)[0]

    return forward
