"""Carries out the recorded updates of several stacks together, each operation for all of them before the next.

Where torch has a form of the operation that takes lists (`torch._foreach_`), one call serves all stacks, whatever their
shapes. Matrices to factorize are spread over streams (factorizations.py). Numbers of the host are computed for all
stacks at once, as vectors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.compiler.trace import Ref
from descend.optim.engine.factorizations import FACTORIZATIONS, factorized
from descend.optim.engine.recorded import FASTER
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


Values = list[Any]  # by place: a list with one tensor a stack, or None
Step = Callable[["_Run"], None]


class _Run:
    """The values of one update of the stacks of a lane.

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


@dataclass(frozen=True, eq=False)
class _ListCall:
    """A line that one call does for all stacks of a lane, and of other lanes that come to such a line.

    Attributes:
        kind: Calls with the same can be one: name of the function, precision, which arguments are lists of tensors,
            whether their shapes differ (such lists take a launch for each tensor), and arguments by name.
        args: A `Ref`, a number, or a list of numbers.
        named: Arguments by name.
        result: Place of what it makes.
    """

    kind: tuple[Any, ...]
    args: tuple[Any, ...]
    named: dict[str, Any]
    result: int


class _Lane:
    """Stacks whose recordings have one pattern.

    Args:
        recordings: One for each stack.
        stacks: Numbers of the stacks.
    """

    def __init__(self, recordings: Sequence[Recording], stacks: Sequence[int]) -> None:
        self.recordings, self.stacks = recordings, list(stacks)
        self.first = recordings[0]
        self.split: set[int] = set()  # numbers that lines need as tensors
        self.factors: set[int] = set()  # numbers that lines need as Python's
        self.steps: list[Step | _ListCall] = [self._step(i, line) for i, line in enumerate(self.first.lines)]
        last: dict[int, int] = {}
        for i, line in enumerate(self.first.lines):
            last.update(dict.fromkeys((*line.refs, *line.results), i))
        for at in self.first.outputs.values():
            last.pop(at, None)
        self.over: list[list[int]] = [[] for _ in self.steps]  # values that no later line reads
        for at, i in last.items():
            self.over[i].append(at)

    def begin(self, numbers: Sequence[Sequence[float]], inputs: Sequence[dict[str, Tensor]]) -> _Run:
        """Take the inputs of the stacks, which are emptied."""
        run, names = _Run(len(self.first.forms)), self.first.inputs
        table = torch.tensor([numbers[i] for i in self.stacks], dtype=torch.float64, device="cpu")
        for at, vector in enumerate(table.unbind(1)):
            self._keep(run, at, vector)
        for at in range(table.shape[1], len(names)):
            run.values[at] = [inputs[i].pop(names[at]) for i in self.stacks]
        return run

    def end(self, run: _Run, new: Sequence[dict[str, Tensor]]) -> None:
        """Hand over new values, of those that are not the old ones."""
        for name, at in self.first.outputs.items():
            if at >= len(self.first.inputs) or self.first.inputs[at] != name:
                for i, value in zip(self.stacks, run.values[at], strict=True):
                    new[i][name] = value

    def _keep(self, run: _Run, at: int, vector: Tensor) -> None:
        """A number, in the forms in which it will be read."""
        run.vectors[at] = vector
        if at in self.split:
            run.values[at] = vector.unbind(0)
        if at in self.factors:
            values = vector.tolist()
            run.factors[at] = values[0] if all(x == values[0] for x in values) else values

    def argument(self, run: _Run, x: Any) -> Any:
        """What an argument of a `_ListCall` stands for."""
        if not isinstance(x, Ref):
            return x
        return run.factors[x.at] if x.at in self.first.numbers else run.values[x.at]

    def _step(self, i: int, line: RecordedCall) -> Step | _ListCall:
        if line.results[0] in self.first.numbers:
            return self._of_numbers(line)
        return self._of_lists(i, line) or self._factorization(i, line) or self._one_by_one(i, line)

    def _of_numbers(self, line: RecordedCall) -> Step:
        function, args, named, result = line.function, line.args, dict(line.kwargs), line.results[0]

        def step(run: _Run) -> None:
            held = [run.vectors[x.at] if isinstance(x, Ref) else x for x in args]
            self._keep(run, result, function(*held, **named))

        return step

    def _one_by_one(self, i: int, line: RecordedCall) -> Step:
        lines = [recording.lines[i] for recording in self.recordings]
        self.split.update(at for at in line.refs if at in self.first.numbers)
        function, results = line.function, line.results
        if line.args and isinstance(line.args[0], Ref):  # a number of Python may stand for a tensor in ATen alone
            function = FASTER.get(function, function)
            if function is _ATEN._to_copy.default and [key for key, _ in line.kwargs] == ["dtype"]:
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

    def _factorization(self, i: int, line: RecordedCall) -> Step | None:
        """A factorization of all stacks, or None where the line is another one."""
        if line.function not in FACTORIZATIONS or line.refs != [line.args[0].at]:
            return None
        if any(one.lines[i].args != line.args or one.lines[i].kwargs != line.kwargs for one in self.recordings):
            return None
        rest, named = line.args[1:], dict(line.kwargs)
        forms = [[(*one.forms[at], one.strides[at]) for at in line.results] for one in self.recordings]

        def factorize(x: Tensor) -> Sequence[Tensor]:
            return line.function(x, *rest, **named)

        def step(run: _Run) -> None:
            made = factorized(factorize, run.values[line.refs[0]], forms, FACTORIZATIONS[line.function])
            for at, values in zip(line.results, zip(*made, strict=True), strict=True):
                run.values[at] = list(values)

        return step

    def _of_lists(self, i: int, line: RecordedCall) -> _ListCall | None:
        """One call for all stacks, or None where torch has none."""
        if line.function in _OF_ONE:
            return self._call(_OF_ONE[line.function], line, (line.args[0],), {})
        if line.function is _ATEN.clamp.default:
            least, most = (*line.args[1:], *[None] * 2)[:2]
            if (least is None) != (most is None) and not line.kwargs:
                name, j = ("clamp_min", 1) if most is None else ("clamp_max", 2)
                return self._call(name, line, (line.args[0], self._constant(i, j)), {})
        if line.function is _ATEN.lerp.Scalar and self._is_stack(line.args[1]):
            weight = self._constant(i, 2)
            return None if isinstance(weight, list) else self._call("lerp", line, line.args[:2], {"weight": weight})
        if line.function in _OF_TWO and len(line.args) == 2:
            return self._of_two(i, line, _OF_TWO[line.function])
        return None

    def _constant(self, i: int, j: int) -> Any:
        """An argument that is no value: one where the stacks agree, else a list."""
        found = [recording.lines[i].args[j] for recording in self.recordings]
        if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in found):
            return None
        return found[0] if all(x == found[0] for x in found) else [float(x) for x in found]

    def _of_two(self, i: int, line: RecordedCall, name: str) -> _ListCall | None:
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
        return self._call(name, line, (one, other), named)

    def _agree(self, i: int) -> bool:
        return all(recording.lines[i].kwargs == self.first.lines[i].kwargs for recording in self.recordings)

    def _is_stack(self, x: Any) -> bool:
        return isinstance(x, Ref) and x.at not in self.first.numbers

    def _call(self, name: str, line: RecordedCall, args: Sequence[Any], named: dict[str, Any]) -> _ListCall | None:
        """A call with lists, of stacks of one floating-point precision, which is the result's."""
        forms, result = self.first.forms, line.results[0]
        lists = tuple(self._is_stack(x) for x in args)
        stacks = [x.at for x, held in zip(args, lists, strict=True) if held]
        if any(x is None for x in (*args, *named.values())) or not lists[0] or not forms[result][1].is_floating_point:
            return None
        # A constant of the host, 0-d, is of no list.
        if any(forms[at][1] is not forms[result][1] or not forms[at][0] for at in stacks):
            return None
        numbers = [x.at for x in args if isinstance(x, Ref) and x.at in self.first.numbers]
        if any(not forms[at][1].is_floating_point for at in numbers):
            return None
        self.factors.update(numbers)
        differ = any(one.forms[at][0] != one.forms[result][0] for one in self.recordings for at in stacks)
        kind = (name, forms[result][1], lists, differ, *named.items())
        return _ListCall(kind, tuple(args), named, result)


