"""Records the operations of a rule's update once, so that later updates repeat them without the rule's text.

Rules are Python, and mapping them over a stack (`torch.vmap`) costs the host several times as much as the operations
themselves. What a text does to tensors of given shapes is always the same operations, whatever the numbers t, lr,
decay and size are. Where a text asks for a value of those numbers (`if t == 1`), its answer is kept beside the
operations, and another answer is another recording; of a text that asks for many different values there is a new one
at each step. What a text does in a way that no recording sees is not repeated: such a text is mapped at each step.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from descend.optim.compiler.trace import Ref
from descend.torch_private import dispatch_mode, operator_schema, storage_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["FASTER", "RecordedCall", "Recording", "record"]

_ATEN = torch.ops.aten
# Of one tensor, which they leave as it is where its shape stays.
_RESHAPES = frozenset({_ATEN.view.default, _ATEN.expand.default, _ATEN._unsafe_view.default, _ATEN.alias.default})
# Functions of Python that call these overloads with the same arguments, in half the time of a call through torch.ops.
FASTER: Mapping[Any, Callable[..., Any]] = {
    _ATEN.add.Tensor: torch.add,
    _ATEN.baddbmm.default: torch.baddbmm,
    _ATEN.bmm.default: torch.bmm,
    _ATEN.div.Tensor: torch.div,
    _ATEN.linalg_vector_norm.default: torch.linalg.vector_norm,
    _ATEN.mean.dim: torch.mean,
    _ATEN.mul.Tensor: torch.mul,
    _ATEN.sqrt.default: torch.sqrt,
    _ATEN.sub.Tensor: torch.sub,
    _ATEN.transpose.int: torch.transpose,
    _ATEN.view.default: torch.Tensor.view,
}
# What shows values to Python behind the operations.
_UNSEEN = frozenset({"numpy", "tolist", "__array__", "__dlpack__"})


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One operation.

    Attributes:
        function: An overload of `torch.ops`.
        args: Values, and a `Ref` for each that an earlier line has made, also within lists.
        kwargs: The same by name.
        results: Places of what it makes.
        single: Whether that is one tensor and no tuple.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[int, ...]
    single: bool

    @property
    def refs(self) -> list[int]:
        """Places of the values it reads."""
        found: list[int] = []
        for x in (*self.args, *(value for _, value in self.kwargs)):
            found += [part.at for part in (x if isinstance(x, (list, tuple)) else (x,)) if isinstance(part, Ref)]
        return found


@dataclass(frozen=True, eq=False)
class Recording:
    """The operations of an update of a stack of tensors.

    Attributes:
        lines: In order.
        inputs: Names of the first values.
        forms: Shape and precision of each value, by its place; the first are the inputs.
        strides: Of each value, by its place, as the text made it.
        numbers: Places of values that are numbers on the host, computed from such by pointwise operations.
        answers: Places of the numbers whose value the text asked for, each with that value.
        outputs: Place of each new value, by name.
    """

    lines: tuple[RecordedCall, ...]
    inputs: tuple[str, ...]
    forms: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    strides: tuple[tuple[int, ...], ...]
    numbers: frozenset[int]
    answers: tuple[tuple[int, Any], ...]
    outputs: Mapping[str, int]

    @functools.cached_property
    def _asked(self) -> list[RecordedCall]:
        """The lines that lead to the answers."""
        return _used(self.lines, {at for at, _ in self.answers})

    @functools.cached_property
    def draws(self) -> bool:
        """Whether a line draws random numbers."""
        return any(_draws(line) for line in self.lines)

    @functools.cached_property
    def pattern(self) -> str:
        """The same for recordings whose lines do the same to stacks of other shapes, so that each can be done for all.

        Of numbers it holds the constants too, so that these lines differ in nothing.
        """
        lines = [
            (line.function, [x if isinstance(x, Ref) or self._is_number(line) else _outline(x) for x in line.args],
             [(key, x if isinstance(x, Ref) or self._is_number(line) else _outline(x)) for key, x in line.kwargs],
             line.results)
            for line in self.lines
        ]  # fmt: skip
        precisions = [dtype for _, dtype in self.forms]
        return sys.intern(repr((lines, self.inputs, precisions, sorted(self.outputs.items()))))

    def _is_number(self, line: RecordedCall) -> bool:
        return line.results[0] in self.numbers

    def answers_are(self, numbers: Sequence[Tensor]) -> bool:
        """Whether the text would be given the same answers with these numbers, which are the first inputs."""
        if not self.answers:
            return True
        values: dict[int, Any] = dict(enumerate(numbers))
        for line in self._asked:
            args = [values[x.at] if isinstance(x, Ref) else x for x in line.args]
            values[line.results[0]] = line.function(*args, **dict(line.kwargs))
        return all(values[at].item() == answer for at, answer in self.answers)


def _outline(x: Any) -> Any:
    """Where an argument holds values that lines have made; the type of another."""
    if isinstance(x, list) and any(isinstance(part, Ref) for part in x):
        return [_outline(part) for part in x]
    return x if isinstance(x, Ref) else type(x).__name__


class _CannotRepeat(Exception):
    """Why a recording cannot stand for the text; never leaves this file."""


def _has_shape_of_values(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether the shape of what it makes depends on values, as of `nonzero`; that of an index of numbers does not."""
    if function is _ATEN.index.Tensor:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return torch.Tag.dynamic_output_shape in function.tags


