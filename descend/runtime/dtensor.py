"""Sharded tensors (DTensor), such as the parameters after `fully_shard`: the local shard and the full tensor.

Every function takes ordinary tensors too, which are their own local shard and their own full tensor.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["copies_of", "copy_into", "full_tensor", "is_sharded", "local_shard", "mesh_size", "shard_like"]


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor. Importing that module takes a second; without the import there is none."""
    library: Any = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(tensor, library.DTensor)


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of a tensor on this rank, in the same memory, detached."""
    detached: Any = tensor.detach()
    return detached.to_local() if is_sharded(tensor) else detached


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All-gather of a sharded tensor, detached; every rank of its device mesh calls it together."""
    detached: Any = tensor.detach()
    return detached.full_tensor() if is_sharded(tensor) else detached


def shard_like(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Full values, equal on all ranks, sharded as `tensor` of that shape is; no communication."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = tensor
    on_device = values.to(sharded.device)
    return distribute_tensor(on_device, sharded.device_mesh, sharded.placements, src_data_rank=None)


@torch.no_grad()
def copy_into(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy full values, equal on all ranks, into the local shard of a tensor."""
    local_shard(tensor).copy_(local_shard(shard_like(values, tensor)))


def mesh_size(tensor: torch.Tensor) -> int:
    """Number of ranks of a sharded tensor's device mesh."""
    sharded: Any = tensor
    return sharded.device_mesh.size()


def copies_of(tensor: torch.Tensor) -> int:
    """Number of ranks that hold each element of a sharded tensor."""
    sharded: Any = tensor
    sizes: Mapping[int, int] = dict(enumerate(sharded.device_mesh.shape))
    copies = 1
    for dimension, placement in enumerate(sharded.placements):
        copies *= sizes[dimension] if placement.is_replicate() else 1
    return copies
