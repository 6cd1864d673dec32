"""Writes a trace with means over rows and columns as CUDA: some launches a stage, for all tensors together.

    numbers1   sums over tensors; what follows from them
    matrix1, row1, column1   values of each matrix, row and column, kept in memory for others to read
    means1     of such values, over each matrix
    rows1      means of the rows of elements
    parts1     sums over parts of columns of elements
    elements1  sums of elements over units, for norms and totals; in the last stage the new weights and state
    keep_row   new state for rows, where the old one was read until the end

A stage has only those that it needs. Elements are computed again in each launch from what is stored, as on a CPU
(`codegen_matrix`), whose expressions these are. Numbers that follow from no sum come from the host.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from descend.optim.compiler.codegen_cpp import definitions, expression, kind_of, rooted, summand
from descend.optim.compiler.codegen_cuda import HEAD, HEADER, TYPES
from descend.optim.compiler.matrix_plan import REDUCTIONS, VECTORS, MatrixPlan, plan
from descend.optim.compiler.partition import needed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from descend.optim.compiler.trace import Kind, Op, Trace

__all__ = ["TILE", "WALKS", "DevicePlan", "device_plan", "emit_cuda_matrices"]

TILE = 64  # rows of a part of a column, as in cuda_matrix.h
WALKS = ("elements", "rows", "columns", "matrices", "parts")

MATRIX_HEADER = Path(__file__).with_name("cuda_matrix.h")

_WALKS: Mapping[Kind, str] = {"element": "elements", "row": "rows", "column": "columns", "matrix": "matrices"}
_PLACES: Mapping[Kind, str] = {"element": "e", "row": "r", "column": "b * M + j", "matrix": "b"}  # within a tensor


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """What the kernels of a trace and the engine that launches them agree on.

    Attributes:
        made: What is computed when.
        in_place: Places of new state that goes to its buffer as soon as it is computed, with the buffer's name.
        vectors: Places of the other values of rows, columns and matrices that are stored.
        parts: Places of the means over columns of elements.
        sums: Places of the norms and totals.
    """

    made: MatrixPlan
    in_place: Mapping[int, str]
    vectors: tuple[int, ...]
    parts: tuple[int, ...]
    sums: tuple[int, ...]

    @property
    def arrays(self) -> list[tuple[str, int]]:
        """Of each array in memory the walk whose values it has, and the bytes of one value, 0 for a T."""
        ops = self.made.trace.ops
        return [*((_WALKS[ops[at].kind], 0) for at in self.vectors), *(("parts", 8) for _ in self.parts)]

    @functools.cached_property
    def launches(self) -> tuple[tuple[str, str], ...]:
        """Names of the kernels of an update, in order, each with its walk; "" for one block a tensor."""
        return tuple((name, walk) for name, walk, _ in _kernels(self))

    def reductions(self, stage: int, *names: str) -> list[int]:
        """Places of the reductions of elements of a stage that have one of these names."""
        return [at for at in self.made.reductions(stage, "element") if self.made.trace.ops[at].name in names]


@functools.lru_cache(maxsize=256)
def device_plan(trace: Trace) -> DevicePlan:
    """The plan of a trace.

    Raises:
        Untraceable: See `matrix_plan.plan`.
    """
    made = plan(replace(trace, ops=_late(trace)))
    ops = made.trace.ops
    of_elements = [at for at in made.live if ops[at].name in REDUCTIONS and ops[ops[at].refs[0]].kind == "element"]
    in_place: dict[int, str] = {}
    for name, at in made.kept.items():
        if at not in in_place and _is_last_reader(made, name, at):
            in_place[at] = name
    return DevicePlan(
        made=made,
        in_place=in_place,
        vectors=tuple(at for at in made.stored if at not in in_place),
        parts=tuple(at for at in of_elements if ops[at].name == "column_mean"),
        sums=tuple(at for at in of_elements if ops[at].name in ("norm", "total")),
    )


def _late(trace: Trace) -> tuple[Op, ...]:
    """The operations with values of rows, columns and matrices in the stage in which others like them read them.

    So they need not be stored, nor have a launch of their own.
    """
    ops, outer = list(trace.ops), set(trace.outputs.values())
    for at in reversed(range(len(ops))):
        op = ops[at]
        if op.kind in VECTORS and op.refs and op.name not in REDUCTIONS and at not in outer:
            readers = [one for one in ops[at + 1 :] if at in one.refs]
            if readers and all(one.kind == op.kind and one.name not in REDUCTIONS for one in readers):
                ops[at] = replace(op, stage=min(one.stage for one in readers))
    return tuple(ops)


def _is_last_reader(made: MatrixPlan, name: str, at: int) -> bool:
    """Whether the old value of an entry is read where the new one is computed, or before, and nowhere else."""
    ops = made.trace.ops
    if ops[at].name in (*REDUCTIONS, "input"):
        return False
    old = [i for i in made.live if ops[i].name == "input" and ops[i].args == (name,)]
    readers = [ops[i] for i in made.live if set(ops[i].refs) & set(old)]
    return all(op.name not in REDUCTIONS and op.kind == ops[at].kind and op.stage <= ops[at].stage for op in readers)


def emit_cuda_matrices(trace: Trace, dtype: str, low: str | None) -> str:
    """The source of all kernels of a trace.

    Args:
        trace: What to compute.
        dtype: Precision in which it is computed, "float32" or "float64".
        low: Precision of weights that have a master, or None.

    Raises:
        Untraceable: There are no kernels for this trace.
    """
    headers = [path.read_text(encoding="utf-8") for path in (HEADER, MATRIX_HEADER)]
    types = [f"typedef {TYPES[dtype]} T;", f"typedef {TYPES[low or dtype]} L;"]
    made = device_plan(trace)
    body: list[str] = []
    for name, walk, lines in _kernels(made):
        whole = _over_units(made, walk, lines) if walk else lines
        body += [f"{HEAD} {name}(const Matrices w) {{", "  if (w.bad && *w.bad) return;", *whole, "}"]
    return "\n".join([*headers, *types, *body, ""])


def _kernels(planned: DevicePlan) -> Iterator[tuple[str, str, list[str]]]:
    """Name, walk and body of each kernel, in order."""
    made = planned.made
    ops = made.trace.ops
    for stage in range(made.last + 1):
        if any(ops[at].stage == stage for at in made.computed):
            yield f"numbers{stage}", "", list(_numbers(planned, stage))
        for kind in ("matrix", "row", "column"):
            means = [at for at in planned.parts if ops[at].stage == stage] if kind == "column" else []
            here = made.vectors(stage, kind)
            if here or means:
                yield f"{kind}{stage}", _WALKS[kind], list(_vectors(planned, kind, here, means))
        if found := made.reductions(stage):
            yield f"means{stage}", "matrices", list(_means(planned, found))
        if found := planned.reductions(stage, "row_mean"):
            yield f"rows{stage}", "rows", list(_rows(planned, found))
        if found := planned.reductions(stage, "column_mean"):
            yield f"parts{stage}", "parts", list(_parts(planned, found))
        found, writes = planned.reductions(stage, "norm", "total"), made.writes if stage == made.last else {}
        if found or writes:
            yield f"elements{stage}", "elements", list(_elements(planned, found, writes))
    late = {name: at for name, at in made.kept.items() if planned.in_place.get(at) != name}
    for kind in VECTORS:
        if found := {name: at for name, at in late.items() if ops[at].kind == kind}:
            yield f"keep_{kind}", _WALKS[kind], list(_keep(planned, kind, found))


def _over_units(planned: DevicePlan, walk: str, lines: Sequence[str]) -> Iterator[str]:
    """A body for each unit that a block takes; pointers are to what belongs to the unit's tensor."""
    made = planned.made
    ops = made.trace.ops
    yield "  const T unscale = w.grad_scale ? T(1.0 / (double)*w.grad_scale) : T(1);"
    yield f"  for (int64 unit = blockIdx.x; unit < w.{walk}.units; unit += gridDim.x) {{"
    yield f"    const int64 tensor = w.{walk}.tensor[unit], first = w.{walk}.first[unit];"
    yield from (f"    {line}" for line in _absent(made))
    yield f"    const int64 end = first + w.{walk}.size[unit], N = w.n[tensor], M = w.m[tensor];"
    for i, name in enumerate(made.buffers):
        yield f"    {_type(name)}* const b{i} = reinterpret_cast<{_type(name)}*>(w.address[{i} * w.tensors + tensor]);"
    for i, at in enumerate(planned.vectors):
        start = f"w.{_WALKS[ops[at].kind]}.start[tensor]"
        yield f"    T* const v{at} = reinterpret_cast<T*>(w.memory + w.offset[{i}]) + {start};"
    for i, at in enumerate(planned.parts, len(planned.vectors)):
        yield f"    double* const c{at} = reinterpret_cast<double*>(w.memory + w.offset[{i}]) + w.parts.start[tensor];"
    yield from (f"    {line}" for line in lines)
    yield "    (void)N; (void)M; (void)unscale;"
    yield "  }"


