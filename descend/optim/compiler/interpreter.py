"""Interprets a kernel: executes its operations one by one, without a compiler and without allocating a tensor for each.

On a CPU NumPy computes: it rounds a square root as IEEE has it, which torch does not in a sixth of all cases, it starts
no threads of its own, and it lets other threads run meanwhile. On other devices, and for low precision, torch does.

Intermediate values live in a few registers of one chunk each, allocated when the kernel is first seen: a register is
free again after the last reader of its value. So a chunk stays in the cache from its first operation to
its last.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from descend.optim.compiler.partition import Kernel, carry_out
from descend.optim.compiler.trace import Op, Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["NUMPY", "Interpreter", "interpreters", "together"]

_SAME_NAME = (
    "abs add addcdiv addcmul ceil clamp copysign div eq exp expm1 floor ge gt le lerp log log1p logical_and "
    "logical_not logical_or lt maximum minimum mul ne neg pow reciprocal rsqrt sgn sign square sub tanh trunc "
    "where"
)


def _sqrt(x: Tensor, *, out: Tensor) -> Tensor:
    """The square root rounded as IEEE has it, which torch's own on a CPU (MKL's) is not in a sixth of all cases.

    A compiled kernel takes the processor's root, and runners are to agree to the last bit.
    """
    if out.device.type != "cpu":
        return torch.sqrt(x, out=out)
    with np.errstate(invalid="ignore"):
        np.sqrt(x.numpy(), out=out.numpy())
    return out


# Functions that write their result into a given tensor; others allocate one.
_INTO: Mapping[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME.split()},
    "sqrt": _sqrt,
    **{f"operator.{name}": getattr(torch, name) for name in ("add", "sub", "mul", "pow", "neg", "abs")},
    **{f"operator.{name}": getattr(torch, name) for name in ("gt", "ge", "lt", "le", "eq", "ne")},
    "operator.truediv": torch.div,
    "operator.and_": torch.bitwise_and,
    "operator.or_": torch.bitwise_or,
    "operator.invert": torch.bitwise_not,
}


def _filled(value: float) -> Callable[..., NDArray[Any]]:
    def fill(_: Any, *, out: NDArray[Any]) -> NDArray[Any]:
        out.fill(value)
        return out

    return fill


def _where(condition: Any, a: Any, b: Any, *, out: NDArray[Any]) -> NDArray[Any]:
    # A value that is in the result itself is overwritten last.
    if a is out:
        np.copyto(out, b, where=np.logical_not(condition))
        return out
    if b is not out:
        np.copyto(out, b)
    np.copyto(out, a, where=condition)
    return out


_LONG = 128  # elements of a row from which on a row of equal bounds takes less time than one bound


def _clamp(x: Any, min: Any = None, max: Any = None, *, out: NDArray[Any]) -> NDArray[Any]:  # noqa: A002  # torch's names
    if max is None and min is not None:  # what np.clip does after checks that take as long as a short operation
        if np.ndim(min) == 0 and out.shape[-1:] >= (_LONG,):
            min = np.full(out.shape[-1], min, dtype=out.dtype)  # noqa: A001  # NumPy has vectors for two arrays alone
        return np.maximum(x, min, out=out)
    return np.clip(x, min, max, out=out)


def _sign(x: Any, *, out: NDArray[Any]) -> NDArray[Any]:
    np.sign(x, out=out)
    np.copyto(out, 0, where=np.isnan(out))  # torch's sign of NaN
    return out


def _power(x: Any, exponent: Any, *, out: NDArray[Any]) -> NDArray[Any]:
    return np.square(x, out=out) if exponent == 2 else np.power(x, exponent, out=out)


_SAME_IN_NUMPY = (
    "ceil copysign exp expm1 floor fmax fmin isfinite isinf isnan log log1p logical_and logical_not logical_or maximum "
    "minimum reciprocal sqrt square tanh trunc"
)
NUMPY: Mapping[str, Callable[..., NDArray[Any]]] = {
    **{name: getattr(np, name) for name in _SAME_IN_NUMPY.split()},
    "abs": np.absolute,
    "clamp": _clamp,
    "clone": np.positive,
    "detach": np.positive,
    "ones_like": _filled(1.0),
    "sgn": _sign,
    "sign": _sign,
    "where": _where,
    "zeros_like": _filled(0.0),
    "operator.abs": np.absolute,
    "operator.neg": np.negative,
    "operator.pow": _power,
    "operator.and_": np.logical_and,
    "operator.or_": np.logical_or,
    "operator.invert": np.logical_not,
    **{
        f"operator.{name}": function for name, function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))
    },
    "operator.truediv": np.divide,
    "operator.gt": np.greater,
    "operator.ge": np.greater_equal,
    "operator.lt": np.less,
    "operator.le": np.less_equal,
    "operator.eq": np.equal,
    "operator.ne": np.not_equal,
}


# A piece of memory for one chunk: whether it holds truth values, and its number.
Register = tuple[bool, int]

# An operation with all that is known beforehand: its index in the trace, the operation, the function that carries it
# out in given memory or None, the indices of its arguments, and where the result goes, or None for memory of its own.
Line = tuple[int, Op, "Callable[..., Any] | None", tuple[int, ...], "Register | str | None"]


@dataclass
class Interpreter:
    """One kernel with its registers.

    Attributes:
        kernel: What to carry out.
        wide: Precision in which it computes.
        low: Precision of weights that have a master, else None.
        device: Where.
        blocks: Most blocks of a chunk.
        width: Elements of a block.
    """

    kernel: Kernel
    wide: torch.dtype
    low: torch.dtype | None
    device: torch.device
    blocks: int
    width: int
    places: dict[int, Register | str] = field(default_factory=dict[int, "Register | str"])
    memory: dict[tuple[Register, int], Any] = field(default_factory=dict[tuple[Register, int], Any])
    constants: list[Any] = field(default_factory=list[Any])
    registers: int = 0

    def __post_init__(self) -> None:
        self.by_numpy = self.device.type == "cpu" and self.low is None
        self.functions = NUMPY if self.by_numpy else _INTO
        ops = self.kernel.trace.ops
        self.casts = {"widen": self.wide, "narrow": self.low}
        self.todo = [(at, ops[at]) for at in self.kernel.order if at not in self.kernel.loads]
        self.last = {ref: at for at, op in self.todo for ref in op.refs}
        # Sums are taken when all else is done.
        self.last |= {ops[at].refs[0]: len(ops) for at in self.kernel.sums}
        self._settle_writes()
        self._give_registers()
        self.lines = [self._line(at, op) for at, op in self.todo]
        self.late = [(name, at) for name, at in self.kernel.writes.items() if self.places.get(at) != name]

    def _line(self, at: int, op: Op) -> Line:
        """An operation with all that is known of it beforehand."""
        place = self.places.get(at)
        function = self.functions[op.name] if place is not None and not op.kwargs else None
        return at, op, function, tuple(self._argument(x) for x in op.args), place

    def _argument(self, x: Any) -> int:
        """The place of an argument; constants get places after the last operation."""
        if isinstance(x, Ref):
            return x.at
        self.constants.append(x)
        return len(self.kernel.trace.ops) + len(self.constants) - 1

    def _settle_writes(self) -> None:
        """Let a new value be computed in its buffer, where the old one is not read any more."""
        old = {name: at for at, name in self.kernel.loads.items()}
        for name, at in self.kernel.writes.items():
            unread = name not in old or self.last.get(old[name], -1) <= at
            if unread and self.kernel.trace.ops[at].name in self.functions and at not in self.places:
                self.places[at] = name

    def _give_registers(self) -> None:
        """Give every other value a place until its last reader has run.

        That is where one of the values lies that the operation reads last: writing what has just been read costs a
        fifth less of a step than writing elsewhere. It may be a buffer that gets its new value later on.
        """
        free: dict[bool, list[int]] = {False: [], True: []}
        old = {name: at for at, name in self.kernel.loads.items()}
        written = {place: at for at, place in self.places.items() if isinstance(place, str) and place != "w"}
        taken = {name: self.last.get(old.get(name, -1), -1) for name in written}  # until which operation
        kept = set(self.kernel.writes.values())
        for at, op in self.todo:
            read_last = [ref for ref in op.refs if self.last[ref] == at]
            freed = [self.places.get(ref) for ref in read_last if ref not in kept]
            for boolean, number in dict.fromkeys(place for place in freed if isinstance(place, tuple)):
                free[boolean].append(number)
            if op.name not in self.functions or at in self.places:
                continue
            held = [self.kernel.loads.get(ref, self.places.get(ref)) for ref in read_last]
            for name in held if at not in kept and not op.boolean else ():
                if isinstance(name, str) and taken.get(name, at + 1) <= at and self.last[at] <= written[name]:
                    taken[name] = self.last[at]
                    self.places[at] = name
                    break
            else:
                self.places[at] = (op.boolean, self._register(free[op.boolean]))

    def _register(self, free: list[int]) -> int:
        """The number of a free register, or of a new one."""
        if not free:
            self.registers += 1
            return self.registers
        return free.pop()

    def held(self, x: Tensor) -> Any:
        """A tensor as this machine computes with it."""
        return x.numpy() if self.by_numpy else x

    def _room(self, place: Register, rows: int) -> Any:
        """A register cut to some blocks: the same object each time, so that writing in place is recognised."""
        room = self.memory.get((place, rows))
        if room is None:
            dtype = torch.bool if place[0] else self.wide
            whole = self.memory.get((place, self.blocks))
            if whole is None:
                whole = self.held(torch.empty(self.blocks, self.width, dtype=dtype, device=self.device))
                self.memory[place, self.blocks] = whole
            room = self.memory[place, rows] = whole if rows == self.blocks else whole[:rows]
        return room

    def run(
        self, buffers: Mapping[str, Any], table: Mapping[int, Any], rows: int, valid: Tensor | None
    ) -> list[Tensor]:
        """Update the buffers of one chunk in place.

        Args:
            buffers: (rows, B) views by name as `held`, rows at most `blocks`.
            table: Value of each number as `held`, of shape () or (rows, 1), by its place.
            rows: Number of blocks.
            valid: (rows,), how many elements of each block belong to a tensor; None for all.

        Returns:
            Sums over the blocks, each (rows,).
        """
        kernel = self.kernel
        values: list[Any] = [*[None] * len(kernel.trace.ops), *self.constants]
        for at, number in table.items():
            values[at] = number
        for at, name in kernel.loads.items():
            values[at] = buffers[name]
        for at, op, function, args, place in self.lines:
            if place is None:
                values[at] = self._carry_out(op, values)
                continue
            room = buffers[place] if isinstance(place, str) else self._room(place, rows)
            if function is None:
                values[at] = self._into(op, values, room)
            else:
                values[at] = function(*[values[x] for x in args], out=room)
        ops = kernel.trace.ops
        summed = [(ops[at].name, _tensor(values[ops[at].refs[0]])) for at in kernel.sums]
        sums = [_block_sums(name, x, valid) for name, x in summed]
        for name, at in self.late:
            buffers[name][...] = values[at]
        return sums

    def _into(self, op: Op, values: Sequence[Any], room: Any) -> Any:
        args = [values[x.at] if isinstance(x, Ref) else x for x in op.args]
        named = {key: values[x.at] if isinstance(x, Ref) else x for key, x in op.kwargs}
        return self.functions[op.name](*args, **named, out=room)

    def _carry_out(self, op: Op, values: Sequence[Any]) -> Any:
        """The value of an operation that needs memory of its own, by torch."""
        known = {ref: _tensor(values[ref]) for ref in op.refs}
        return self.held(carry_out(op, known, self.casts))


def _tensor(x: Any) -> Tensor:
    # Where a default device is set, torch would put also a tensor there.
    return x if isinstance(x, Tensor) else torch.as_tensor(x, device="cpu")


def _block_sums(reduction: str, x: Tensor, valid: Tensor | None) -> Tensor:
    """The sums of `partition.block_sums`, added up in the order of `fold` in kernel.h."""
    if valid is not None:
        x = torch.where(torch.arange(x.shape[-1], device=x.device) < valid[:, None], x, 0.0)
    if reduction == "norm":
        x = x * x
    lanes = x.view(x.shape[0], -1, 16)
    sums = lanes[:, 0] + lanes[:, 1]
    for i in range(2, lanes.shape[1]):
        sums += lanes[:, i]
    half = sums.shape[1] // 2
    while half:
        sums = sums[:, :half] + sums[:, half:]
        half //= 2
    return sums[:, 0]


def interpreters(
    made: list[list[Interpreter]],
    kernels: Sequence[Kernel],
    like: Tensor,
    low: torch.dtype | None,
    blocks: int,
    threads: int,
) -> list[list[Interpreter]]:
    """For each thread one for each kernel, for buffers like this one; `made` are those there are, and grows."""
    while len(made) < threads:
        made.append([Interpreter(kernel, like.dtype, low, like.device, blocks, like.shape[1]) for kernel in kernels])
    return made


def together(update: Callable[[int, Any], None], todo: Sequence[Any], threads: int) -> None:
    """Call `update(thread, item)` for all items, each by the thread that is free.

    Threads live as long as this call: some tens of microseconds, and nothing is left over that a fork would break.
    """
    items = iter(todo)
    problems: list[BaseException] = []

    def work(thread: int) -> None:
        # Both belong to a thread.
        with torch.no_grad(), np.errstate(all="ignore"):
            try:
                for item in items:
                    update(thread, item)
            except BaseException as problem:
                problems.append(problem)

    others = [threading.Thread(target=work, args=(i,)) for i in range(1, min(threads, len(todo)))]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    for problem in problems:
        raise problem
