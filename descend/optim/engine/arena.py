"""The arena: all weights of one precision, device and text in one buffer of blocks, state and masters in others alike.

    row 0   | weights of tensor 0, first B elements      |      Each tensor begins on a block; what is left of its
    row 1   | weights of tensor 0, next B, then padding  |      last block is padding. `index` says for each block whose
    row 2   | weights of tensor 1 ...                    |      it is, so a number a tensor is a small table.

The tensors themselves (`param.data`, `state[param][...]`) become views, so torch and the user see nothing new. Weights
that may not move (engine/guests.py) are updated where they are, and their state alone moves.
Small tensors come first: their gradients are copied together before a kernel reads them, while they are still in cache;
large gradients are read where they lie.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from descend.optim.compiler.layout import BLOCK
from descend.optim.compiler.trace import STATE, Trace
from descend.optim.engine.aliases import note_placement
from descend.optim.engine.gradient_scan import TensorList
from descend.optim.engine.noise import PIECE
from descend.optim.engine.parameter_checks import PLAIN_TYPES, is_dense
from descend.optim.engine.pinned import PinnedTensor, attach
from descend.optim.engine.segments import LARGE, TOGETHER, InPlaceSegment, KernelArgs, PackedSegment, Segment
from descend.optim.engine.step_inputs import (
    LOW_PRECISION,
    Entry,
    TensorUpdate,
    check_gradient,
    ensure_state,
    local,
    wrap_like,
)
from descend.torch_private import foreach_copy, version_counter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from descend.optim.compiler.interpreter import Interpreter
    from descend.optim.engine.gradient_scan import GradientScanner
    from descend.optim.engine.native import Native
    from descend.optim.engine.settings import GroupSettings

__all__ = ["ActiveSlots", "AddressedGradients", "Arena", "PackedGradients", "Slot", "fits_arena", "merged"]

HUGE = 2**21  # bytes of a large page of memory
PLANS = 16  # patterns of absent gradients for which the kernel calls are remembered

_gradient = operator.attrgetter("grad")
_is_trained = operator.attrgetter("requires_grad")


def fits_arena(p: Tensor, in_place: bool = False) -> bool:
    """Whether an arena can update p, moved into its buffer or in place."""
    part = local(p.detach())
    return (
        (type(p) in PLAIN_TYPES or hasattr(p, "device_mesh"))
        and type(part) in PLAIN_TYPES
        and part.layout is torch.strided
        and part.device.type in ("cpu", "cuda")
        and part.numel() > 0
        and is_dense(part)
        # In place, a compiled kernel for a GPU has to find it at an address that it takes.
        and (not in_place or part.data_ptr() % (16 if part.is_cuda else part.element_size()) == 0)
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of the arena.

    Attributes:
        name: As the user named it.
        param: The weights as torch holds them; of a guest its part on this rank.
        whole: The weights as the user holds them.
        group: Number of its group.
        entry: `Optimizer.state[param]`.
        start: Its first block.
        stop: The block after its last.
        order: Its dimensions from the one with the longest stride to the one with the shortest.
    """

    name: str
    param: Tensor
    whole: Tensor
    group: int
    entry: Entry
    start: int
    stop: int
    order: tuple[int, ...]

    def view(self, buffer: Tensor, first: int = 0) -> Tensor:
        """This tensor's part of a buffer that begins with block `first`, shaped and strided like the weights."""
        p = self.param
        flat = buffer[self.start - first : self.stop - first].view(-1)[: p.numel()]
        back = sorted(range(p.ndim), key=self.order.__getitem__)
        return flat.view([p.shape[i] for i in self.order]).permute(back)

    def lies_alike(self, x: Tensor) -> bool:
        """Whether x holds its elements in the order in which the arena holds them, without gaps."""
        return x.permute(self.order).is_contiguous()

    def flat(self, x: Tensor) -> Tensor:
        """The elements of a tensor shaped like the weights in the order in which the arena holds them."""
        return x.permute(self.order).reshape(-1)


