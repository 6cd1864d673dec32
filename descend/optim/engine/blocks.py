"""One step of an arena: numbers in float64, then one kernel a stage.

On a CPU a compiled kernel updates all tensors in one call. Eager kernels, and compiled ones for CUDA, take the parts
one by one; eager ones some hundred blocks at a time, so that what they compute on the way stays in the cache.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from descend.optim.compiler import interpreter as eager
from descend.optim.compiler.layout import BLOCK, UNIT
from descend.optim.compiler.partition import Kernel, numbers, partition, placed
from descend.optim.engine.arena import AddressedGradients, PackedGradients
from descend.optim.engine.noise import draw
from descend.optim.engine.segments import InPlaceSegment, KernelArgs, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from descend.optim.compiler.cuda import Compiled
    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.arena import ActiveSlots, Arena
    from descend.optim.engine.native import Native
    from descend.optim.engine.settings import GroupSettings

__all__ = ["ArenaStep", "step_arena"]

CHUNK = 2**12  # blocks an eager kernel takes at once: 1 MiB of float32 a buffer, so that threads seldom meet
CHUNK_ON_A_GPU = 2**17  # there a call costs more than a cache miss
ALONE = 2**12  # blocks that one thread updates sooner than several do


@dataclass(frozen=True, slots=True)
class ArenaStep:
    """What one step of one arena knows.

    Attributes:
        taken: Who takes part, with which gradients.
        settings: Of each group.
        texts: Of each group, all of one structure.
        seed: Start of the noise.
        compiled: For each kernel the compiled one for CUDA, or nothing.
    """

    taken: ActiveSlots
    settings: Sequence[GroupSettings]
    texts: Mapping[int, Trace]
    seed: int
    compiled: Sequence[Compiled] = ()

    @property
    def arena(self) -> Arena:
        """The arena."""
        return self.taken.arena


def step_arena(step: ArenaStep) -> None:
    """Update all members that have a gradient."""
    taken = step.taken
    known = _inputs(step)
    numbers(step.arena.text, known, 0)
    if isinstance(taken, AddressedGradients):
        _by_address(step, taken.native, known)
    else:
        assert isinstance(taken, PackedGradients)
        _by_parts(step, taken, known)
    _store_numbers(step, known)
    step.arena.advance(taken.absent)


def _by_address(step: ArenaStep, native: Native, known: dict[int, Any]) -> None:
    """Call compiled kernels; what they compute themselves is computed again only where it is state."""
    arena, k = step.arena, 0
    for i, call in enumerate(native.calls):
        native.run(i, [known[at] for at in call.given], step.seed)
        if i + 1 < len(native.calls) or arena.numbers:
            sums = native.totals(i)
            for kernel in call.kernels:
                k += 1
                _next_numbers(arena.text, known, k, {at: sums[at] for at in kernel.sums})
    native.copies.clear()  # of gradients, which were needed for this step alone


def _by_parts(step: ArenaStep, taken: PackedGradients, known: dict[int, Any]) -> None:
    """One kernel after the other over all parts."""
    arena = step.arena
    taken.fetch()
    for k, kernel in enumerate(partition(arena.text)):
        sums = torch.zeros(len(kernel.sums), arena.rows, dtype=arena.buffers["p"].dtype, device=arena.index.device)
        (_compiled if step.compiled else _eager)(step, taken, k, known, sums)
        totals = {at: _by_tensor(arena, blocks) for at, blocks in zip(kernel.sums, sums, strict=True)}
        _next_numbers(arena.text, known, k + 1, totals)
    taken.put_back()


def _next_numbers(text: Trace, known: dict[int, Any], stage: int, totals: Mapping[int, Tensor]) -> None:
    """Compute the numbers that follow from the sums of the stage before."""
    for at, total in totals.items():
        known[at] = _root(total) if text.ops[at].name == "norm" else total
    numbers(text, known, stage)


def _root(x: Tensor) -> Tensor:
    """The square root as IEEE 754 rounds it and a compiled kernel takes it; torch's on a CPU may be off by a bit."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def _inputs(step: ArenaStep) -> dict[int, Any]:
    """Numbers that come from outside: a float where all tensors agree, else float64 of shape (tensors,)."""
    arena, text = step.arena, step.arena.text
    settings = [step.settings[g] for g in arena.groups]
    if arena.settled is None or any(map(operator.is_not, arena.settled[0], settings)):
        arena.settled = (settings, _settled(step))
    known = arena.settled[1].copy()
    for at, name in text.given:
        if name == "t":
            known[at] = arena.common + 1.0 if arena.common is not None else placed(arena.counts + 1, arena.index.device)
        elif name in arena.numbers:
            known[at] = arena.numbers[name]
    return known


