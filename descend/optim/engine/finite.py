"""Checks all gradients for NaN and infinity before any parameter is updated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from descend.errors import NumericalError
from descend.optim.engine.step_inputs import is_sparse, local

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from descend.optim.engine.step_inputs import TensorUpdate

__all__ = [
    "POLICIES",
    "HoldsGradients",
    "all_finite",
    "nonfinite_gradients",
    "offenders",
    "sum_is_finite",
    "unfit",
]

POLICIES = ("raise", "skip", "allow")


class HoldsGradients(Protocol):
    """Parameters whose gradients are looked at together: `ActiveSlots` of an arena, or a `MatrixArena`."""

    def is_finite(self) -> bool:
        """Whether all gradients are finite; False may also mean that the sum of finite gradients overflowed."""
        ...


def sum_is_finite(x: Tensor) -> bool:
    """Whether all of x is finite, in one pass over x.

    A sum with a NaN or an infinity in it is not finite. The sum of large finite numbers may overflow too, so a sum that
    is not finite is followed by an exact check.
    """
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def all_finite(tasks: Sequence[TensorUpdate], arenas: Sequence[HoldsGradients], meshes: Sequence[Any] = ()) -> bool:
    """Whether every gradient is finite; synchronizes with the device once.

    Args:
        tasks: Parameters outside the arenas.
        arenas: What holds the others.
        meshes: Device meshes of distributed parameters, in the same order on all ranks; all ranks get one answer.
    """
    mine = all(taken.is_finite() for taken in arenas) and not (tasks and _unfit_here(tasks))
    return _agreed(mine, meshes) if meshes else mine


@torch.no_grad()
def unfit(tasks: Sequence[TensorUpdate]) -> list[str]:
    """Names of the parameters whose gradient has a NaN or an infinity, the same on all ranks that share a tensor."""
    return [task.name for task in tasks if not _fit(task.gradient)]


def offenders(
    outside: Sequence[TensorUpdate],
    active: Sequence[HoldsGradients],
    meshes: Sequence[Any],
    updates: Callable[[], Sequence[TensorUpdate]],
) -> list[str]:
    """Names of the parameters whose gradients are not finite.

    Args:
        outside: Parameters outside the arenas.
        active: What holds the others.
        meshes: As for `all_finite`.
        updates: Lists all of them; called only where some gradient is not finite.
    """
    return [] if all_finite(outside, active, meshes) else unfit(updates())


def nonfinite_gradients(where: str, names: Sequence[str], most: int = 5) -> NumericalError:
    """The error about gradients that are not finite.

    Args:
        where: The step and the optimizer.
        names: Of the parameters.
        most: How many of them it names.
    """
    text = ", ".join(f"'{name}'" for name in names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return NumericalError(
        f"{where}: the gradient of {text} is not finite; nothing was changed. "
        'on_nonfinite="skip" leaves such steps out and counts them'
    )


def _fit(g: Tensor) -> bool:
    mesh = getattr(g, "device_mesh", None)
    mine = sum_is_finite(_values(g))
    return mine if mesh is None else _agreed(mine, [mesh])


@torch.no_grad()
def _unfit_here(tasks: Sequence[TensorUpdate]) -> bool:
    """Whether this rank's shard of any gradient has a NaN or an infinity."""
    held = [_values(task.gradient) for task in tasks]
    sums: dict[torch.device, list[Tensor]] = {}
    for x in held:
        sums.setdefault(x.device, []).append(x.sum(dtype=torch.float32))
    if all(bool(torch.stack(each).sum().isfinite()) for each in sums.values()):  # one synchronization for each device
        return False
    return not all(map(sum_is_finite, held))


def _values(g: Tensor) -> Tensor:
    """The elements on this rank."""
    return g.coalesce().values() if is_sparse(g) else local(g)


def _agreed(mine: bool, meshes: Sequence[Any]) -> bool:
    """Whether all ranks of these meshes say so. Each has its own shard, and all must take the same branch."""
    worst = torch.tensor(float(mine), device=meshes[0].device_type)
    # The result of the last mesh has to reach ranks that are in the first mesh only.
    for mesh in list(meshes) * len(meshes):
        for dim in range(mesh.ndim):
            torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MIN, group=mesh.get_group(dim))
    return bool(worst.item())
