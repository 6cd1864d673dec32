"""Rules of whole matrices on a GPU: many tensors are updated at once, by few launches.

A small matrix takes a GPU less time than the host needs to launch its operations: Muon has about fifty. So weights,
gradients and state of the tensors of one shape are stacked, and the rule's text, which knows of one tensor, is mapped
over the stack (`torch.vmap`). The first time its operations are recorded (recorded.py); later updates repeat those
without the text, for all stacks together (lockstep.py). What is computed is what `plain` does, up to the rounding of
products and of lists of operations.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.machine import has_double
from descend.optim.engine.lockstep import lockstep
from descend.optim.engine.parameter_checks import PLAIN_TYPES
from descend.optim.engine.plain import as_written, column_mean, norm, row_mean, total, update
from descend.optim.engine.recorded import Recording, record
from descend.optim.engine.step_inputs import LOW_PRECISION, is_sparse, named_entries, template
from descend.torch_private import flattened, foreach, foreach_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["MOST_ELEMENTS", "MOST_FORMS", "TensorStack", "key_of", "recording_of", "step_batched"]

MOST_ELEMENTS = 2**24  # of weights updated together; more fill a GPU by themselves, and their copies would take memory
MOST_ANSWERS = 4  # recordings of one form that are kept; a text that asks for the value of t itself has one a step

_ONE = torch.ones((), dtype=torch.float64, device="cpu")

NUMBERS = ("t", "lr", "decay", "scaled", "size")


@torch.no_grad()
def step_batched(tasks: Sequence[TensorUpdate]) -> list[TensorUpdate]:
    """Apply the updates of tensors on a GPU, unless there is a single one.

    Returns:
        The other updates, which are not applied.
    """
    others: list[TensorUpdate] = []
    alike: dict[Hashable, dict[Hashable, list[TensorUpdate]]] = {}
    for task in tasks:
        if _can_be_stacked(task):
            p = task.param
            together = alike.setdefault((p.device, p.dtype, task.gradient.dtype), {})
            together.setdefault((p.shape, id(task.settings), task.count), []).append(task)
        else:
            others.append(task)
    for stacks in alike.values():
        for some in _bounded(stacks.values()):
            if len(some) == len(some[0]) == 1:
                others += some[0]
                continue
            with as_written(some[0][0].param.device.type):
                _step_stacks(some)
    return others


def _can_be_stacked(task: TensorUpdate) -> bool:
    p = task.param
    plain = type(p) in PLAIN_TYPES and p.device.type != "cpu" and p.layout is torch.strided and p.numel() > 0
    plain = plain and has_double(p.device)  # numbers of a stack lie beside it
    return plain and not is_sparse(task.gradient) and "noise" not in task.settings.rule.needs


def _bounded(stacks: Iterable[list[TensorUpdate]]) -> Iterator[list[list[TensorUpdate]]]:
    """Stacks to update together, whose weights have at most `MOST_ELEMENTS` in all, or a single tensor."""
    some: list[list[TensorUpdate]] = []
    room = MOST_ELEMENTS
    for stack in stacks:
        size = stack[0].param.numel()
        rest = stack
        while rest:
            fit = min(len(rest), room // size)
            if not fit and some:
                yield some
                some, room = [], MOST_ELEMENTS
                continue
            fit = max(1, fit)
            some.append(rest[:fit])
            rest, room = rest[fit:], room - fit * size
    if some:
        yield some


@dataclass(eq=False)
class TensorStack:
    """Tensors of one shape, settings and count.

    Attributes:
        tasks: Their updates.
        form: A state of the rule, for its names.
        inputs: Gradients "g", weights "p" and entries of the state "s.NAME", each (tensors, ...).
        numbers: Value of each of `NUMBERS`.
        new: New weights and entries, of those that change.
        is_stack: Whether inputs and new values have a first dimension for the tensors, or are of a single one.
    """

    tasks: Sequence[TensorUpdate]
    form: Any
    inputs: dict[str, Tensor]
    numbers: list[float]
    new: dict[str, Tensor]
    is_stack: bool = True

    @staticmethod
    def of(tasks: Sequence[TensorUpdate]) -> TensorStack:
        """Without its inputs."""
        first = tasks[0]
        s = first.settings
        numbers = [first.count + 1.0, s.lr, s.decay, float(s.scaled), float(first.param.numel())]
        return TensorStack(tasks, template(s.rule, first.param), {}, numbers, {})

    @functools.cached_property
    def entries(self) -> dict[str, torch.Size]:
        """Shapes of the entries of one tensor's state, by name."""
        return {name: x.shape for name, x in named_entries(self.form).items()}

    def scalars(self) -> dict[str, Tensor]:
        """The numbers as rules get them, see plain.py."""
        made = torch.tensor(self.numbers, dtype=torch.float64, device="cpu").unbind(0)
        return dict(zip(NUMBERS, made, strict=True))

    def call(self, scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The new values, by the rule's text."""
        first, form = self.tasks[0], self.form
        provided: dict[str, Callable[..., Any]] = {
            "norm": functools.partial(norm, whole=first.param),
            "total": functools.partial(total, whole=first.param),
            "row_mean": row_mean,
            "column_mean": column_mean,
        }

        def one(g: Tensor, p: Tensor, entries: dict[str, Tensor]) -> dict[str, Tensor]:
            s = form if form is None else form._replace(**entries)
            new, after = update(g, p, s, first.settings, dict(scalars), provided)
            return {"p": new, **{f"s.{name}": x for name, x in named_entries(after).items()}}

        mapped: Any = torch.vmap(one, randomness="different") if self.is_stack else one
        return mapped(self.inputs["g"], self.inputs["p"], {name: self.inputs[f"s.{name}"] for name in self.entries})


def _step_stacks(stacks: Sequence[Sequence[TensorUpdate]]) -> None:
    """Update stacks of one device and precision."""
    held = [TensorStack.of(tasks) for tasks in stacks]
    _gather(held)
    known: list[tuple[TensorStack, Recording]] = []
    keys: dict[int, Hashable] = {}
    for stack in held:
        found = _repeated(stack, keys)
        if found is not None:
            known.append((stack, found))
    if known:
        _repeat([stack for stack, _ in known], tuple(found for _, found in known))
    _scatter(held)
    counts = [task.entry["step"] for tasks in stacks for task in tasks]
    foreach("add_")(counts, [_ONE] * len(counts))


# ---- from tensors to stacks and back


def _stacked(tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Tensors of one precision, in order, as stacks of these shapes."""
    flat = flattened(tensors)
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [x.view(shape) for x, shape in zip(flat.split(sizes), shapes, strict=True)]


def _gather(stacks: Sequence[TensorStack]) -> None:
    """Copy weights, gradients and state."""
    tasks = [task for stack in stacks for task in stack.tasks]
    shapes = [(len(stack.tasks), *stack.tasks[0].param.shape) for stack in stacks]
    weights = [task.param for task in tasks]
    low = weights[0].dtype in LOW_PRECISION
    flat = flattened([task.entry["master"] for task in tasks] if low else weights)
    if low:  # where weights were written since the last step, the master takes the new values
        own = flattened(weights)
        flat = torch.where(flat.to(own.dtype) == own, flat, own.to(flat.dtype))
    g = flattened([task.gradient for task in tasks]).to(flat.dtype)
    sizes = [torch.Size(shape).numel() for shape in shapes]
    for name, whole in (("g", g), ("p", flat)):
        for stack, x, shape in zip(stacks, whole.split(sizes), shapes, strict=True):
            stack.inputs[name] = x.view(shape)
    names = dict.fromkeys(chain.from_iterable(stack.entries for stack in stacks))
    for name in names:
        those = [stack for stack in stacks if name in stack.entries]
        alike: dict[torch.dtype, list[TensorStack]] = {}
        for stack in those:
            alike.setdefault(stack.tasks[0].entry[name].dtype, []).append(stack)
        for some in alike.values():
            entries = [task.entry[name] for stack in some for task in stack.tasks]
            of_each = [(len(stack.tasks), *stack.entries[name]) for stack in some]
            for stack, x in zip(some, _stacked(entries, of_each), strict=True):
                stack.inputs[f"s.{name}"] = x


def _scatter(stacks: Sequence[TensorStack]) -> None:
    """Copy the new weights and state to where they belong."""
    places: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for stack in stacks:
        low = stack.tasks[0].param.dtype in LOW_PRECISION
        for name, x in stack.new.items():
            new = x.unbind(0)
            for entry in ("", "master") if name == "p" and low else ("" if name == "p" else name[2:],):
                held = [task.entry[entry] if entry else task.param for task in stack.tasks]
                to, of = places.setdefault(held[0].dtype, ([], []))
                to += held
                of += new
    for to, of in places.values():
        foreach_copy(to, of)


# ---- recordings


_recordings: dict[Hashable, list[Recording]] = {}
MOST_FORMS = 1024  # of which recordings are kept


class _Key:
    """What a text depends on beside shapes; compares fast with itself.

    Raises:
        TypeError: It cannot be hashed, as a rule with a list among its constants.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = replace(settings, lr=1.0, decay=float(settings.decay != 0.0), scaled=True)
        self.hash = hash(self.settings)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Key) and self.settings == other.settings)


