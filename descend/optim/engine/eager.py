"""Carrying out a kernel without a compiler, and without making a tensor for each operation.

Memory for what is computed on the way is a handful of registers of one chunk each, given out when the kernel is first
seen: a value's register is free again after its last reader. So a chunk stays in the cache from its first operation to
its last.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from descend.optim.engine.stages import Kernel, carry_out
from descend.optim.engine.text import Op, Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Machine", "machines"]

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


# Functions that write their result where they are told; others make a tensor.
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


# A piece of memory for one chunk: its precision and its number. A result goes there or to the buffer where it stays.
Register = tuple[torch.dtype, int]

# Place, operation, the function where it can be called straight away, and its arguments: a constant, or a place.
Line = tuple[int, Op, "Callable[..., Tensor] | None", tuple[tuple[Any, int], ...]]


@dataclass
class Machine:
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
    memory: dict[Register, Tensor] = field(default_factory=dict[Register, Tensor])

    def __post_init__(self) -> None:
        ops = self.kernel.text.ops
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
        simple = not op.kwargs and at in self.places
        function = _INTO[op.name] if simple else None
        return at, op, function, tuple((None, x.at) if isinstance(x, Ref) else (x, -1) for x in op.args)

    def _settle_writes(self) -> None:
        """Let a new value be computed in its buffer, where nobody reads the old one any more."""
        old = {name: at for at, name in self.kernel.loads.items()}
        for name, at in self.kernel.writes.items():
            unread = name not in old or self.last.get(old[name], -1) <= at
            if unread and self.kernel.text.ops[at].name in _INTO and at not in self.places:
                self.places[at] = name

    def _give_registers(self) -> None:
        """Give every other value a register until its last reader has run."""
        kept = set(self.kernel.writes.values())
        free: dict[torch.dtype, list[int]] = {self.wide: [], torch.bool: []}
        count = {self.wide: 0, torch.bool: 0}
        for at, op in self.todo:
            if op.name in _INTO and at not in self.places:
                dtype = torch.bool if op.boolean else self.wide
                if not free[dtype]:
                    free[dtype].append(count[dtype])
                    count[dtype] += 1
                self.places[at] = (dtype, free[dtype].pop())
            for ref in set(op.refs) - kept:
                place = self.places.get(ref)
                if self.last[ref] == at and isinstance(place, tuple):
                    free[place[0]].append(place[1])

    def _room(self, place: Register, rows: int) -> Tensor:
        room = self.memory.get(place)
        if room is None:
            room = torch.empty(self.blocks, self.width, dtype=place[0], device=self.device)
            self.memory[place] = room
        return room if rows == self.blocks else room[:rows]

    def run(
        self, buffers: Mapping[str, Tensor], table: Mapping[int, Tensor], valid: Tensor, full: bool = False
    ) -> list[Tensor]:
        """Update the buffers of one chunk in place.

        Args:
            buffers: (rows, B) views by name, rows at most `blocks`.
            table: Value of each number, of shape () or (rows, 1), by its place.
            valid: (rows,), how many elements of each block belong to a tensor.
            full: Whether that is known to be all.

        Returns:
            Sums over the blocks, each (rows,).
        """
        kernel, rows = self.kernel, valid.shape[0]
        values: dict[int, Any] = {**table, **{at: buffers[name] for at, name in kernel.loads.items()}}
        for at, op, function, args in self.lines:
            place = self.places.get(at)
            if place is None:
                values[at] = carry_out(op, values, self.casts)
                continue
            room = buffers[place] if isinstance(place, str) else self._room(place, rows)
            if function is None:
                values[at] = _into(op, values, room)
            else:
                values[at] = function(*[x if ref < 0 else values[ref] for x, ref in args], out=room)
        ops = kernel.text.ops
        sums = [_block_sums(ops[at].name, values[ops[at].refs[0]], None if full else valid) for at in kernel.sums]
        for name, at in self.late:
            buffers[name].copy_(values[at])
        return sums


def _into(op: Op, values: Mapping[int, Any], room: Tensor) -> Tensor:
    args = [values[x.at] if isinstance(x, Ref) else x for x in op.args]
    named = {key: values[x.at] if isinstance(x, Ref) else x for key, x in op.kwargs}
    return _INTO[op.name](*args, **named, out=room)


def _lanes() -> int:
    """How many float32 a register of this processor holds."""
    return 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8


def _block_sums(reduction: str, x: Tensor, valid: Tensor | None) -> Tensor:
    """The sums of `stages.block_sums`, added up in the order of a compiled kernel on a processor with AVX.

    It adds whole registers of float32, or pairs of registers of float64, and then the lanes of what is left: by
    halves in float32, the pair and then one after the other in float64. Other orders agree to rounding.
    """
    if valid is not None:
        x = torch.where(torch.arange(x.shape[-1], device=x.device) < valid[:, None], x, 0.0)
    if reduction == "norm":
        x = x * x
    registers = x.view(x.shape[0], -1, _lanes())
    sums = registers[:, 0] + registers[:, 1]
    for i in range(2, registers.shape[1]):
        sums += registers[:, i]
    half = sums.shape[1] // 2
    if x.dtype == torch.float64:
        pair = sums[:, :half] + sums[:, half:]
        return functools.reduce(torch.add, pair.unbind(1))
    while half:
        sums = sums[:, :half] + sums[:, half:]
        half //= 2
    return sums[:, 0]


def machines(kernels: Sequence[Kernel], like: Tensor, low: torch.dtype | None, blocks: int) -> list[Machine]:
    """One for each kernel, for buffers like this one."""
    return [Machine(kernel, like.dtype, low, like.device, blocks, like.shape[1]) for kernel in kernels]
