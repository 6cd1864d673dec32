"""Which rank this process is, as a script may ask at any time; nothing is started by asking, and torch is not imported.

A script that is started once for each rank reads `descend.distributed.rank()` before it prints or writes:

    if descend.distributed.rank() == 0:
        print(result.reason)

`mesh()` is the same as torch has it, for whoever cuts up a module or sums something over some of the ranks.
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
    """Number of this process among its ranks, from 0."""
    group = _group()
    return detect().rank if group is None else group[0]


def ranks() -> int:
    """How many ranks there are; 1 where nobody has started several."""
    group = _group()
    return detect().world_size if group is None else group[1]


def local_rank() -> int:
    """Number of this process among the ranks of its host, from 0."""
    return detect().local_rank


def trainer() -> int:
    """Number of the trainer that this process works for, from 0; 0 where there is one."""
    return current_trainer()[0]


def trainers() -> int:
    """How many trainers there are; 1 where all ranks train one model."""
    return current_trainer()[1]


def mesh(procs_per_trainer: int | None = None) -> DeviceMesh:
    """All ranks in rows and columns; all of them call this together, where there is a group: in a run, or of your own.

        mesh = descend.distributed.mesh(procs_per_trainer=2)
        mesh["data"].get_group()       # the ranks that train one model
        mesh["trainer"].get_group()    # those of all blocks that stand at the same place

    Args:
        procs_per_trainer: Ranks of a block; None for LBANN_PROCS_PER_TRAINER or all.

    Returns:
        A mesh with the dimensions "trainer" (blocks of ranks) and "data" (ranks of a block).

    Raises:
        ConfigurationError: there is no group of ranks, or the blocks do not fit.
    """
    group = _group()
    if group is None:
        raise ConfigurationError(
            "there is no group of ranks to make a mesh of: call this within a run, or after "
            "torch.distributed.init_process_group()"
        )
    from torch.distributed import get_backend
    from torch.distributed.device_mesh import init_device_mesh

    shares = layout_trainers(group[1], procs_per_trainer=procs_per_trainer)
    device = "cuda" if get_backend() == "nccl" else "cpu"
    return init_device_mesh(device, (shares.blocks, shares.procs_per_trainer), mesh_dim_names=("trainer", "data"))


def _group() -> tuple[int, int] | None:
    """Rank and ranks of the group that torch knows, where somebody has made one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
