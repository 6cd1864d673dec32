"""Samples seen channel by channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["by_channel"]


def by_channel(x: Tensor) -> Tensor:
    """(samples, C, entries) from (samples, C, ...); also of no samples, where reshape cannot infer a size."""
    return x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
