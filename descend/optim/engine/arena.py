"""The arena: all weights of one precision, device and text in one buffer of blocks, state and masters in others like it.

    row 0   | weights of tensor 0, first B elements      |      Each tensor begins on a block; what is left of its last
    row 1   | weights of tensor 0, next B, then padding  |      block is padding and never read. `index` says for each
    row 2   | weights of tensor 1 ...                    |      block whose it is, so a number a tensor is a small table.

The tensors themselves (`param.data`, `state[param][...]`) become views, so torch and the user see nothing new.
Small tensors come first: their gradients are copied together before a kernel reads them, while they are still in cache; large
gradients are read where they lie.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.engine.noise import PIECE
from descend.optim.engine.ownership import PLAIN_TYPES, is_dense
from descend.optim.engine.prepare import LOW_PRECISION, Entry, Task, named_entries, open_entry, template
from descend.optim.engine.text import STATE, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["BLOCK", "Arena", "Member", "Segment", "may_live_in_an_arena", "merged"]

BLOCK = 64  # elements; a block of float32 is four cache lines, and padding wastes half a block a tensor
LARGE = 2**15  # elements; from here on a kernel call of a few microseconds costs less than copying the gradient
TOGETHER = 2**18  # elements of gradient copied together: 1 MiB, which stays in the second-level cache


def may_live_in_an_arena(p: Tensor) -> bool:
    """Whether p may become a view of a larger buffer without anybody noticing."""
    return (
        type(p) in PLAIN_TYPES
        and p.layout is torch.strided
        and p.device.type in ("cpu", "cuda")
        and p.numel() > 0
        and not p.is_shared()  # other processes look at this very memory
        and is_dense(p)
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A tensor of the arena.

    Attributes:
        name: As the user named it.
        param: The weights as torch holds them.
        group: Number of its group.
        entry: `Optimizer.state[param]`.
        start: Its first block.
        stop: The block after its last.
        order: Its dimensions from the one with the longest stride to the one with the shortest.
    """

    name: str
    param: Tensor
    group: int
    entry: Entry
    start: int
    stop: int
    order: tuple[int, ...]

    def view(self, buffer: Tensor) -> Tensor:
        """This tensor's part of a buffer, shaped and strided like the weights."""
        p = self.param
        flat = buffer[self.start : self.stop].view(-1)[: p.numel()]
        back = sorted(range(p.ndim), key=self.order.__getitem__)
        return flat.view([p.shape[i] for i in self.order]).permute(back)

    def lies_alike(self, x: Tensor) -> bool:
        """Whether x holds its elements in the order in which the arena holds them, without gaps."""
        return x.permute(self.order).is_contiguous()

    def flat(self, x: Tensor) -> Tensor:
        """The elements of a tensor shaped like the weights in the order in which the arena holds them."""
        return x.permute(self.order).reshape(-1)


@dataclass(frozen=True, slots=True)
class Segment:
    """Blocks that one kernel call updates, and where their gradient comes from.

    Attributes:
        start: First block.
        stop: Block after the last.
        members: Numbers of the tensors in it.
        gradient: The gradient as (rows, B), possibly the gradient of torch itself; never written.
        offset: For a part of one tensor, number of its first element; 0 otherwise.
    """

    start: int
    stop: int
    members: range
    gradient: Tensor
    offset: int = 0


def _order(p: Tensor) -> tuple[int, ...]:
    return tuple(sorted(range(p.ndim), key=lambda i: (-p.stride(i), i)))


