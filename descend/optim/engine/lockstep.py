"""Carries out the recorded updates of several stacks together, each operation for all of them before the next.

Where torch has a form of the operation that takes lists (`torch._foreach_`), one call serves all stacks, whatever their
shapes. Numbers of the host are computed for all stacks at once, as vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.compiler.trace import Ref
from descend.torch_private import foreach

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.optim.engine.recorded import RecordedCall, Recording

__all__ = ["Lockstep", "lockstep"]

_ATEN = torch.ops.aten
_OF_TWO: Mapping[Any, str] = {
    _ATEN.add.Tensor: "add",
    _ATEN.sub.Tensor: "sub",
    _ATEN.mul.Tensor: "mul",
    _ATEN.mul.Scalar: "mul",
    _ATEN.div.Tensor: "div",
    _ATEN.minimum.default: "minimum",
    _ATEN.maximum.default: "maximum",
}
_COMMUTATIVE = frozenset({"add", "mul", "minimum", "maximum"})
_NAMES = (
    "abs ceil cos cosh erf erfc exp expm1 floor log log10 log1p log2 neg reciprocal rsqrt sigmoid sign sin sinh sqrt "
    "tan tanh trunc"
)
_OF_ONE: Mapping[Any, str] = {getattr(_ATEN, name).default: name for name in _NAMES.split()}


def _converted(x: Tensor, *, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


# Functions of Python that call these overloads with the same arguments, in half the time of a call through torch.ops.
_FASTER: Mapping[Any, Callable[..., Any]] = {
    _ATEN.add.Tensor: torch.add,
    _ATEN.baddbmm.default: torch.baddbmm,
    _ATEN.bmm.default: torch.bmm,
    _ATEN.div.Tensor: torch.div,
    _ATEN.linalg_vector_norm.default: torch.linalg.vector_norm,
    _ATEN.mean.dim: torch.mean,
    _ATEN.mul.Tensor: torch.mul,
    _ATEN.sub.Tensor: torch.sub,
    _ATEN.transpose.int: torch.transpose,
    _ATEN.view.default: torch.Tensor.view,
}

Values = list[Any]  # by place: a list with one tensor a stack, or None
Step = Callable[["_Run"], None]


class _Run:
    """The values of one update.

    Attributes:
        values: Of each place a list with a tensor for each stack, where lines need it.
        vectors: Numbers, (stacks,) in float64.
        factors: Numbers as Python's: one where all stacks agree, else a list.
    """

    __slots__ = ("factors", "values", "vectors")

    def __init__(self, places: int) -> None:
        self.values: Values = [None] * places
        self.vectors: dict[int, Tensor] = {}
        self.factors: dict[int, Any] = {}


class Lockstep:
    """The operations of recordings of one pattern.

    Args:
        recordings: One for each stack.
    """

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        self.first = recordings[0]
        self.split: set[int] = set()  # numbers that lines need as tensors
        self.factors: set[int] = set()  # numbers that lines need as Python's
        made = [self._step(i, line) for i, line in enumerate(self.first.lines)]
        last: dict[int, int] = {}
        for i, line in enumerate(self.first.lines):
            last.update(dict.fromkeys((*line.refs, *line.results), i))
        for at in self.first.outputs.values():
            last.pop(at, None)
        over: list[list[int]] = [[] for _ in made]
        for at, i in last.items():
            over[i].append(at)
        self.steps = list(zip(made, over, strict=True))

    def __call__(self, numbers: Tensor, inputs: list[list[Tensor]]) -> dict[str, list[Tensor]]:
        """New values by name, a tensor for each stack, of those that are not the old ones.

        Args:
            numbers: (numbers, stacks) in float64.
            inputs: The other inputs in order, a tensor for each stack; emptied, so that their memory is free after
                their last reader.
        """
        run, count = _Run(len(self.first.forms)), len(numbers)
        for at, vector in enumerate(numbers.unbind(0)):
            self._keep(run, at, vector)
        for at, held in enumerate(inputs, count):
            run.values[at] = held
        given = count + len(inputs)
        inputs.clear()
        for step, over in self.steps:
            step(run)
            for at in over:
                run.values[at] = None
        return {
            name: run.values[at]
            for name, at in self.first.outputs.items()
            if at >= given or self.first.inputs[at] != name
        }

    def _keep(self, run: _Run, at: int, vector: Tensor) -> None:
        """A number, in the forms in which it will be read."""
        run.vectors[at] = vector
        if at in self.split:
            run.values[at] = vector.unbind(0)
        if at in self.factors:
            values = vector.tolist()
            run.factors[at] = values[0] if all(x == values[0] for x in values) else values

    def _step(self, i: int, line: RecordedCall) -> Step:
        if line.results[0] in self.first.numbers:
            return self._of_numbers(line)
        return self._of_lists(i, line) or self._one_by_one(i, line)

    def _of_numbers(self, line: RecordedCall) -> Step:
        function, args, named, result = line.function, line.args, dict(line.kwargs), line.results[0]

        def step(run: _Run) -> None:
            held = [run.vectors[x.at] if isinstance(x, Ref) else x for x in args]
            self._keep(run, result, function(*held, **named))

        return step

    def _one_by_one(self, i: int, line: RecordedCall) -> Step:
        lines = [recording.lines[i] for recording in self.recordings]
        self.split.update(at for at in line.refs if at in self.first.numbers)
        function, results = _FASTER.get(line.function, line.function), line.results
        if line.function is _ATEN._to_copy.default and [key for key, _ in line.kwargs] == ["dtype"]:
            function = _converted
        refs = [(j, x.at) for j, x in enumerate(line.args) if isinstance(x, Ref)]
        simple = len(refs) == len(line.refs)
        forms = [(list(one.args), dict(one.kwargs)) for one in lines]

        def fill(values: Values, k: int, x: Any) -> Any:
            if isinstance(x, Ref):
                return values[x.at][k]
            return [fill(values, k, part) for part in x] if isinstance(x, list) else x

        def step(run: _Run) -> None:
            values, made = run.values, []
            for k, (args, named) in enumerate(forms):
                if simple:
                    held = args.copy()
                    for j, at in refs:
                        held[j] = values[at][k]
                    made.append(function(*held, **named))
                else:
                    named = {key: fill(values, k, x) for key, x in named.items()}
                    made.append(function(*[fill(values, k, x) for x in args], **named))
            if line.single:
                values[results[0]] = made
            else:
                for at, one in zip(results, zip(*made, strict=True), strict=True):
                    values[at] = list(one)

        return step

    def _of_lists(self, i: int, line: RecordedCall) -> Step | None:
        """One call for all stacks, or None where torch has none."""
        if line.function in _OF_ONE:
            return self._mapped(foreach(_OF_ONE[line.function]), line, (line.args[0],), {})
        if line.function is _ATEN.clamp.default:
            least, most = (*line.args[1:], *[None] * 2)[:2]
            if (least is None) != (most is None) and not line.kwargs:
                name, j = ("clamp_min", 1) if most is None else ("clamp_max", 2)
                return self._mapped(foreach(name), line, (line.args[0], self._constant(i, j)), {})
        if line.function is _ATEN.lerp.Scalar and self._is_stack(line.args[1]):
            weight = self._constant(i, 2)
            return (
                None if isinstance(weight, list) else self._mapped(foreach("lerp"), line, (*line.args[:2], weight), {})
            )
        if line.function in _OF_TWO and len(line.args) == 2:
            return self._of_two(i, line, _OF_TWO[line.function])
        return None

    def _constant(self, i: int, j: int) -> Any:
        """An argument that is no value: one where the stacks agree, else a list."""
        found = [recording.lines[i].args[j] for recording in self.recordings]
        if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in found):
            return None
        return found[0] if all(x == found[0] for x in found) else [float(x) for x in found]

    def _of_two(self, i: int, line: RecordedCall, name: str) -> Step | None:
        places, named = [0, 1], dict(line.kwargs)
        if not self._is_stack(line.args[0]):
            if name not in _COMMUTATIVE or named:
                return None
            places = [1, 0]
        one, other = (line.args[j] for j in places)
        if not self._is_stack(one):
            return None
        if not isinstance(other, Ref):
            other = self._constant(i, places[1])
            if other is None:
                return None
        # A factor on the other value is for lists of tensors alone.
        if named and (not self._is_stack(other) or set(named) != {"alpha"} or not self._agree(i)):
            return None
        return self._mapped(foreach(name), line, (one, other), named)

    def _agree(self, i: int) -> bool:
        return all(recording.lines[i].kwargs == self.first.lines[i].kwargs for recording in self.recordings)

    def _is_stack(self, x: Any) -> bool:
        return isinstance(x, Ref) and x.at not in self.first.numbers

    def _mapped(
        self, function: Callable[..., Any], line: RecordedCall, args: Sequence[Any], named: dict[str, Any]
    ) -> Step | None:
        """A call with lists, of stacks of one floating-point precision, which is the result's."""
        forms, result = self.first.forms, line.results[0]
        stacks = [x.at for x in args if self._is_stack(x)]
        if any(x is None for x in args) or not self._is_stack(args[0]) or not forms[result][1].is_floating_point:
            return None
        # A constant of the host, 0-d, is of no list.
        if any(forms[at][1] is not forms[result][1] or not forms[at][0] for at in stacks):
            return None
        if any(not forms[x.at][1].is_floating_point for x in args if isinstance(x, Ref)):
            return None
        self.factors.update(x.at for x in args if isinstance(x, Ref) and x.at in self.first.numbers)
        numbers = self.first.numbers

        def step(run: _Run) -> None:
            held = [
                x if not isinstance(x, Ref) else run.factors[x.at] if x.at in numbers else run.values[x.at]
                for x in args
            ]
            run.values[result] = function(*held, **named)

        return step


@functools.lru_cache(maxsize=256)
def lockstep(recordings: tuple[Recording, ...]) -> Lockstep:
    """How recordings of one pattern are carried out."""
    return Lockstep(recordings)
