"""What of a trace with means over rows and columns is computed when, and its numbers as C++."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.optim.compiler.codegen_cpp import expression, is_exact, kind_of, rooted
from descend.optim.compiler.partition import needed
from descend.optim.compiler.trace import Op, Trace, Untraceable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.optim.compiler.trace import Kind

__all__ = ["REDUCTIONS", "VECTORS", "MatrixPlan", "emit_numbers", "number_of", "plan"]

REDUCTIONS = ("norm", "total", "row_mean", "column_mean")
VECTORS = ("row", "column", "matrix")  # kinds of values of which a matrix has fewer than elements


@dataclass(frozen=True, eq=False)
class MatrixPlan:
    """What is computed when.

    Attributes:
        trace: The whole update.
        live: Places of the operations that are needed.
        writes: Name of each buffer of elements that is written in the last pass: place of the value.
        kept: Name of each entry of the state for rows, columns or matrices that is written at the end: its place.
        given: Places of the numbers that come from outside, in the order of the rows of the table.
        computed: Places of the other numbers, in order.
        buffers: Names of all buffers, in the order in which the kernel takes their addresses.
    """

    trace: Trace
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
    def packs(self) -> bool:
        """Whether tensors of many small matrices are updated in packs: not where there are no rows and columns."""
        return any(op.kind in VECTORS for op in self.trace.ops)

    @functools.cached_property
    def last(self) -> int:
        """The stage of the last pass."""
        return max([self.trace.ops[at].stage for at in self.live], default=0)

    def reductions(self, stage: int, of: Kind | None = None) -> list[int]:
        """Places of the reductions of values of a stage: of elements, or of rows and columns."""
        ops = self.trace.ops
        reduced = [at for at in self.live if ops[at].name in REDUCTIONS and ops[ops[at].refs[0]].stage == stage]
        return [at for at in reduced if (ops[ops[at].refs[0]].kind == "element") == (of == "element")]

    def vectors(self, stage: int, kind: Kind) -> list[int]:
        """Places of the values of a kind that are computed in a stage, in order; without inputs and reductions."""
        ops = self.trace.ops
        alike = [at for at in self.live if ops[at].kind == kind and ops[at].stage == stage]
        return [at for at in alike if ops[at].name != "input" and ops[at].name not in REDUCTIONS]

    @functools.cached_property
    def stored(self) -> tuple[int, ...]:
        """Places of the values for rows, columns and matrices that are kept in memory for others to read."""
        ops = self.trace.ops
        read = {
            ref
            for at in self.live
            for ref in ops[at].refs
            if (ops[at].kind, ops[at].stage) != (ops[ref].kind, ops[ref].stage) or ops[ref].name in REDUCTIONS
        } | set(self.kept.values())
        return tuple(at for at in self.live if ops[at].kind in VECTORS and ops[at].name != "input" and at in read)


@functools.lru_cache(maxsize=256)
def plan(trace: Trace) -> MatrixPlan:
    """What is computed when.

    Raises:
        Untraceable: The trace needs what there is no kernel for: numbers in the state, noise, or numbers that follow
            from a norm by more than arithmetic.
    """
    ops = trace.ops
    new = {name: at for name, at in trace.outputs.items() if ops[at].name != "input" or ops[at].args != (name,)}
    if trace.draws or any(kind == "number" for kind in trace.entries.values()):
        raise Untraceable("it draws noise or keeps a number beside means over rows or columns")
    for name, at in new.items():
        wanted = trace.entries.get(name, "element")
        if ops[at].kind != wanted:
            raise Untraceable(f"its new {name} is one value a {ops[at].kind}, and was one a {wanted}")
    live = needed(ops, new.values(), lambda at: not ops[at].stage and ops[at].kind == "number")
    numbers = [at for at in live if ops[at].kind == "number"]
    computed = tuple(at for at in numbers if ops[at].stage)
    if not all(is_exact(ops[at]) for at in computed):
        raise Untraceable("a number that follows from a norm takes more than arithmetic")
    inputs = {str(ops[at].args[0]) for at in live if ops[at].name == "input"}
    return MatrixPlan(
        trace=trace,
        live=tuple(live),
        writes={name: at for name, at in new.items() if ops[at].kind == "element"},
        kept={name: at for name, at in new.items() if ops[at].kind != "element"},
        given=tuple(at for at in numbers if not ops[at].stage),
        computed=computed,
        buffers=tuple(sorted((inputs | set(new)) - set(_NUMBERS))),
    )


_NUMBERS = ("t", "lr", "decay", "scaled", "size")


def emit_numbers(made: MatrixPlan, name: str) -> Iterator[str]:
    """A function for the numbers of each stage, from those before it and from the sums of parts of the tensor.

    Args:
        made: Whose numbers.
        name: Of the functions, before the stage.
    """
    ops = made.trace.ops
    place = made.place
    for stage in range(made.last + 1):
        here = [at for at in made.computed if ops[at].stage == stage]
        sums = [at for at in here if ops[at].name in REDUCTIONS]
        totals = "".join(f", const double* s{at}" for at in sums)
        yield f"static void {name}{stage}(const Tensors& w, int64_t t, int64_t parts, double* number{totals}) {{"
        yield "  using T = double;"
        yield "  (void)w; (void)t; (void)parts; (void)number;"
        if not stage:
            for i in range(len(made.given)):  # which come first
                yield f"  number[{i}] = w.table[{i} * w.stride + t * w.step];"
        before = dict.fromkeys(ref for at in here for ref in ops[at].refs if at not in sums and ref not in here)
        yield from (f"  const {kind_of(ops[at])} x{at} = {number_of(ops[at], place[at])};" for at in before)
        for at in here:
            x = rooted(ops, at, f"in_order(s{at}, parts)") if at in sums else expression(ops[at])
            yield f"  const {kind_of(ops[at])} x{at} = {x};"
            yield f"  number[{place[at]}] = x{at};"
        yield "}"


def number_of(op: Op, place: int) -> str:
    """The value of a number from its place among all."""
    return f"number[{place}] != 0" if op.boolean else f"T(number[{place}])"
