"""Sharded tensors (DTensor), such as the parameters after `fully_shard`: the local shard and the full tensor.

Every function takes ordinary tensors too, which are their own local shard and their own full tensor.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from descend.torch_private import shard_region

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "copies_of",
    "copy_into",
    "from_shard",
    "fsdp_modules",
    "full_tensor",
    "is_first_copy",
    "is_sharded",
    "local_region",
    "local_shard",
    "mesh_size",
    "shard_like",
]


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor. Importing that module takes a second; without the import there is none."""
    library: Any = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(tensor, library.DTensor)


def fsdp_modules(module: torch.nn.Module) -> list[Any]:
    """The submodules that `fully_shard` was called with."""
    library: Any = sys.modules.get("torch.distributed.fsdp")  # importing it takes long, and who needs it has done so
    return [part for part in module.modules() if isinstance(part, library.FSDPModule)] if library else []


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of a tensor on this rank, in the same memory, detached."""
    detached: Any = tensor.detach()
    return detached.to_local() if is_sharded(tensor) else detached


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All-gather of a sharded tensor, detached; every rank of its device mesh calls it together."""
    detached: Any = tensor.detach()
    return detached.full_tensor() if is_sharded(tensor) else detached


def shard_like(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Full values, equal on all ranks, sharded as `tensor` of that shape is; no communication. Values that are sharded
    already stay so."""
    if not is_sharded(tensor) or is_sharded(values):
        return values
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = tensor
    on_device = values.to(sharded.device)
    return distribute_tensor(on_device, sharded.device_mesh, sharded.placements, src_data_rank=None)


def local_region(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes of this rank's shard in a sharded tensor."""
    return shard_region(tensor)


def is_first_copy(tensor: torch.Tensor) -> bool:
    """Whether this rank is the first of those that hold the same shard of a sharded tensor."""
    sharded: Any = tensor
    copies = [dimension for dimension, placement in enumerate(sharded.placements) if placement.is_replicate()]
    return not any(sharded.device_mesh.get_local_rank(dimension) for dimension in copies)


def from_shard(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor sharded as `tensor` is, of which this rank's shard holds `values`; no communication."""
    from torch.distributed.tensor import DTensor

    sharded: Any = tensor
    on_device = values.to(sharded.device)
    mesh, placements = sharded.device_mesh, sharded.placements
    return DTensor.from_local(on_device, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())


@torch.no_grad()
def copy_into(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into the local shard of a tensor: full ones, equal on all ranks, or sharded as the tensor is."""
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
