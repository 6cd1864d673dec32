"""Writes a trace with means over rows and columns as C++ for a CPU: a few passes over the elements of each tensor.

Stage after stage: the numbers of the stage; its values for each matrix, row and column, which are kept in memory; then,
where a reduction or a new weight waits for it, one pass over the elements, row after row, which computes again what it
needs of them. So elements are read once a pass, and of intermediate values only rows and columns are stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from descend.optim.compiler.codegen_cpp import (
    HEADER,
    TYPES,
    definitions,
    kind_of,
    load,
    store,
    summand,
    type_of,
)
from descend.optim.compiler.codegen_packs import PACKS_HEADER, emit_packs
from descend.optim.compiler.matrix_plan import REDUCTIONS, MatrixPlan, emit_numbers, number_of, plan
from descend.optim.compiler.partition import needed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from descend.optim.compiler.trace import Kind, Trace

__all__ = ["emit_matrices"]

MATRIX_HEADER = Path(__file__).with_name("matrix.h")

_COUNTS = {"row": "B * N", "column": "B * M", "matrix": "B"}  # of the values of a tensor
_LOOPS: Mapping[Kind, str] = {
    "matrix": "",
    "row": "for (int64_t i = 0; i < N; ++i) ",
    "column": "for (int64_t j = 0; j < M; ++j) ",
}
_PLACES = {"row": "b * N + i", "column": "b * M + j", "matrix": "b"}  # of a value


TILES = """
static int64_t scratch(int64_t batch, int64_t n, int64_t m, int64_t) { return tiled_memory(batch, n, m); }
static void tensor(const Tensors& w, int64_t t, const Team& team, char* memory) { tiled(w, t, team, memory); }
"""
TILES_AND_PACKS = """
static int64_t scratch(int64_t batch, int64_t n, int64_t m, int64_t parts) {
  return is_packed(batch, n, m) ? packed_memory(batch, n, m, parts) : tiled_memory(batch, n, m);
}
static void tensor(const Tensors& w, int64_t t, const Team& team, char* memory) {
  (is_packed(w.batch[t], w.n[t], w.m[t]) ? packed : tiled)(w, t, team, memory);
}
"""


def emit_matrices(trace: Trace, dtype: str, low: str | None) -> str:
    """The functions `size` and `call` over `Tensors` (see matrix.h).

    Args:
        trace: What to compute.
        dtype: Precision in which it is computed, e.g. "float32".
        low: Precision of weights that have a master, or None.

    Raises:
        Untraceable: There is no kernel for this trace.
    """
    made = plan(trace)
    types = [f"using T = {TYPES[dtype]};", f"using L = {TYPES[low or dtype]};"]
    headers = [path.read_text() for path in (HEADER, MATRIX_HEADER, PACKS_HEADER)]
    body = [*emit_numbers(made, "numbers"), *_scratch(made), *_tensor(made)]
    body += [*emit_packs(trace), TILES_AND_PACKS] if made.packs else [TILES]
    return "\n".join([*headers, *types, *body, ""])


def _rooms(made: MatrixPlan) -> Iterator[tuple[str, str, str]]:
    """Type, name and size of each piece of memory that a tensor needs."""
    ops = made.trace.ops
    for at in made.stored:
        yield "T", f"v{at}", _COUNTS[ops[at].kind]
    for at in made.live:
        if ops[at].name in REDUCTIONS and ops[ops[at].refs[0]].kind == "element":
            if ops[at].name == "column_mean":
                yield "T", f"c{at}", "B * tiles_of(N) * M"
            elif ops[at].name != "row_mean":
                yield "double", f"s{at}", "B * tiles_of(N)"


def _scratch(made: MatrixPlan) -> Iterator[str]:
    yield "static int64_t tiled_memory(int64_t B, int64_t N, int64_t M) {"
    yield "  (void)B; (void)N; (void)M;"
    yield "  char here, *at = &here;"
    yield from (f"  room<{kind}>(at, {count});" for kind, _, count in _rooms(made))
    yield "  return at - &here;"
    yield "}"


def _tensor(made: MatrixPlan) -> Iterator[str]:
    """The whole update of one tensor by one of the threads of its team."""
    ops = made.trace.ops
    yield "static void tiled(const Tensors& w, int64_t t, const Team& team, char* memory) {"
    yield "  const int64_t B = w.batch[t], N = w.n[t], M = w.m[t], tiles = B * tiles_of(N);"
    yield from (f"  {kind}* const {name} = room<{kind}>(memory, {count});" for kind, name, count in _rooms(made))
    for i, name in enumerate(made.buffers):
        yield f"  auto* const b{i} = reinterpret_cast<{type_of(name)}*>(w.address[{i} * w.count + t]);"
    yield f"  double number[{max(1, len(made.place))}];"
    for stage in range(made.last + 1):
        sums = [f"s{at}" for at in made.computed if ops[at].stage == stage and ops[at].name in REDUCTIONS]
        yield f"  numbers{stage}({', '.join(['w', 't', 'tiles', 'number', *sums])});"
        vectors = list(_vectors(made, stage))
        if vectors:
            yield from ["  for (int64_t b = team.first(B); b < team.last(B); ++b) {", *vectors, "  }", "  team.wait();"]
        if made.reductions(stage, "element") or (stage == made.last and made.writes):
            yield from ["  {", *_pass(made, stage), "  }", "  team.wait();"]
    for name, at in made.kept.items():
        one = _COUNTS[ops[at].kind].removeprefix("B * ") if ops[at].kind != "matrix" else "1"
        yield f"  std::copy(v{at} + team.first(B) * {one}, v{at} + team.last(B) * {one},"
        yield f"            b{made.buffers.index(name)} + team.first(B) * {one});"
    # The next tensor's team uses the same memory.
    yield "  team.wait();"
    yield "}"


def _loads(made: MatrixPlan, places: Iterable[int], kind: Kind | None) -> Iterator[str]:
    """Values that were computed before: numbers, and those of a row, a column or a matrix; of one kind, or of all."""
    for at in places:
        op = made.trace.ops[at]
        if kind is None or op.kind == kind:
            yield f"const {kind_of(op)} x{at} = {_load(made, at)};"


def _load(made: MatrixPlan, at: int) -> str:
    op = made.trace.ops[at]
    if op.kind == "number":
        return number_of(op, made.place[at])
    name = f"b{made.buffers.index(op.args[0])}" if op.name == "input" else f"v{at}"
    value = f"{name}[{_PLACES[op.kind]}]"
    return f"{value} != 0" if op.boolean else value


def _vectors(made: MatrixPlan, stage: int) -> Iterator[str]:
    """What is computed for matrix b in a stage: means of columns, then values of the matrix, of rows and of columns."""
    ops = made.trace.ops
    for at in made.live:
        if ops[at].name == "column_mean" and ops[at].kind == "column" and ops[at].stage == stage:
            yield f"    column_means(v{at} + b * M, c{at} + b * tiles_of(N) * M, N, M);"
    for kind, loop in _LOOPS.items():
        here = made.vectors(stage, kind)
        if not here:
            continue
        yield f"    {loop}{{"
        before = dict.fromkeys(ref for at in here for ref in ops[at].refs if ref not in here)
        yield from (f"      {line}" for line in _loads(made, before, kind=None))
        yield from (f"      {line}" for line in definitions(ops, here))
        yield from (f"      v{at}[{_PLACES[kind]}] = x{at};" for at in here if at in made.stored)
        yield "    }"
    for at in made.reductions(stage):
        source = made.trace.ops[ops[at].refs[0]]
        name = f"b{made.buffers.index(source.args[0])}" if source.name == "input" else f"v{ops[at].refs[0]}"
        length = "N" if source.kind == "row" else "M"
        yield f"    v{at}[b] = mean_of({name} + b * {length}, {length});"


def _pass(made: MatrixPlan, stage: int) -> Iterator[str]:
    """One pass over the elements of this thread's tiles."""
    ops, reduced = made.trace.ops, made.reductions(stage, "element")
    writes = made.writes if stage == made.last else {}
    roots = [*(ops[at].refs[0] for at in reduced), *writes.values()]
    below = needed(ops, roots, lambda at: ops[at].kind != "element" or ops[at].name == "input")
    outer = [at for at in below if ops[at].kind != "element"]
    by_column = [at for at in reduced if ops[at].name == "column_mean"]
    by_row = [at for at in reduced if ops[at].name != "column_mean"]
    yield from (f"    {line}" for line in _loads(made, outer, "number"))
    yield "    for (int64_t tile = team.first(tiles); tile < team.last(tiles); ++tile) {"
    yield "      const int64_t b = tile / tiles_of(N), top = tile % tiles_of(N) * TILE;"
    yield from (f"      {line}" for line in _loads(made, outer, "matrix"))
    for at in outer:
        if ops[at].kind == "column":
            name = f"b{made.buffers.index(ops[at].args[0])}" if ops[at].name == "input" else f"v{at}"
            yield f"      const T* __restrict const k{at} = {name} + b * M;"
    for at in by_column:
        yield f"      T* __restrict const sum{at} = c{at} + tile * M;"
        yield f"      std::fill_n(sum{at}, M, T(0));"
    yield from (f"      double all{at} = 0;" for at in by_row if ops[at].name != "row_mean")
    yield "      for (int64_t i = top; i < std::min(N, top + TILE); ++i) {"
    yield from (f"        {line}" for line in _loads(made, outer, "row"))
    yield from (f"        double row{at} = 0;" for at in by_row)
    read = [str(ops[at].args[0]) for at in below if ops[at].kind == "element" and ops[at].name == "input"]
    for name in dict.fromkeys([*read, *writes]):
        number = made.buffers.index(name)
        yield f"        {type_of(name)}* __restrict const e{number} = b{number} + (b * N + i) * M;"
    body = [f"            {line}" for line in ("const int64_t j = at + k;", *_element(made, below, outer, writes))]
    body += [f"            sum{at}[j] += x{ops[at].refs[0]};" for at in by_column]
    body += [f"            part{at}[k] = {summand(ops, at)};" for at in by_row]
    parts = [f"          T part{at}[BLOCK];" for at in by_row]
    if by_row:
        yield "        int64_t at = 0;"
        yield from ["        for (; at + BLOCK <= M; at += BLOCK) {", *parts]
        yield from ["          for (int64_t k = 0; k < BLOCK; ++k) {", *body, "          }"]
        yield from (f"          row{at} += fold(part{at});" for at in by_row)
        yield from ["        }", "        if (at < M) {", *parts]
        yield from ["          for (int64_t k = 0; k < M - at; ++k) {", *body, "          }"]
        for at in by_row:
            yield f"          T rest{at} = 0;"
            yield f"          for (int64_t k = 0; k < M - at; ++k) rest{at} += part{at}[k];"
            yield f"          row{at} += rest{at};"
        yield "        }"
    else:
        yield from [
            "        constexpr int64_t at = 0;",
            "        for (int64_t k = 0; k < M; ++k) {",
            *body,
            "        }",
        ]
    for at in by_row:
        if ops[at].name == "row_mean":
            yield f"        v{at}[b * N + i] = T(row{at} / static_cast<double>(M));"
        else:
            yield f"        all{at} += row{at};"
    yield "      }"
    yield from (f"      s{at}[tile] = all{at};" for at in by_row if ops[at].name != "row_mean")
    yield "    }"


def _element(made: MatrixPlan, below: list[int], outer: list[int], writes: dict[str, int]) -> Iterator[str]:
    """What is done to element j of row i: old values are read first and new ones written last."""
    ops = made.trace.ops
    for at in outer:
        if ops[at].kind == "column":
            yield f"const {kind_of(ops[at])} x{at} = k{at}[j]{' != 0' if ops[at].boolean else ''};"
    for at in below:
        if ops[at].kind == "element" and ops[at].name == "input":
            name = str(ops[at].args[0])
            x = load(name, f"e{made.buffers.index(name)}[j]")
            yield f"const {'L' if name in ('g', 'w') else 'T'} x{at} = {x};"
    yield from definitions(ops, (at for at in below if ops[at].kind == "element" and ops[at].name != "input"))
    yield from (f"e{made.buffers.index(name)}[j] = {store(name, f'x{at}')};" for name, at in writes.items())