@dataclass(frozen=True, slots=True)
class ActiveSlots:
    """Who takes part in one step of an arena.

    Attributes:
        arena: Whose.
        absent: Numbers of the tensors that have no gradient or are frozen.
    """

    arena: Arena
    absent: tuple[int, ...]

    def is_finite(self) -> bool:
        """Whether all gradients are finite. An overflow may make it say no wrongly, and it never says yes wrongly."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AddressedGradients(ActiveSlots):
    """For compiled kernels on a CPU, which know where gradients are."""

    native: Native

    def is_finite(self) -> bool:
        """See `Taken`."""
        return self.native.is_finite()


@dataclass(frozen=True, slots=True)
class PackedGradients(ActiveSlots):
    """For kernels that take the arena part by part.

    Attributes:
        gradients: Of each tensor, None for those that are absent.
        parts: The kernel calls that update the others.
        rows: The gradient of each part; empty where a part is to make its own when it is its turn.
    """

    gradients: list[Tensor | None]
    parts: list[Segment]
    rows: list[Tensor]

    @torch.no_grad()
    def is_finite(self) -> bool:
        """See `Taken`."""
        whole = self.rows or [g for g in self.gradients if g is not None]
        sums = [x.sum(dtype=torch.float32 if self.arena.low else None) for x in whole]
        return not sums or bool(torch.isfinite(torch.stack(sums).sum()))

    def fetch(self) -> None:
        """Copy weights that kernels have to be given as a copy."""
        _copy_all([copies for part in self.parts for copies in part.copies])

    def put_back(self) -> None:
        """Copy what became of them to where they belong."""
        _copy_all([(origin, copy) for part in self.parts for copy, origin in part.copies])


@torch.no_grad()
def _copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor into the first."""
    if pairs:
        foreach_copy([to for to, _ in pairs], [x for _, x in pairs])


def _order(p: Tensor) -> tuple[int, ...]:
    return tuple(sorted(range(p.ndim), key=lambda i: (-p.stride(i), i)))