def _absent(made: MatrixPlan) -> Iterator[str]:
    """Leave out a tensor without a gradient, whose address is 0 then: the whole block does."""
    if "g" in made.buffers:
        yield f"if (!w.address[{made.buffers.index('g')} * w.tensors + tensor]) continue;"


def _type(name: str) -> str:
    return "const L" if name == "g" else "L" if name == "w" else "T"


def _array(planned: DevicePlan, at: int) -> str:
    """The pointer to a value that lies in memory."""
    op, made = planned.made.trace.ops[at], planned.made
    name = str(op.args[0]) if op.name == "input" else planned.in_place.get(at)
    return f"v{at}" if name is None else f"b{made.buffers.index(name)}"


def _load(planned: DevicePlan, at: int) -> str:
    """A line that reads a value computed before: a number, or that of a row, a column or a matrix."""
    op = planned.made.trace.ops[at]
    if op.kind == "number":
        place, given = planned.made.place[at], len(planned.made.given)
        name = f"given[{place}" if place < given else f"computed[{place - given}"
        x = f"w.{name} * w.tensors + tensor]"
        return f"const {kind_of(op)} x{at} = {f'{x} != 0' if op.boolean else f'T({x})'};"
    x = f"{_array(planned, at)}[{_PLACES[op.kind]}]"
    return f"const {kind_of(op)} x{at} = {f'{x} != 0' if op.boolean else x};"


