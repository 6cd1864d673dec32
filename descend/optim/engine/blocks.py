"""One step of an arena: numbers in float64, then one kernel a stage over the segments.

The kernels run eagerly, some thousands of blocks at a time so that what they compute on the way stays in the cache,
or compiled where a compiled one is at hand. Both carry out the same text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.engine.noise import draw
from descend.optim.engine.parts import BLOCK, Part, Piece
from descend.optim.engine.stages import Kernel, cut, elements, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.optim.engine.arena import Arena, Taken
    from descend.optim.engine.kernels import Compiled
    from descend.optim.engine.settings import Settings
    from descend.optim.engine.text import Text

__all__ = ["Step", "step_arena"]

CHUNK = 2**12  # blocks an eager kernel takes at once: 1 MiB of float32 a buffer


@dataclass(frozen=True)
class Step:
    """What one step of one arena knows.

    Attributes:
        taken: Who takes part, with which gradients.
        settings: Of each group.
        texts: Of each group, all of one structure.
        seed: Start of the noise.
        compiled: For each kernel the compiled one, or nothing to run eagerly.
    """

    taken: Taken
    settings: Mapping[int, Settings]
    texts: Mapping[int, Text]
    seed: int
    compiled: Sequence[Compiled] = ()

    @property
    def arena(self) -> Arena:
        """The arena."""
        return self.taken.arena


def step_arena(step: Step) -> None:
    """Update all members that have a gradient."""
    arena = step.arena
    kernels = cut(arena.text)
    known = _inputs(step)
    for k, kernel in enumerate(kernels):
        numbers(arena.text, known, k)
        sums = _run(step, k, kernel, known)
        for at, rows in zip(kernel.sums, sums, strict=True):
            known[at] = _over_tensors(arena, arena.text.ops[at].name, rows)
    for k in range(len(kernels), 1 + max((op.stage for op in arena.text.ops), default=0)):
        numbers(arena.text, known, k)
    _store_numbers(step, known)
    arena.advance(step.taken.absent)


def _inputs(step: Step) -> dict[int, Any]:
    """Numbers that come from outside: a float where all tensors agree, else float64 of shape (tensors,)."""
    arena = step.arena
    groups = arena.groups
    place = {group: i for i, group in enumerate(groups)}
    owner = [place[member.group] for member in arena.members] if len(groups) > 1 else []

    def spread(values: list[float]) -> Any:
        if all(value == values[0] for value in values):
            return values[0]
        return torch.tensor(values, dtype=torch.float64, device=arena.index.device)[owner]

    named: dict[str, Any] = {
        "lr": spread([step.settings[g].lr for g in groups]),
        "decay": spread([step.settings[g].decay for g in groups]),
        "scaled": spread([float(step.settings[g].scaled) for g in groups]),
        "t": float(arena.common + 1) if arena.common is not None else (arena.counts + 1).to(arena.index.device),
        **arena.numbers,
    }
    known: dict[int, Any] = {}
    for at, op in enumerate(arena.text.ops):
        if op.name == "literal":
            known[at] = spread([step.texts[g].literals[op.args[0]] for g in groups])
        elif op.name == "input" and op.kind == "number":
            known[at] = named[str(op.args[0])]
    return known


def _run(step: Step, k: int, kernel: Kernel, known: Mapping[int, Any]) -> list[Tensor]:
    """Run a kernel over all segments; its sums over blocks, each (rows,) over the whole arena."""
    arena = step.arena
    device, dtype = arena.index.device, arena.buffers["p"].dtype
    sums = [torch.zeros(arena.rows, dtype=dtype, device=device) for _ in kernel.sums]
    taken, compiled = step.taken, step.compiled[k] if step.compiled else None
    table = _table(arena, kernel, known) if compiled else None
    noises = [name for name in kernel.loads.values() if name.startswith("noise ")]
    for i, part in enumerate(taken.parts):
        extra = {"g": taken.rows[i] if taken.rows else part.rows(taken.gradients)}
        for name in noises:
            extra[name] = _noise(step, part, name)
        if compiled and table is not None:
            _compiled(arena, kernel, k, part, extra, table, compiled, sums)
        else:
            _eager(arena, kernel, part, extra, known, sums)
    return sums


def _noise(step: Step, part: Part, name: str) -> Tensor:
    assert isinstance(part, Piece)
    arena = step.arena
    room = torch.zeros(part.stop - part.start, BLOCK, dtype=arena.buffers["p"].dtype, device=arena.index.device)
    source = (step.seed, arena.members[part.first].name, int(arena.counts[part.first]) + 1)
    draw(room.view(-1)[: part.count], source, int(name.split()[1]), part.offset)
    return room


def _table(arena: Arena, kernel: Kernel, known: Mapping[int, Any]) -> Tensor:
    """The kernel's numbers, (numbers, tensors), in the precision of the kernel."""
    dtype, device = arena.buffers["p"].dtype, arena.index.device
    rows = [known[at] for at in kernel.numbers]
    if not any(isinstance(row, Tensor) and row.ndim for row in rows):
        column = torch.tensor([float(row) for row in rows], dtype=dtype, device=device)
        return column[:, None].expand(len(rows), len(arena.members)).contiguous()
    table = torch.empty(len(rows), len(arena.members), dtype=dtype, device=device)
    for i, row in enumerate(rows):
        table[i] = row
    return table


