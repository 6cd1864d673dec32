"""One step of an arena: numbers in float64, then one kernel a stage over the segments.

The kernels run eagerly, some thousands of blocks at a time so that what they compute on the way stays in the cache,
or compiled where a compiled one is at hand. Both carry out the same text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.engine.eager import machines
from descend.optim.engine.noise import draw
from descend.optim.engine.parts import BLOCK, Direct, Part, Piece
from descend.optim.engine.stages import Kernel, cut, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.optim.engine.arena import Arena, Taken
    from descend.optim.engine.kernels import Compiled
    from descend.optim.engine.settings import Settings
    from descend.optim.engine.text import Text

__all__ = ["Step", "step_arena"]

CHUNK = 2**11  # blocks an eager kernel takes at once: half a MiB of float32 a buffer


@dataclass(frozen=True, slots=True)
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
    settings: Sequence[Settings]
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
        for at, total in zip(kernel.sums, _run(step, k, kernel, known), strict=True):
            known[at] = total.sqrt() if arena.text.ops[at].name == "norm" else total
    for k in range(len(kernels), arena.text.stages):
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
        if len(values) == 1 or all(value == values[0] for value in values):
            return values[0]
        return torch.tensor(values, dtype=torch.float64, device=arena.index.device)[owner]

    named: dict[str, Any] = {
        "lr": spread([step.settings[g].lr for g in groups]),
        "decay": spread([step.settings[g].decay for g in groups]),
        "scaled": spread([float(step.settings[g].scaled) for g in groups]),
        "t": float(arena.common + 1) if arena.common is not None else (arena.counts + 1).to(arena.index.device),
        **arena.numbers,
    }
    known: dict[int, Any] = {at: named[name] for at, name in arena.text.given}
    for at, i in arena.text.constants:
        known[at] = spread([step.texts[g].literals[i] for g in groups])
    return known


def _run(step: Step, k: int, kernel: Kernel, known: Mapping[int, Any]) -> list[Tensor]:
    """Run a kernel over all parts; its sums, each one number a tensor, (tensors,)."""
    arena = step.arena
    totals = [torch.zeros_like(arena.counts, device=arena.index.device) for _ in kernel.sums]
    taken, compiled = step.taken, step.compiled[k] if step.compiled else None
    table = _table(arena, kernel, k, known) if compiled else None
    narrowed = {} if compiled else _narrowed(arena, kernel, known)
    if not compiled and not arena.machines:
        arena.machines = machines(cut(arena.text), arena.buffers["p"], arena.low, min(CHUNK, arena.rows))
    for i, part in enumerate(taken.parts):
        extra = {"g": taken.rows[i] if taken.rows else part.rows(taken.gradients)}
        for name in kernel.noises:
            extra[name] = _noise(step, part, name)
        if compiled and table is not None:
            sums = compiled(_arguments(arena, kernel, k, part, extra, table))
        else:
            sums = _eager(arena, k, part, extra, narrowed)
        for total, rows in zip(totals, sums, strict=True):
            _add(arena, part, rows, total)
    return totals


def _noise(step: Step, part: Part, name: str) -> Tensor:
    assert isinstance(part, Piece)
    arena = step.arena
    room = torch.zeros(part.stop - part.start, BLOCK, dtype=arena.buffers["p"].dtype, device=arena.index.device)
    source = (step.seed, arena.members[part.first].name, int(arena.counts[part.first]) + 1)
    draw(room.view(-1)[: part.count], source, int(name.split()[1]), part.offset)
    return room


def _table(arena: Arena, kernel: Kernel, k: int, known: Mapping[int, Any]) -> Tensor:
    """The kernel's numbers, (numbers, tensors), in the precision of the kernel."""
    dtype, device = arena.buffers["p"].dtype, arena.index.device
    rows = [known[at] for at in kernel.numbers]
    table = arena.tables.get(k)
    if table is None:
        table = arena.tables[k] = torch.empty(len(rows), len(arena.members), dtype=dtype, device=device)
    if not any(isinstance(row, Tensor) for row in rows):
        return table.copy_(torch.tensor(rows, dtype=dtype).view(-1, 1))
    for i, row in enumerate(rows):
        table[i] = row
    return table