_keys: dict[_Key, _Key] = {}


def key_of(settings: GroupSettings) -> _Key | None:
    """What recordings of these settings are kept under, or None where they cannot be."""
    try:
        key = _Key(settings)
    except TypeError:
        return None
    if len(_keys) > MOST_FORMS:
        _keys.clear()
    return _keys.setdefault(key, key)


def _repeated(stack: TensorStack, keys: dict[int, Hashable]) -> Recording | None:
    """The recording that holds for a stack, or None where the text itself has updated it."""
    settings = stack.tasks[0].settings
    if id(settings) not in keys:
        keys[id(settings)] = key_of(settings)
    common = keys[id(settings)]
    if common is None:
        stack.new = stack.call(stack.scalars())
        return None
    found, made = recording_of(stack, common, lambda: stack.inputs)
    stack.new = found
    return made


def recording_of(
    stack: TensorStack, common: Hashable, inputs: Callable[[], dict[str, Tensor]]
) -> tuple[dict[str, Tensor], Recording | None]:
    """The recording that holds for a stack, or None and the new values where its text cannot be recorded.

    Args:
        stack: The stack.
        common: Key of its settings.
        inputs: Makes its inputs, where its text has to be recorded.
    """
    p = stack.tasks[0].param
    wide = torch.float32 if p.dtype in LOW_PRECISION else p.dtype
    key = (common, len(stack.tasks) if stack.is_stack else 0, p.shape, wide, p.device)
    known = _recordings.get(key, [])
    scalars = stack.scalars() if not known or any(one.answers for one in known) else {}
    for one in known:
        if one.answers_are(list(scalars.values())):
            return {}, one
    stack.inputs = inputs()
    with torch.random.fork_rng(devices=[], enabled=p.device.type == "cpu"):  # where what the text gives is dropped
        found, made = record(lambda: stack.call(scalars), scalars, stack.inputs, with_sums=stack.is_stack)
    if made is None:
        return found, None
    if len(known) < MOST_ANSWERS:
        if len(_recordings) >= MOST_FORMS:
            _recordings.clear()
        _recordings[key] = [*known, made]
    # What the text gave is dropped: a run that goes on from a checkpoint records at another step than the one that
    # never stopped, and both are to get the same bits.
    return {}, made


def _repeat(stacks: Sequence[TensorStack], recordings: tuple[Recording, ...]) -> None:
    """Update stacks by their recordings."""
    found = lockstep(recordings)([stack.numbers for stack in stacks], [stack.inputs for stack in stacks])
    for stack, new in zip(stacks, found, strict=True):
        stack.new = new