def _settled(step: ArenaStep) -> dict[int, Any]:
    """Those of them that the settings of the groups decide, which most steps leave as they are."""
    arena = step.arena
    groups = arena.groups
    place = {group: i for i, group in enumerate(groups)}
    owner = [place[member.group] for member in arena.members] if len(groups) > 1 else []

    def spread(values: list[float]) -> Any:
        if all(value == values[0] for value in values):
            return values[0]
        return placed(torch.tensor(values, dtype=torch.float64, device="cpu")[owner], arena.index.device)

    named = {
        "lr": spread([step.settings[g].lr for g in groups]),
        "decay": spread([step.settings[g].decay for g in groups]),
        "scaled": spread([float(step.settings[g].scaled) for g in groups]),
    }
    known = {at: named[name] for at, name in arena.text.given if name in named}
    for at, i in arena.text.constants:
        known[at] = spread([step.texts[g].literals[i] for g in groups])
    return known


def _by_tensor(arena: Arena, blocks: Tensor) -> Tensor:
    """Add sums over blocks up to those of the tensors, in float64; on a CPU in the order of a compiled kernel."""
    if blocks.device.type != "cpu":
        return torch.segment_reduce(blocks.to(torch.float64), "sum", offsets=arena.bounds)
    row = np.arange(arena.rows) - arena.bounds.numpy()[arena.index.numpy()]  # of each block, within its tensor
    new = row % (UNIT // BLOCK) == 0
    units = np.zeros((int(new.sum()), UNIT // BLOCK))
    units[np.cumsum(new) - 1, row % (UNIT // BLOCK)] = blocks.numpy()
    np.add.accumulate(units, axis=1, out=units)  # one after the other
    return torch.from_numpy(np.bincount(arena.index.numpy()[new], weights=units[:, -1]))


def _extra(step: ArenaStep, taken: PackedGradients, kernel: Kernel, i: int) -> dict[str, Tensor]:
    """The gradient and the noise of a part."""
    part = taken.parts[i]
    extra = {"g": taken.rows[i] if taken.rows else part.rows(taken.gradients)}
    for name in kernel.noises:
        extra[name] = _noise(step, part, name)
    return extra


def _noise(step: ArenaStep, part: Segment, name: str) -> Tensor:
    assert isinstance(part, KernelArgs)
    arena = step.arena
    room = torch.zeros(part.stop - part.start, BLOCK, dtype=arena.buffers["p"].dtype, device=arena.index.device)
    source = (step.seed, arena.members[part.first].name, int(arena.counts[part.first]) + 1)
    draw(room.view(-1)[: part.count], source, int(name.split()[1]), part.offset)
    return room


@torch.no_grad()
def _compiled(step: ArenaStep, taken: PackedGradients, k: int, known: Mapping[int, Any], sums: Tensor) -> None:
    """One call of the compiled kernel a part."""
    kernel = partition(step.arena.text)[k]
    table = _table(step.arena, kernel, k, known)
    # A kernel runs in the stream of the device that is current.
    with torch.cuda.device_of(step.arena.index):
        for i, part in enumerate(taken.parts):
            found = step.compiled[k](_arguments(step.arena, kernel, k, part, _extra(step, taken, kernel, i), table))
            for total, rows in zip(sums, found, strict=True):
                total[part.start : part.stop] = rows


def _table(arena: Arena, kernel: Kernel, k: int, known: Mapping[int, Any]) -> Tensor:
    """The kernel's numbers, (numbers, tensors), in the precision of the kernel."""
    dtype, device = arena.buffers["p"].dtype, arena.index.device
    rows = [known[at] for at in kernel.numbers]
    table = arena.tables.get(k)
    if table is None:
        table = arena.tables[k] = torch.empty(len(rows), len(arena.members), dtype=dtype, device=device)
    if not any(isinstance(row, Tensor) for row in rows):
        return table.copy_(torch.tensor(rows, dtype=dtype, device="cpu").view(-1, 1), non_blocking=True)
    for i, row in enumerate(rows):
        table[i] = placed(row, device)
    return table


def _arguments(
    arena: Arena, kernel: Kernel, k: int, part: Segment, extra: Mapping[str, Tensor], table: Tensor
) -> list[Tensor]:
    """What the compiled kernel takes. What does not change from step to step is cut once; gradients are not held."""
    a, b = part.start, part.stop
    kept = part.slices.get(k)
    if kept is None:
        held = [None if name in extra else arena.blocks(name, part, a, b) for name in kernel.buffers]
        # A compiled kernel assumes addresses that are multiples of 16 bytes, which blocks are, and places in these not.
        kept = part.slices[k] = [*held, arena.index[a:b].clone(), arena.valid[a:b].clone()]
    names = iter(name for name in kernel.buffers if name in extra)
    return [*(extra[next(names)] if x is None else x for x in kept), table]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Blocks `start` to `stop` - 1 of a part, with what else the part needs by name: (blocks of the part, B)."""

    part: Segment
    start: int
    stop: int
    extra: Mapping[str, Any]


@torch.no_grad()
def _eager(step: ArenaStep, taken: PackedGradients, k: int, known: Mapping[int, Any], sums: Tensor) -> None:
    """Chunk after chunk, shared by as many threads as torch has."""
    arena, kernels = step.arena, partition(step.arena.text)
    on_cpu = arena.index.device.type == "cpu"
    # Another thread would use another stream of a GPU.
    threads = torch.get_num_threads() if on_cpu and arena.rows > ALONE and arena.low is None else 1
    size = CHUNK if on_cpu else CHUNK_ON_A_GPU
    blocks = min(size, arena.rows)
    machines = eager.interpreters(arena.machines, kernels, arena.buffers["p"], arena.low, blocks, threads)
    machine = machines[0][k]
    numbers = _narrowed(arena, kernels[k], known)
    same = {at: machine.held(value) for at, value in numbers.items() if not value.ndim}
    each = {at: value for at, value in numbers.items() if value.ndim}

    def update(thread: int, chunk: Chunk) -> None:
        part, a, b = chunk.part, chunk.start, chunk.stop
        here = _held(arena, part, k, machine, a, b).copy()
        for name, rows in chunk.extra.items():
            here[name] = rows[a - part.start : b - part.start]
        table = same | {at: machine.held(_column(arena, value, part, a, b)) for at, value in each.items()}
        valid = None if isinstance(part, InPlaceSegment) else arena.valid[a:b]
        found = machines[thread][k].run(here, table, b - a, valid)
        for i, rows in enumerate(found):
            sums[i, a:b] = rows

    for chunks in _batches(step, taken, machine, size):
        eager.together(update, chunks, threads)


def _batches(step: ArenaStep, taken: PackedGradients, machine: eager.Interpreter, size: int) -> Iterator[list[Chunk]]:
    """All chunks; part by part where noise is drawn, so that no more of it is kept than is needed."""
    chunks: list[Chunk] = []
    for i, part in enumerate(taken.parts):
        extra = {name: machine.held(x) for name, x in _extra(step, taken, machine.kernel, i).items()}
        chunks += [Chunk(part, a, min(a + size, part.stop), extra) for a in range(part.start, part.stop, size)]
        if machine.kernel.noises:
            yield chunks
            chunks = []
    yield chunks


def _held(arena: Arena, part: Segment, k: int, machine: eager.Interpreter, a: int, b: int) -> dict[str, Any]:
    """The arena's own buffers of a kernel, cut to some blocks; remembered, since cutting costs as much as computing."""
    known = part.chunks.get((k, a))
    if known is None:
        names = [name for name in machine.kernel.buffers if name in arena.buffers]
        known = part.chunks[k, a] = {name: machine.held(arena.blocks(name, part, a, b)) for name in names}
    return known


def _column(arena: Arena, value: Tensor, part: Segment, a: int, b: int) -> Tensor:
    """A number a tensor as blocks a to b - 1 see it: of shape () where they are of one tensor, else (rows, 1)."""
    return value[part.first] if part.last - part.first == 1 else value[arena.index[a:b]][:, None]


def _narrowed(arena: Arena, kernel: Kernel, known: Mapping[int, Any]) -> dict[int, Tensor]:
    """A kernel's numbers in the precision of the kernel, of shape () or (tensors,)."""
    dtype, device = arena.buffers["p"].dtype, arena.index.device
    found = {at: placed(known[at], device) for at in kernel.numbers}
    return {at: x if x.dtype == torch.bool else x.to(dtype) for at, x in found.items()}


def _store_numbers(step: ArenaStep, known: Mapping[int, Any]) -> None:
    arena = step.arena
    if not arena.numbers:
        return
    here = torch.ones(len(arena.members), dtype=torch.bool, device="cpu")
    here[list(step.taken.absent)] = False
    here = placed(here, arena.index.device)
    for name, column in arena.numbers.items():
        new = placed(known[arena.text.outputs[name]], column.device)
        column.copy_(torch.where(here, new.to(torch.float64), column))
