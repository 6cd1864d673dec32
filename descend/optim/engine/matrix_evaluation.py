"""Updates of rules with means over rows and columns by NumPy, with the bits of their compiled kernels.

Tensors of one shape with the same numbers are evaluated side by side, as a stack: every value has a first dimension for
the tensors, so an operation is one call for all of them. Sums have the order of compiler/matrix.h, and of packs.h for
tensors of many small matrices; a stack adds outer dimensions to them and no more.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from descend.optim.compiler.interpreter import NUMPY
from descend.optim.compiler.layout import BLOCK
from descend.optim.compiler.partition import carry_out, numbers, numbers_of_stack
from descend.optim.compiler.trace import Op, Ref
from descend.optim.engine.step_inputs import LOW_PRECISION
from descend.optim.rules.base import MEANS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from descend.optim.compiler.matrix_plan import MatrixPlan

__all__ = ["SEVERAL", "SMALL", "TILE", "ArrayPool", "evaluate", "is_packed"]

TILE = 64  # rows whose values are summed before tiles are, as in compiler/matrix.h
SMALL, SEVERAL = 64, 16  # most elements of matrices, and fewest matrices, that are updated together, see packs.h
PIECE = 2**17  # elements whose sums over rows are taken at a time, so that what is in between stays in the cache
NARROW = 16  # columns, fewer of which are too short a vector

# Functions whose bits do not depend on where in memory an element lies: of NumPy's, and of torch's.
_EXACT_IN_TORCH = "add and_ eq ge gt invert le lt mul narrow ne or_ sub truediv where widen"
_EXACT_IN_NUMPY = """
    abs add and_ clamp clone detach eq ge gt invert isfinite isinf isnan le logical_and logical_not logical_or lt
    maximum minimum mul ne neg ones_like or_ reciprocal sgn sign sqrt square sub truediv where zeros_like
"""
_BY_TORCH, _BY_NUMPY = frozenset(_EXACT_IN_TORCH.split()), frozenset(_EXACT_IN_NUMPY.split())

_BOOL, _DOUBLE = np.dtype(np.bool_), np.dtype(np.float64)


@dataclass
class ArrayPool:
    """Arrays that are free, by their shape and type, for tensors of one shape."""

    free: dict[tuple[tuple[int, ...], np.dtype[Any]], list[NDArray[Any]]] = field(
        default_factory=dict[tuple[tuple[int, ...], "np.dtype[Any]"], "list[NDArray[Any]]"]
    )
    shape: tuple[int, ...] = ()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array without values."""
        found = self.free.get((shape, dtype))
        return found.pop() if found else np.empty(shape, dtype)

    def give(self, x: NDArray[Any]) -> None:
        """Let an array of `take` be taken again."""
        self.free.setdefault((x.shape, x.dtype), []).append(x)

    def begin(self, shape: tuple[int, ...]) -> None:
        """Drop what is free if it was for tensors of another shape."""
        if self.shape != shape:
            self.free.clear()
            self.shape = shape


def evaluate(
    made: MatrixPlan,
    tensors: Mapping[str, Tensor],
    shape: tuple[int, int, int, int],
    known: dict[int, Any],
    memory: ArrayPool,
) -> None:
    """Compute new values of the tensors of a stack where the old ones are.

    Args:
        made: What is computed.
        tensors: By the name of their buffer, contiguous: (k, ...), or of a stack of one tensor the tensor.
        shape: k tensors, their matrices, rows and columns.
        known: The numbers that no norm is needed for, by their place; those of later stages are added.
        memory: For values meanwhile.
    """
    memory.begin(shape)
    with np.errstate(all="ignore"):
        _Evaluation(made, tensors, shape, known, memory).run()


@dataclass(frozen=True, eq=False)
class _PlannedOp:
    """One operation with all that is known of it beforehand.

    Attributes:
        at: Its place in the text.
        op: The operation.
        function: Of NumPy, or None where there is none.
        into: The buffer whose old values nothing reads any more, so that the new ones are computed there, or None.
        done: Places of the values that it is the last to read.
    """

    at: int
    op: Op
    function: Callable[..., NDArray[Any]] | None
    into: str | None
    done: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Stage:
    """What is computed in a stage.

    Attributes:
        sums: Norms and totals.
        numbers: Places of the numbers that operations of the stage read.
        lines: The values of elements, rows, columns and matrices.
    """

    sums: tuple[_PlannedOp, ...]
    numbers: tuple[int, ...]
    lines: tuple[_PlannedOp, ...]