def _memory(x: Tensor) -> Any:
    return storage_identity(x.untyped_storage()), x.storage_offset(), x.shape, x.stride(), x.dtype


class _Unseen(TorchFunctionMode):
    """Notices where a text takes values that no recording sees."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.found = self.found or getattr(func, "__name__", "") in _UNSEEN
        return func(*args, **(kwargs or {}))


class _Recorder:
    """What has been seen so far. It keeps no tensor alive, so that a recorded update takes no more memory than another.

    Args:
        numbers: The first inputs, 0-d on the host.
        others: The other inputs.
    """

    def __init__(self, numbers: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        self.known: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self.constants: list[tuple[Tensor, int]] = []  # made of no tensors
        self.forms: list[tuple[tuple[int, ...], torch.dtype]] = []
        self.strides: list[tuple[int, ...]] = []
        self.lines: list[RecordedCall] = []
        self.answers: list[tuple[int, Any]] = []
        self.broken = False
        self.numbers: set[int] = {self._place(x) for x in numbers}
        for x in others:
            self._place(x)

    def _place(self, x: Tensor) -> int:
        at = len(self.forms)
        self.known[id(x)] = weakref.ref(x), at
        self.forms.append((tuple(x.shape), x.dtype))
        self.strides.append(x.stride())
        return at

    def find(self, x: Tensor) -> int:
        """The place of a value.

        Raises:
            _CannotRepeat: It is not from here.
        """
        held = self.known.get(id(x))
        if held is not None and held[0]() is x:
            return held[1]
        for made, at in self.constants:  # `torch.arange` returns another tensor of the same memory
            if _memory(made) == _memory(x):
                return at
        raise _CannotRepeat

    def _held(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return Ref(self.find(x))
        return [self._held(part) for part in x] if isinstance(x, (list, tuple)) else x

    def __call__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = function(*args, **kwargs)
        if not self.broken:
            try:
                self._write(function, args, kwargs, result)
            except _CannotRepeat:
                self.broken = True
        return result

    def _write(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        if function is _ATEN._local_scalar_dense.default:
            at = self.find(args[0])
            if at not in self.numbers:
                raise _CannotRepeat
            self.answers.append((at, result))
            return
        # What is written in place, or depends on values in its shape, is left to the text itself.
        if operator_schema(function).is_mutable or _has_shape_of_values(function, args):
            raise _CannotRepeat
        if function is _ATEN.lift_fresh.default:  # of a tensor that the text makes of Python's numbers
            held: tuple[Any, ...] = (args[0],)
            function = _ATEN.lift_fresh_copy.default
        else:
            held = tuple(self._held(x) for x in args)
        named = tuple((key, self._held(x)) for key, x in kwargs.items())
        made = list(result) if isinstance(result, (list, tuple)) else [result]
        if not all(isinstance(x, Tensor) for x in made):
            raise _CannotRepeat
        line = RecordedCall(function, held, named, tuple(self._place(x) for x in made), isinstance(result, Tensor))
        self.lines.append(line)
        if not line.refs:
            self.constants += zip(made, line.results, strict=True)
        pointwise = torch.Tag.pointwise in function.tags and line.single and made[0].ndim == 0
        plain = all(x is None or isinstance(x, (Ref, int, float)) for x in held) and not any(
            isinstance(x, Ref) for _, x in named
        )
        if pointwise and plain and line.refs and self.numbers.issuperset(line.refs):
            self.numbers.add(line.results[0])


def record(
    call: Callable[[], dict[str, Tensor]],
    numbers: Mapping[str, Tensor],
    others: Mapping[str, Tensor],
    *,
    with_sums: bool = True,
) -> tuple[dict[str, Tensor], Recording | None]:
    """Call a function of tensors and write down what it does.

    Args:
        call: Of no arguments, with the inputs in it; returns new values by name.
        numbers: Its inputs that are numbers, 0-d float64 on the host.
        others: Its other inputs. A new value has the name of the one that it replaces.
        with_sums: Whether sums with what makes their second term are one operation, which rounds less often.

    Returns:
        What the function returned, and the recording, or None where repeating it would not be the same.
    """
    recorder, unseen = _Recorder(list(numbers.values()), list(others.values())), _Unseen()
    with unseen, dispatch_mode(recorder):
        found = call()
    if recorder.broken or unseen.found:
        return found, None
    try:
        outputs = {name: recorder.find(x) for name, x in found.items()}
    except _CannotRepeat:
        return found, None
    return found, _simplified(recorder, (*numbers, *others), outputs, with_sums)


def _simplified(recorder: _Recorder, inputs: tuple[str, ...], outputs: Mapping[str, int], with_sums: bool) -> Recording:
    """The same without what is done twice or for nothing, and with sums of products as one operation."""
    same: dict[int, int] = {}  # places whose value another place has
    seen: dict[Any, tuple[int, ...]] = {}
    lines: list[RecordedCall] = []
    for held in recorder.lines:
        line = _renamed(held, same)
        if line.function in _RESHAPES and recorder.forms[line.refs[0]][0] == recorder.forms[line.results[0]][0]:
            same[line.results[0]] = line.refs[0]
            continue
        key = (line.function, repr(line.args), repr(line.kwargs))
        if key in seen:
            same.update(zip(line.results, seen[key], strict=True))
            continue
        if not _draws(line) and line.refs:
            seen[key] = line.results
        lines.append(line)
    outputs = {name: same.get(at, at) for name, at in outputs.items()}
    answers = tuple(dict.fromkeys((same.get(at, at), answer) for at, answer in recorder.answers))
    roots = {*outputs.values(), *(at for at, _ in answers)}
    lines = _used(_sums_of_products(lines, recorder.forms, roots) if with_sums else lines, roots)
    forms, strides = tuple(recorder.forms), tuple(recorder.strides)
    return Recording(tuple(lines), inputs, forms, strides, frozenset(recorder.numbers), answers, outputs)


def _draws(line: RecordedCall) -> bool:
    return torch.Tag.nondeterministic_seeded in line.function.tags


def _renamed(line: RecordedCall, same: Mapping[int, int]) -> RecordedCall:
    def one(x: Any) -> Any:
        if isinstance(x, Ref):
            return Ref(same.get(x.at, x.at))
        return [one(part) for part in x] if isinstance(x, (list, tuple)) else x

    args, kwargs = tuple(one(x) for x in line.args), tuple((key, one(x)) for key, x in line.kwargs)
    return RecordedCall(line.function, args, kwargs, line.results, line.single)


def _used(lines: Sequence[RecordedCall], roots: set[int]) -> list[RecordedCall]:
    """The lines whose results are read."""
    wanted, found = set(roots), list[RecordedCall]()
    for line in reversed(lines):
        if wanted.intersection(line.results):
            wanted.update(line.refs)
            found.append(line)
    return found[::-1]


def _sums_of_products(
    lines: Sequence[RecordedCall], forms: Sequence[tuple[tuple[int, ...], torch.dtype]], roots: set[int]
) -> list[RecordedCall]:
    """Sums with what makes their second term in them: β x + α (A @ B) of stacks as `baddbmm`, x ± α y as one operation.

    The first is what `addmm` of one matrix is and `torch.vmap` takes apart. Fewer roundings, and fewer operations.
    """
    makers = {line.results[0]: line for line in lines}
    readers = Counter(at for line in lines for at in line.refs)

    def term(x: Any, like: RecordedCall) -> RecordedCall | None:
        """What makes a term that is read once, of the shape and precision of the sum."""
        if not isinstance(x, Ref) or readers[x.at] > 1 or x.at in roots or forms[x.at] != forms[like.results[0]]:
            return None
        return makers.get(x.at)

    def one(line: RecordedCall) -> RecordedCall:
        if line.function not in (_ATEN.add.Tensor, _ATEN.sub.Tensor) or len(line.refs) != 2:
            return line
        first, second = line.args
        product = term(second, line)
        is_sum = line.function is _ATEN.add.Tensor
        if is_sum and product is not None and product.function is _ATEN.bmm.default and same_precision(first, second):
            scaled = makers.get(first.at)
            start, beta = (first, 1.0)
            if scaled is not None and scaled.function is _ATEN.mul.Scalar:
                start, beta = scaled.args
            factors = (("beta", beta), ("alpha", dict(line.kwargs).get("alpha", 1)))
            return RecordedCall(_ATEN.baddbmm.default, (start, *product.args), factors, line.results, True)
        for x, other in ((first, second), (second, first))[: 2 if is_sum else 1]:
            made = term(other, line)
            if made is None or line.kwargs or made.function is not _ATEN.mul.Tensor or not same_precision(x, other):
                continue
            (y, factor) = made.args
            if isinstance(factor, (int, float)) and forms[y.at] == forms[other.at]:
                return RecordedCall(line.function, (x, y), (("alpha", factor),), line.results, True)
        return line

    def same_precision(x: Ref, y: Ref) -> bool:
        return forms[x.at][1] is forms[y.at][1] and forms[x.at][1].is_floating_point

    return [one(line) for line in lines]
