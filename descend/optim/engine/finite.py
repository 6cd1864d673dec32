"""Nothing that is not finite reaches a weight unseen: every gradient is looked at before anything changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from descend.optim.engine.step_inputs import is_sparse, local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from descend.optim.engine.arena import ActiveSlots
    from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["POLICIES", "all_finite", "sum_is_finite", "unfit"]

POLICIES = ("raise", "skip", "allow")


def sum_is_finite(x: Tensor) -> bool:
    """Whether all of x is finite, in one reading of x.

    A sum with a NaN or an infinity in it is not finite. The sum of large finite numbers may overflow too, so a bad
    sum is followed by an exact look.
    """
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def all_finite(tasks: Sequence[TensorUpdate], arenas: Sequence[ActiveSlots], meshes: Sequence[Any] = ()) -> bool:
    """Whether every gradient is finite; one wait for the device.

    Args:
        tasks: Tensors that live in no arena.
        arenas: Who takes part of the others.
        meshes: Over whose ranks tensors are distributed, in the same order on all; they all get one answer.
    """
    mine = all(taken.is_finite() for taken in arenas) and not (tasks and _unfit_here(tasks))
    return _agreed(mine, meshes) if meshes else mine


@torch.no_grad()
def unfit(tasks: Sequence[TensorUpdate]) -> list[str]:
    """Names of the weights whose gradient holds a NaN or an infinity, the same on all ranks that share a tensor."""
    return [task.name for task in tasks if not _fit(task.gradient)]


def _fit(g: Tensor) -> bool:
    mesh = getattr(g, "device_mesh", None)
    mine = sum_is_finite(_values(g))
    return mine if mesh is None else _agreed(mine, [mesh])


@torch.no_grad()
def _unfit_here(tasks: Sequence[TensorUpdate]) -> bool:
    """Whether this rank's part of any gradient holds a NaN or an infinity."""
    held = [_values(task.gradient) for task in tasks]
    sums: dict[torch.device, list[Tensor]] = {}
    for x in held:
        sums.setdefault(x.device, []).append(x.sum(dtype=torch.float32))
    if all(bool(torch.stack(each).sum().isfinite()) for each in sums.values()):  # one wait for each device
        return False
    return not all(map(sum_is_finite, held))


def _values(g: Tensor) -> Tensor:
    """The elements that this rank has."""
    return g.coalesce().values() if is_sparse(g) else local(g)


def _agreed(mine: bool, meshes: Sequence[Any]) -> bool:
    """Whether all ranks of these meshes say so. Each sees its own part, and all must take the same branch."""
    worst = torch.tensor(float(mine), device=meshes[0].device_type)
    # What is learnt from the last mesh has to reach those who are in the first alone.
    for mesh in list(meshes) * len(meshes):
        for dim in range(mesh.ndim):
            torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MIN, group=mesh.get_group(dim))
    return bool(worst.item())
