"""What one update means: one tensor at a time, in the order of the equations. Every faster path agrees with it.

For a tensor p with gradient g, factor r, bound c and decay λ:

    coupled      g ← clip(r g, −c, c) + λ p
    clipped      g ← clip(r g + λ p, −c, c)
    decoupled    g ← clip(r g, −c, c),  and  p ← p − lr λ p  before the rule

then  d, s ← rule.direction(g, p, s, t)  and  p ← p − lr d,  or  p, s ← rule.update(g, p, s, t).
A rule that asks for `decay` is given λ and the engine adds no decay of its own.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.machine import for_double, has_double
from descend.optim.engine.noise import noise_for
from descend.optim.engine.step_inputs import is_sparse, local, named_entries, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor

    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_inputs import TensorUpdate
    from descend.optim.rules.base import Rule

__all__ = [
    "as_written",
    "call",
    "column_mean",
    "effective_gradient",
    "norm",
    "row_mean",
    "scalars_of",
    "step_plain",
    "total",
    "update",
]


@torch.no_grad()
def step_plain(tasks: list[TensorUpdate], seed: int) -> list[TensorUpdate]:
    """Apply one update to each task, one after the other; none is left."""
    for task in tasks:
        with as_written(task.param.device.type):
            apply(task, seed)
    return []


def as_written(device: str) -> AbstractContextManager[Any]:
    """Within it rules are computed in the precision of their state, also where the loop stands under autocast."""
    if torch.is_autocast_enabled(device):
        return cast("AbstractContextManager[Any]", torch.autocast(device, enabled=False))
    return nullcontext()


def effective_gradient(g: Tensor, p: Tensor, settings: GroupSettings, decay: Any) -> Tensor:
    """The gradient as the rule sees it. `decay` is λ, or None where the engine adds none to the gradient."""
    if settings.rescale != 1.0:
        g = g * settings.rescale
    if decay is not None and settings.decay_form == "clipped":
        g = g + decay * p
    if settings.clip is not None:
        g = g.clamp(-settings.clip, settings.clip)
    if decay is not None and settings.decay_form == "coupled":
        g = g + decay * p
    return g


def update(
    g: Tensor,
    p: Tensor,
    s: Any,
    settings: GroupSettings,
    scalars: dict[str, Any],
    provided: Mapping[str, Any],
) -> tuple[Tensor, Any]:
    """One update as a pure function; the same text is traced for the faster runners.

    Args:
        g: Gradient as the loop left it, in the precision of the state.
        p: Weights in the precision of the state.
        s: State of the rule.
        settings: What holds for the group.
        scalars: `t`, `lr`, `decay` and `size`, float64 scalars; `scaled`, 1 or 0.
        provided: `norm`, `total`, `row_mean`, `column_mean`, `shape` and `noise`.

    Returns:
        New weights and new state.
    """
    rule, lr, decay = settings.rule, scalars["lr"], scalars["decay"]
    ours = settings.decay != 0.0 and "decay" not in rule.needs
    held: Any = p  # a symbol while the text is read
    g = effective_gradient(g, p, settings, decay if ours else None)
    if ours and settings.decay_form == "decoupled":
        p = p - (lr * decay) * p
    if isinstance(held, torch.Tensor) and not held.ndim:  # a number of float64 makes another number one as well
        g, p = g.to(held.dtype), p.to(held.dtype)
    new, s = call(rule, {"g": g, "p": p, "s": s, **scalars, **provided})
    return (p - lr * new if rule.moves == "direction" else new), s


def call(rule: Rule, known: Mapping[str, Any]) -> tuple[Tensor, Any]:
    """What the rule's method returns, given those of the known values that it asks for."""
    return getattr(rule, rule.moves)(**{name: known[name] for name in rule.needs})


def total(x: Tensor, whole: Tensor) -> Tensor:
    """Sum of x over one tensor, a float64 scalar; 0 for an empty tensor.

    Args:
        x: Elements of the tensor, those of this rank where it is distributed.
        whole: The weights as torch holds them, which know how they are distributed.
    """
    sum_here = for_double(x).sum(dtype=torch.float64)
    mesh = getattr(whole, "device_mesh", None)
    if mesh is not None:
        for dim, placement in enumerate(cast("Any", whole).placements):
            if placement.is_shard():
                torch.distributed.all_reduce(sum_here, group=mesh.get_group(dim))
    return sum_here


def norm(x: Tensor, whole: Tensor) -> Tensor:
    """Euclidean norm of x over one tensor, a float64 scalar; 0 for an empty tensor."""
    if not hasattr(whole, "device_mesh"):
        return torch.linalg.vector_norm(for_double(x), dtype=torch.float64)
    return total(x.to(torch.float64).square(), whole).sqrt()


def row_mean(x: Tensor) -> Tensor:
    """Mean over the last dimension, which stays with length 1."""
    return x.mean(-1, keepdim=True)


def column_mean(x: Tensor) -> Tensor:
    """Mean over the last dimension but one, which stays with length 1."""
    return x.mean(-2, keepdim=True)


def _place(task: TensorUpdate) -> str:
    """The name that noise belongs to; each rank that holds another part of a tensor draws other numbers."""
    mesh = getattr(task.param, "device_mesh", None)
    return task.name if mesh is None else f"{task.name} at {mesh.get_coordinate()}"


def scalar(x: float) -> Tensor:
    """A number as rules get it."""
    # In float32 1 - 0.999**t is wrong in its fifth digit at t = 1.
    return torch.tensor(x, dtype=torch.float64, device="cpu")


def scalars_of(task: TensorUpdate) -> dict[str, Tensor]:
    """The numbers of an update, see `update`."""
    settings = task.settings
    return {
        "t": scalar(task.count + 1),
        "lr": scalar(settings.lr),
        "decay": scalar(settings.decay),
        "scaled": scalar(float(settings.scaled)),
        "size": scalar(task.param.numel()),
    }


def apply(task: TensorUpdate, seed: int) -> None:
    """One update of one tensor, written back in place; of a sparse gradient, of the elements that it has."""
    g, s, rows = local(task.gradient), task.state(), None
    if is_sparse(g):
        held = {name: x for name, x in named_entries(s).items() if x.ndim}
        # An element that stands several times in the gradient counts once, with the sum of what it says. A rule that
        # keeps numbers for whole rows is given whole rows.
        g = g.coalesce() if all(x.shape == g.shape for x in held.values()) else rows_of(g)
        g, rows = g.values(), tuple(g.indices())
        s = s and s._replace(**{name: x[rows] for name, x in held.items()})
    p, settings = task.weights(rows), task.settings
    if not p.ndim and not has_double(p.device):  # beside a number of float64 a tensor without dimensions becomes one
        g, p, s = g.cpu(), p.cpu(), s and s._replace(**{name: x.cpu() for name, x in named_entries(s).items()})
    provided: dict[str, Any] = {
        "norm": functools.partial(norm, whole=task.param),
        "total": functools.partial(total, whole=task.param),
        "row_mean": row_mean,
        "column_mean": column_mean,
        "shape": task.param.shape,
        "noise": noise_for(p, seed, _place(task), task.count + 1),
    }
    task.write(*update(g.to(p.dtype), p, s, settings, scalars_of(task), provided), rows)