def _loads(planned: DevicePlan, places: Iterable[int], *kinds: Kind) -> Iterator[str]:
    ops = planned.made.trace.ops
    return (_load(planned, at) for at in places if ops[at].kind in kinds)


def _numbers(planned: DevicePlan, stage: int) -> Iterator[str]:
    """Numbers of one stage: a block a tensor."""
    made = planned.made
    ops = made.trace.ops
    here = [at for at in made.computed if ops[at].stage == stage]
    sums = [at for at in here if at in planned.sums]
    yield "  for (int64 tensor = blockIdx.x; tensor < w.tensors; tensor += gridDim.x) {"
    yield from (f"    {line}" for line in _absent(made))
    yield from (f"    const double s{at} = tensor_sum(w, {planned.sums.index(at)}, tensor);" for at in sums)
    yield "    if (threadIdx.x) continue;"
    yield "    typedef double T;"
    before = dict.fromkeys(ref for at in here if at not in sums for ref in ops[at].refs if ref not in here)
    yield from (f"    {line}" for line in _loads(planned, before, "number"))
    for at in here:
        x = rooted(ops, at, f"s{at}") if at in sums else expression(ops[at])
        yield f"    const {kind_of(ops[at])} x{at} = {x};"
        yield f"    w.computed[{made.place[at] - len(made.given)} * w.tensors + tensor] = x{at};"
    yield "  }"


