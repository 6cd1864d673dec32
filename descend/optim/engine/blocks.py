"""One step of an arena: numbers in float64, then one kernel for each stage.

Compiled kernels update all parameters in one call. The interpreter updates one segment after the other and takes some
hundred blocks at a time, so that intermediate results stay in the cache.
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
from descend.optim.engine.launch import DeviceKernels
from descend.optim.engine.noise import draw
from descend.optim.engine.segments import InPlaceSegment, KernelArgs, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.arena import ActiveSlots, Arena
    from descend.optim.engine.launch import Native
    from descend.optim.engine.settings import GroupSettings

__all__ = ["ArenaStep", "step_arena"]

CHUNK = 2**12  # blocks an eager kernel takes at once: 1 MiB of float32 a buffer, so that threads seldom meet
CHUNK_ON_A_GPU = 2**17  # there a call costs more than a cache miss
ALONE = 2**12  # blocks that one thread updates faster than several do


@dataclass(frozen=True, slots=True)
class ArenaStep:
    """The inputs of one step of one arena.

    Attributes:
        active: The parameters that it updates, with their gradients.
        settings: Of each group.
        traces: Of each group, all of one structure.
        seed: Start of the noise.
    """

    active: ActiveSlots
    settings: Sequence[GroupSettings]
    traces: Mapping[int, Trace]
    seed: int

    @property
    def arena(self) -> Arena:
        """The arena."""
        return self.active.arena


def step_arena(step: ArenaStep) -> None:
    """Update all parameters that have a gradient."""
    active = step.active
    if isinstance(active, AddressedGradients) and isinstance(active.native, DeviceKernels):
        active.native.update(step.settings, step.traces, step.seed)  # which computes the numbers, too
        return
    known = _inputs(step)
    numbers(step.arena.trace, known, 0)
    if isinstance(active, AddressedGradients):
        assert not isinstance(active.native, DeviceKernels)
        _by_address(step, active.native, known)
    else:
        assert isinstance(active, PackedGradients)
        _by_segments(step, active, known)
    _store_numbers(step, known)
    step.arena.counts.advance(active.absent)


def _by_address(step: ArenaStep, native: Native, known: dict[int, Any]) -> None:
    """Call compiled CPU kernels; numbers that they compute are computed again only where they are state."""
    arena, k = step.arena, 0
    for i, call in enumerate(native.calls):
        native.run(i, [known[at] for at in call.given], step.seed)
        if i + 1 < len(native.calls) or arena.buffers.numbers:
            sums = native.totals(i)
            for kernel in call.kernels:
                k += 1
                _next_numbers(arena.trace, known, k, {at: sums[at] for at in kernel.sums})
    native.copies.clear()  # of gradients, which were needed for this step alone


def _by_segments(step: ArenaStep, active: PackedGradients, known: dict[int, Any]) -> None:
    """One kernel after the other over all segments."""
    arena = step.arena
    active.fetch()
    for k, kernel in enumerate(partition(arena.trace)):
        sums = torch.zeros(len(kernel.sums), arena.layout.rows, dtype=arena.buffers.dtype, device=arena.layout.device)
        _eager(step, active, k, known, sums)
        totals = {at: _by_tensor(arena, blocks) for at, blocks in zip(kernel.sums, sums, strict=True)}
        _next_numbers(arena.trace, known, k + 1, totals)
    active.put_back()


def _next_numbers(trace: Trace, known: dict[int, Any], stage: int, totals: Mapping[int, Tensor]) -> None:
    """Compute the numbers that follow from the sums of the stage before."""
    for at, total in totals.items():
        known[at] = _root(total) if trace.ops[at].name == "norm" else total
    numbers(trace, known, stage)


def _root(x: Tensor) -> Tensor:
    """The square root as IEEE 754 rounds it and a compiled kernel takes it; torch's on a CPU may be off by a bit."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def _inputs(step: ArenaStep) -> dict[int, Any]:
    """Numbers that come from outside: a float where all parameters agree, else float64 of shape (parameters,)."""
    arena, trace = step.arena, step.arena.trace
    settings = [step.settings[g] for g in arena.layout.groups]
    if arena.cache.settled is None or any(map(operator.is_not, arena.cache.settled[0], settings)):
        arena.cache.settled = (settings, _settled(step))
    known = arena.cache.settled[1].copy()
    for at, name in trace.given:
        if name == "t":
            known[at] = (
                arena.counts.common + 1.0
                if arena.counts.common is not None
                else placed(arena.counts.values + 1, arena.layout.device)
            )
        elif name in arena.buffers.numbers:
            known[at] = arena.buffers.numbers[name]
    return known