def _compiled(
    arena: Arena,
    kernel: Kernel,
    k: int,
    part: Part,
    extra: Mapping[str, Tensor],
    table: Tensor,
    compiled: Compiled,
    sums: Sequence[Tensor],
) -> None:
    a, b = part.start, part.stop
    args = part.slices.get(k)
    if args is None:
        held = [extra[name] if name in extra else arena.buffers[name][a:b] for name in kernel.buffers]
        args = part.slices[k] = [*held, arena.index[a:b], arena.valid[a:b]]
    args = [*args, table]
    for name, rows in extra.items():
        if name in kernel.buffers:
            args[kernel.buffers.index(name)] = rows
    for total, rows in zip(sums, compiled(args), strict=True):
        total[a:b] = rows


def _eager(
    arena: Arena,
    kernel: Kernel,
    part: Part,
    extra: Mapping[str, Tensor],
    known: Mapping[int, Any],
    sums: Sequence[Tensor],
) -> None:
    for a in range(part.start, part.stop, CHUNK):
        b = min(a + CHUNK, part.stop)
        here = {
            name: extra[name][a - part.start : b - part.start] if name in extra else arena.buffers[name][a:b]
            for name in kernel.buffers
        }
        alone = part.first if part.last - part.first == 1 else None
        table = {at: _column(arena, known[at], a, b, alone) for at in kernel.numbers}
        new, found = elements(kernel, here, table, arena.low, arena.valid[a:b])
        for name, value in new.items():
            here[name].copy_(value)
        for total, rows in zip(sums, found, strict=True):
            total[a:b] = rows


def _column(arena: Arena, value: Any, a: int, b: int, alone: int | None) -> Any:
    """A number as blocks a to b - 1 see it: of shape () where it is the same for all, else (rows, 1)."""
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=torch.bool if isinstance(value, bool) else torch.float64)
    if value.ndim == 0:
        return value
    if alone is not None:
        return value[alone]
    column = value[arena.index[a:b]][:, None]
    return column if column.dtype == torch.bool else column.to(arena.buffers["p"].dtype)


def _over_tensors(arena: Arena, reduction: str, rows: Tensor) -> Tensor:
    """Sums over blocks to one number a tensor, in float64 and in the order of the blocks."""
    total = torch.segment_reduce(rows.to(torch.float64), "sum", offsets=arena.bounds)
    return total.sqrt() if reduction == "norm" else total


def _store_numbers(step: Step, known: Mapping[int, Any]) -> None:
    arena = step.arena
    if not arena.numbers:
        return
    here = torch.tensor([g is not None for g in step.taken.gradients], device=arena.index.device)
    for name, column in arena.numbers.items():
        new = known[arena.text.outputs[name]]
        column.copy_(torch.where(here, torch.as_tensor(new, dtype=torch.float64, device=column.device), column))