@functools.lru_cache(maxsize=256)
def _stages(made: MatrixPlan) -> tuple[_Stage, ...]:
    ops = made.text.ops
    stages: list[tuple[list[int], list[int]]] = []
    for stage in range(made.last + 1):
        here = [at for at in made.live if ops[at].stage == stage]
        sums = [at for at in here if ops[at].name in ("norm", "total")]
        stages.append((sums, [at for at in here if ops[at].kind != "number"]))
    turn = {at: i for i, at in enumerate(at for both in stages for here in both for at in here)}
    last = {ref: at for at in turn for ref in ops[at].refs}
    new = {**made.writes, **made.kept}
    old = {str(ops[at].args[0]): at for at in turn if ops[at].name == "input"}
    into: dict[int, str] = {}
    for name, at in new.items():
        unread = name not in old or turn[last.get(old[name], old[name])] <= turn[at]
        if unread and ops[at].name in NUMPY and not ops[at].boolean:
            into.setdefault(at, name)
    kept = set(new.values())

    def line(at: int) -> _PlannedOp:
        done = tuple(ref for ref in dict.fromkeys(ops[at].refs) if last[ref] == at and ref not in kept)
        return _PlannedOp(at, ops[at], NUMPY.get(ops[at].name), into.get(at), done)

    found: list[_Stage] = []
    for sums, others in stages:
        read = dict.fromkeys(ref for at in others for ref in ops[at].refs if ops[ref].kind == "number")
        found.append(_Stage(tuple(map(line, sums)), tuple(read), tuple(map(line, others))))
    return tuple(found)