def _vectors(planned: DevicePlan, kind: Kind, here: Sequence[int], means: Sequence[int]) -> Iterator[str]:
    """Values of one kind: a thread each. Means of columns whose parts are several are added up first."""
    made = planned.made
    ops = made.trace.ops
    before = dict.fromkeys(ref for at in here for ref in ops[at].refs if ref not in here)
    yield from _loads(planned, before, "number")
    yield "for (int64 q = first + threadIdx.x; q < end; q += THREADS) {"
    if kind == "row":
        yield "  const int64 r = q, b = split(r, N).quotient;"
    elif kind == "column":
        yield "  const Split at = split(q, M);"
        yield "  const int64 b = at.quotient, j = at.rest;"
    else:
        yield "  const int64 b = q;"
    for at in means:
        yield "  if (tiles_of(N) > 1)"
        yield f"    v{at}[q] = T(mean_of_parts(c{at} + b * tiles_of(N) * M + j, tiles_of(N), M, N));"
    yield from (f"  {line}" for line in _loads(planned, before, "matrix", "row", "column"))
    yield from (f"  {line}" for line in definitions(ops, here))
    yield from (f"  {_array(planned, at)}[q] = x{at};" for at in here if at in made.stored)
    yield "  (void)b;"
    yield "}"


def _means(planned: DevicePlan, found: Sequence[int]) -> Iterator[str]:
    """Means over each matrix of values of its rows or columns: some threads each."""
    ops = planned.made.trace.ops
    for at in found:
        source = ops[at].refs[0]
        length = "N" if ops[source].kind == "row" else "M"
        yield "{"
        yield f"  const int lanes = lanes_of({length}), lane = threadIdx.x % lanes;"
        yield "  for (int64 top = first; top < end; top += THREADS / lanes) {"
        yield "    const int64 b = top + threadIdx.x / lanes;"
        yield "    double sum = 0;"
        yield f"    for (int64 i = lane; b < end && i < {length}; i += lanes)"
        yield f"      sum += (double){_array(planned, source)}[b * {length} + i];"
        yield "    sum = lanes_sum(sum, lanes);"
        yield f"    if (b < end && !lane) v{at}[b] = T(sum / (double){length});"
        yield "  }"
        yield "}"


def _below(planned: DevicePlan, roots: Iterable[int]) -> tuple[list[int], list[int]]:
    """The elements that are computed for these, and what they read of other kinds."""
    ops = planned.made.trace.ops
    below = needed(ops, roots, lambda at: ops[at].kind != "element" or ops[at].name == "input")
    return [at for at in below if ops[at].kind == "element"], [at for at in below if ops[at].kind != "element"]


def _element(planned: DevicePlan, below: Sequence[int]) -> Iterator[str]:
    """What is computed of element e: old values are read first, and a factor left in the gradient is taken out."""
    ops = planned.made.trace.ops
    for at in below:
        if ops[at].name == "input":
            x = f"{_array(planned, at)}[e]"
            kind = "L" if ops[at].args[0] == "w" else "T"
            yield f"const {kind} x{at} = {f'T({x}) * unscale' if ops[at].args[0] == 'g' else x};"
    yield from definitions(ops, (at for at in below if ops[at].name != "input"))


def _rows(planned: DevicePlan, found: Sequence[int]) -> Iterator[str]:
    """Means of rows: some threads each."""
    ops = planned.made.trace.ops
    below, outer = _below(planned, [ops[at].refs[0] for at in found])
    yield from _loads(planned, outer, "number")
    yield "const int lanes = lanes_of(M), lane = threadIdx.x % lanes;"
    yield "for (int64 top = first; top < end; top += THREADS / lanes) {"
    yield "  const int64 r = top + threadIdx.x / lanes;"
    yield from (f"  double sum{at} = 0;" for at in found)
    yield "  if (r < end) {"
    yield "    const int64 b = split(r, N).quotient;"
    yield from (f"    {line}" for line in _loads(planned, outer, "matrix", "row"))
    yield "    for (int64 j = lane; j < M; j += lanes) {"
    yield "      const int64 e = r * M + j;"
    yield from (f"      {line}" for line in _loads(planned, outer, "column"))
    yield from (f"      {line}" for line in _element(planned, below))
    yield from (f"      sum{at} += (double)x{ops[at].refs[0]};" for at in found)
    yield "    }"
    yield "    (void)b;"
    yield "  }"
    for at in found:
        yield f"  sum{at} = lanes_sum(sum{at}, lanes);"
        yield f"  if (r < end && !lane) v{at}[r] = T(sum{at} / (double)M);"
    yield "}"


