"""The segments of an arena: the blocks that one kernel call updates, and how each finds its gradient.

Small parameters are adjacent, and their gradients are packed just before use; a large gradient is read at its own
address. Segments are planned once for each set of absent gradients; only the gradients are new at each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from descend.optim.compiler.layout import BLOCK
from descend.optim.engine.noise import PIECE
from descend.torch_private import foreach_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.optim.engine.arena_layout import ArenaBuffers, ArenaLayout, Slot

__all__ = ["PACKED", "InPlaceSegment", "KernelArgs", "PackedSegment", "Segment", "SegmentPlanner"]

PACKED = 2**18  # elements of gradient copied together: 1 MiB, which stays in the second-level cache
PLANS = 16  # patterns of absent gradients for which the segments are remembered

Gradients = Sequence[Tensor | None]


@dataclass(eq=False)
class Segment:
    """Blocks `start` to `stop` - 1.

    Attributes:
        start: First block.
        stop: Block after the last.
        first: Number of the first parameter in them.
        last: Number of the parameter after the last.
        chunks: For each eager kernel and first block of a chunk the same, cut to the chunk.
        weights: The parameters' elements of these blocks, where they are outside the arena.
        copies: For parameters outside the arena that a kernel needs as a copy: the copy and its origin.
    """

    start: int
    stop: int
    first: int
    last: int
    chunks: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict[tuple[int, int], dict[str, Tensor]])
    weights: Tensor | None = None
    copies: Sequence[tuple[Tensor, Tensor]] = ()

    def rows(self, gradients: Gradients) -> Tensor:
        """The gradient as (blocks, B). It may be the gradient that torch holds, so it is only read."""
        raise NotImplementedError


@dataclass(eq=False)
class PackedSegment(Segment):
    """Several small parameters.

    Attributes:
        room: Where their gradients are packed, (blocks, B).
        slots: Of the parameters.
        gaps: Padding after each.
    """

    room: Tensor = field(default_factory=lambda: torch.empty(0))
    slots: Sequence[Slot] = ()
    gaps: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        self.flat = self.room.view(-1)
        self.dense = not any(gap.numel() for gap in self.gaps)
        self.flats = all(slot.param.ndim == 1 for slot in self.slots)
        self.views = [] if self.flats else [slot.view(self.room, self.start) for slot in self.slots]

    def rows(self, gradients: Gradients) -> Tensor:
        """The gradients, packed."""
        found = cast("list[Tensor]", gradients[self.first : self.last])  # a list, and none is absent
        if not self.flats:
            foreach_copy(self.views, found)
            return self.room
        # Takes a quarter of the time.
        if not self.dense:
            found = [x for pair in zip(found, self.gaps, strict=True) for x in pair]
        torch.cat(found, out=self.flat)
        return self.room


@dataclass(eq=False)
class InPlaceSegment(Segment):
    """All whole blocks of one large parameter, whose gradient is read at its own address."""

    slot: Slot | None = None

    def rows(self, gradients: Gradients) -> Tensor:
        """The gradient itself, or a copy where its elements are in another order than the parameter's."""
        g, slot = gradients[self.first], self.slot
        assert g is not None
        assert slot is not None
        count = self.stop - self.start
        # A compiled kernel for a GPU assumes addresses that are multiples of 16 bytes.
        plain = g.dtype == slot.param.dtype and not g.is_neg()
        if plain and slot.lies_alike(g) and g.data_ptr() % 16 == 0:
            return g.as_strided((count, BLOCK), (BLOCK, 1))
        return slot.flat(g)[: count * BLOCK].to(slot.param.dtype, copy=True).view(count, BLOCK)