@dataclass(eq=False)
class Arena:
    """Buffers of one layout, and the tensors that live in them. Make one with `Arena.of`."""

    text: Text
    members: list[Member]
    buffers: dict[str, Tensor]  # "p", the entries kept for each element, "w" where "p" is a master: (rows, B)
    numbers: dict[str, Tensor]  # entries that are one number a tensor: (tensors,), float64
    counts: Tensor  # updates of each tensor: (tensors,), float64
    index: Tensor  # whose a block is: (rows,), int32
    valid: Tensor  # how many of its elements are in use: (rows,), int32
    bounds: Tensor  # first block of each tensor, then the number of blocks: (tensors + 1,), int64
    low: torch.dtype | None  # precision of weights that have a master
    common: int | None = None  # the step count, where all tensors have the same
    scratch: Tensor = field(default_factory=lambda: torch.empty(0))  # gradients of small tensors: (rows, B)
    addresses: list[int] = field(default_factory=list[int])
    small: int = 0  # the first `small` members are small

    @staticmethod
    def of(text: Text, tasks: Sequence[Task]) -> Arena:
        """Move tensors and what the engine keeps of them into an arena.

        Args:
            text: The common text of their updates.
            tasks: Tensors of one precision and device for which `may_live_in_an_arena`.
        """
        ordered = sorted(tasks, key=lambda task: task.param.numel() >= LARGE)
        blocks = [-(-task.param.numel() // BLOCK) for task in ordered]
        starts = list(itertools.accumulate(blocks, initial=0))
        p = ordered[0].param
        members = [
            Member(task.name, task.param, task.group, task.entry, start, start + n, _order(task.param))
            for task, start, n in zip(ordered, starts, blocks, strict=False)
        ]
        valid = torch.full((starts[-1],), BLOCK, dtype=torch.int32)
        valid[torch.tensor(starts[1:]) - 1] = torch.tensor(
            [task.param.numel() - (n - 1) * BLOCK for task, n in zip(ordered, blocks, strict=True)], dtype=torch.int32
        )
        low = p.dtype if p.dtype in LOW_PRECISION else None
        arena = Arena(
            text=text,
            members=members,
            buffers={},
            numbers={},
            counts=torch.zeros(len(members), dtype=torch.float64),
            index=torch.repeat_interleave(torch.arange(len(members), dtype=torch.int32), torch.tensor(blocks)).to(
                p.device
            ),
            valid=valid.to(p.device),
            bounds=torch.tensor(starts, device=p.device),
            low=low,
            small=sum(task.param.numel() < LARGE for task in ordered),
        )
        arena._open(tasks[0].settings.rule)
        arena._adopt([task.settings.rule for task in ordered])
        return arena

    @property
    def rows(self) -> int:
        """Number of blocks."""
        return self.members[-1].stop

    def _open(self, rule: Any) -> None:
        p = self.members[0].param
        wide = torch.float32 if self.low else p.dtype
        self.buffers["p"] = torch.zeros(self.rows, BLOCK, dtype=wide, device=p.device)
        if self.low:
            self.buffers["w"] = torch.zeros(self.rows, BLOCK, dtype=self.low, device=p.device)
        for name, value in named_entries(template(rule, p)).items():
            if value.shape == p.shape:
                self.buffers[STATE + name] = torch.zeros(self.rows, BLOCK, dtype=wide, device=p.device)
            else:
                self.numbers[STATE + name] = torch.zeros(len(self.members), dtype=torch.float64, device=p.device)
        rows = self.members[self.small - 1].stop if self.small else 0
        self.scratch = torch.zeros(rows, BLOCK, dtype=p.dtype, device=p.device)

    def _adopt(self, rules: Sequence[Any]) -> None:
        """Copy every tensor into its place and make torch's tensors views of it, one after the other."""
        for i, (member, rule) in enumerate(zip(self.members, rules, strict=True)):
            p, entry = member.param, member.entry
            if "step" not in entry:
                open_entry(entry, rule, p)
            self.counts[i] = entry["step"]
            entry["step"] = self.counts[i]
            for name, buffer in self.buffers.items():
                if name in ("p", "w") and (name == "w" or not self.low):
                    p.data = _moved(member.view(buffer), p.data)
                else:
                    key = "master" if name == "p" else name.removeprefix(STATE)
                    entry[key] = _moved(member.view(buffer), entry[key])
            for name, column in self.numbers.items():
                key = name.removeprefix(STATE)
                entry[key] = _moved(column[i], entry[key])
        self.addresses = [member.param.data_ptr() for member in self.members]
        self.recount()

    def recount(self) -> None:
        """Learn anew whether all tensors have the same step count."""
        first = self.counts[0]
        self.common = int(first) if bool((self.counts == first).all()) else None

    def is_intact(self) -> bool:
        """Whether all weights still lie where the arena put them, and none was cast."""
        return [member.param.data_ptr() for member in self.members] == self.addresses

    def gradients(self) -> list[Tensor | None]:
        """The gradient of each tensor, None for those that have none or are frozen."""
        return [m.param.grad if m.param.requires_grad else None for m in self.members]

    def segments(self, gradients: Sequence[Tensor | None], in_pieces: bool = False) -> Iterator[Segment]:
        """Cut the tensors that take part into kernel calls.

        The gradient of a segment lies in memory that the next segment may use again, so take them one by one.

        Args:
            gradients: As from `gradients`.
            in_pieces: Whether each segment must lie within one `PIECE` of one tensor, as noise does.
        """
        if in_pieces:
            for i in range(len(self.members)):
                yield from self._pieces(i, gradients[i], 0)
            return
        yield from self._small(gradients)
        for i in range(self.small, len(self.members)):
            yield from self._large(i, gradients[i])

    def _small(self, gradients: Sequence[Tensor | None]) -> Iterator[Segment]:
        i = 0
        while i < self.small:
            if gradients[i] is None:
                i += 1
                continue
            j, first = i, self.members[i].start
            while j < self.small and gradients[j] is not None and (self.members[j].stop - first) * BLOCK <= TOGETHER:
                j += 1
            yield self._together(i, j, gradients)
            i = j

    def _together(self, i: int, j: int, gradients: Sequence[Tensor | None]) -> Segment:
        """Tensors i to j - 1, their gradients copied side by side."""
        start, stop = self.members[i].start, self.members[j - 1].stop
        room = self.scratch[start:stop]
        parts: list[Tensor] = []
        for member, g in zip(self.members[i:j], gradients[i:j], strict=True):
            assert g is not None
            parts.append(g if g.ndim == 1 else member.flat(g))
            gap = (member.stop - member.start) * BLOCK - g.numel()
            if gap:
                parts.append(_padding(gap, room))
        torch.cat(parts, out=room.view(-1))
        return Segment(start, stop, range(i, j), room)

    def _large(self, i: int, g: Tensor | None) -> Iterator[Segment]:
        member = self.members[i]
        if g is None:
            return
        whole = g.numel() // BLOCK
        if not member.lies_alike(g) or g.dtype != member.param.dtype or g.data_ptr() % 16:
            yield from self._pieces(i, g, 0)
            return
        rows = g.as_strided((whole, BLOCK), (BLOCK, 1))
        yield Segment(member.start, member.start + whole, range(i, i + 1), rows)
        if whole < member.stop - member.start:
            yield from self._pieces(i, g, whole * BLOCK)

    def _pieces(self, i: int, g: Tensor | None, offset: int) -> Iterator[Segment]:
        """Tensor i from element `offset` on, copied piece by piece."""
        if g is None:
            return
        member = self.members[i]
        flat = member.flat(g)
        for first in range(offset, g.numel(), PIECE):
            part = flat[first : first + PIECE]
            rows = -(-part.numel() // BLOCK)
            room = torch.zeros(rows, BLOCK, dtype=self.scratch.dtype, device=g.device)
            room.view(-1)[: part.numel()].copy_(part)
            start = member.start + first // BLOCK
            yield Segment(start, start + rows, range(i, i + 1), room, first)

    def advance(self, gradients: Sequence[Tensor | None]) -> None:
        """Count an update of every tensor that took part."""
        if any(g is None for g in gradients):
            self.counts += torch.tensor([float(g is not None) for g in gradients], dtype=torch.float64)
            self.recount()
        else:
            self.counts += 1.0
            self.common = None if self.common is None else self.common + 1


def _moved(place: Tensor, value: Tensor) -> Tensor:
    place.copy_(value)
    return place


_zeros: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def _padding(gap: int, like: Tensor) -> Tensor:
    key = (like.device, like.dtype)
    if key not in _zeros:
        _zeros[key] = torch.zeros(BLOCK, dtype=like.dtype, device=like.device)
    return _zeros[key][:gap]


def merged(tasks: Sequence[Task], texts: Mapping[bool, Sequence[Text | None]]) -> dict[tuple[Any, ...], list[Task]]:
    """Tasks by what an arena has in common: device, precision and structure of the text.

    Args:
        tasks: Tensors that can live in an arena.
        texts: Of each group, for weights without and with a master.
    """
    together: dict[tuple[Any, ...], list[Task]] = {}
    for task in tasks:
        text = texts[task.param.dtype in LOW_PRECISION][task.group]
        assert text is not None
        key = (task.param.device, task.param.dtype, text.structure)
        together.setdefault(key, []).append(task)
    return together