@dataclass(eq=False)
class Arena:
    """Buffers of one layout, and the tensors that live in them. Make one with `Arena.of`."""

    text: Trace
    members: list[Slot]
    in_place: bool  # whether the weights stay where they are; then only their state lies here
    guests: list[PinnedTensor]  # this rank's parts of distributed weights: as many as members, or none
    buffers: dict[str, Tensor]  # "p", the entries kept for each element, "w" where "p" is a master: (rows, B)
    numbers: dict[str, Tensor]  # entries that are one number a tensor: (tensors,), float64
    counts: Tensor  # updates of each tensor: (tensors,), float64
    index: Tensor  # whose a block is: (rows,), int32
    valid: Tensor  # how many of its elements are in use: (rows,), int32
    bounds: Tensor  # first block of each tensor, then the number of blocks: (tensors + 1,), int64
    low: torch.dtype | None  # precision of weights that have a master
    common: int | None = None  # the step count, where all tensors have the same
    scratch: Tensor = field(default_factory=lambda: torch.empty(0))  # gradients of small tensors: (rows, B)
    padding: Tensor = field(default_factory=lambda: torch.empty(0))  # B zeros
    tables: dict[int, Tensor] = field(default_factory=dict[int, Tensor])  # of numbers, for each compiled kernel
    machines: list[list[Interpreter]] = field(
        default_factory=list["list[Interpreter]"]
    )  # of each thread, for each eager kernel
    native: Native | None = None  # how compiled kernels for a CPU see this, once there are some
    version: int = 0  # of `counts`, as torch counts writes of others
    settled: tuple[list[GroupSettings], dict[int, Any]] | None = (
        None  # numbers that settings decide, as of the last step
    )
    params: list[Tensor] = field(default_factory=list[Tensor])
    wholes: list[Tensor] = field(default_factory=list[Tensor])  # the same as the user holds them
    plans: dict[tuple[int, ...], list[Segment]] = field(default_factory=dict[tuple[int, ...], "list[Segment]"])
    groups: list[int] = field(default_factory=list[int])  # numbers of the groups that have a tensor here
    known: TensorList = field(default_factory=lambda: TensorList([]))  # the same, and where they lie
    entries: TensorList = field(default_factory=lambda: TensorList([]))  # the tensors of their state
    small: int = 0  # the first `small` members are small

    @staticmethod
    def of(text: Trace, tasks: Sequence[TensorUpdate], *, in_place: bool = False) -> Arena:
        """Move tensors and what the engine keeps of them into an arena.

        Args:
            text: The common text of their updates.
            tasks: Tensors of one precision and device for which `fits_arena`.
            in_place: Whether the weights stay where they are (engine/aliases.py).
        """
        ordered = sorted(tasks, key=lambda task: local(task.param.detach()).numel() >= LARGE)
        guests = [PinnedTensor.of(task.param) for task in ordered if hasattr(task.param, "device_mesh")]
        params = [guest.here for guest in guests] or [task.param for task in ordered]
        blocks = [-(-p.numel() // BLOCK) for p in params]
        starts = list(itertools.accumulate(blocks, initial=0))
        p = params[0]
        members = [
            Slot(task.name, p, task.param, task.group, task.entry, start, start + n, _order(p))
            for task, p, start, n in zip(ordered, params, starts, blocks, strict=False)
        ]
        valid = torch.full((starts[-1],), BLOCK, dtype=torch.int32, device="cpu")
        valid[torch.tensor(starts[1:], device="cpu") - 1] = torch.tensor(
            [p.numel() - (n - 1) * BLOCK for p, n in zip(params, blocks, strict=True)], dtype=torch.int32, device="cpu"
        )
        owners = torch.arange(len(members), dtype=torch.int32, device="cpu")
        low = p.dtype if p.dtype in LOW_PRECISION else None
        arena = Arena(
            text=text,
            members=members,
            in_place=in_place,
            guests=guests,
            buffers={},
            numbers={},
            counts=torch.zeros(len(members), dtype=torch.float64, device="cpu"),
            index=torch.repeat_interleave(owners, torch.tensor(blocks, device="cpu")).to(p.device),
            valid=valid.to(p.device),
            bounds=torch.tensor(starts, device=p.device),
            low=low,
            small=sum(p.numel() < LARGE for p in params),
        )
        arena._open()
        arena._adopt([task.settings.rule for task in ordered])
        return arena

    @property
    def rows(self) -> int:
        """Number of blocks."""
        return self.members[-1].stop

    @functools.cached_property
    def _tally(self) -> Any:
        """`counts` as NumPy has it, for which torch counts no write."""
        return self.counts.numpy()

    @property
    def outer(self) -> str:
        """Name of the buffer of what torch holds."""
        return "w" if self.low else "p"

    def blocks(self, name: str, part: Segment, a: int, b: int) -> Tensor:
        """Blocks a to b - 1, of this part, of a buffer."""
        if name == self.outer and part.weights is not None:
            return part.weights[a - part.start : b - part.start]
        return self.buffers[name][a:b]

    def _open(self) -> None:
        p = self.members[0].param
        wide = torch.float32 if self.low else p.dtype
        rows = self.members[self.small - 1].stop if self.small else 0
        # Of weights that stay the small ones are copied, as their gradients are.
        self.buffers[self.outer] = _zeros(rows if self.in_place else self.rows, p.dtype, p.device)
        if self.low:
            self.buffers["p"] = _zeros(self.rows, wide, p.device)
        for name, kind in self.text.entries.items():
            if kind == "element":
                self.buffers[name] = _zeros(self.rows, wide, p.device)
            else:
                self.numbers[name] = torch.zeros(len(self.members), dtype=torch.float64, device=p.device)
        self.scratch = torch.zeros(rows, BLOCK, dtype=p.dtype, device=p.device)
        self.padding = torch.zeros(BLOCK, dtype=p.dtype, device=p.device)

    def _adopt(self, rules: Sequence[Any]) -> None:
        """Copy every tensor into its place and make torch's tensors views of it, one after the other."""
        for i, (member, rule) in enumerate(zip(self.members, rules, strict=True)):
            p, entry = member.param, member.entry
            ensure_state(entry, rule, member.whole, member.name)
            self.counts[i] = entry["step"]
            entry["step"] = self.counts[i]
            for name, buffer in self.buffers.items():
                if name != self.outer:
                    key = "master" if name == "p" else name.removeprefix(STATE)
                    entry[key] = _moved(member.view(buffer), entry[key])
                elif not self.in_place:
                    p.data = _by_itself(_moved(member.view(buffer), p.data))
                    note_placement(p, self)
            for name, column in self.numbers.items():
                key = name.removeprefix(STATE)
                entry[key] = _moved(column[i], entry[key])
        self.params = [member.param for member in self.members]
        self.wholes = [member.whole for member in self.members]
        self.known = TensorList(self.params)
        self.entries = TensorList([local(x) for member in self.members for x in member.entry.values()])
        self.groups = sorted({member.group for member in self.members})
        self.recount()

    def recount(self) -> None:
        """Learn anew whether all tensors have the same step count."""
        first = self.counts[0]
        self.common = int(first) if bool((self.counts == first).all()) else None
        self.version = version_counter(self.counts)

    def is_intact(self, reader: GradientScanner) -> bool:
        """Whether weights and state all lie where the arena put them. Compiled kernels find their gradients, too."""
        if version_counter(self.counts) != self.version:
            self.recount()
        if self.guests and not attach(self.guests):
            return False
        if self.native is not None:
            return self.native.look(reader)
        return reader.stayed(self.known) and reader.stayed(self.entries)

    def tell(self, reader: GradientScanner, absent: Collection[int]) -> None:
        """Let autograd know that the weights were written, all but those.

        A backward pass over activations of the old weights is an error then, as with torch's optimizers, instead of a
        gradient of neither point.
        """
        if self.native is not None and not self.guests:
            reader.written(self.known)
        elif absent:
            increment_version([member.whole for i, member in enumerate(self.members) if i not in absent])
        else:
            increment_version(self.wholes)

    def take(self) -> ActiveSlots:
        """Who takes part in this step, with which gradients.

        Raises:
            RuleError: A gradient is of a kind that no rule takes.
        """
        if self.native is not None:
            return AddressedGradients(self, self.native.absent, self.native)
        return self._gathered()

    @torch.no_grad()
    def _gathered(self) -> PackedGradients:
        gradients = self._gradients()
        here = all(map(operator.is_not, gradients, itertools.repeat(None)))
        absent = () if here else tuple(i for i, g in enumerate(gradients) if g is None)
        parts = self._parts(absent)
        try:
            rows = [] if self.text.draws else [part.rows(gradients) for part in parts]
        except RuntimeError:
            # Looking at each gradient at each step would take longer than the step; now it is known that one is odd.
            for member, g in zip(self.members, gradients, strict=True):
                if g is not None:
                    check_gradient(g, member.param, member.name)
            raise
        return PackedGradients(self, absent, gradients, parts, rows)

    def _gradients(self) -> list[Tensor | None]:
        found = list(map(_gradient, self.params))
        if not all(map(_is_trained, self.params)):
            found = [g if p.requires_grad else None for g, p in zip(found, self.params, strict=True)]
        return found

    def _parts(self, absent: tuple[int, ...]) -> list[Segment]:
        if absent not in self.plans:
            if len(self.plans) > PLANS:
                self.plans.clear()
            self.plans[absent] = list(self._plan(set(absent)))
        return self.plans[absent]

    def _plan(self, absent: set[int]) -> Iterator[Segment]:
        if self.text.draws:
            for i, member in enumerate(self.members):
                if i not in absent:
                    yield from self._pieces(i, member, 0, PIECE)
            return
        yield from self._together(absent)
        for i, member in list(enumerate(self.members))[self.small :]:
            if i not in absent:
                whole = member.param.numel() // BLOCK
                weights = None
                if self.in_place:
                    weights = member.flat(member.param.detach())[: whole * BLOCK].view(whole, BLOCK)
                yield InPlaceSegment(member.start, member.start + whole, i, i + 1, member=member, weights=weights)
                yield from self._pieces(i, member, whole * BLOCK, BLOCK)

    def _together(self, absent: set[int]) -> Iterator[Segment]:
        i = 0
        while i < self.small:
            if i in absent:
                i += 1
                continue
            start, j = self.members[i].start, i + 1
            while j < self.small and j not in absent and (self.members[j].stop - start) * BLOCK <= TOGETHER:
                j += 1
            members = self.members[i:j]
            stop = members[-1].stop
            gaps = [self.padding[: (m.stop - m.start) * BLOCK - m.param.numel()] for m in members]
            held = self.buffers[self.outer]
            copies = [(m.view(held), m.param.detach()) for m in members] if self.in_place else ()
            yield PackedSegment(
                start, stop, i, j, room=self.scratch[start:stop], members=members, gaps=gaps, copies=copies
            )
            i = j

    def _pieces(self, i: int, member: Slot, offset: int, size: int) -> Iterator[Segment]:
        """Tensor i from element `offset` on, `size` elements at a time."""
        end = member.param.numel()
        for first in range(offset, end, size):
            count = min(size, end - first)
            start = member.start + first // BLOCK
            piece = KernelArgs(start, start - (-count // BLOCK), i, i + 1, member=member, offset=first, count=count)
            if self.in_place:
                p = member.flat(member.param.detach())
                piece.weights = p.new_zeros(piece.stop - start, BLOCK)
                piece.copies = [(piece.weights.view(-1)[:count], p[first : first + count])]
            yield piece

    def advance(self, absent: Sequence[int]) -> None:
        """Count an update of every tensor but those."""
        self._tally += 1.0
        if absent:
            self._tally[list(absent)] -= 1.0
            self.recount()
        elif self.common is not None:
            self.common += 1


def _zeros(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(rows, B) zeros; on a CPU with Linux in pages of 2 MiB, which makes a step about a fifth faster."""
    count = rows * BLOCK
    if device.type == "cpu" and hasattr(mmap, "MADV_HUGEPAGE") and count * dtype.itemsize >= HUGE:
        held = mmap.mmap(-1, count * dtype.itemsize + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel built without them
            held.madvise(mmap.MADV_HUGEPAGE)
        before = -torch.frombuffer(held, dtype=torch.uint8).data_ptr() % HUGE
        return torch.frombuffer(held, dtype=dtype, count=count, offset=before).view(rows, BLOCK)
    return torch.zeros(rows, BLOCK, dtype=dtype, device=device)


def _moved(place: Tensor, value: Tensor) -> Tensor:
    """A value whose part on this rank lies in this place."""
    place.copy_(local(value))
    return wrap_like(place, value)


def _by_itself(x: Tensor) -> Tensor:
    """The same memory, under a storage that holds nothing else.

    `torch.save` writes the whole storage of a tensor, and tied weights are detected by equal storages.
    """
    # Of memory on a GPU, other processes can be given only storages that the allocator made.
    return torch.from_dlpack(x) if x.device.type == "cpu" else x


def merged(
    tasks: Sequence[TensorUpdate], texts: Mapping[bool, Sequence[Trace | None]], staying: Collection[int]
) -> dict[tuple[Any, ...], list[TensorUpdate]]:
    """Tasks by what an arena has in common: device, precision, structure of the text, and whether weights stay.

    Args:
        tasks: Tensors that can live in an arena.
        texts: Of each group, for weights without and with a master.
        staying: Identities of the weights that are updated in place.
    """
    together: dict[tuple[Any, ...], list[TensorUpdate]] = {}
    for task in tasks:
        p = task.param
        text = texts[p.dtype in LOW_PRECISION][task.group]
        assert text is not None
        key = (p.device, p.dtype, text.structure, id(p) in staying, hasattr(p, "device_mesh"))
        together.setdefault(key, []).append(task)
    return together