def _arguments(
    arena: Arena, kernel: Kernel, k: int, part: Part, extra: Mapping[str, Tensor], table: Tensor
) -> list[Tensor]:
    """What the compiled kernel takes. What does not change from step to step is cut once; gradients are not held."""
    a, b = part.start, part.stop
    kept = part.slices.get(k)
    if kept is None:
        held = [None if name in extra else arena.buffers[name][a:b] for name in kernel.buffers]
        kept = part.slices[k] = [*held, arena.index[a:b], arena.valid[a:b]]
    names = iter(name for name in kernel.buffers if name in extra)
    return [*(extra[next(names)] if x is None else x for x in kept), table]


def _eager(
    arena: Arena, k: int, part: Part, extra: Mapping[str, Tensor], numbers: Mapping[int, Tensor]
) -> list[Tensor]:
    machine = arena.machines[k]
    alone = part.first if part.last - part.first == 1 else None
    found: list[list[Tensor]] = []
    for a in range(part.start, part.stop, CHUNK):
        b = min(a + CHUNK, part.stop)
        here = dict(_chunk(arena, part, k, a, b))
        for name, rows in extra.items():
            here[name] = rows[a - part.start : b - part.start]
        table = {at: _column(arena, numbers[at], a, b, alone) for at in machine.kernel.numbers}
        found.append(machine.run(here, table, arena.valid[a:b], full=isinstance(part, Direct)))
    return [torch.cat(rows) for rows in zip(*found, strict=True)]


def _chunk(arena: Arena, part: Part, k: int, a: int, b: int) -> dict[str, Tensor]:
    """The arena's own buffers of a kernel, cut to some blocks; remembered, since cutting costs as much as computing."""
    known = part.chunks.get((k, a))
    if known is None:
        known = {name: arena.buffers[name][a:b] for name in arena.machines[k].kernel.buffers if name in arena.buffers}
        part.chunks[k, a] = known
    return known


def _column(arena: Arena, value: Tensor, a: int, b: int, alone: int | None) -> Tensor:
    """A number as blocks a to b - 1 see it: of shape () where it is the same for all, else (rows, 1)."""
    if value.ndim == 0:
        return value
    return value[alone] if alone is not None else value[arena.index[a:b]][:, None]


def _narrowed(arena: Arena, kernel: Kernel, known: Mapping[int, Any]) -> dict[int, Tensor]:
    """A kernel's numbers in the precision of the kernel, of shape () or (tensors,)."""
    dtype = arena.buffers["p"].dtype
    found = {at: known[at] for at in kernel.numbers}
    return {
        at: torch.tensor(x, dtype=dtype) if isinstance(x, float) else x if x.dtype == torch.bool else x.to(dtype)
        for at, x in found.items()
    }


def _add(arena: Arena, part: Part, rows: Tensor, total: Tensor) -> None:
    """Add a part's sums over blocks to those of its tensors, in float64 and in the order of the blocks."""
    if part.last - part.first == 1:
        total[part.first] += rows.sum(dtype=torch.float64)
    else:
        bounds = arena.bounds[part.first : part.last + 1] - part.start
        total[part.first : part.last] += torch.segment_reduce(rows.to(torch.float64), "sum", offsets=bounds)


def _store_numbers(step: Step, known: Mapping[int, Any]) -> None:
    arena = step.arena
    if not arena.numbers:
        return
    here = torch.tensor([g is not None for g in step.taken.gradients], device=arena.index.device)
    for name, column in arena.numbers.items():
        new = known[arena.text.outputs[name]]
        column.copy_(torch.where(here, torch.as_tensor(new, dtype=torch.float64, device=column.device), column))
