"""Writes a trace with means over rows and columns as C++ for a CPU: a few passes over the elements of each tensor.

Stage after stage: the numbers of the stage; its values for each matrix, row and column, which are kept in memory; then,
where a reduction or a new weight waits for it, one pass over the elements, row after row, which computes again what it
needs of them. So elements are read once a pass, and of intermediate values only rows and columns are stored.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from descend.optim.compiler.codegen_cpp import HEADER, TYPES, expression, is_exact, load, store, type_of
from descend.optim.compiler.partition import needed
from descend.optim.compiler.trace import Op, Trace, Untraceable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from descend.optim.compiler.trace import Kind

__all__ = ["MatrixPlan", "emit_matrices", "plan"]

MATRIX_HEADER = Path(__file__).with_name("matrix.h")

REDUCTIONS = ("norm", "total", "row_mean", "column_mean")
_COUNTS = {"row": "B * N", "column": "B * M", "matrix": "B"}  # of the values of a tensor
_LOOPS: Mapping[Kind, str] = {
    "matrix": "",
    "row": "for (int64_t i = 0; i < N; ++i) ",
    "column": "for (int64_t j = 0; j < M; ++j) ",
}
_PLACES = {"row": "b * N + i", "column": "b * M + j", "matrix": "b"}  # of a value


@dataclass(frozen=True, eq=False)
class MatrixPlan:
    """What is computed when.

    Attributes:
        text: The whole update.
        live: Places of the operations that are needed.
        writes: Name of each buffer of elements that is written in the last pass: place of the value.
        kept: Name of each entry of the state for rows, columns or matrices that is written at the end: its place.
        given: Places of the numbers that come from outside, in the order of the rows of the table.
        computed: Places of the other numbers, in order.
        buffers: Names of all buffers, in the order in which the kernel takes their addresses.
    """

    text: Trace
    live: tuple[int, ...]
    writes: dict[str, int]
    kept: dict[str, int]
    given: tuple[int, ...]
    computed: tuple[int, ...]
    buffers: tuple[str, ...]

    @functools.cached_property
    def place(self) -> dict[int, int]:
        """Of each number its place among all numbers."""
        return {at: i for i, at in enumerate((*self.given, *self.computed))}

    @functools.cached_property
    def last(self) -> int:
        """The stage of the last pass."""
        return max([self.text.ops[at].stage for at in self.live], default=0)

    def reductions(self, stage: int, of: Kind | None = None) -> list[int]:
        """Places of the reductions of values of a stage: of elements, or of rows and columns."""
        ops = self.text.ops
        reduced = [at for at in self.live if ops[at].name in REDUCTIONS and ops[ops[at].refs[0]].stage == stage]
        return [at for at in reduced if (ops[ops[at].refs[0]].kind == "element") == (of == "element")]

    def vectors(self, stage: int, kind: Kind) -> list[int]:
        """Places of the values of a kind that are computed in a stage, in order; without inputs and reductions."""
        ops = self.text.ops
        alike = [at for at in self.live if ops[at].kind == kind and ops[at].stage == stage]
        return [at for at in alike if ops[at].name != "input" and ops[at].name not in REDUCTIONS]

    @functools.cached_property
    def stored(self) -> tuple[int, ...]:
        """Places of the values for rows, columns and matrices that are kept in memory for others to read."""
        ops = self.text.ops
        read = {
            ref
            for at in self.live
            for ref in ops[at].refs
            if (ops[at].kind, ops[at].stage) != (ops[ref].kind, ops[ref].stage) or ops[ref].name in REDUCTIONS
        } | set(self.kept.values())
        return tuple(at for at in self.live if ops[at].kind in _COUNTS and ops[at].name != "input" and at in read)


@functools.lru_cache(maxsize=256)
def plan(text: Trace) -> MatrixPlan:
    """What is computed when.

    Raises:
        Untraceable: The text needs what there is no kernel for: numbers in the state, noise, or numbers that follow
            from a norm by more than arithmetic.
    """
    ops = text.ops
    new = {name: at for name, at in text.outputs.items() if ops[at].name != "input" or ops[at].args != (name,)}
    if text.draws or any(kind == "number" for kind in text.entries.values()):
        raise Untraceable("it draws noise or keeps a number beside means over rows or columns")
    for name, at in new.items():
        wanted = text.entries.get(name, "element")
        if ops[at].kind != wanted:
            raise Untraceable(f"its new {name} is one value a {ops[at].kind}, and was one a {wanted}")
    live = needed(ops, new.values(), lambda at: not ops[at].stage and ops[at].kind == "number")
    numbers = [at for at in live if ops[at].kind == "number"]
    computed = tuple(at for at in numbers if ops[at].stage)
    if not all(is_exact(ops[at]) for at in computed):
        raise Untraceable("a number that follows from a norm takes more than arithmetic")
    inputs = {str(ops[at].args[0]) for at in live if ops[at].name == "input"}
    return MatrixPlan(
        text=text,
        live=tuple(live),
        writes={name: at for name, at in new.items() if ops[at].kind == "element"},
        kept={name: at for name, at in new.items() if ops[at].kind != "element"},
        given=tuple(at for at in numbers if not ops[at].stage),
        computed=computed,
        buffers=tuple(sorted((inputs | set(new)) - set(_NUMBERS))),
    )


_NUMBERS = ("t", "lr", "decay", "scaled", "size")


def emit_matrices(text: Trace, dtype: str, low: str | None) -> str:
    """The functions `size` and `call` over `Tensors` (see matrix.h).

    Args:
        text: What to compute.
        dtype: Precision in which it is computed, e.g. "float32".
        low: Precision of weights that have a master, or None.

    Raises:
        Untraceable: There is no kernel for this text.
    """
    made = plan(text)
    types = [f"using T = {TYPES[dtype]};", f"using L = {TYPES[low or dtype]};"]
    body = [*_scratch(made), *_numbers(made), *_tensor(made)]
    return "\n".join([HEADER.read_text(), MATRIX_HEADER.read_text(), *types, *body, ""])


def _rooms(made: MatrixPlan) -> Iterator[tuple[str, str, str]]:
    """Type, name and size of each piece of memory that a tensor needs."""
    ops = made.text.ops
    for at in made.stored:
        yield "T", f"v{at}", _COUNTS[ops[at].kind]
    for at in made.live:
        if ops[at].name in REDUCTIONS and ops[ops[at].refs[0]].kind == "element":
            if ops[at].name == "column_mean":
                yield "T", f"c{at}", "B * tiles_of(N) * M"
            elif ops[at].name != "row_mean":
                yield "double", f"s{at}", "B * tiles_of(N)"


def _scratch(made: MatrixPlan) -> Iterator[str]:
    yield "static int64_t scratch(int64_t B, int64_t N, int64_t M) {"
    yield "  (void)B; (void)N; (void)M;"
    yield "  char here, *at = &here;"
    yield from (f"  room<{kind}>(at, {count});" for kind, _, count in _rooms(made))
    yield "  return at - &here;"
    yield "}"


def _numbers(made: MatrixPlan) -> Iterator[str]:
    """The numbers of each stage, from those before it and the sums of tiles."""
    ops = made.text.ops
    place = made.place
    for stage in range(made.last + 1):
        here = [at for at in made.computed if ops[at].stage == stage]
        sums = [at for at in here if ops[at].name in REDUCTIONS]
        totals = "".join(f", const double* s{at}" for at in sums)
        yield f"static void numbers{stage}(const Tensors& w, int64_t t, int64_t tiles, double* number{totals}) {{"
        yield "  using T = double;"
        yield "  (void)w; (void)t; (void)tiles; (void)number;"
        if not stage:
            for i in range(len(made.given)):  # which come first
                yield f"  number[{i}] = w.table[{i} * w.stride + t * w.step];"
        before = dict.fromkeys(ref for at in here for ref in ops[at].refs if at not in sums and ref not in here)
        yield from (f"  const {_kind(ops[at])} x{at} = {_number(ops[at], place[at])};" for at in before)
        for at in here:
            if at in sums:
                x = f"in_order(s{at}, tiles)"
                x = f"std::sqrt({x})" if ops[at].name == "norm" else x
            else:
                x = expression(ops[at])
            yield f"  const {_kind(ops[at])} x{at} = {x};"
            yield f"  number[{place[at]}] = x{at};"
        yield "}"


def _kind(op: Op) -> str:
    return "L" if op.name == "narrow" else "bool" if op.boolean else "T"


def _number(op: Op, place: int) -> str:
    return f"number[{place}] != 0" if op.boolean else f"T(number[{place}])"


def _tensor(made: MatrixPlan) -> Iterator[str]:
    """The whole update of one tensor by one of the threads of its team."""
    ops = made.text.ops
    yield "static void tensor(const Tensors& w, int64_t t, const Team& team, char* memory) {"
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
        op = made.text.ops[at]
        if kind is None or op.kind == kind:
            yield f"const {_kind(op)} x{at} = {_load(made, at)};"


def _load(made: MatrixPlan, at: int) -> str:
    op = made.text.ops[at]
    if op.kind == "number":
        return _number(op, made.place[at])
    name = f"b{made.buffers.index(op.args[0])}" if op.name == "input" else f"v{at}"
    value = f"{name}[{_PLACES[op.kind]}]"
    return f"{value} != 0" if op.boolean else value


def _vectors(made: MatrixPlan, stage: int) -> Iterator[str]:
    """What is computed for matrix b in a stage: means of columns, then values of the matrix, of rows and of columns."""
    ops = made.text.ops
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
        for at in here:
            yield f"      const {_kind(ops[at])} x{at} = {expression(ops[at])};"
            if at in made.stored:
                yield f"      v{at}[{_PLACES[kind]}] = x{at};"
        yield "    }"
    for at in made.reductions(stage):
        source = made.text.ops[ops[at].refs[0]]
        name = f"b{made.buffers.index(source.args[0])}" if source.name == "input" else f"v{ops[at].refs[0]}"
        length = "N" if source.kind == "row" else "M"
        yield f"    v{at}[b] = mean_of({name} + b * {length}, {length});"


def _pass(made: MatrixPlan, stage: int) -> Iterator[str]:
    """One pass over the elements of this thread's tiles."""
    ops, reduced = made.text.ops, made.reductions(stage, "element")
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
    for at in by_row:
        x = f"x{ops[at].refs[0]}"
        body.append(f"            part{at}[k] = {f'{x} * {x}' if ops[at].name == 'norm' else x};")
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
    ops = made.text.ops
    for at in outer:
        if ops[at].kind == "column":
            yield f"const {_kind(ops[at])} x{at} = k{at}[j]{' != 0' if ops[at].boolean else ''};"
    for at in below:
        if ops[at].kind == "element" and ops[at].name == "input":
            name = str(ops[at].args[0])
            x = load(name, f"e{made.buffers.index(name)}[j]")
            yield f"const {'L' if name in ('g', 'w') else 'T'} x{at} = {x};"
    for at in below:
        if ops[at].kind == "element" and ops[at].name != "input":
            yield f"const {_kind(ops[at])} x{at} = {expression(ops[at])};"
    yield from (f"e{made.buffers.index(name)}[j] = {store(name, f'x{at}')};" for name, at in writes.items())