@dataclass(eq=False)
class KernelArgs(Segment):
    """Some elements of one parameter, copied: the rest after the whole blocks, or as many as noise is drawn at once.

    Attributes:
        slot: Of the parameter.
        offset: Number of the first element.
        count: How many.
    """

    slot: Slot | None = None
    offset: int = 0
    count: int = 0

    def rows(self, gradients: Gradients) -> Tensor:
        """A copy of these elements with zeros after them."""
        g, slot = gradients[self.first], self.slot
        assert g is not None
        assert slot is not None
        room = torch.zeros(self.stop - self.start, BLOCK, dtype=slot.param.dtype, device=g.device)
        room.view(-1)[: self.count].copy_(slot.flat(g)[self.offset : self.offset + self.count])
        return room


class SegmentPlanner:
    """Cuts an arena into segments, leaving out parameters without a gradient.

    Args:
        layout: Of the arena.
        buffers: Of the arena.
        draws: Whether the update draws noise; then every segment is of one parameter, and small.
    """

    def __init__(self, layout: ArenaLayout, buffers: ArenaBuffers, *, draws: bool) -> None:
        self._layout, self._buffers, self._draws = layout, buffers, draws
        self._packed = torch.zeros(layout.small_rows, BLOCK, dtype=layout.dtype, device=layout.device)
        self._padding = torch.zeros(BLOCK, dtype=layout.dtype, device=layout.device)
        self._plans: dict[tuple[int, ...], list[Segment]] = {}

    def segments(self, absent: tuple[int, ...]) -> list[Segment]:
        """The segments of all parameters but those with these numbers."""
        if absent not in self._plans:
            if len(self._plans) > PLANS:
                self._plans.clear()
            self._plans[absent] = list(self._plan(set(absent)))
        return self._plans[absent]

    def _plan(self, absent: set[int]) -> Iterator[Segment]:
        layout = self._layout
        if self._draws:
            for i, slot in enumerate(layout.slots):
                if i not in absent:
                    yield from self._pieces(i, slot, 0, PIECE)
            return
        yield from self._small(absent)
        for i, slot in list(enumerate(layout.slots))[layout.small :]:
            if i not in absent:
                whole = slot.param.numel() // BLOCK
                weights = None
                if self._buffers.in_place:
                    weights = slot.flat(slot.param.detach())[: whole * BLOCK].view(whole, BLOCK)
                yield InPlaceSegment(slot.start, slot.start + whole, i, i + 1, slot=slot, weights=weights)
                yield from self._pieces(i, slot, whole * BLOCK, BLOCK)

    def _small(self, absent: set[int]) -> Iterator[Segment]:
        """Small parameters, as many together as `PACKED` allows."""
        all_slots, small, buffers = self._layout.slots, self._layout.small, self._buffers
        i = 0
        while i < small:
            if i in absent:
                i += 1
                continue
            start, j = all_slots[i].start, i + 1
            while j < small and j not in absent and (all_slots[j].stop - start) * BLOCK <= PACKED:
                j += 1
            slots = all_slots[i:j]
            stop = slots[-1].stop
            gaps = [self._padding[: (slot.stop - slot.start) * BLOCK - slot.param.numel()] for slot in slots]
            held = buffers.elements[buffers.outer]
            copies = [(slot.view(held), slot.param.detach()) for slot in slots] if buffers.in_place else ()
            room = self._packed[start:stop]
            yield PackedSegment(start, stop, i, j, room=room, slots=slots, gaps=gaps, copies=copies)
            i = j

    def _pieces(self, i: int, slot: Slot, offset: int, size: int) -> Iterator[Segment]:
        """Parameter i from element `offset` on, `size` elements at a time."""
        end = slot.param.numel()
        for first in range(offset, end, size):
            count = min(size, end - first)
            start = slot.start + first // BLOCK
            piece = KernelArgs(start, start - (-count // BLOCK), i, i + 1, slot=slot, offset=first, count=count)
            if self._buffers.in_place:
                p = slot.flat(slot.param.detach())
                piece.weights = p.new_zeros(piece.stop - start, BLOCK)
                piece.copies = [(piece.weights.view(-1)[:count], p[first : first + count])]
            yield piece
