"""Whether a forward pass may look at values: not while it is traced or exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from descend.torch_private import is_functorch_wrapped

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["in_transform", "may_branch"]


def in_transform(x: Tensor) -> bool:
    """Whether x is inside torch.func, whose tensors answer no questions of layout or value."""
    return is_functorch_wrapped(x)


def may_branch(x: Tensor) -> bool:
    """Whether asking for a value is cheap and allowed: not on a GPU, while compiling, inside torch.func, or of none."""
    return x.device.type == "cpu" and x.numel() > 0 and not torch.compiler.is_compiling() and not in_transform(x)
