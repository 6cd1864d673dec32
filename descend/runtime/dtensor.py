"""Tensors that are cut up among ranks, as `fully_shard` does with weights: a rank's own part, and the whole.

Every other tensor is its own part and its own whole, so nobody has to ask which it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["copies_of", "copy_into", "full_tensor", "is_sharded", "local_shard", "mesh_size", "shard_like"]


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor. Importing those takes a second, and who has one has done so."""
    library: Any = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(tensor, library.DTensor)


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor, in the same memory; without gradient."""
    some: Any = tensor.detach()
    return some.to_local() if is_sharded(tensor) else some


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor; every rank that holds a part of it has to ask."""
    some: Any = tensor.detach()
    return some.full_tensor() if is_sharded(tensor) else some


def shard_like(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Values that all ranks have whole, cut up as another tensor of that shape is."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import distribute_tensor

    cut: Any = tensor
    placed = values.to(cut.device)
    return distribute_tensor(placed, cut.device_mesh, cut.placements, src_data_rank=None)


@torch.no_grad()
def copy_into(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Give a tensor values that all ranks have whole."""
    local_shard(tensor).copy_(local_shard(shard_like(values, tensor)))


def mesh_size(tensor: torch.Tensor) -> int:
    """Among how many ranks a tensor is cut up."""
    cut: Any = tensor
    return cut.device_mesh.size()


def copies_of(tensor: torch.Tensor) -> int:
    """How many ranks hold each element of a tensor that is cut up."""
    cut: Any = tensor
    sizes: Mapping[int, int] = dict(enumerate(cut.device_mesh.shape))
    copies = 1
    for dimension, placement in enumerate(cut.placements):
        copies *= sizes[dimension] if placement.is_replicate() else 1
    return copies
