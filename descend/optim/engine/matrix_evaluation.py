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
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from descend.optim.compiler.matrix_plan import MatrixPlan

__all__ = ["SMALL", "TILE", "Memory", "evaluate"]

TILE = 64  # rows whose values are summed before tiles are, as in compiler/matrix.h
SMALL, SEVERAL = 64, 16  # most elements of matrices, and fewest matrices, that are updated together, see packs.h
PIECE = 2**15  # elements whose sums over rows are taken at a time, so that what is in between stays in the cache

# Functions whose bits do not depend on where in memory an element lies: of NumPy's, and of torch's.
_EXACT_IN_TORCH = "add and_ eq ge gt invert le lt mul narrow ne or_ sub truediv where widen"
_EXACT_IN_NUMPY = """
    abs add and_ clamp clone detach eq ge gt invert isfinite isinf isnan le logical_and logical_not logical_or lt
    maximum minimum mul ne neg ones_like or_ reciprocal sgn sign sqrt square sub truediv where zeros_like
"""
_BY_TORCH, _BY_NUMPY = frozenset(_EXACT_IN_TORCH.split()), frozenset(_EXACT_IN_NUMPY.split())


@dataclass
class Memory:
    """Arrays that are free, by their shape and type; of one thread."""

    free: dict[tuple[tuple[int, ...], np.dtype[Any]], list[NDArray[Any]]] = field(
        default_factory=dict[tuple[tuple[int, ...], "np.dtype[Any]"], "list[NDArray[Any]]"]
    )
    of: tuple[int, ...] = ()

    def take(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array without values."""
        found = self.free.get((shape, np.dtype(dtype)))
        return found.pop() if found else np.empty(shape, dtype)

    def give(self, x: NDArray[Any]) -> None:
        """Let an array of `take` be taken again."""
        self.free.setdefault((x.shape, x.dtype), []).append(x)

    def begin(self, shape: tuple[int, ...]) -> None:
        """Keep what is free for tensors of this shape alone."""
        if self.of != shape:
            self.free.clear()
            self.of = shape


def evaluate(
    made: MatrixPlan, tensors: Mapping[str, Tensor], shape: tuple[int, int, int, int], known: dict[int, Any], at: Memory
) -> None:
    """Compute new values of the tensors of a stack where the old ones are.

    Args:
        made: What is computed.
        tensors: By the name of their buffer, contiguous: (k, ...), or of a stack of one tensor the tensor.
        shape: k tensors, their matrices, rows and columns.
        known: The numbers that no norm is needed for, by their place; those of later stages are added.
        at: Where values are kept meanwhile.
    """
    at.begin(shape)
    with np.errstate(all="ignore"):
        _Evaluation(made, tensors, shape, known, at).run()


@functools.lru_cache(maxsize=256)
def _order(made: MatrixPlan) -> tuple[tuple[tuple[int, ...], ...], dict[int, int], dict[int, int]]:
    """What is computed in each stage, in order; the turn of each operation; and the last turn that reads each value."""
    ops = made.text.ops
    stages: list[tuple[int, ...]] = []
    for stage in range(made.last + 1):
        here = [at for at in made.live if ops[at].stage == stage]
        sums = [at for at in here if ops[at].name in ("norm", "total")]
        stages.append((*sums, *(at for at in here if ops[at].kind != "number")))
    turn = {at: i for i, at in enumerate(at for here in stages for at in here)}
    last: dict[int, int] = {}
    for at in turn:
        for ref in ops[at].refs:
            last[ref] = max(turn[at], last.get(ref, -1))
    return tuple(stages), turn, last


@functools.lru_cache(maxsize=256)
def _in_place(made: MatrixPlan) -> dict[int, str]:
    """Values that are computed where the old ones are, which nothing reads any more: buffer by the value's place."""
    ops = made.text.ops
    _, turn, last = _order(made)
    old = {str(ops[at].args[0]): at for at in turn if ops[at].name == "input"}
    found: dict[int, str] = {}
    for name, at in {**made.writes, **made.kept}.items():
        unread = name not in old or last.get(old[name], -1) <= turn[at]
        if unread and ops[at].name in NUMPY and not ops[at].boolean:
            found.setdefault(at, name)
    return found


class _Evaluation:
    """The update of one stack, operation after operation, each with the bits of the kernel."""

    def __init__(
        self,
        made: MatrixPlan,
        tensors: Mapping[str, Tensor],
        shape: tuple[int, int, int, int],
        known: dict[int, Any],
        memory: Memory,
    ) -> None:
        self.made, self.ops, self.known, self.memory = made, made.text.ops, known, memory
        self.tensors = {name: x.detach() for name, x in tensors.items()}
        wide = self.tensors["p"]
        self.casts = {"widen": wide.dtype, "narrow": self.tensors.get("w", wide).dtype}
        self.dtype: Any = wide.numpy().dtype
        k, b, n, m = shape
        self.count = k
        self.shapes = {"element": shape, "row": (k, b, n, 1), "column": (k, b, 1, m), "matrix": (k, b, 1, 1)}
        self.stages, self.turn, self.last = _order(made)
        self.values: dict[int, Any] = {}
        self.taken: set[int] = set()  # places of the values that are in arrays of `memory`

    def run(self) -> None:
        """Compute all values, then write those that are not in their place."""
        ops = self.ops
        for stage, here in enumerate(self.stages):
            sums = [at for at in here if ops[at].kind == "number"]
            for at in sums:
                found = self._reduced(at)
                self.known[at] = found if self.count > 1 else float(found[0])
                self._release(at)
            if stage:
                (numbers if self.count == 1 else numbers_of_stack)(self.made.text, self.known, stage)
            for at in here[len(sums) :]:
                self.values[at] = self._value(at)
        placed = _in_place(self.made)
        for name, at in {**self.made.writes, **self.made.kept}.items():
            new = self.values[at]
            if placed.get(at) != name:
                new = torch.from_numpy(new) if isinstance(new, np.ndarray) else new
                self.tensors[name].copy_(new.view_as(self.tensors[name]))
        for at in self.taken:
            self.memory.give(self.values[at])

    def _release(self, at: int) -> None:
        """Give back the arrays of values that an operation is the last to read."""
        for ref in self.taken.intersection(self.ops[at].refs):
            if self.last[ref] == self.turn[at] and ref not in self._written:
                self.taken.remove(ref)
                self.memory.give(self.values.pop(ref))

    @functools.cached_property
    def _written(self) -> set[int]:
        return {*self.made.writes.values(), *self.made.kept.values()}

    def _value(self, at: int) -> Any:
        op = self.ops[at]
        if op.name == "input":
            x = self.tensors[str(op.args[0])].view(self.shapes[op.kind])
            return x if x.dtype in LOW_PRECISION else x.numpy()
        if op.name in MEANS:
            value = self._reduced(at).astype(self.dtype).reshape(self.shapes[op.kind])
            self._release(at)
            return value
        if not self._by_numpy(op):
            value = self._by_torch(op) if self._is_whole(op, _BY_TORCH) else self._apart(op)
            self._release(at)
            return value
        args = [self._argument(x) for x in op.args]
        named = {key: self._argument(x) for key, x in op.kwargs}
        whole = self._is_whole(op, _BY_NUMPY)
        if whole:
            self._release(at)  # so the result may be computed where an argument is
        out = self._room(at)
        if whole:
            return NUMPY[op.name](*args, **named, out=out)
        for i in range(self.count):
            args = [self._argument(x, i) for x in op.args]
            named = {key: self._argument(x, i) for key, x in op.kwargs}
            NUMPY[op.name](*args, **named, out=out[i : i + 1])
        self._release(at)
        return out

    def _room(self, at: int) -> NDArray[Any]:
        """Where a value is computed: in its buffer if the old one is not read any more."""
        op, name = self.ops[at], _in_place(self.made).get(at)
        if name is not None:
            return self.tensors[name].view(self.shapes[op.kind]).numpy()
        self.taken.add(at)
        return self.memory.take(self.shapes[op.kind], np.bool_ if op.boolean else self.dtype)

    def _by_numpy(self, op: Op) -> bool:
        return op.name in NUMPY and not any(isinstance(self.values.get(ref), Tensor) for ref in op.refs)

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
        """An argument for all tensors, or for one."""
        if not isinstance(x, Ref):
            return x
        one = slice(None) if i is None else slice(i, i + 1)
        op = self.ops[x.at]
        if op.kind != "number":
            return self.values[x.at][one]
        value = self.known[x.at]
        if isinstance(value, np.ndarray):
            if i is None:
                return value.astype(np.bool_ if op.boolean else self.dtype).reshape(-1, 1, 1, 1)
            value = value[i]
        return bool(value) if op.boolean else self.dtype.type(value)

    def _by_torch(self, op: Op, i: int | None = None) -> Any:
        known = {ref: self._argument(Ref(ref), i) for ref in op.refs}
        known = {ref: x if isinstance(x, Tensor) else torch.as_tensor(x, device="cpu") for ref, x in known.items()}
        value = carry_out(op, known, self.casts)
        return value if value.dtype in LOW_PRECISION else value.numpy()

    def _apart(self, op: Op) -> Any:
        """A value that torch computes for one tensor after the other."""
        found = [self._by_torch(op, i) for i in range(self.count)]
        return torch.cat(found) if isinstance(found[0], Tensor) else np.concatenate(found)

    def _reduced(self, at: int) -> NDArray[Any]:
        """Means, norms or totals: with any dimensions, of a norm or total (k,)."""
        op = self.ops[at]
        source = self.ops[op.refs[0]].kind
        x: NDArray[Any] = self.values[op.refs[0]]
        x = x.astype(self.dtype) if x.dtype == np.bool_ else x
        k, b, n, m = x.shape
        if source != "element":  # of one value a row, or one a column
            axis = 2 if source == "row" else 3
            return _in_order(x.astype(np.float64), axis) / x.shape[axis]
        if op.name == "row_mean":
            return self._row_sums(x.reshape(-1, m)) / m
        if op.name == "column_mean":
            return _in_order(_tile_sums(x.reshape(k * b, n, m)).astype(np.float64), 1) / n
        if self.made.packs and _is_packed(b, n, m):
            x = np.square(x, out=self.memory.take(x.shape, x.dtype)) if op.name == "norm" else x
            sums = _padded(_in_order(x.reshape(k, b, n * m), 2), BLOCK)
            totals = self._row_sums(sums)
            if op.name == "norm":
                self.memory.give(x)
        else:
            rows = self._row_sums(x.reshape(-1, m), square=op.name == "norm").reshape(k * b, n)
            tiles = _in_order(_padded(rows, TILE).reshape(k, -1, TILE), 2)
            totals = _in_order(tiles, 1)
        return np.sqrt(totals) if op.name == "norm" else totals

    def _row_sums(self, x: NDArray[Any], *, square: bool = False) -> NDArray[np.float64]:
        """Sums of (rows, m) over rows, or of the squares: whole blocks by `fold` of kernel.h, then the rest."""
        rows, m = x.shape
        whole = m - m % BLOCK
        sums = np.zeros(rows)
        if whole:
            blocks = self.memory.take((whole // BLOCK, rows), np.float64)
            step = max(1, PIECE // m)
            for i in range(0, rows, step):
                self._fold(x[i : i + step], blocks[:, i : i + step], square)
            sums = _in_order(blocks, 0)
            self.memory.give(blocks)
        if whole < m:
            rest = x[:, whole:]
            sums += _in_order(np.square(rest) if square else rest, 1)
        return sums

    def _fold(self, x: NDArray[Any], blocks: NDArray[np.float64], square: bool) -> None:
        """Write the sums of the whole blocks of (rows, m), or of the squares, as (blocks, rows)."""
        taken = [self.memory.take((len(x), len(blocks), 16), x.dtype) for _ in range(2)]
        if square:
            taken.append(self.memory.take(x.shape, x.dtype))
            x = np.multiply(x, x, out=taken[2])
        lanes = x[:, : len(blocks) * BLOCK].reshape(len(x), len(blocks), -1, 16)
        sums = np.add(lanes[:, :, 0], lanes[:, :, 1], out=taken[0])
        for i in range(2, BLOCK // 16):
            np.add(sums, lanes[:, :, i], out=sums)
        # Of sixteen the first place is wanted; one vector that covers all places takes less time than many short ones.
        at, other = (room.reshape(-1) for room in taken[:2])
        length = at.size
        for half in (8, 4, 2, 1):
            length -= half
            np.add(at[:length], at[half : half + length], out=other[:length])
            at, other = other, at
        blocks[:] = sums[:, :, 0].T
        for room in taken:
            self.memory.give(room)


def _is_packed(b: int, n: int, m: int) -> bool:
    """Whether matrices, rows and columns make a tensor that is summed matrix by matrix."""
    return b >= SEVERAL and n * m <= SMALL


def _in_order(x: NDArray[Any], axis: int) -> NDArray[Any]:
    """The sum along an axis, which is left out, one after the other from 0 on."""
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    if x.size == x.shape[axis]:
        return (np.add.accumulate(x.reshape(-1))[-1:] + x.dtype.type(0)).reshape(rest)
    # NumPy adds pairs of pairs along the innermost dimension, and one after the other along all others.
    outer = x.transpose(axis, *range(axis), *range(axis + 1, x.ndim))
    first = np.ascontiguousarray(outer).reshape(x.shape[axis], -1)
    return np.add.reduce(first, axis=0, initial=0.0).reshape(rest)


def _padded(x: NDArray[Any], length: int) -> NDArray[Any]:
    """Rows with zeros after them, to a multiple of a length."""
    more = -x.shape[1] % length
    return np.concatenate([x, np.zeros((len(x), more), dtype=x.dtype)], axis=1) if more else x


def _tile_sums(x: NDArray[Any]) -> NDArray[Any]:
    """Sums of (matrices, n, m) over the columns of each tile: (matrices, tiles, m)."""
    b, n, m = x.shape
    whole = n - n % TILE
    parts = [x[:, :whole].reshape(b, -1, TILE, m)] * (whole > 0) + [x[:, None, whole:]] * (whole < n)
    sums = [np.add.reduce(part, axis=2, initial=0.0) if m > 1 else _in_order(part, 2) for part in parts]
    return sums[0] if len(sums) == 1 else np.concatenate(sums, axis=1)
