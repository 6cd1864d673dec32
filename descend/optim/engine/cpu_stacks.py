"""Rules of whole tensors on a CPU: large matrices one after the other, small tensors of one shape together.

What a rule's text does is recorded (recorded.py) and then repeated in memory that is used again (buffered.py). A small
product does not fill the cores and takes less time than what surrounds it, so tensors of one shape are stacked, as
many as stay in the cache. Of texts without a product, such as what SOAP does to vectors, only stacks of small tensors
are repeated, and the others left to `plain`. What is computed is what `plain` does, up to the rounding of products and
of sums.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.engine.batched import MOST_FORMS, TensorStack, key_of, recording_of
from descend.optim.engine.buffered import LARGE_PRODUCT, Bound, Buffered, products
from descend.optim.engine.parameter_checks import PLAIN_TYPES
from descend.optim.engine.plain import as_written
from descend.optim.engine.step_inputs import is_sparse
from descend.torch_private import foreach, foreach_copy

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from descend.optim.engine.recorded import Recording
    from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["STACK_ELEMENTS", "step_on_cpu"]

_ONE = torch.ones((), dtype=torch.float64, device="cpu")
FEWEST = 4  # tensors of a stack; of fewer the copies take most of what is saved
STACK_ELEMENTS = 2**18  # of weights of a stack, of which a core's cache holds a few values for each
SMALL = 2**14  # elements; larger tensors without a product take no longer alone than as a stack

_left_to_plain: set[Hashable] = set()  # settings, shapes and precisions whose text is not repeated


@torch.no_grad()
def step_on_cpu(tasks: Sequence[TensorUpdate]) -> list[TensorUpdate]:
    """Apply the updates of tensors on a CPU whose rule multiplies matrices, and of many small ones of one shape.

    Returns:
        The other updates, which are not applied.
    """
    others: list[TensorUpdate] = []
    alike: dict[Hashable, list[TensorUpdate]] = {}
    for task in tasks:
        if _can_be_repeated(task):
            alike.setdefault((task.param.shape, task.param.dtype, id(task.settings), task.count), []).append(task)
        else:
            others.append(task)
    if alike:
        with as_written("cpu"):
            step = _Step()
            for some in alike.values():
                others += step.update(some)
    return others


def _can_be_repeated(task: TensorUpdate) -> bool:
    p = task.param
    plain = type(p) in PLAIN_TYPES and p.device.type == "cpu" and p.layout is torch.strided and p.numel() > 0
    return plain and not is_sparse(task.gradient) and "noise" not in task.settings.rule.needs


class _Step:
    """One step: its recordings with their buffers, which all are in one allocation."""

    def __init__(self) -> None:
        self.keys: dict[int, Hashable] = {}
        self.memory = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.bound: dict[Buffered, Bound] = {}

    def update(self, tasks: list[TensorUpdate]) -> list[TensorUpdate]:
        """Apply updates of one shape, settings and count; the others are returned."""
        settings = tasks[0].settings
        if id(settings) not in self.keys:
            self.keys[id(settings)] = key_of(settings)
        form = (self.keys[id(settings)], tasks[0].param.shape, tasks[0].param.dtype)
        if form[0] is None or form in _left_to_plain:
            return tasks
        single = self._recording(tasks[:1], is_stack=False)
        # A text that asks for the value of a number, as int(t), would be recorded at each step. One that draws random
        # numbers is to draw them for one tensor after the other.
        if single is None or single.draws or not all(isinstance(answer, bool) for _, answer in single.answers):
            if len(_left_to_plain) >= MOST_FORMS:
                _left_to_plain.clear()
            _left_to_plain.add(form)
            return tasks
        sizes, elements = products(single), tasks[0].param.numel()
        if not sizes and (len(tasks) < FEWEST or elements > SMALL):
            return tasks
        most = 1 if sizes and _is_large(single, sizes) else max(1, STACK_ELEMENTS // elements)
        count = -(-len(tasks) // most)
        ends = [i * len(tasks) // count for i in range(count + 1)]
        for start, end in itertools.pairwise(ends):
            some = tasks[start:end]
            recording = self._recording(some, is_stack=True) if len(some) >= FEWEST else None
            if recording is not None:
                self._together(some, recording)
            else:
                for task in some:
                    self._alone(task, single)
        return []

    def _recording(self, tasks: Sequence[TensorUpdate], *, is_stack: bool) -> Recording | None:
        stack = TensorStack.of(tasks)
        stack.is_stack = is_stack

        def inputs() -> dict[str, Tensor]:
            held = [_inputs(task, stack.entries) for task in tasks]
            return {name: torch.stack([one[name] for one in held]) for name in held[0]} if is_stack else held[0]

        return recording_of(stack, self.keys[id(tasks[0].settings)], inputs)[1]

    def _bind(self, recording: Recording, own: bool) -> Bound:
        held = _buffered(recording, own)
        found = self.bound.get(held)
        if found is None:
            if self.memory.numel() < held.bytes:
                self.bound.clear()
                self.memory = torch.empty(held.bytes, dtype=torch.uint8, device="cpu")
            found = self.bound[held] = held.bind(self.memory)
        return found

    def _alone(self, task: TensorUpdate, recording: Recording) -> None:
        """Update a tensor where it is."""
        stack = TensorStack.of([task])
        new = self._bind(recording, own=True).run(stack.numbers, _inputs(task, stack.entries))
        weights = new.pop("p", None)
        for name, x in new.items():
            _put(task.entry[name[2:]], x)
        if weights is not None:
            if "master" in task.entry:
                _put(task.entry["master"], weights)
            _put(task.param.detach(), weights)
        task.entry["step"] += 1

    def _together(self, tasks: list[TensorUpdate], recording: Recording) -> None:
        """Update tensors as a stack."""
        bound, stack = self._bind(recording, own=False), TensorStack.of(tasks)
        held = [_inputs(task, stack.entries) for task in tasks]
        for name, to in bound.inputs.items():
            foreach_copy(to.unbind(0), [one[name] for one in held])
        new = bound.run(stack.numbers, {})
        weights = new.pop("p", None)
        for name, x in new.items():
            foreach_copy([task.entry[name[2:]] for task in tasks], x.unbind(0))
        if weights is not None:
            if "master" in tasks[0].entry:
                foreach_copy([task.entry["master"] for task in tasks], weights.unbind(0))
            foreach_copy([task.param.detach() for task in tasks], weights.unbind(0))
        counts = [task.entry["step"] for task in tasks]
        foreach("add_")(counts, [_ONE] * len(counts))


def _put(to: Tensor, x: Tensor) -> None:
    if to.data_ptr() != x.data_ptr() or to.dtype is not x.dtype:
        to.copy_(x)


def _is_large(recording: Recording, sizes: Sequence[int]) -> bool:
    """Whether each product fills the cores by itself; those of low precision take less than what surrounds them."""
    low = any(dtype.is_floating_point and dtype.itemsize < 4 for _, dtype in recording.forms)
    return not low and min(sizes) >= LARGE_PRODUCT


@functools.lru_cache(maxsize=1024)
def _buffered(recording: Recording, own: bool) -> Buffered:
    return Buffered(recording, own)


def _inputs(task: TensorUpdate, entries: Iterable[str]) -> dict[str, Tensor]:
    """Gradient, weights and state in order; those that are not so in memory as copies."""
    p: Any = task.weights()
    g = task.gradient.detach().resolve_neg().to(p.dtype).contiguous()
    held = {"g": g, "p": p.contiguous()}
    for name in entries:
        held[f"s.{name}"] = task.entry[name].contiguous()
    return held
