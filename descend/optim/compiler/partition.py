"""Partitions a trace into kernels: what each reads, computes, writes and sums.

Kernel k computes all elements of stage k. It writes the new weights and state that are ready, and for each norm or
total the sums over blocks from which stage k + 1 gets its numbers. A later kernel computes again what it needs from
what is stored, so no direction is kept in memory between kernels; a new value overwrites the old only after its
last reader.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.compiler.trace import FUNCTIONS, Op, Ref, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping


ARITHMETIC: Mapping[str, Callable[[float, float], Any]] = {
    f"operator.{name}": getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow")
}

__all__ = [
    "Kernel",
    "block_sums",
    "carry_out",
    "elements",
    "needed",
    "numbers",
    "of_gradient",
    "partition",
    "placed",
    "without_sums",
]


@dataclass(frozen=True, eq=False)
class Kernel:
    """One pass over the blocks.

    Attributes:
        trace: The trace it is cut from.
        loads: Place in the trace of each value that it reads: name of the buffer.
        writes: Name of each buffer that it writes: place of the value.
        sums: Places of the reductions whose sums over blocks it returns, in order.
        numbers: Places of the numbers it needs, in the order of the rows of its table.
        order: Places of the operations to carry out, in order.
    """

    trace: Trace
    loads: Mapping[int, str]
    writes: Mapping[str, int]
    sums: tuple[int, ...]
    numbers: tuple[int, ...]
    order: tuple[int, ...]

    @functools.cached_property
    def computed(self) -> list[int]:
        """The operations to carry out on values that are read or computed before."""
        return [at for at in self.order if at not in self.loads]

    @functools.cached_property
    def held(self) -> tuple[str, ...]:
        """Names of the buffers without those of noise, for a kernel that computes noise itself."""
        return tuple(name for name in self.buffers if name not in self.noises)

    @functools.cached_property
    def noises(self) -> list[str]:
        """Names of the buffers that hold noise."""
        return [name for name in self.loads.values() if name.startswith("noise ")]

    @functools.cached_property
    def buffers(self) -> tuple[str, ...]:
        """Names of all buffers it reads or writes, in the order in which it takes them.

        A buffer whose old value moves into another as it is comes after that other: the compiler stores new values in
        this order, and a mere copy of an input late, so the old value would be gone.
        """
        moved = {self.loads.get(self._copied(at)) for at in self.writes.values()}
        return tuple(sorted({*self.loads.values(), *self.writes}, key=lambda name: (name in moved, name)))

    def _copied(self, at: int) -> int:
        """The value that this one is a mere copy of, or itself."""
        op = self.trace.ops[at]
        return self._copied(op.refs[0]) if op.name in ("clone", "detach") and at not in self.loads else at


@functools.lru_cache(maxsize=256)
def partition(trace: Trace) -> tuple[Kernel, ...]:
    """The kernels of a trace, in order."""
    ops = trace.ops
    news = {name: at for name, at in trace.outputs.items() if ops[at].kind != "number" and not _is_input(ops[at], name)}
    stage = {name: ops[at].stage for name, at in news.items()}
    last = max([op.stage for op in ops if op.kind != "number"], default=0)
    for _ in range(len(stage) * (last + 1) + 1):
        kernels = tuple(_kernel(trace, news, stage, k) for k in range(last + 1))
        late = {
            name: k
            for k, kernel in enumerate(kernels)
            for name in kernel.loads.values()
            if _read_old(kernel, name, stage, k)
        }
        if not late:
            return tuple(kernel for kernel in kernels if kernel.writes or kernel.sums)
        stage |= late
    raise AssertionError("a write was deferred more often than there are kernels")


def _is_input(op: Op, name: str) -> bool:
    return op.name == "input" and op.args == (name,)


def _read_old(kernel: Kernel, name: str, stage: Mapping[str, int], k: int) -> bool:
    """Whether kernel k reads the old value of a buffer that an earlier kernel overwrites."""
    old = any(held == name and kernel.trace.ops[at].name == "input" for at, held in kernel.loads.items())
    return old and stage.get(name, k) < k


def _kernel(trace: Trace, news: Mapping[str, int], stage: Mapping[str, int], k: int) -> Kernel:
    stored = {news[name]: name for name, at_stage in stage.items() if at_stage < k}
    writes = {name: news[name] for name, at_stage in stage.items() if at_stage == k}
    sums = tuple(at for at, op in enumerate(trace.ops) if op.name in ("norm", "total") and op.stage == k + 1)
    return _kernel_of(trace, stored, writes, sums)


def _kernel_of(trace: Trace, stored: Mapping[int, str], writes: Mapping[str, int], sums: tuple[int, ...]) -> Kernel:
    """The kernel that makes these writes and sums, given the values that are in a buffer beside the inputs."""
    roots = [*writes.values(), *(trace.ops[at].refs[0] for at in sums)]
    # Down to values that are in a buffer, and to numbers.
    below = needed(trace.ops, roots, lambda at: at in stored or trace.ops[at].kind == "number")
    loads = {
        at: stored.get(at, str(trace.ops[at].args[0])) for at in below if at in stored or trace.ops[at].name == "input"
    }
    elements = [at for at in below if trace.ops[at].kind != "number"]
    used = {ref for at in elements if at not in loads for ref in trace.ops[at].refs}
    outer = tuple(sorted(ref for ref in {*used, *roots} if trace.ops[ref].kind == "number"))
    return Kernel(trace, {at: n for at, n in loads.items() if at in elements}, writes, sums, outer, tuple(elements))


def of_gradient(trace: Trace) -> Kernel:
    """The kernel of those sums that are of the gradient and of nothing else, not even a number; it may have none."""
    first = partition(trace)[0]
    kernels = {at: _kernel_of(trace, {}, {}, (at,)) for at in first.sums}
    alone = tuple(at for at, kernel in kernels.items() if kernel.buffers == ("g",) and not kernel.numbers)
    return _kernel_of(trace, {}, {}, alone)


def without_sums(kernel: Kernel, known: Container[int]) -> Kernel:
    """A kernel without those of its sums that are known already, and without what only they read."""
    stored = {at: name for at, name in kernel.loads.items() if kernel.trace.ops[at].name != "input"}
    return _kernel_of(kernel.trace, stored, kernel.writes, tuple(at for at in kernel.sums if at not in known))


def needed(ops: tuple[Op, ...], roots: Iterable[int], is_given: Callable[[int], bool]) -> list[int]:
    """Places of these values and of all that they come from, down to what is given, in order."""
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            if not is_given(at):
                todo.extend(ops[at].refs)
    return sorted(seen)


def elements(
    kernel: Kernel,
    buffers: Mapping[str, Tensor],
    table: Mapping[int, Any],
    low: torch.dtype | None,
    valid: Tensor,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Carry a kernel out on some blocks, eagerly or under a tracer.

    Args:
        kernel: What to compute.
        buffers: (rows, B) views by name.
        table: Value of each number, of shape () or (rows, 1), by its place.
        low: Precision of weights that have a master, else None.
        valid: (rows,), how many elements of each block belong to a tensor; the rest is left out of sums.

    Returns:
        New values by the name of their buffer, and sums over the blocks, each (rows,).
    """
    ops = kernel.trace.ops
    values: dict[int, Any] = dict(table)
    wide = torch.float32 if low else None
    for at in kernel.order:
        if at in kernel.loads:
            values[at] = buffers[kernel.loads[at]]
        else:
            values[at] = carry_out(ops[at], values, {"widen": wide, "narrow": low})
    sums = [block_sums(ops[at].name, values[ops[at].refs[0]], valid) for at in kernel.sums]
    return {name: values[at] for name, at in kernel.writes.items()}, sums


