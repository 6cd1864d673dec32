"""Writes a trace as CUDA: one launch a stage for all tensors of an arena, and one for the numbers before each stage.

    check      whether a gradient is not finite, into a flag of the device that every later launch reads
    numbers0   step counts, and what follows from them and from rates and constants, in float64, a tensor a thread
    stage0     all elements of all tensors; of each unit the sums that norms and totals need
    numbers1   sums over tensors, in the same order each time; what follows from them
    stage1     ...

Nothing that a step needs comes from the host but addresses: step counts, rates and constants are numbers on the device.
So a kernel serves all sizes, rates and steps, no launch waits for the host, and a step can be part of a CUDA graph.

Every operation is rounded by itself (no fused multiply-add), as in the eager form. The expressions are those of
`codegen_cpp`. NVRTC compiles the source; `tests/cuda_on_cpu.h` lets a C++ compiler do it, and a processor run it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from descend.optim.compiler.codegen_cpp import definitions, expression, kind_of, rooted, summand
from descend.optim.compiler.partition import Kernel, needed, partition
from descend.optim.compiler.trace import STATE, Ref, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SETTINGS", "CudaPlan", "emit_cuda", "plan"]

HEADER = Path(__file__).with_name("cuda_kernel.h")
TYPES = {"float64": "double", "float32": "float", "bfloat16": "bfloat16", "float16": "float16"}
SETTINGS = ("lr", "decay", "scaled")  # the first inputs of a group; the literals follow
HEAD = 'extern "C" __global__ void __launch_bounds__(THREADS)'


@dataclass(frozen=True, eq=False)
class CudaPlan:
    """What the kernels of a trace and the engine that launches them agree on.

    Attributes:
        kernels: One for each stage.
        stages: How many times numbers are computed: before each kernel, and after the last where state follows.
        buffers: Names of the arena's buffers, in the order of `Work.buffer`.
        columns: Names of the entries of state that are one number a tensor, in the order of `Work.column`.
        rows: Row of the table of each number, by its place in the trace.
        sums: Place of each reduction, in the order of `Work.sums`.
        inputs: How many inputs a group has: `SETTINGS` and the literals.
    """

    kernels: tuple[Kernel, ...]
    stages: int
    buffers: tuple[str, ...]
    columns: tuple[str, ...]
    rows: dict[int, int]
    sums: tuple[int, ...]
    inputs: int

    @property
    def launches(self) -> tuple[str, ...]:
        """Names of the kernels of an update, in order."""
        pairs = [(f"numbers{k}", f"stage{k}" if k < len(self.kernels) else "") for k in range(self.stages)]
        return tuple(name for pair in pairs for name in pair if name)


@functools.lru_cache(maxsize=256)
def plan(trace: Trace) -> CudaPlan:
    """The plan of a trace."""
    kernels, ops = partition(trace), trace.ops
    outer = "w" if "w" in trace.outputs else "p"
    held = {name for kernel in kernels for name in kernel.held}
    columns = tuple(sorted(name for name, kind in trace.entries.items() if kind == "number"))
    roots = [at for kernel in kernels for at in kernel.numbers] + [trace.outputs[name] for name in columns]
    # Down to elements: a norm or a total is a number, and what it sums is not.
    below = needed(ops, roots, lambda at: ops[at].name in ("norm", "total") or ops[at].kind == "element")
    numbers = [at for at in below if ops[at].kind == "number"]
    return CudaPlan(
        kernels=kernels,
        stages=max([len(kernels), *(1 + ops[at].stage for at in numbers)]),
        buffers=tuple(sorted(held - {"g", outer})),
        columns=columns,
        rows={at: i for i, at in enumerate(numbers)},
        sums=tuple(at for kernel in kernels for at in kernel.sums),
        inputs=len(SETTINGS) + len(trace.constants),
    )


def emit_cuda(trace: Trace, dtype: str, low: str | None) -> str:
    """The source of all kernels of a trace.

    Args:
        trace: What to compute.
        dtype: Precision in which it is computed, "float32" or "float64".
        low: Precision of weights that have a master, or None.

    Raises:
        Untraceable: A function of the trace has no form here.
    """
    types = [f"typedef {TYPES[dtype]} T;", f"typedef {TYPES[low or dtype]} L;"]
    body = [line for k in range(plan(trace).stages) for line in (*_numbers(trace, k), *_stage(trace, k))]
    return "\n".join([HEADER.read_text(encoding="utf-8"), *types, *body, ""])


def _numbers(trace: Trace, k: int) -> Iterator[str]:
    """Numbers of one stage: a thread a tensor, or a block a tensor where sums come first."""
    made, ops = plan(trace), trace.ops
    mine = [at for at in made.rows if ops[at].stage == k]
    sums = [at for at in mine if ops[at].name in ("norm", "total")]
    yield f"{HEAD} numbers{k}(const Work w) {{"
    yield "  if (*w.bad) return;"
    if sums:
        yield "  for (int64 tensor = blockIdx.x; tensor < w.tensors; tensor += gridDim.x) {"
    else:
        yield "  for (int64 tensor = (int64)blockIdx.x * THREADS + threadIdx.x; tensor < w.tensors;"
        yield "       tensor += (int64)gridDim.x * THREADS) {"
    yield "    if (!w.gradient[tensor]) continue;"
    yield from (f"    const double s{at} = tensor_sum(w, {made.sums.index(at)}, tensor);" for at in sums)
    if sums:
        yield "    if (threadIdx.x) continue;"
    yield from (f"    {line}" for line in _number_lines(trace, k, mine))
    yield "  }"
    yield "}"


def _number_lines(trace: Trace, k: int, mine: list[int]) -> Iterator[str]:
    made, ops = plan(trace), trace.ops
    yield "typedef double T;"
    yield "const int64 group = w.group[tensor];"
    if not k:
        yield "const double t = w.count[tensor] = w.count[tensor] + 1;"
    known = set(mine)
    # A reduction reads elements, which are summed already.
    earlier = {ref for at in mine if ops[at].name not in ("norm", "total") for ref in ops[at].refs} - known
    if k == made.stages - 1:
        earlier |= {trace.outputs[name] for name in made.columns} - known
    for at in sorted(earlier):
        yield f"const {kind_of(ops[at])} x{at} = {_from_table(made, trace, at)};"
    for at in mine:
        yield f"const {kind_of(ops[at])} x{at} = {_number(trace, at)};"
        yield f"w.table[{made.rows[at]} * w.tensors + tensor] = x{at};"
    if k == made.stages - 1:
        for i, name in enumerate(made.columns):
            yield f"reinterpret_cast<double*>(w.column[{i}])[tensor] = x{trace.outputs[name]};"
    yield "(void)group;"
    if not k:
        yield "(void)t;"


def _number(trace: Trace, at: int) -> str:
    op = trace.ops[at]
    if op.name in ("norm", "total"):
        return rooted(trace.ops, at, f"s{at}")
    if op.name == "literal":
        return f"w.input[{len(SETTINGS) + op.args[0]} * w.groups + group]"
    if op.name in ("remainder", "operator.mod"):  # among numbers alone, as of a step count
        return f"remainder_of({', '.join(f'x{x.at}' if isinstance(x, Ref) else repr(float(x)) for x in op.args)})"
    if op.name != "input":
        return expression(op)
    name = str(op.args[0])
    if name == "t":
        return "t"
    if name.startswith(STATE):
        return f"reinterpret_cast<const double*>(w.column[{plan(trace).columns.index(name)}])[tensor]"
    return f"w.input[{SETTINGS.index(name)} * w.groups + group]"


def _from_table(made: CudaPlan, trace: Trace, at: int) -> str:
    x = f"w.table[{made.rows[at]} * w.tensors + tensor]"
    return f"{x} != 0" if trace.ops[at].boolean else x


@dataclass(frozen=True, eq=False)
class _Pass:
    """The names that the code of one stage uses.

    Attributes:
        k: Number of the stage.
        kernel: What it computes.
        held: Buffers that it reads or writes; pointers b0, b1, ... in this order.
    """

    k: int
    kernel: Kernel
    held: tuple[str, ...]

    @functools.cached_property
    def loads(self) -> dict[int, str]:
        """What is read, by its place: x3 from its buffer; a gradient g3, since a factor may have to be taken out."""
        return {at: name for at, name in self.kernel.loads.items() if name in self.held}

    @functools.cached_property
    def noises(self) -> dict[int, int]:
        """Which call for noise each place is."""
        return {at: int(name.split()[1]) for at, name in self.kernel.loads.items() if name not in self.held}

    @functools.cached_property
    def writes(self) -> dict[int, str]:
        """New values y0, y1, ... by the number of their pointer."""
        return {self.held.index(name): name for name in self.kernel.writes}

    @functools.cached_property
    def parts(self) -> list[str]:
        """Sums of one thread."""
        return [f"part{i}" for i in range(len(self.kernel.sums))]

    def parameters(self) -> Iterator[str]:
        """Of the function of one element."""
        ops = self.kernel.trace.ops
        for at, name in self.loads.items():
            yield f"const {_type(name)} {'g' if name == 'g' else 'x'}{at}"
        yield from (f"const T x{at}" for at in self.noises)
        yield from (f"const {kind_of(ops[at])} x{at}" for at in self.kernel.numbers)
        yield "const T unscale"
        yield from (f"{_type(name)}& y{i}" for i, name in self.writes.items())
        yield from (f"double& {part}" for part in self.parts)

    def call(self, read: str, noise: str, new: str) -> str:
        """A call of it; the arguments say how to read buffer {0}, noise {0} and new value {0}."""
        given = [read.format(self.held.index(name)) for name in self.loads.values()]
        given += [noise.format(at) for at in self.noises]
        given += [f"x{at}" for at in self.kernel.numbers] + ["unscale"]
        given += [new.format(i) for i in self.writes] + self.parts
        return f"element{self.k}({', '.join(given)});"


def _stage(trace: Trace, k: int) -> Iterator[str]:
    """One pass over all elements: a function of one element, and the walk over units."""
    made, ops = plan(trace), trace.ops
    if k >= len(made.kernels):
        return
    kernel = made.kernels[k]
    names = _Pass(k, kernel, kernel.held)
    yield f"static __device__ __forceinline__ void element{k}({', '.join(names.parameters())}) {{"
    yield from (f"  {line}" for line in _element(names))
    yield "}"
    yield f"{HEAD} stage{k}(const Work w) {{"
    yield "  if (*w.bad) return;"
    yield "  const T unscale = w.grad_scale ? T(1.0 / (double)*w.grad_scale) : T(1);"
    yield "  for (int64 unit = blockIdx.x; unit < w.units; unit += gridDim.x) {"
    yield "    const int64 tensor = w.unit_tensor[unit];"
    yield "    if (!w.gradient[tensor]) continue;"
    yield "    const int64 first = w.unit_first[unit], n = w.unit_count[unit], at = w.start[tensor] + first;"
    for at in kernel.numbers:
        x = _from_table(made, trace, at)
        yield f"    const {kind_of(ops[at])} x{at} = {x if ops[at].boolean else f'T({x})'};"
    for i, name in enumerate(names.held):
        constant = "" if name in kernel.writes else "const "
        yield f"    {constant}{_type(name)}* __restrict__ b{i} = {_pointer(made, trace, name, constant)};"
    yield from (f"    double {part} = 0;" for part in names.parts)
    yield from (f"    {line}" for line in (_walk_with_noise if names.noises else _walk)(names))
    for at, part in zip(kernel.sums, names.parts, strict=True):
        yield f"    {part} = block_sum({part});"
        yield f"    if (!threadIdx.x) w.sums[{made.sums.index(at)} * w.units + unit] = {part};"
    yield "    (void)at;"
    yield "  }"
    yield "}"


def _element(names: _Pass) -> Iterator[str]:
    """What is done to one element. A factor that a GradScaler left in the gradient is taken out first."""
    kernel, ops = names.kernel, names.kernel.trace.ops
    for at in kernel.order:
        if kernel.loads.get(at) == "g":
            yield f"const T x{at} = T(g{at}) * unscale;"
    yield from definitions(ops, kernel.computed)
    for at, part in zip(kernel.sums, names.parts, strict=True):
        yield f"{part} += {summand(ops, at, '(double)')};"
    yield from (f"y{i} = x{kernel.writes[name]};" for i, name in names.writes.items())
    yield "(void)unscale;"


def _walk(names: _Pass) -> Iterator[str]:
    """Four consecutive elements a thread at a time, and the rest one by one."""
    yield "const int64 fours = n / 4;"
    yield from (f"const bool a{i} = is_aligned(b{i});" for i in range(len(names.held)))
    yield "#pragma unroll 2"
    yield "for (int64 q = threadIdx.x; q < fours; q += THREADS) {"
    for i, name in enumerate(names.held):
        if name in names.loads.values():
            yield f"  const Four<{_type(name)}> v{i} = load(b{i} + 4 * q, a{i});"
    yield from (f"  Four<{_type(name)}> r{i};" for i, name in names.writes.items())
    yield "#pragma unroll"
    yield f"  for (int j = 0; j < 4; ++j) {names.call('v{0}.x[j]', '', 'r{0}.x[j]')}"
    yield from (f"  store(b{i} + 4 * q, r{i}, a{i});" for i in names.writes)
    yield "}"
    yield "for (int64 i = 4 * fours + threadIdx.x; i < n; i += THREADS)"
    yield from _single(names)


def _walk_with_noise(names: _Pass) -> Iterator[str]:
    """The four elements of a block of 64 whose noise comes from one counter, a thread at a time."""
    yield "for (int64 q = threadIdx.x; q < (n + 63) / 64 * 16; q += THREADS) {"
    for at, call in names.noises.items():
        yield f"  float z{at}[4];"
        yield f"  normal(z{at}, (word64)(first / 4 + q), w.key[tensor], (word32)w.count[tensor], {call}u);"
    yield "  for (int j = 0; j < 4; ++j) {"
    yield "    const int64 i = q / 16 * 64 + 16 * j + q % 16;"
    yield "    if (i >= n) break;"
    yield from (f"    {line}" for line in _single(names))
    yield "  }"
    yield "}"


def _single(names: _Pass) -> Iterator[str]:
    """Element i alone. New values are stored after all old ones are read, since one may move to another buffer."""
    yield "{"
    yield from (f"  {_type(name)} y{i};" for i, name in names.writes.items())
    yield f"  {names.call('b{0}[i]', 'T(z{0}[j])', 'y{0}')}"
    yield from (f"  b{i}[i] = y{i};" for i in names.writes)
    yield "}"


def _type(name: str) -> str:
    return "L" if name in ("g", "w") else "T"


def _pointer(made: CudaPlan, trace: Trace, name: str, constant: str) -> str:
    """Gradients and the weights that torch holds lie anywhere, all else in the arena."""
    outer = "w" if "w" in trace.outputs else "p"
    if name in ("g", outer):
        place = "gradient" if name == "g" else "weights"
        return f"reinterpret_cast<{constant}{_type(name)}*>(w.{place}[tensor]) + first"
    return f"reinterpret_cast<{constant}{_type(name)}*>(w.buffer[{made.buffers.index(name)}]) + at"