def _parts(planned: DevicePlan, found: Sequence[int]) -> Iterator[str]:
    """Sums over parts of columns, a thread each; a column of one part gets its mean at once."""
    ops = planned.made.trace.ops
    below, outer = _below(planned, [ops[at].refs[0] for at in found])
    yield from _loads(planned, outer, "number")
    yield "const int64 tiles = tiles_of(N);"
    yield "for (int64 q = first + threadIdx.x; q < end; q += THREADS) {"
    yield "  const Split at = split(q, M), of = split(at.quotient, tiles);"
    yield "  const int64 j = at.rest, b = of.quotient, last = b * N + (of.rest + 1 < tiles ? (of.rest + 1) * TILE : N);"
    yield from (f"  {line}" for line in _loads(planned, outer, "matrix", "column"))
    yield from (f"  double sum{at} = 0;" for at in found)
    yield "  for (int64 r = b * N + of.rest * TILE; r < last; ++r) {"
    yield "    const int64 e = r * M + j;"
    yield from (f"    {line}" for line in _loads(planned, outer, "row"))
    yield from (f"    {line}" for line in _element(planned, below))
    yield from (f"    sum{at} += (double)x{ops[at].refs[0]};" for at in found)
    yield "  }"
    for at in found:
        yield f"  if (tiles > 1) c{at}[q] = sum{at};"
        yield f"  else v{at}[q] = T(sum{at} / (double)N);"
    yield "}"


def _elements(planned: DevicePlan, found: Sequence[int], writes: Mapping[str, int]) -> Iterator[str]:
    """Sums over units of elements, and new weights and state."""
    ops, made = planned.made.trace.ops, planned.made
    below, outer = _below(planned, [*(ops[at].refs[0] for at in found), *writes.values()])
    kinds = {ops[at].kind for at in outer}
    yield from _loads(planned, outer, "number")
    yield from (f"double sum{at} = 0;" for at in found)
    if kinds - {"number"}:
        yield "const Split row = split(first, M), matrix = split(row.quotient, N);"
    yield "#pragma unroll 4"
    yield "for (int64 e = first + threadIdx.x; e < end; e += THREADS) {"
    if kinds - {"number"}:
        yield "  const Split at = split(row.rest + e - first, M);"
        yield "  const int64 r = row.quotient + at.quotient, j = at.rest;"
        yield "  const int64 b = matrix.quotient + split(matrix.rest + at.quotient, N).quotient;"
        yield "  (void)r; (void)j; (void)b;"
    yield from (f"  {line}" for line in _loads(planned, outer, "matrix", "row", "column"))
    yield from (f"  {line}" for line in _element(planned, below))
    yield from (f"  sum{at} += {summand(ops, at, '(double)')};" for at in found)
    yield from (f"  b{made.buffers.index(name)}[e] = x{at};" for name, at in writes.items())
    yield "}"
    for at in found:
        yield f"sum{at} = block_sum(sum{at});"
        yield f"if (!threadIdx.x) w.sums[{planned.sums.index(at)} * w.elements.units + unit] = sum{at};"


def _keep(planned: DevicePlan, kind: Kind, found: Mapping[str, int]) -> Iterator[str]:
    """Copy new state to its buffers. Where it is another buffer's old value, all are read before any is written."""
    made = planned.made
    yield "for (int64 q = first + threadIdx.x; q < end; q += THREADS) {"
    yield from (f"  const T y{at} = {_array(planned, at)}[q];" for at in dict.fromkeys(found.values()))
    yield from (f"  b{made.buffers.index(name)}[q] = y{at};" for name, at in found.items())
    yield "}"