def block_sums(reduction: str, x: Tensor, valid: Tensor) -> Tensor:
    """The part of a norm or total that each block contributes; what lies beyond the tensor is left out."""
    inside = torch.arange(x.shape[-1], device=x.device) < valid[:, None]
    return torch.where(inside, x * x if reduction == "norm" else x, 0.0).sum(-1)


def carry_out(op: Op, values: Mapping[int, Any], casts: Mapping[str, torch.dtype | None]) -> Any:
    """The value of one operation, given those it reads and what "widen" and "narrow" mean."""
    args = [values[x.at] if isinstance(x, Ref) else x for x in op.args]
    if op.name in casts:
        return args[0].to(casts[op.name])
    named = {key: values[x.at] if isinstance(x, Ref) else x for key, x in op.kwargs}
    return FUNCTIONS[op.name](*args, **named)


def numbers(trace: Trace, known: dict[int, Any], stage: int, after: str | None = None) -> None:
    """Compute all numbers of one stage into `known`, in float64.

    Args:
        trace: Whose numbers.
        known: Values so far by place; inputs, literals, norms and totals of this stage must be in it.
        stage: Which stage.
        after: The name of an input, for those numbers alone that depend on it.
    """
    for line in _of_stage(trace, stage) if after is None else _after(trace, stage, after):
        known[line[0]] = _carried_out(trace, line, known)


