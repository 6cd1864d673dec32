"""The pieces of an arena that one kernel call updates, and how each finds its gradient.

Small tensors lie side by side and their gradients are copied together just before use; a large gradient is read
where it lies. A part knows the blocks it covers once and for all; only gradients are new at each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from descend.optim.compiler.layout import BLOCK
from descend.torch_private import foreach_copy

if TYPE_CHECKING:
    from descend.optim.engine.arena import Slot

__all__ = ["LARGE", "TOGETHER", "InPlaceSegment", "KernelArgs", "PackedSegment", "Segment"]

LARGE = 2**15  # elements; from here on a kernel call of some microseconds costs less than copying the gradient
TOGETHER = 2**18  # elements of gradient copied together: 1 MiB, which stays in the second-level cache

Gradients = Sequence[Tensor | None]


@dataclass(eq=False)
class Segment:
    """Blocks `start` to `stop` - 1.

    Attributes:
        start: First block.
        stop: Block after the last.
        first: Number of the first tensor in them.
        last: Number of the tensor after the last.
        slices: For each compiled kernel its buffers cut to these blocks, made on first use; None stands for gradients.
        chunks: For each eager kernel and first block of a chunk the same, cut to the chunk.
        weights: The weights of these blocks, where they do not lie in the arena.
        copies: Of weights that lie elsewhere, what a kernel has to be given as a copy: the copy and its origin.
    """

    start: int
    stop: int
    first: int
    last: int
    slices: dict[int, list[Tensor | None]] = field(default_factory=dict[int, "list[Tensor | None]"])
    chunks: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict[tuple[int, int], dict[str, Tensor]])
    weights: Tensor | None = None
    copies: Sequence[tuple[Tensor, Tensor]] = ()

    def rows(self, gradients: Gradients) -> Tensor:
        """The gradient as (blocks, B). It may be the gradient that torch holds, so it is only read."""
        raise NotImplementedError


@dataclass(eq=False)
class PackedSegment(Segment):
    """Several small tensors.

    Attributes:
        room: Where their gradients are put side by side, (blocks, B).
        members: The tensors.
        gaps: Padding after each.
    """

    room: Tensor = field(default_factory=lambda: torch.empty(0))
    members: Sequence[Slot] = ()
    gaps: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        self.flat = self.room.view(-1)
        self.dense = not any(gap.numel() for gap in self.gaps)
        self.flats = all(member.param.ndim == 1 for member in self.members)
        self.views = [] if self.flats else [member.view(self.room, self.start) for member in self.members]

    def rows(self, gradients: Gradients) -> Tensor:
        """Copy the gradients side by side."""
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
    """All whole blocks of one large tensor, whose gradient is read where it lies."""

    member: Slot | None = None

    def rows(self, gradients: Gradients) -> Tensor:
        """The gradient itself, or a copy where its elements are not in memory as those of the weights are."""
        g, member = gradients[self.first], self.member
        assert g is not None
        assert member is not None
        count = self.stop - self.start
        # A compiled kernel for a GPU assumes addresses that are multiples of 16 bytes.
        plain = g.dtype == member.param.dtype and not g.is_neg()
        if plain and member.lies_alike(g) and g.data_ptr() % 16 == 0:
            return g.as_strided((count, BLOCK), (BLOCK, 1))
        return member.flat(g)[: count * BLOCK].to(member.param.dtype, copy=True).view(count, BLOCK)


@dataclass(eq=False)
class KernelArgs(Segment):
    """Some elements of one tensor, copied: the rest after the whole blocks, or as much as noise is drawn at once.

    Attributes:
        member: The tensor.
        offset: Number of the first element.
        count: How many.
    """

    member: Slot | None = None
    offset: int = 0
    count: int = 0

    def rows(self, gradients: Gradients) -> Tensor:
        """A copy of these elements with zeros after them."""
        g, member = gradients[self.first], self.member
        assert g is not None
        assert member is not None
        room = torch.zeros(self.stop - self.start, BLOCK, dtype=member.param.dtype, device=g.device)
        room.view(-1)[: self.count].copy_(member.flat(g)[self.offset : self.offset + self.count])
        return room
