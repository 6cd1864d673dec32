"""Products of matrices and Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from descend.graph import DFTAbs, MatMul
from descend.lower.formats import widened
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward


@lowers(MatMul)
def matmul(planned: PlannedLayer) -> Forward:
    """A B, each transposed if asked for."""
    layer = cast("MatMul", planned.layer)
    return lambda a, b: torch.matmul(a.mT if layer.transpose_a else a, b.mT if layer.transpose_b else b)


@lowers(DFTAbs)
def dft_abs(planned: PlannedLayer) -> Forward:
    """Magnitude of the transform over all dimensions but the first of the sample."""
    dims = tuple(range(2, len(planned.output_shape) + 1))

    def forward(x: Tensor) -> Tensor:
        return torch.fft.fftn(x, dim=dims).abs() if len(x) else x.abs()  # torch transforms no empty tensor

    return widened(forward, back=True)  # on a CPU torch has it in no half precision
