"""Nothing that is not finite reaches a weight unseen: every gradient is looked at before anything changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from descend.optim.engine.prepare import has_rows, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from descend.optim.engine.arena import Taken
    from descend.optim.engine.prepare import Task

__all__ = ["POLICIES", "all_finite", "sum_is_finite", "unfit"]

POLICIES = ("raise", "skip", "allow")


def sum_is_finite(x: Tensor) -> bool:
    """Whether all of x is finite, in one reading of x.

    A sum with a NaN or an infinity in it is not finite. The sum of large finite numbers may overflow too, so a bad
    sum is followed by an exact look.
    """
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def all_finite(tasks: Sequence[Task], arenas: Iterable[Taken]) -> bool:
    """Whether every gradient is finite, the same on all ranks that share a tensor; one wait for the device."""
    return all(taken.is_finite() for taken in arenas) and not (tasks and unfit(tasks))


@torch.no_grad()
def unfit(tasks: Sequence[Task]) -> list[str]:
    """Names of the weights whose gradient holds a NaN or an infinity, the same on all ranks that share a tensor."""
    return [task.name for task in tasks if not _fit(task.gradient)]


def _fit(g: Tensor) -> bool:
    mine = sum_is_finite(g.coalesce().values() if has_rows(g) else local(g))
    mesh = getattr(g, "device_mesh", None)
    if mesh is None:
        return mine
    # Each rank sees its own part of a distributed tensor; all must take the same branch.
    worst = torch.tensor(float(mine), device=g.device)
    for dim in range(mesh.ndim):
        torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MIN, group=mesh.get_group(dim))
    return bool(worst.item())