def _settled(step: ArenaStep) -> dict[int, Any]:
    """The inputs that follow from the groups' settings, which change at few steps."""
    arena = step.arena
    groups = arena.layout.groups
    place = {group: i for i, group in enumerate(groups)}
    owner = [place[slot.group] for slot in arena.layout.slots] if len(groups) > 1 else []

    def spread(values: list[float]) -> Any:
        if all(value == values[0] for value in values):
            return values[0]
        return placed(torch.tensor(values, dtype=torch.float64, device="cpu")[owner], arena.layout.device)

    sizes = [slot.whole.numel() for slot in arena.layout.slots]
    named = {
        "lr": spread([step.settings[g].lr for g in groups]),
        "decay": spread([step.settings[g].decay for g in groups]),
        "scaled": spread([float(step.settings[g].scaled) for g in groups]),
        "size": placed(torch.tensor(sizes, dtype=torch.float64, device="cpu"), arena.layout.device),
    }
    known = {at: named[name] for at, name in arena.trace.given if name in named}
    for at, i in arena.trace.constants:
        known[at] = spread([step.traces[g].literals[i] for g in groups])
    return known


def _by_tensor(arena: Arena, blocks: Tensor) -> Tensor:
    """Sum over the blocks of each parameter, in float64; on a CPU in the order of a compiled kernel."""
    if blocks.device.type != "cpu":
        return torch.segment_reduce(blocks.to(torch.float64), "sum", offsets=arena.layout.bounds)
    row = (
        np.arange(arena.layout.rows) - arena.layout.bounds.numpy()[arena.layout.index.numpy()]
    )  # of each block, within its parameter
    new = row % (UNIT // BLOCK) == 0
    units = np.zeros((int(new.sum()), UNIT // BLOCK))
    units[np.cumsum(new) - 1, row % (UNIT // BLOCK)] = blocks.numpy()
    np.add.accumulate(units, axis=1, out=units)  # one after the other
    return torch.from_numpy(np.bincount(arena.layout.index.numpy()[new], weights=units[:, -1]))


def _extra(step: ArenaStep, active: PackedGradients, kernel: Kernel, i: int) -> dict[str, Tensor]:
    """The gradient and the noise of a segment."""
    segment = active.segments[i]
    extra = {"g": active.rows[i] if active.rows else segment.rows(active.gradients)}
    for name in kernel.noises:
        extra[name] = _noise(step, segment, name)
    return extra


def _noise(step: ArenaStep, segment: Segment, name: str) -> Tensor:
    assert isinstance(segment, KernelArgs)
    arena = step.arena
    room = torch.zeros(segment.stop - segment.start, BLOCK, dtype=arena.buffers.dtype, device=arena.layout.device)
    source = (step.seed, arena.layout.slots[segment.first].name, int(arena.counts.values[segment.first]) + 1)
    draw(room.view(-1)[: segment.count], source, int(name.split()[1]), segment.offset)
    return room


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks `start` to `stop` - 1 of a segment, with its gradient and noise by name: (blocks of the segment, B)."""

    segment: Segment
    start: int
    stop: int
    extra: Mapping[str, Any]


@torch.no_grad()
def _eager(step: ArenaStep, active: PackedGradients, k: int, known: Mapping[int, Any], sums: Tensor) -> None:
    """Run the interpreter on chunk after chunk, by as many threads as torch has."""
    arena, kernels = step.arena, partition(step.arena.trace)
    on_cpu = arena.layout.device.type == "cpu"
    # Another thread would use another stream of a GPU.
    threads = torch.get_num_threads() if on_cpu and arena.layout.rows > ALONE and arena.buffers.low is None else 1
    size = CHUNK if on_cpu else CHUNK_ON_A_GPU
    blocks = min(size, arena.layout.rows)
    machines = eager.interpreters(
        arena.cache.interpreters, kernels, arena.buffers.elements["p"], arena.buffers.low, blocks, threads
    )
    machine = machines[0][k]
    numbers = _narrowed(arena, kernels[k], known)
    same = {at: machine.held(value) for at, value in numbers.items() if not value.ndim}
    each = {at: value for at, value in numbers.items() if value.ndim}

    def update(thread: int, chunk: BlockRange) -> None:
        segment, a, b = chunk.segment, chunk.start, chunk.stop
        here = _held(arena, segment, k, machine, a, b).copy()
        for name, rows in chunk.extra.items():
            here[name] = rows[a - segment.start : b - segment.start]
        table = same | {at: machine.held(_column(arena, value, segment, a, b)) for at, value in each.items()}
        valid = None if isinstance(segment, InPlaceSegment) else arena.layout.valid[a:b]
        found = machines[thread][k].run(here, table, b - a, valid)
        for i, rows in enumerate(found):
            sums[i, a:b] = rows

    for chunks in _batches(step, active, machine, size):
        eager.together(update, chunks, threads)


def _batches(
    step: ArenaStep, active: PackedGradients, machine: eager.Interpreter, size: int
) -> Iterator[list[BlockRange]]:
    """All chunks; segment by segment where noise is drawn, so that only the noise of one segment is in memory."""
    chunks: list[BlockRange] = []
    for i, segment in enumerate(active.segments):
        extra = {name: machine.held(x) for name, x in _extra(step, active, machine.kernel, i).items()}
        chunks += [
            BlockRange(segment, a, min(a + size, segment.stop), extra) for a in range(segment.start, segment.stop, size)
        ]
        if machine.kernel.noises:
            yield chunks
            chunks = []
    yield chunks


def _held(arena: Arena, segment: Segment, k: int, machine: eager.Interpreter, a: int, b: int) -> dict[str, Any]:
    """The arena's own buffers of a kernel, cut to some blocks; remembered, since cutting costs as much as computing."""
    known = segment.chunks.get((k, a))
    if known is None:
        names = [name for name in machine.kernel.buffers if name in arena.buffers.elements]
        known = segment.chunks[k, a] = {name: machine.held(arena.buffers.blocks(name, segment, a, b)) for name in names}
    return known


def _column(arena: Arena, value: Tensor, segment: Segment, a: int, b: int) -> Tensor:
    """A number for each parameter, spread over blocks a to b - 1: of shape () for one parameter, else (rows, 1)."""
    return value[segment.first] if segment.last - segment.first == 1 else value[arena.layout.index[a:b]][:, None]


def _narrowed(arena: Arena, kernel: Kernel, known: Mapping[int, Any]) -> dict[int, Tensor]:
    """A kernel's numbers in the precision of the kernel, of shape () or (parameters,)."""
    dtype, device = arena.buffers.dtype, arena.layout.device
    found = {at: placed(known[at], device) for at in kernel.numbers}
    return {at: x if x.dtype == torch.bool else x.to(dtype) for at, x in found.items()}


def _store_numbers(step: ArenaStep, known: Mapping[int, Any]) -> None:
    arena = step.arena
    if not arena.buffers.numbers:
        return
    here = torch.ones(len(arena.layout.slots), dtype=torch.bool, device="cpu")
    here[list(step.active.absent)] = False
    here = placed(here, arena.layout.device)
    for name, column in arena.buffers.numbers.items():
        new = placed(known[arena.trace.outputs[name]], column.device)
        column.copy_(torch.where(here, new.to(torch.float64), column))