class Lockstep:
    """The operations of recordings.

    Args:
        recordings: One for each stack. Those of one pattern go together, line by line; of different patterns those
            lines for which torch has one call with lists, where they come to such lines at the same time.
    """

    def __init__(self, recordings: Sequence[Recording]) -> None:
        alike: dict[str, list[int]] = {}
        for i, recording in enumerate(recordings):
            alike.setdefault(recording.pattern, []).append(i)
        self.lanes = [_Lane([recordings[i] for i in stacks], stacks) for stacks in alike.values()]
        # Each with the values that are over after it, by lane.
        self.schedule: list[tuple[Callable[[Sequence[_Run]], None], list[tuple[int, list[int]]]]] = []
        self._arrange()

    def _arrange(self) -> None:
        """Let each lane go on to its next call with lists; then do those that can be one, of most lanes."""
        done = [0] * len(self.lanes)

        def rest(k: int) -> int:
            return len(self.lanes[k].steps) - done[k]

        def add(step: Callable[[Sequence[_Run]], None], lanes: Sequence[int]) -> None:
            self.schedule.append((step, [(k, self.lanes[k].over[done[k]]) for k in lanes]))
            for k in lanes:
                done[k] += 1

        while True:
            waiting: dict[tuple[Any, ...], list[tuple[int, _ListCall]]] = {}
            for k, lane in enumerate(self.lanes):
                while rest(k):
                    step = lane.steps[done[k]]
                    if isinstance(step, _ListCall):
                        waiting.setdefault(step.kind, []).append((k, step))
                        break
                    add(functools.partial(_alone, k, step), [k])
            if not waiting:
                return
            calls = max(waiting.values(), key=lambda calls: (len(calls), max(rest(k) for k, _ in calls)))
            add(self._together(calls), [k for k, _ in calls])

    def _together(self, calls: Sequence[tuple[int, _ListCall]]) -> Callable[[Sequence[_Run]], None]:
        first = calls[0][1]
        function, named, lists = foreach(first.kind[0]), first.named, first.kind[2]
        sizes = [len(self.lanes[k].stacks) for k, _ in calls]
        ends = list(itertools.accumulate(sizes))

        def step(runs: Sequence[_Run]) -> None:
            args = [[self.lanes[k].argument(runs[k], call.args[j]) for k, call in calls] for j in range(len(lists))]
            found = function(*map(_joined, args, lists, itertools.repeat(sizes)), **named)
            for (k, call), size, end in zip(calls, sizes, ends, strict=True):
                runs[k].values[call.result] = found[end - size : end]

        return step

    def __call__(
        self, numbers: Sequence[Sequence[float]], inputs: Sequence[dict[str, Tensor]]
    ) -> list[dict[str, Tensor]]:
        """New values of each stack by name, of those that are not the old ones.

        Args:
            numbers: Of each stack the numbers that are its first inputs.
            inputs: Of each stack its other inputs by name; emptied, so that their memory is free after their last
                reader.
        """
        runs = [lane.begin(numbers, inputs) for lane in self.lanes]
        for step, over in self.schedule:
            step(runs)
            for k, places in over:
                for at in places:
                    runs[k].values[at] = None
        new: list[dict[str, Tensor]] = [{} for _ in inputs]
        for lane, run in zip(self.lanes, runs, strict=True):
            lane.end(run, new)
        return new


def _alone(k: int, step: Step, runs: Sequence[_Run]) -> None:
    step(runs[k])


def _joined(parts: list[Any], is_list: bool, sizes: Sequence[int]) -> Any:
    """The arguments of several lanes as one: lists one after the other, and a factor where all have the same."""
    if len(parts) == 1:
        return parts[0]
    if is_list:
        return [x for part in parts for x in part]
    if not any(isinstance(part, list) for part in parts) and all(part == parts[0] for part in parts):
        return parts[0]
    spread = [part if isinstance(part, list) else [float(part)] * n for part, n in zip(parts, sizes, strict=True)]
    return [x for part in spread for x in part]


@functools.lru_cache(maxsize=64)
def lockstep(recordings: tuple[Recording, ...]) -> Lockstep:
    """How these recordings are carried out."""
    return Lockstep(recordings)
