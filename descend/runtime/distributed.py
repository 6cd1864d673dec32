"""The rank and world size of this process, at any time; these functions start nothing and do not import torch.

A script that is started once for each rank reads `descend.distributed.rank()` before it prints or writes:

    if descend.distributed.rank() == 0:
        print(result.reason)

`mesh()` gives the ranks as torch's `DeviceMesh`, to shard a module or to reduce over a subset of the ranks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from descend.errors import ConfigurationError
from descend.launch import current_trainer, detect, layout_trainers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["local_rank", "mesh", "rank", "ranks", "trainer", "trainers"]


def rank() -> int:
    """Rank of this process, from 0."""
    group = _group()
    return detect().rank if group is None else group[0]


def ranks() -> int:
    """The world size, that is the number of ranks; 1 in a single process."""
    group = _group()
    return detect().world_size if group is None else group[1]


def local_rank() -> int:
    """Rank of this process among those of its host, from 0."""
    return detect().local_rank


def trainer() -> int:
    """Index of the trainer of this process, from 0."""
    return current_trainer()[0]


def trainers() -> int:
    """Number of trainers; 1 where all ranks train one model."""
    return current_trainer()[1]


def mesh(procs_per_trainer: int | None = None) -> DeviceMesh:
    """All ranks as a mesh; a collective call, within a run or in a process group of your own.

        mesh = descend.distributed.mesh(procs_per_trainer=2)
        mesh["data"].get_group()       # the ranks that train one model
        mesh["trainer"].get_group()    # the ranks of all blocks with the same position in their block

    Args:
        procs_per_trainer: Ranks of a block; None for LBANN_PROCS_PER_TRAINER or all.

    Returns:
        A mesh with the dimensions "trainer" (blocks of ranks) and "data" (ranks of a block).

    Raises:
        ConfigurationError: there is no process group, or the ranks cannot be divided into such blocks.
    """
    group = _group()
    if group is None:
        raise ConfigurationError(
            "there is no process group: call this within a run, or after torch.distributed.init_process_group()"
        )
    from torch.distributed import get_backend
    from torch.distributed.device_mesh import init_device_mesh

    shares = layout_trainers(group[1], procs_per_trainer=procs_per_trainer)
    device = "cuda" if get_backend() == "nccl" else "cpu"
    return init_device_mesh(device, (shares.blocks, shares.procs_per_trainer), mesh_dim_names=("trainer", "data"))


def _group() -> tuple[int, int] | None:
    """Rank and world size of torch's default process group, if there is one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
