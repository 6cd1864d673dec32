"""Writes a trace with means over rows and columns as C++ for tensors of many small matrices, a pack at a time.

A pack (see packs.h) is in the cache from its first operation to its last, so means over rows and columns end no pass:
a pass over memory goes as far as the next norm or total of the whole tensor. What a later pass needs of rows, columns
and matrices it computes again, from the state as it was written.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from descend.optim.compiler.codegen_cpp import definitions, kind_of, load, store, summand, type_of
from descend.optim.compiler.matrix_plan import REDUCTIONS, VECTORS, emit_numbers, number_of, plan
from descend.optim.compiler.partition import Kernel, needed, partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from descend.optim.compiler.matrix_plan import MatrixPlan
    from descend.optim.compiler.trace import Kind, Op, Trace

__all__ = ["PACKS_HEADER", "emit_packs", "passes"]

PACKS_HEADER = Path(__file__).with_name("packs.h")

# Rows and columns of the matrix that values of a kind are laid out as.
_SHAPES: Mapping[Kind, tuple[str, str]] = {
    "element": ("N", "M"),
    "row": ("N", "1"),
    "column": ("1", "M"),
    "matrix": ("1", "1"),
}
_PLACES: Mapping[Kind, str] = {
    "element": "(i * M + j) * lanes + k",
    "row": "i * lanes + k",
    "column": "j * lanes + k",
    "matrix": "k",
}
_LOOPS: Mapping[Kind, str] = {
    "matrix": "",
    "row": "for (int64_t i = 0; i < N; ++i)",
    "column": "for (int64_t j = 0; j < M; ++j)",
}
KEPT = "kept"  # before the place of a value, in the name of the buffer of its elements
_LANES = "for (int64_t k = 0; k < lanes; ++k)"


def passes(trace: Trace) -> tuple[Kernel, ...]:
    """The passes over memory: what each reads, computes and writes.

    A buffer "kept 36" holds the elements of value 36 from the pass that sums them to the last one that reads them.
    """
    trace = _up_to_sums(trace)
    kernels = partition(trace)
    kept: dict[str, int] = {}
    for k, kernel in enumerate(kernels):
        again = {at for later in kernels[k + 1 :] for at in later.order if at not in later.loads}
        summed = [trace.ops[at].refs[0] for at in kernel.sums]
        kept |= {f"{KEPT} {at}": at for at in summed if at in again and at not in kernel.loads}
    return partition(replace(trace, outputs={**trace.outputs, **kept})) if kept else kernels


def _up_to_sums(trace: Trace) -> Trace:
    """The trace with stages that only norms and totals end."""
    ops: list[Op] = []
    for op in trace.ops:
        before = max((ops[ref].stage for ref in op.refs), default=0)
        ops.append(replace(op, stage=before + (op.name in ("norm", "total"))))
    return replace(trace, ops=tuple(ops))


def emit_packs(trace: Trace) -> Iterator[str]:
    """The functions `packed`, which updates a tensor, and `packed_memory`, the bytes that it needs."""
    made, kernels = plan(_up_to_sums(trace)), passes(trace)
    kept = list(dict.fromkeys(name for kernel in kernels for name in kernel.writes if name.startswith(KEPT)))
    buffers = (*made.buffers, *kept)
    each = [_PackedPass(made, kernel, trace, buffers) for kernel in kernels]
    shared = [("double", f"s{at}", "packs_of(B)") for kernel in kernels for at in kernel.sums]
    shared += [("T", f"b{buffers.index(name)}", "B * N * M") for name in kept]
    arrays = list(dict.fromkeys(array for one in each for array in one.arrays()))
    yield from emit_numbers(made, "packed_numbers")
    yield "static int64_t lane_memory(int64_t N, int64_t M) {"
    yield f"  return {' + '.join(f'sizeof({kind}) * {n} * {m}' for kind, _, n, m in arrays)};"
    yield "}"
    yield "static int64_t packed_memory(int64_t B, int64_t N, int64_t M, int64_t parts) {"
    yield "  const int64_t most = lanes_of(lane_memory(N, M));"
    yield "  char here, *at = &here;"
    yield from (f"  room<{kind}>(at, {count});" for kind, _, count in shared)
    yield "  return at - &here + parts * most * lane_memory(N, M);"
    yield "}"
    yield "static void packed(const Tensors& w, int64_t t, const Team& team, char* memory) {"
    yield "  const int64_t B = w.batch[t], N = w.n[t], M = w.m[t], packs = packs_of(B);"
    yield "  const int64_t most = lanes_of(lane_memory(N, M)), groups = (B + most - 1) / most;"
    yield from (f"  {kind}* const {name} = room<{kind}>(memory, {count});" for kind, name, count in shared)
    yield "  memory += team.part * most * lane_memory(N, M);"
    for kind, name, n, m in arrays:
        yield f"  {kind}* __restrict const {name} = room<{kind}>(memory, {n} * {m} * most);"
    for i, name in enumerate(made.buffers):
        yield f"  auto* const b{i} = reinterpret_cast<{type_of(name)}*>(w.address[{i} * w.count + t]);"
    yield f"  double number[{max(1, len(made.place))}];"
    for i, one in enumerate(each):
        known = [
            f"s{at}" for at in made.computed if made.trace.ops[at].stage == i and made.trace.ops[at].name in REDUCTIONS
        ]
        yield f"  packed_numbers{i}({', '.join(['w', 't', 'packs', 'number', *known])});"
        yield from ["  {", *(f"    {line}" for line in one.lines()), "  }", "  team.wait();"]
    yield "}"


@dataclass(frozen=True, eq=False)
class _PackedPass:
    """One pass over the packs of a tensor.

    Attributes:
        made: The plan in which stages are passes.
        kernel: What is computed.
        trace: In which means end stages, too.
        buffers: Names of all buffers.
    """

    made: MatrixPlan
    kernel: Kernel
    trace: Trace
    buffers: tuple[str, ...]

    def computed(self, kind: Kind, stage: int) -> list[int]:
        """Places of the values of a kind that follow from others in a stage, in order."""
        ops, given = self.trace.ops, self.kernel.loads
        alike = [at for at in self.kernel.order if ops[at].kind == kind and ops[at].stage == stage]
        return [at for at in alike if at not in given and ops[at].name not in REDUCTIONS]

    def means(self, stage: int, of_elements: bool) -> list[int]:
        """Places of the means of values of a stage."""
        ops, given = self.trace.ops, self.kernel.loads
        means = [at for at in self.kernel.order if ops[at].name in REDUCTIONS and at not in given]
        sources = {at: ops[ops[at].refs[0]] for at in means}
        return [at for at in means if sources[at].stage == stage and (sources[at].kind == "element") == of_elements]

    @functools.cached_property
    def kept(self) -> list[int]:
        """Places of the values of rows, columns and matrices that have an array, for others to read."""
        ops, kernel = self.trace.ops, self.kernel
        read = {
            ref
            for at in kernel.order
            if at not in kernel.loads
            for ref in ops[at].refs
            if ops[at].name in REDUCTIONS or (ops[at].kind, ops[at].stage) != (ops[ref].kind, ops[ref].stage)
        } | set(kernel.writes.values())
        vectors = [at for at in kernel.order if ops[at].kind in VECTORS and at not in kernel.loads]
        return [at for at in vectors if at in read or ops[at].name in REDUCTIONS]

    def arrays(self) -> Iterator[tuple[str, str, str, str]]:
        """Type, name, rows and columns of the arrays of values of a pack."""
        if self.is_flat:
            return
        for name in self.kernel.buffers:
            _, array, n, m, spare = self.places(name)
            yield from [(_word(name), array, n, m), (_word(name), spare, "N", "M")]
        for at in self.kept:
            yield "T", f"v{at}", *_SHAPES[self.trace.ops[at].kind]
        yield from (("T", f"all{at}", "1", "1") for at in self.kernel.sums)

    def kind(self, name: str) -> Kind:
        """Of the values of a buffer."""
        return self.trace.entries.get(name, "element")

    @property
    def is_flat(self) -> bool:
        """Whether what is done to an element depends on no other, so elements can stay where they are."""
        return not self.kernel.sums and all(self.trace.ops[at].kind == "element" for at in self.kernel.order)

    def lines(self) -> Iterator[str]:
        """The whole pass."""
        ops, kernel = self.trace.ops, self.kernel
        for at in kernel.numbers:
            yield f"const {kind_of(ops[at])} x{at} = {number_of(ops[at], self.made.place[at])};"
        yield from self.flat() if self.is_flat else self.grouped()

    def flat(self) -> Iterator[str]:
        """A pass over the elements as they lie."""
        ops, kernel = self.trace.ops, self.kernel
        for name in kernel.buffers:
            i = self.buffers.index(name)
            yield f"{type_of(name)}* __restrict const e{i} = b{i};"
        yield "#pragma GCC ivdep"
        yield "for (int64_t i = team.first(B) * N * M; i < team.last(B) * N * M; ++i) {"
        for at, name in kernel.loads.items():
            kind, x = "L" if name in ("g", "w") else "T", load(name, f"e{self.buffers.index(name)}[i]")
            yield f"  const {kind} x{at} = {x};"
        yield from (f"  {line}" for line in definitions(ops, kernel.computed))
        for name, at in kernel.writes.items():
            yield f"  e{self.buffers.index(name)}[i] = {store(name, f'x{at}')};"
        yield "}"

    def grouped(self) -> Iterator[str]:
        """A pass over groups of packs."""
        ops, kernel = self.trace.ops, self.kernel
        last = max(ops[at].stage for at in kernel.order)
        yield "for (int64_t group = team.first(groups); group < team.last(groups); ++group) {"
        yield "  const int64_t first = group * most, count = std::min(most, B - first), lanes = packs_of(count) * PACK;"
        yield "  const bool more = group + 1 < team.last(groups);"
        for name in dict.fromkeys(kernel.loads.values()):
            memory, array, n, m, spare = self.places(name)
            kind = f"const {_word(name).removeprefix('const ')}"
            old = f"interleave({memory}, count, {n}, {m}, {array}, lanes, {spare})"
            yield f"  {kind}* const {array.replace('a', 'old')} = {old};"
        asked = list(dict.fromkeys(kernel.loads.values()))
        loops = [stage for stage in range(last + 1) if self.roots(stage)]
        for stage in range(last + 1):
            yield from (f"  {line}" for line in self.vectors(stage))
            if stage in loops:
                yield from (f"  {line}" for line in self.elements(stage, asked[loops.index(stage) :: len(loops)]))
        for name, at in kernel.writes.items():
            memory, array, n, m, spare = self.places(name)
            array = array if ops[at].kind == "element" else f"v{at}"
            yield f"  separate({array}, lanes, count, {n}, {m}, {memory}, {spare});"
        yield "}"

    def places(self, name: str) -> tuple[str, str, str, str, str]:
        """Of a buffer the place of this pack, its array, its rows and columns, and an array that is spare."""
        i, (n, m), word = self.buffers.index(name), _SHAPES[self.kind(name)], _word(name)
        return f"b{i} + first * {n} * {m}", f"a{i}", n, m, "spare" if word == "T" else "spareL"

    def ask_for(self, name: str) -> str:
        """Fetch of the next group's values the part that goes with row i and column j."""
        memory, _, n, m, _ = self.places(name)
        part, when = {
            "element": ("(i * M + j)", "more"),
            "row": ("i", "more && j == 0"),
            "column": ("j", "more && i == 0"),
            "matrix": ("0", "more && i == 0 && j == 0"),
        }[self.kind(name)]
        return f"if ({when}) ask_for({memory} + most * ({n} * {m} + {part}), most);"

    def value(self, at: int) -> str:
        """A value from its array."""
        op, name = self.trace.ops[at], self.kernel.loads.get(at)
        x = f"v{at}[{_PLACES[op.kind]}]"
        if name is not None:
            x = load(name, f"old{self.buffers.index(name)}[{_PLACES[op.kind]}]")
        kind = "L" if name in ("g", "w") else "bool" if op.boolean else "T"
        return f"const {kind} x{at} = {x}{' != 0' if kind == 'bool' else ''};"

    def vectors(self, stage: int) -> Iterator[str]:
        """Values of matrices, rows and columns in a stage, then the means over rows and columns."""
        ops = self.trace.ops
        for kind, loop in _LOOPS.items():
            here = self.computed(kind, stage)
            if not here:
                continue
            yield from ["#pragma GCC ivdep", _LANES + " {"] if not loop else [loop, "#pragma GCC ivdep", _LANES + " {"]
            before = dict.fromkeys(ref for at in here for ref in ops[at].refs if ref not in here)
            yield from (f"  {self.value(ref)}" for ref in before if ops[ref].kind != "number")
            yield from (f"  {line}" for line in definitions(ops, here))
            yield from (f"  v{at}[{_PLACES[kind]}] = x{at};" for at in here if at in self.kept)
            yield "}"
        for at in self.means(stage, of_elements=False):
            source = self.value(ops[at].refs[0]).split(" = ")[1].partition("[")[0]
            yield f"means_of({source}, {'N' if ops[ops[at].refs[0]].kind == 'row' else 'M'}, lanes, v{at});"

    def sums(self, stage: int) -> list[int]:
        """Places of the norms and totals of values of a stage."""
        ops = self.trace.ops
        return [at for at in self.kernel.sums if ops[ops[at].refs[0]].stage == stage]

    def new(self, stage: int) -> dict[str, int]:
        """Places of the new elements by the name of their buffer, which are all written in the last stage."""
        ops, kernel = self.trace.ops, self.kernel
        if stage < max(ops[at].stage for at in kernel.order):
            return {}
        return {name: at for name, at in kernel.writes.items() if ops[at].kind == "element"}

    def roots(self, stage: int) -> list[int]:
        """Places of the elements that are summed or written in a stage."""
        reduced = [*self.means(stage, of_elements=True), *self.sums(stage)]
        return [*(self.trace.ops[at].refs[0] for at in reduced), *self.new(stage).values()]

    def elements(self, stage: int, asked: list[str]) -> Iterator[str]:
        """What is made of the elements in a stage: means, the sums of norms and totals, and new values.

        Args:
            stage: Which stage.
            asked: Buffers of which the next group's values are fetched meanwhile.
        """
        ops, kernel, means = self.trace.ops, self.kernel, self.means(stage, of_elements=True)
        new, sums, roots = self.new(stage), self.sums(stage), self.roots(stage)
        by_row = [at for at in means if ops[at].name == "row_mean"]
        by_column = [at for at in means if ops[at].name == "column_mean"]
        below = needed(ops, roots, lambda at: ops[at].kind != "element" or at in kernel.loads)
        known = [at for at in below if ops[at].kind in VECTORS or at in kernel.loads]
        yield from (f"std::fill_n(v{at}, M * lanes, T(0));" for at in by_column)
        yield from (f"std::fill_n(all{at}, lanes, T(0));" for at in sums)
        yield "for (int64_t i = 0; i < N; ++i) {"
        yield from (f"  T* __restrict const row{at} = v{at} + i * lanes;" for at in by_row)
        yield from (f"  std::fill_n(row{at}, lanes, T(0));" for at in by_row)
        yield "  for (int64_t j = 0; j < M; ++j) {"
        yield from (f"    {self.ask_for(name)}" for name in asked)
        yield from ["#pragma GCC ivdep", f"    {_LANES} {{"]
        yield from (f"      {self.value(at)}" for at in known)
        computed = [at for at in below if ops[at].kind == "element" and at not in kernel.loads]
        yield from (f"      {line}" for line in definitions(ops, computed))
        yield from (f"      row{at}[k] += x{ops[at].refs[0]};" for at in by_row)
        yield from (f"      v{at}[j * lanes + k] += x{ops[at].refs[0]};" for at in by_column)
        yield from (f"      all{at}[k] += {summand(ops, at)};" for at in sums)
        for name, at in new.items():
            yield f"      a{self.buffers.index(name)}[{_PLACES['element']}] = {store(name, f'x{at}')};"
        yield from ["    }", "  }", "}"]
        yield from (f"divide(v{at}, N * lanes, M);" for at in by_row)
        yield from (f"divide(v{at}, M * lanes, N);" for at in by_column)
        yield from (f"fold_packs(all{at}, count, s{at} + first / PACK);" for at in sums)


def _word(name: str) -> str:
    return type_of(name).removeprefix("const ")
