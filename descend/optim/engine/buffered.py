"""Carries out a recorded update on a CPU, in memory that is used again, and with the fastest products that torch has.

New memory is costly on a CPU: the first write to each page of it is. So results are written into buffers of one
allocation, which a later value gets once no line reads the former; elementwise results into what they are made of, and
new weights and state into the old ones where nothing else reads those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.compiler.trace import Ref
from descend.optim.engine.recorded import FASTER, RecordedCall
from descend.torch_private import float32_product, operator_schema, private_operator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.optim.engine.recorded import Recording

__all__ = ["LARGE_PRODUCT", "Bound", "Buffered", "products"]

_ATEN = torch.ops.aten
_PRODUCTS = frozenset({_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default})
# What writes its result where `out=` says, called as the overload is.
_INTO: Mapping[Any, Callable[..., Tensor]] = {
    _ATEN.add.Tensor: torch.add,
    _ATEN.addmm.default: torch.addmm,
    _ATEN.baddbmm.default: torch.baddbmm,
    _ATEN.bmm.default: torch.bmm,
    _ATEN.div.Tensor: torch.div,
    _ATEN.mm.default: torch.mm,
    _ATEN.mul.Scalar: torch.mul,
    _ATEN.mul.Tensor: torch.mul,
    _ATEN.sqrt.default: torch.sqrt,
    _ATEN.sub.Tensor: torch.sub,
}
_ACCUMULATE = frozenset({_ATEN.addmm.default, _ATEN.baddbmm.default})  # which may write over their first argument
LARGE_PRODUCT = 160**3  # multiplications, from which a product fills the cores by itself
HALVED = 512  # rows of a symmetric product from which half the work, and a copy, take less time than all of it
_SMALL = 1024  # elements of a result for which no buffer is kept
_ALIGNED = 64  # bytes

Values = list[Any]  # by place
Step = Callable[[Values], None]


def products(recording: Recording) -> list[int]:
    """Multiplications of each product of two matrices, of one where it is of stacks."""
    found: list[int] = []
    for line in recording.lines:
        if line.function in _PRODUCTS:
            *_, left, _ = line.args
            shape = recording.forms[line.results[0]][0]
            found.append(shape[-1] * shape[-2] * recording.forms[left.at][0][-1])
    return found


def _is_view(line: RecordedCall) -> bool:
    """Whether what it makes is memory of its first argument."""
    if line.function is private_operator("_unsafe_view").default:  # which says that it is not
        return True
    returns = operator_schema(line.function).returns
    return any(x.alias_info is not None for x in returns)


def _with_factors(recording: Recording) -> list[RecordedCall]:
    """The lines, with x ± k y of a number k as one operation."""
    lines = list(recording.lines)
    makers = {line.results[0]: line for line in lines}
    readers = Counter(at for line in lines for at in line.refs)
    kept = {*recording.outputs.values(), *recording.numbers}

    def scaled(x: Any) -> tuple[Ref, Ref] | None:
        """The number and the value of a product of both that is read once."""
        made = makers.get(x.at) if isinstance(x, Ref) and readers[x.at] == 1 and x.at not in kept else None
        if made is None or made.function is not _ATEN.mul.Tensor or len(made.refs) != 2:
            return None
        for k, y in (made.args, made.args[::-1]):
            if (
                k.at in recording.numbers
                and y.at not in recording.numbers
                and recording.forms[y.at] == recording.forms[x.at]
            ):
                return k, y
        return None

    for i, line in enumerate(lines):
        if line.function not in (_ATEN.add.Tensor, _ATEN.sub.Tensor) or line.kwargs or len(line.refs) != 2:
            continue
        first, second = line.args
        if recording.forms[first.at] != recording.forms[second.at]:
            continue
        for x, other in ((first, second), (second, first))[: 2 if line.function is _ATEN.add.Tensor else 1]:
            found = scaled(other)
            if found is not None:
                k, y = found
                lines[i] = RecordedCall(line.function, (x, y), (("alpha", k),), line.results, True)
                break
    read = {at for line in lines for at in line.refs} | kept
    return [line for line in lines if not read.isdisjoint(line.results)]


def _symmetric(lines: Sequence[RecordedCall]) -> set[int]:
    """The values that are symmetric matrices: X Xᵀ, and the square of a symmetric matrix, also with such a term."""
    found: set[int] = set()
    transposed: dict[int, int] = {}
    for line in lines:
        at = line.results[0]
        if line.function is _ATEN.transpose.int and sorted(x % 2 for x in line.args[1:]) == [0, 1]:
            transposed[at] = line.refs[0]
            transposed[line.refs[0]] = at
        if line.function not in (_ATEN.mm.default, _ATEN.addmm.default):
            continue
        *start, left, right = (x.at for x in line.args)
        square = (left == right and left in found) or transposed.get(left) == right
        if square and found.issuperset(start):
            found.add(at)
    return found


class _Memory:
    """Which value is in which buffer.

    Args:
        lines: In order.
        recording: Their recording.
        own: Whether the inputs are the weights and state themselves, of which only new ones may take the place.
    """

    def __init__(self, lines: Sequence[RecordedCall], recording: Recording, own: bool) -> None:
        self.forms, self.strides, self.own = list(recording.forms), list(recording.strides), own
        self.inputs = {at: name for at, name in enumerate(recording.inputs) if at not in recording.numbers}
        self.root = list(range(len(recording.forms)))  # the value whose memory each is of
        for line in lines:
            if _is_view(line):
                for at in line.results:
                    self.root[at] = self.root[line.refs[0]]
        self.last: dict[int, int] = {}
        for i, line in enumerate(lines):
            self.last.update((self.root[at], i) for at in (*line.refs, *line.results))
        self.name: dict[int, str] = {}
        for name, at in recording.outputs.items():
            self.last[self.root[at]] = len(lines)
            self.name.setdefault(at, name)
        self.slots: list[int] = []  # bytes of each
        self.slot: dict[int, int] = {}  # of values
        self.instead: dict[int, int] = {}  # values that are written over an input
        self._free: list[int] = []
        if not own:
            for at in self.inputs:
                self.slot[at] = self._new(at)

    def _bytes(self, at: int) -> int:
        shape, dtype = self.forms[at]
        return -(-torch.Size(shape).numel() * dtype.itemsize // _ALIGNED) * _ALIGNED

    def _new(self, at: int) -> int:
        size = self._bytes(at)
        for slot in self._free:
            if self.slots[slot] == size:
                self._free.remove(slot)
                return slot
        self.slots.append(size)
        return len(self.slots) - 1

    def copy_like(self, at: int) -> int:
        """The place of a new value in a buffer for one line, with the form of another."""
        new = len(self.forms)
        self.forms.append(self.forms[at])
        self.strides.append(self.strides[at])
        self.slot[new] = self._new(new)
        self._free.append(self.slot[new])  # the next line may have it
        return new

    def place(self, i: int, line: RecordedCall) -> bool:
        """Find the memory of what a line makes; whether it is one of the buffers or an input."""
        at = line.results[0]
        if not self.over_argument(i, line):
            if torch.Size(self.forms[at][0]).numel() < _SMALL or not self._is_dense(at):
                return False
            self.slot[at] = self._new(at)
        return True

    def _is_dense(self, at: int) -> bool:
        """Whether the elements of a value lie one beside the other, in whatever order of the dimensions."""
        step = 1
        for stride, size in sorted(zip(self.strides[at], self.forms[at][0], strict=True)):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def over_argument(self, i: int, line: RecordedCall) -> bool:
        """Write over an argument that is read for the last time, where that is safe."""
        at = line.results[0]
        if torch.Tag.pointwise in line.function.tags:
            candidates = line.refs
        else:
            candidates = line.refs[:1] if line.function in _ACCUMULATE else []
        for x in candidates:
            alike = self.forms[x] == self.forms[at] and self.strides[x] == self.strides[at]
            same = alike and self.root[x] == x and self.last[x] == i
            others = [y for y in line.refs if y != x]
            if line.function in _ACCUMULATE:
                others = line.refs[1:]
            if not same or any(self.root[y] == x for y in others):
                continue
            if self.own and self.inputs.get(x) == self.name.get(at, "") and x in self.inputs:
                self.instead[at] = x
                return True
            if x in self.instead and self.inputs[self.instead[x]] == self.name.get(at):
                self.instead[at] = self.instead[x]
                return True
            if x in self.slot:
                self.slot[at] = self.slot.pop(x)
                return True
        return False

    def over(self, i: int) -> list[int]:
        """Give back the buffers of values that no later line reads; the values that are not in buffers."""
        gone = {at for at, last in self.last.items() if last == i}
        self._free += [self.slot[at] for at in gone if at in self.slot]
        return [at for at, root in enumerate(self.root) if root in gone and at not in self.slot]


class Buffered:
    """The lines of a recording, each with where its result goes.

    Args:
        recording: What to repeat.
        own: Whether its inputs are the weights and state themselves, which are written where they are. Else they are
            copies in buffers.
    """

    def __init__(self, recording: Recording, own: bool) -> None:
        self.recording, self.own = recording, own
        lines = list(recording.lines) if own else _with_factors(recording)
        memory = _Memory(lines, recording, own)
        self.numbers: list[Step] = []
        self.fixed: list[Step] = []  # views of buffers, made once
        self.steps: list[Step] = []
        self.placed: dict[int, int] = {}  # slot of each value in a buffer
        self.symmetric = _symmetric(lines)
        static = set(memory.slot)
        self.placed.update(memory.slot)
        for i, line in enumerate(lines):
            at = line.results[0]
            if at in recording.numbers:
                self.numbers.append(_calling(line, FASTER.get(line.function, line.function)))
            elif _is_view(line):
                into = self.fixed if line.refs[0] in static else self.steps
                if line.refs[0] in static:
                    static.update(line.results)
                into.append(_calling(line, FASTER.get(line.function, line.function)))
            else:
                self._add(i, line, memory)
                if at in memory.slot:
                    static.add(at)
                    self.placed[at] = memory.slot[at]
            over = memory.over(i)
            if over and at not in recording.numbers:
                self.steps.append(_forgetting([x for x in over if x not in recording.numbers and x not in static]))
        self.forms, self.strides = memory.forms, memory.strides
        self.starts = [sum(memory.slots[:i]) for i in range(len(memory.slots))]
        self.bytes = sum(memory.slots)

    def _add(self, i: int, line: RecordedCall, memory: _Memory) -> None:
        forms, at = self.recording.forms, line.results[0]
        product = None
        if line.function in (_ATEN.mm.default, _ATEN.addmm.default) and forms[at][1] is torch.float32:
            *_, left, right = line.args
            work = forms[left.at][0][0] * forms[left.at][0][1] * forms[right.at][0][1]
            product = float32_product() if work >= LARGE_PRODUCT else None
        if at in self.symmetric and forms[at][0][0] >= HALVED and memory.place(i, line):
            where = memory.instead.get(at, at)
            self.steps += [_halved(line, product, where), *([_renaming(where, at)] if where != at else [])]
            return
        if product is not None:
            written = line.function is _ATEN.addmm.default and memory.over_argument(i, line)
            self.steps.append(_multiplying(line, product, written))
            return
        copies = line.function is _ATEN._to_copy.default and [key for key, _ in line.kwargs] == ["dtype"]
        function = _INTO.get(line.function)
        first = line.args and isinstance(line.args[0], Ref)  # a number of Python may stand for a tensor in ATen alone
        if not (line.single and first and (copies or function) and memory.place(i, line)):
            self.steps.append(_calling(line, FASTER.get(line.function, line.function) if first else line.function))
            return
        where = memory.instead.get(at, at)
        if torch.Tag.pointwise in line.function.tags:
            line = self._in_order(line, memory)
        if function is None:
            self.steps.append(_copying(line.refs[0], where))
        elif line.function in _PRODUCTS and self._is_by_columns(line, where, memory):
            self.steps.append(_writing_transposed(line, function, where))
        else:
            self.steps.append(_writing(line, function, where))
        if where != at:
            self.steps.append(_renaming(where, at))

    def _is_by_columns(self, line: RecordedCall, at: int, memory: _Memory) -> bool:
        """Whether the result of a product of matrices lies column by column in its buffer."""
        rows, columns = memory.strides[at][-2:]
        return rows < columns and all(len(memory.forms[x][0]) >= 2 for x in line.refs)

    def _in_order(self, line: RecordedCall, memory: _Memory) -> RecordedCall:
        """The line with copies of arguments whose elements lie in another order than those of the result.

        Torch has a fast copy that transposes, and no other operation that does so in stretches of the cache.
        """
        recording, at, args = self.recording, line.results[0], list(line.args)
        for j, x in enumerate(args):
            if not isinstance(x, Ref) or recording.forms[x.at] != recording.forms[at] or x.at in recording.numbers:
                continue
            if recording.strides[x.at] != recording.strides[at]:
                made = memory.copy_like(at)
                self.placed[made] = memory.slot[made]
                self.steps.append(_copying(x.at, made))
                args[j] = Ref(made)
        return replace(line, args=tuple(args))

    def bind(self, memory: Tensor) -> Bound:
        """With buffers in this memory, of at least `bytes` bytes."""
        return Bound(self, memory)


def _filled(line: RecordedCall) -> tuple[Callable[[Values], list[Any]], Callable[[Values], dict[str, Any]]]:
    """The arguments of a call, in order and by name."""
    refs = [(j, x.at) for j, x in enumerate(line.args) if isinstance(x, Ref)]
    simple = len(refs) + sum(isinstance(x, Ref) for _, x in line.kwargs) == len(line.refs)
    args, named = list(line.args), dict(line.kwargs)
    factors = [(key, x.at) for key, x in line.kwargs if isinstance(x, Ref)]

    def fill(values: Values, x: Any) -> Any:
        if isinstance(x, Ref):
            return values[x.at]
        return [fill(values, part) for part in x] if isinstance(x, list) else x

    def in_order(values: Values) -> list[Any]:
        if not simple:
            return [fill(values, x) for x in args]
        held = args.copy()
        for j, at in refs:
            held[j] = values[at]
        return held

    def by_name(values: Values) -> dict[str, Any]:
        if not simple:
            return {key: fill(values, x) for key, x in named.items()}
        return {**named, **{key: values[at].item() for key, at in factors}} if factors else named

    return in_order, by_name


def _calling(line: RecordedCall, function: Callable[..., Any]) -> Step:
    in_order, by_name = _filled(line)
    results = line.results

    def step(values: Values) -> None:
        made = function(*in_order(values), **by_name(values))
        if line.single:
            values[results[0]] = made
        else:
            for at, one in zip(results, made, strict=True):
                values[at] = one

    return step


def _writing(line: RecordedCall, function: Callable[..., Any], at: int) -> Step:
    in_order, by_name = _filled(line)

    def step(values: Values) -> None:
        function(*in_order(values), **by_name(values), out=values[at])

    return step


def _writing_transposed(line: RecordedCall, function: Callable[..., Any], at: int) -> Step:
    """A product as (A B)ᵀ = Bᵀ Aᵀ, which is written row by row.

    Torch's products of stacks in low precision take a hundred times longer where they write column by column.
    """
    in_order, by_name = _filled(line)

    def step(values: Values) -> None:
        *start, left, right = (x.mT for x in in_order(values))
        function(*start, right, left, **by_name(values), out=values[at].mT)

    return step


def _copying(of: int, to: int) -> Step:
    def step(values: Values) -> None:
        values[to].copy_(values[of])

    return step


def _renaming(of: int, to: int) -> Step:
    def step(values: Values) -> None:
        values[to] = values[of]

    return step


def _forgetting(places: Sequence[int]) -> Step:
    def step(values: Values) -> None:
        for at in places:
            values[at] = None

    return step


def _multiplying(line: RecordedCall, product: Callable[[Tensor, Tensor], Tensor], written: bool) -> Step:
    """A product of two matrices, or such a sum, which is written over its first term where `written` says so."""
    *start, left, right = line.args
    named, at = dict(line.kwargs), line.results[0]
    beta, alpha = named.get("beta", 1), named.get("alpha", 1)

    def step(values: Values) -> None:
        made = product(values[left.at], values[right.at])
        if written:
            old = values[start[0].at]
            values[at] = (old if beta == 1 else old.mul_(beta)).add_(made, alpha=alpha)
            return
        if alpha != 1:
            made.mul_(alpha)
        if start:
            made.add_(values[start[0].at], alpha=beta)
        values[at] = made

    return step


def _halved(line: RecordedCall, product: Callable[[Tensor, Tensor], Tensor] | None, at: int) -> Step:
    """A symmetric product, or such a sum, of which a quarter is copied from its mirror image.

    The square of a symmetric matrix takes rows in the place of columns, which lie without gaps.
    """
    *start, left, right = (x.at for x in line.args)
    named = dict(line.kwargs)
    beta, alpha = named.get("beta", 1), named.get("alpha", 1)

    def step(values: Values) -> None:
        out = values[at]
        half = len(out) // 2 // 64 * 64
        for rows, columns in ((slice(None), slice(half)), (slice(half, None), slice(half, None))):
            x, to = values[left][rows], out[rows, columns]
            y = values[right][columns].mT if left == right else values[right][:, columns]
            if product is None and not start:
                torch.mm(x, y, out=to)
            elif product is None:
                torch.addmm(values[start[0]][rows, columns], x, y, beta=beta, alpha=alpha, out=to)
            elif not start:
                to.copy_(product(x, y))
            else:
                made = product(x, y)
                torch.add(made if alpha == 1 else made.mul_(alpha), values[start[0]][rows, columns], alpha=beta, out=to)
        out[:half, half:] = out[half:, :half].mT

    return step


class Bound:
    """Buffers of a recording.

    Attributes:
        inputs: Memory that the inputs go to, by name; none where they are the weights and state themselves.
    """

    def __init__(self, held: Buffered, memory: Tensor) -> None:
        self.held, recording = held, held.recording
        self.values: Values = [None] * len(held.forms)
        for at, slot in held.placed.items():
            shape, dtype = held.forms[at]
            start, size = held.starts[slot], torch.Size(shape).numel() * dtype.itemsize
            self.values[at] = memory[start : start + size].view(dtype).as_strided(shape, held.strides[at])
        names = recording.inputs
        self.inputs = {names[at]: self.values[at] for at in held.placed if at < len(names)}
        for step in held.fixed:
            step(self.values)
        self.numbers: list[float] | None = None

    def run(self, numbers: Sequence[float], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The new values by name, of those that are not the old ones; some of them in the memory of the old ones.

        Args:
            numbers: The first inputs.
            inputs: The weights and state, unless they were copied to `self.inputs`.
        """
        values, recording = self.values, self.held.recording
        if self.numbers != numbers:
            made = torch.tensor(numbers, dtype=torch.float64, device="cpu").unbind(0)
            values[: len(made)] = made
            for step in self.held.numbers:
                step(values)
            self.numbers = list(numbers)
        for at, name in enumerate(recording.inputs):
            if name in inputs:
                values[at] = inputs[name]
        for step in self.held.steps:
            step(values)
        names = dict(enumerate(recording.inputs))
        return {name: values[at] for name, at in recording.outputs.items() if names.get(at) != name}