def _carried_out(trace: Trace, line: Line, known: Mapping[int, Any]) -> Any:
    """The value of one number."""
    at, function, left, right = line
    if function is not None:
        # In Python's floats where they mean the same, which takes a tenth of the time.
        x = known[left.at] if isinstance(left, Ref) else left
        y = known[right.at] if isinstance(right, Ref) else right
        if type(x) is float and type(y) is float:
            try:
                value = function(x, y)
            except (ZeroDivisionError, OverflowError):
                value = None  # infinity or NaN for a tensor
            if type(value) is float:
                return value
    return _number(trace.ops[at], known)


Line = tuple[int, "Callable[[float, float], Any] | None", "Ref | float", "Ref | float"]


@functools.lru_cache(maxsize=256)
def _of_stage(trace: Trace, stage: int) -> tuple[Line, ...]:
    """The numbers to compute in a stage: place, and function and arguments of those that are plain arithmetic."""
    ops = [(at, op) for at, op in enumerate(trace.ops) if op.kind == "number" and op.stage == stage]
    return tuple(_line(at, op) for at, op in ops if op.name not in ("input", "literal", "norm", "total"))


@functools.lru_cache(maxsize=256)
def _after(trace: Trace, stage: int, name: str) -> tuple[Line, ...]:
    """Those of `_of_stage` that depend on an input."""
    found = {at for at, given in trace.given if given == name}
    for at, op in enumerate(trace.ops):
        if op.kind == "number" and not found.isdisjoint(op.refs):
            found.add(at)
    return tuple(line for line in _of_stage(trace, stage) if line[0] in found)


def _line(at: int, op: Op) -> Line:
    name, args, named = op.name, op.args, op.kwargs
    if name == "clamp" and len(args) == len(named) == 1:
        name, args, named = f"clamp_{named[0][0]}", (args[0], named[0][1]), ()
    function = ARITHMETIC.get(name, _BOUNDS.get(name))
    if function is None or named or not all(isinstance(x, (Ref, int, float)) for x in args):
        return at, None, 0.0, 0.0
    left, right = (x if isinstance(x, Ref) else float(x) for x in args)
    return at, function, left, right


def _smaller(x: float, y: float) -> float | None:
    """As torch has it, NaN where one of both is; None for two zeros, whose sign torch decides."""
    if x == y == 0.0:
        return None
    return y if y < x or y != y else x


def _larger(x: float, y: float) -> float | None:
    """See `_smaller`."""
    if x == y == 0.0:
        return None
    return y if y > x or y != y else x


_BOUNDS: Mapping[str, Callable[[float, float], Any]] = {
    "minimum": _smaller,
    "clamp_max": _smaller,
    "maximum": _larger,
    "clamp_min": _larger,
}


def _number(op: Op, known: Mapping[int, Any]) -> Any:
    """The value of one number, by torch."""
    values = {ref: known[ref] for ref in op.refs}
    devices = [value.device for value in values.values() if isinstance(value, Tensor)]
    device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
    value = carry_out(op, {ref: placed(value, device) for ref, value in values.items()}, {})
    return float(value) if value.ndim == 0 and value.dtype == torch.float64 and value.device.type == "cpu" else value


def placed(value: Any, device: torch.device) -> Tensor:
    """A number as a tensor on a device, without waiting for it; not every function takes one from elsewhere."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    return torch.full((), value, dtype=torch.float64, device=device)