class _Evaluation:
    """The update of one stack, operation after operation, each with the bits of the kernel."""

    def __init__(
        self,
        made: MatrixPlan,
        tensors: Mapping[str, Tensor],
        shape: tuple[int, int, int, int],
        known: dict[int, Any],
        memory: ArrayPool,
    ) -> None:
        self.made, self.ops, self.known, self.memory = made, made.text.ops, known, memory
        wide, narrow = tensors["p"].dtype, tensors.get("w", tensors["p"]).dtype
        self.casts = {"widen": wide, "narrow": narrow}
        self.low = narrow if narrow in LOW_PRECISION else None
        # Arrays of NumPy but for values of low precision, which are torch's.
        self.held: dict[str, Any] = {
            name: x.detach() if x.dtype is self.low else x.detach().numpy() for name, x in tensors.items()
        }
        self.dtype: np.dtype[Any] = self.held["p"].dtype
        k, b, n, m = shape
        self.count = k
        self.shapes = {"element": shape, "row": (k, b, n, 1), "column": (k, b, 1, m), "matrix": (k, b, 1, 1)}
        self.values: dict[int, Any] = {}  # numbers: a scalar that all tensors share, or (k, 1, 1, 1)
        self.taken: set[int] = set()  # places of the values that are in arrays of `memory`

    def run(self) -> None:
        """Compute all values, then write those that are not in their place."""
        ops, stages = self.ops, _stages(self.made)
        into: dict[int, str | None] = {}
        for i, stage in enumerate(stages):
            for line in stage.sums:
                found = self._reduced(line.op)
                self.known[line.at] = found if self.count > 1 else float(found[0])
                self._release(line)
            if i:
                (numbers if self.count == 1 else numbers_of_stack)(self.made.text, self.known, i)
            for at in stage.numbers:
                self.values[at] = self._number(self.known[at], ops[at].boolean)
            for line in stage.lines:
                self.values[line.at] = self._value(line)
                into[line.at] = line.into
        for name, at in {**self.made.writes, **self.made.kept}.items():
            if into[at] != name:
                new, place = self.values[at], self.held[name]
                if isinstance(new, Tensor):
                    place.copy_(new.view_as(place))
                else:
                    place[...] = new.reshape(place.shape)
        for at in self.taken:
            self.memory.give(self.values[at])

    def _number(self, x: Any, boolean: bool) -> Any:
        if isinstance(x, np.ndarray):
            return x.astype(_BOOL if boolean else self.dtype).reshape(-1, 1, 1, 1)
        return bool(x) if boolean else self.dtype.type(x)

    def _release(self, line: _PlannedOp) -> None:
        """Give back the arrays of values that an operation is the last to read."""
        for ref in line.done:
            if ref in self.taken:
                self.taken.remove(ref)
                self.memory.give(self.values.pop(ref))

    def _value(self, line: _PlannedOp) -> Any:
        op = line.op
        if op.name == "input":
            x = self.held[str(op.args[0])]
            return x.reshape(self.shapes[op.kind])
        if op.name in MEANS:
            value = self._reduced(op).astype(self.dtype).reshape(self.shapes[op.kind])
        elif line.function is None or (self.low and any(isinstance(self.values[ref], Tensor) for ref in op.refs)):
            value = self._by_torch(op) if self._is_whole(op, _BY_TORCH) else self._apart(op)
        elif self._is_whole(op, _BY_NUMPY):
            args = [self._argument(x) for x in op.args]
            named = {key: self._argument(x) for key, x in op.kwargs}
            self._release(line)  # so the result may be computed where an argument is
            return line.function(*args, **named, out=self._room(line))
        else:
            value = self._room(line)
            for i in range(self.count):
                args = [self._argument(x, i) for x in op.args]
                named = {key: self._argument(x, i) for key, x in op.kwargs}
                line.function(*args, **named, out=value[i : i + 1])
        self._release(line)
        return value

    def _room(self, line: _PlannedOp) -> NDArray[Any]:
        """Where a value is computed."""
        op = line.op
        if line.into is not None:
            return self.held[line.into].reshape(self.shapes[op.kind])
        self.taken.add(line.at)
        return self.memory.take(self.shapes[op.kind], _BOOL if op.boolean else self.dtype)

    def _is_whole(self, op: Op, exact: frozenset[str]) -> bool:
        """Whether one call for all tensors gives the bits of a call for each."""
        if self.count == 1:
            return True
        name = op.name.removeprefix("operator.")
        if name == "pow":
            return exact is _BY_NUMPY and op.args[1] == 2  # NumPy takes it as a square
        if name not in exact:
            return False
        differ = any(isinstance(self.known.get(ref), np.ndarray) for ref in op.refs)
        # A number is a constant to torch, and an array of numbers is not; NumPy bounds by one as by the other but
        # where both are zero.
        return not differ or (exact is _BY_NUMPY and name not in ("clamp", "maximum", "minimum"))

    def _argument(self, x: Any, i: int | None = None) -> Any:
        """An argument for all tensors, or for one of them."""
        if not isinstance(x, Ref):
            return x
        value = self.values[x.at]
        if i is None or not isinstance(value, (np.ndarray, Tensor)):
            return value
        return value[i : i + 1] if self.ops[x.at].kind != "number" else value[i, 0, 0, 0]

    def _by_torch(self, op: Op, i: int | None = None) -> Any:
        known = {ref: self._argument(Ref(ref), i) for ref in op.refs}
        known = {ref: x if isinstance(x, Tensor) else torch.as_tensor(x, device="cpu") for ref, x in known.items()}
        value = carry_out(op, known, self.casts)
        return value if value.dtype is self.low else value.numpy()

    def _apart(self, op: Op) -> Any:
        """A value that torch computes for one tensor after the other."""
        found = [self._by_torch(op, i) for i in range(self.count)]
        return torch.cat(found) if isinstance(found[0], Tensor) else np.concatenate(found)

    def _reduced(self, op: Op) -> NDArray[Any]:
        """Means in order, in any shape; norms or totals as (k,)."""
        source = self.ops[op.refs[0]].kind
        x: NDArray[Any] = self.values[op.refs[0]]
        x = x.astype(self.dtype) if x.dtype == _BOOL else x
        k, b, n, m = x.shape
        if source != "element":  # of one value a row, or one a column
            return _along(x.reshape(k * b, n * m).astype(np.float64)) / (n * m)
        if op.name == "row_mean":
            return self._row_sums(x.reshape(-1, m)) / m
        if op.name == "column_mean":
            return _down(_tile_sums(x.reshape(k * b, n, m)).astype(np.float64)) / n
        square = op.name == "norm"
        if self.made.packs and is_packed((b, n, m)):
            each = _along((x * x if square else x).reshape(k * b, n * m)).reshape(k, b)
            totals = self._row_sums(_padded(each, BLOCK))
        else:
            rows = self._row_sums(x.reshape(-1, m), square=square).reshape(k * b, n)
            totals = _along(_along(_padded(rows, TILE).reshape(-1, TILE)).reshape(k, -1))
        return np.sqrt(totals) if square else totals

    def _row_sums(self, x: NDArray[Any], *, square: bool = False) -> NDArray[np.float64]:
        """Sums of (rows, m) over rows, or of the squares: whole blocks by `fold` of kernel.h, then the rest."""
        rows, m = x.shape
        whole = m - m % BLOCK
        sums = np.zeros(rows)
        if whole:
            blocks = self.memory.take((whole // BLOCK, rows), _DOUBLE)
            step = max(1, PIECE // m)
            for i in range(0, rows, step):
                self._fold(x[i : i + step], blocks[:, i : i + step], square)
            sums = _down(blocks[None])[0]
            self.memory.give(blocks)
        if whole < m:
            rest = x[:, whole:]
            sums += _along(np.square(rest) if square else rest)
        return sums

    def _fold(self, x: NDArray[Any], blocks: NDArray[np.float64], square: bool) -> None:
        """Write the sums of the whole blocks of (rows, m), or of the squares, as (blocks, rows)."""
        taken = [self.memory.take((BLOCK // 16, x.shape[0] * len(blocks) * 16), x.dtype)]
        if square:
            taken.append(self.memory.take(x.shape, x.dtype))
            x = np.multiply(x, x, out=taken[1])
        # The first sixteen of all blocks come first, then the second sixteen, so that sums are of few long vectors.
        word = np.dtype((np.void, 16 * x.itemsize))
        words = x[:, : len(blocks) * BLOCK].view(word).reshape(*blocks.shape[::-1], -1)
        lanes = taken[0]
        lanes.view(word).reshape(-1, *blocks.shape[::-1])[...] = words.transpose(2, 0, 1)
        at, other = lanes[:2]
        for lane in lanes[1:]:
            np.add(at, lane, out=at)
        # Of each sixteen the first place is wanted; to add at all places takes less time than many short vectors.
        length = at.size
        for half in (8, 4, 2, 1):
            length -= half
            np.add(at[:length], at[half : half + length], out=other[:length])
            at, other = other, at
        blocks[:] = at[::16].reshape(blocks.shape[::-1]).T
        for room in taken:
            self.memory.give(room)


def is_packed(shape: tuple[int, ...]) -> bool:
    """Whether matrices, rows and columns make a tensor that is summed matrix by matrix."""
    b, n, m = shape
    return b >= SEVERAL and n * m <= SMALL


def _along(x: NDArray[Any]) -> NDArray[Any]:
    """Sums of (rows, length) over rows, one after the other from 0 on."""
    if len(x) == 1:
        return np.add.accumulate(x[0])[-1:] + x.dtype.type(0)
    # NumPy adds pairs of pairs along the innermost dimension, and one after the other along all others.
    return np.add.reduce(np.ascontiguousarray(x.T), axis=0, initial=0.0)


def _down(x: NDArray[Any]) -> NDArray[Any]:
    """Sums of (matrices, n, m) over columns, one after the other from 0 on."""
    count, n, m = x.shape
    if m < min(count, NARROW):  # many narrow matrices: what is summed lies apart in long vectors
        apart = np.ascontiguousarray(x.reshape(count, n * m).T).reshape(n, -1)
        return np.add.reduce(apart, axis=0, initial=0.0).reshape(m, count).T
    return np.add.reduce(x, axis=1, initial=0.0) if m > 1 else _along(x[:, :, 0])[:, None]


def _padded(x: NDArray[Any], length: int) -> NDArray[Any]:
    """Rows with zeros after them, to a multiple of a length."""
    more = -x.shape[1] % length
    return np.concatenate([x, np.zeros((len(x), more), dtype=x.dtype)], axis=1) if more else x


def _tile_sums(x: NDArray[Any]) -> NDArray[Any]:
    """Sums of (matrices, n, m) over the columns of each tile: (matrices, tiles, m)."""
    b, n, m = x.shape
    whole = n - n % TILE
    sums = np.empty((b, -(-n // TILE), m), dtype=x.dtype)
    if whole:
        sums[:, : whole // TILE] = _down(x[:, :whole].reshape(-1, TILE, m)).reshape(b, -1, m)
    if whole < n:
        sums[:, -1] = _down(x[:, whole:])
    return sums
