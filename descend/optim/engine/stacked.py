"""Tensors of one shape as a stack, which a rule of whole tensors updates at once.

    gather    gradients, state and, where the update reads them, weights of the members
    update    the rule's own text on the stack, see `takes_stacks` in rules/base.py
    scatter   new weights and state to where they belong

A small matrix takes less time than the calls around it, on a CPU and more so on a GPU; a large one takes longer for
the copies than for the calls. Which tensors are a stack follows from their shapes, settings, counts and order alone, so
a run that goes on from a checkpoint makes the same stacks and gets the same bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from descend.machine import for_double, has_double
from descend.optim.engine.parameter_checks import PLAIN_TYPES
from descend.optim.engine.plain import as_written, call, column_mean, effective_gradient, row_mean, scalars_of, update
from descend.optim.engine.step_inputs import LOW_PRECISION, is_sparse, named_entries, template
from descend.torch_private import foreach, foreach_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

    from torch import Tensor

    from descend.optim.engine.step_inputs import TensorUpdate
    from descend.optim.rules.base import Rule

__all__ = ["StackInputs", "TensorStack", "stacks_of", "step_stacks"]

# Elements of the weights of a stack, at most. On a CPU a core's cache then holds some values for each. More elements
# fill a GPU by themselves, and their copies would take memory.
MOST_ON_CPU, MOST_ON_DEVICE = 2**19, 2**24
ALONE_ON_CPU = 2**18  # elements of a tensor from which its copies take longer than the calls that a stack saves


@torch.no_grad()
def step_stacks(tasks: list[TensorUpdate]) -> list[TensorUpdate]:
    """Apply the updates of tensors of which several are alike, under rules that take stacks.

    Returns:
        The other updates, which are not applied.
    """
    stacks = stacks_of(tasks)
    for stack in stacks:
        with as_written(stack.members[0].param.device.type):
            stack.scatter(*stack.update(stack.gather()))
    updated = {id(task) for stack in stacks for task in stack.members}
    return [task for task in tasks if id(task) not in updated]


def stacks_of(tasks: Sequence[TensorUpdate]) -> list[TensorStack]:
    """The stacks of updates that are alike."""
    alike: dict[Hashable, list[TensorUpdate]] = {}
    for task in tasks:
        alike.setdefault(_likeness(task), []).append(task)
    parts = (some for members in alike.values() for some in _parts(members, _highest(members[0])))
    return [TensorStack(some) for some in parts if len(some) > 1]


def _likeness(task: TensorUpdate) -> Hashable:
    """What all members of a stack have in common."""
    p, g, settings = task.param, task.gradient, task.settings
    count = task.count if "t" in settings.rule.needs else None
    return id(settings), count, p.shape, type(p), p.dtype, p.device, p.layout, g.dtype, g.layout


def _highest(task: TensorUpdate) -> int:
    """How many updates like this one a stack has at most; 1 where they are in none."""
    p, rule = task.param, task.settings.rule
    plain = type(p) in PLAIN_TYPES and p.layout is torch.strided and p.numel() > 0 and not is_sparse(task.gradient)
    if not plain or not rule.takes_stacks or not has_double(p.device):
        return 1
    if p.is_cpu:
        return MOST_ON_CPU // p.numel() if p.numel() < ALONE_ON_CPU else 1
    return max(1, MOST_ON_DEVICE // p.numel())


def _parts(members: list[TensorUpdate], most: int) -> Iterator[list[TensorUpdate]]:
    """The members in their order, in as few stacks as have at most so many, all about as high."""
    count = -(-len(members) // most)
    for i in range(count):
        yield members[i * len(members) // count : (i + 1) * len(members) // count]


class StackInputs(NamedTuple):
    """What the update of a stack reads, (members, ...) each."""

    g: Tensor  # in the precision of the state
    p: Tensor | None  # in the precision of the state; None where nothing reads them
    s: Any


@dataclass(frozen=True, eq=False)
class TensorStack:
    """Updates of tensors of one shape, precision, device and settings, and of one count where the rule asks for it.

    Attributes:
        members: The updates.
    """

    members: Sequence[TensorUpdate]
    _state: dict[str, Tensor] = field(default_factory=dict["str", "Tensor"], repr=False)

    def gather(self) -> StackInputs:
        """What the update reads, of all members: copies, and the state itself."""
        first, form = self.members[0], template(self._rule, self.members[0].param)
        p = self._weights() if self._reads_weights else None
        g = torch.stack([task.gradient for task in self.members]).to(first.param.dtype if p is None else p.dtype)
        return StackInputs(g, p, form and form._replace(**{name: self._entry(name) for name in named_entries(form)}))

    def update(self, held: StackInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The rule's text on the stack.

        Returns:
            New weights, or d where the update does not read weights; and those entries of the state that are new.
        """
        first, settings = self.members[0], self.members[0].settings
        provided: dict[str, Any] = {
            "norm": _a_column(torch.linalg.vector_norm),
            "total": _a_column(torch.sum),
            "row_mean": row_mean,
            "column_mean": column_mean,
            "shape": first.param.shape,
        }
        if held.p is not None:
            x, after = update(held.g, held.p, held.s, settings, scalars_of(first), provided)
        else:
            g = effective_gradient(held.g, held.g, settings, None)
            x, after = call(self._rule, {"g": g, "s": held.s, **scalars_of(first), **provided})
        old = named_entries(held.s)
        # What a rule returns may be what another entry held, which is written before it.
        kept = {_memory(value) for value in old.values()}
        new = {name: value for name, value in named_entries(after).items() if value is not old[name]}
        return _apart(x, kept), {name: _apart(value, kept) for name, value in new.items()}

    def scatter(self, x: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Write what `update` gave to where it belongs, and count the update."""
        for name, value in entries.items():
            self._entry(name).copy_(value)
        weights, settings = [task.param for task in self.members], self.members[0].settings
        if self._reads_weights:
            if "master" in self.members[0].entry:
                self._entry("master").copy_(x)
            foreach_copy(weights, x.unbind(0))
        else:
            if settings.decay != 0.0 and "decay" not in self._rule.needs:
                foreach("mul_")(weights, 1.0 - settings.lr * settings.decay)
            foreach("add_")(weights, x.unbind(0), alpha=-settings.lr)
        self._entry("step").add_(1.0)

    def _entry(self, name: str) -> Tensor:
        """What the state holds of the members, side by side in one memory: moved there where that was not so yet."""
        if name not in self._state:
            held = [task.entry[name] for task in self.members]
            whole = _as_one(held)
            if whole is None:
                whole = torch.stack(held)
                for task, x in zip(self.members, whole.unbind(0), strict=True):
                    task.entry[name] = x
            self._state[name] = whole
        return self._state[name]

    @property
    def _rule(self) -> Rule:
        return self.members[0].settings.rule

    @functools.cached_property
    def _reads_weights(self) -> bool:
        """Whether weights are gathered. Else they are moved by -lr d where they are, which costs two copies less."""
        settings, rule = self.members[0].settings, self._rule
        in_gradient = settings.decay != 0.0 and "decay" not in rule.needs and settings.decay_form != "decoupled"
        low = self.members[0].param.dtype in LOW_PRECISION
        return low or in_gradient or rule.moves == "update" or "p" in rule.needs

    def _weights(self) -> Tensor:
        """In the precision of the state; where low-precision weights were written, they count and not the master."""
        p = torch.stack([task.param for task in self.members])
        if p.dtype not in LOW_PRECISION:
            return p
        master = self._entry("master")
        return torch.where(master.to(p.dtype) == p, master, p.to(master.dtype))


def _as_one(parts: list[Tensor]) -> Tensor | None:
    """The memory of equal tensors as one, where they lie side by side in it in this order; else None."""
    first = parts[0]
    count, start, size = len(parts), first.data_ptr(), first.numel() * first.element_size()
    room = first.untyped_storage().nbytes() - first.storage_offset() * first.element_size()
    if not 0 < count * size <= room or not all(map(torch.Tensor.is_contiguous, parts)):
        return None
    if [x.data_ptr() for x in parts] != list(range(start, start + count * size, size)):
        return None
    return first.as_strided((count, *first.shape), (first.numel(), *first.stride()))


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _apart(x: Tensor, kept: Collection[int]) -> Tensor:
    return x.clone() if _memory(x) in kept else x


def _a_column(reduce: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """A function from a stack to a number of each member, computed in float64, as a column."""

    def column(x: Tensor) -> Tensor:
        numbers = reduce(for_double(x).reshape(len(x), -1), dim=1, dtype=torch.float64)
        return numbers.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))

    return column
