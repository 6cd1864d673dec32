"""Rules of whole matrices on a GPU: tensors of one shape are updated at once, by one launch an operation for all.

A small matrix takes a GPU less time than the host needs to launch its operations: Muon has about fifty. So weights,
gradients and state of several tensors are stacked, and the rule's text, which knows of one tensor, is mapped over the
stack (`torch.vmap`). What it computes is what `plain` does, up to the rounding of products of a stack.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from descend.optim.engine.parameter_checks import PLAIN_TYPES
from descend.optim.engine.plain import as_written, column_mean, norm, row_mean, scalars_of, total, update
from descend.optim.engine.step_inputs import is_sparse, named_entries

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["MOST_ELEMENTS", "step_batched"]

MOST_ELEMENTS = 2**24  # of a stack of weights; a larger one fills a GPU by itself, and its copies would take memory


@torch.no_grad()
def step_batched(tasks: Sequence[TensorUpdate]) -> list[TensorUpdate]:
    """Apply the updates of tensors on a GPU that have others of their shape and settings.

    Returns:
        The other updates, which are not applied.
    """
    others: list[TensorUpdate] = []
    alike: dict[Hashable, list[TensorUpdate]] = {}
    for task in tasks:
        if _can_be_stacked(task):
            alike.setdefault(_form(task), []).append(task)
        else:
            others.append(task)
    for group in alike.values():
        most = max(1, MOST_ELEMENTS // group[0].param.numel())
        for start in range(0, len(group), most):
            stack = group[start : start + most]
            if len(stack) == 1:
                others += stack
                continue
            with as_written(stack[0].param.device.type):
                _step_stack(stack)
    return others


def _can_be_stacked(task: TensorUpdate) -> bool:
    p = task.param
    plain = type(p) in PLAIN_TYPES and p.device.type != "cpu" and p.layout is torch.strided and p.numel() > 0
    return plain and not is_sparse(task.gradient) and "noise" not in task.settings.rule.needs


def _form(task: TensorUpdate) -> Hashable:
    """What the tensors of a stack have in common."""
    p = task.param
    return p.shape, p.dtype, p.device, task.gradient.dtype, id(task.settings), task.count


def _step_stack(tasks: Sequence[TensorUpdate]) -> None:
    first = tasks[0]
    settings, form, scalars = first.settings, first.state(), scalars_of(first)
    p = torch.stack([task.weights() for task in tasks])
    g = torch.stack([task.gradient.detach() for task in tasks]).to(p.dtype)
    held = [named_entries(task.state()) for task in tasks]
    state = {name: torch.stack([entries[name] for entries in held]) for name in held[0]}

    def one(g: Tensor, p: Tensor, entries: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        provided = {
            "norm": functools.partial(norm, whole=first.param),
            "total": functools.partial(total, whole=first.param),
            "row_mean": row_mean,
            "column_mean": column_mean,
        }
        s = form if form is None else form._replace(**entries)
        new, after = update(g, p, s, settings, scalars, provided)
        return new, named_entries(after)

    mapped: Any = torch.vmap(one)
    new, after = mapped(g, p, state)
    for i, task in enumerate(tasks):
        own = form if form is None else form._replace(**{name: x[i] for name, x in after.items()})
        task.write(new[i], own)
