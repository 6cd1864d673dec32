"""Sums of the bit patterns of tensors, by which copies are compared without sending them."""

from __future__ import annotations

import torch

__all__ = ["bits_sum"]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the bit patterns of all elements, as int64 that may wrap around; 0 without dense memory."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return torch.zeros((), dtype=torch.int64)
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat.view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
