"""The memory of an arena: the blocks of each parameter, in one buffer for parameters, masters and each entry of state.

    row 0   | parameter 0, first B elements      |      Each parameter begins at a block; the rest of its last block
    row 1   | parameter 0, next B, then padding  |      is padding. `index` maps a block to its parameter, so a number
    row 2   | parameter 1 ...                    |      for each parameter is a small table.

Small parameters come first: their gradients are copied together just before a kernel reads them, while they are still
in cache; large gradients are read at their own address.

The tensors themselves (`param.data`, `state[param][...]`) become views of the buffers, so nothing changes for torch and
the user. Parameters that must stay at their address are updated there, and only their state moves.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from descend.optim.compiler.layout import BLOCK, UNIT
from descend.optim.compiler.trace import STATE
from descend.optim.engine.step_inputs import (
    LOW_PRECISION,
    PLAIN_TYPES,
    Entry,
    TensorUpdate,
    is_dense,
    local,
    wrap_like,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.segments import Segment

__all__ = ["HUGE_PAGE", "LARGE", "ArenaBuffers", "ArenaLayout", "Slot", "Units", "fits_arena", "small_first"]

ALONE = 2**15  # elements that one thread updates sooner than several do; torch has the same limit
HUGE_PAGE = 2**21  # bytes

LARGE = 2**15  # elements; from here on a kernel call of some microseconds costs less than copying the gradient


def fits_arena(p: Tensor, in_place: bool = False) -> bool:
    """Whether an arena can update p, moved into its buffer or in place."""
    shard = local(p.detach())
    return (
        (type(p) in PLAIN_TYPES or hasattr(p, "device_mesh"))
        and type(shard) in PLAIN_TYPES
        and shard.layout is torch.strided
        and shard.device.type in ("cpu", "cuda")
        and shard.numel() > 0
        and is_dense(shard)
        # In place, a compiled CUDA kernel requires an address that is a multiple of 16 bytes.
        and (not in_place or shard.data_ptr() % (16 if shard.is_cuda else shard.element_size()) == 0)
    )


def small_first(updates: Sequence[TensorUpdate]) -> list[TensorUpdate]:
    """The updates in the order of an arena: those of small parameters, then those of large ones."""
    return sorted(updates, key=lambda update: local(update.param.detach()).numel() >= LARGE)


def _dimension_order(p: Tensor) -> tuple[int, ...]:
    return tuple(sorted(range(p.ndim), key=lambda i: (-p.stride(i), i)))


@dataclass(frozen=True, slots=True)
class Slot:
    """The blocks of one parameter.

    Attributes:
        name: As the user named it.
        param: The parameter; of a distributed one the parameter over this rank's shard.
        whole: The parameter as the user holds it.
        group: Number of its group.
        entry: `Optimizer.state[param]`.
        start: Its first block.
        stop: The block after its last.
        order: Its dimensions from the longest stride to the shortest.
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
        """This parameter's elements in a buffer that begins with block `first`, shaped and strided like it."""
        p = self.param
        flat = buffer[self.start - first : self.stop - first].view(-1)[: p.numel()]
        back = sorted(range(p.ndim), key=self.order.__getitem__)
        return flat.view([p.shape[i] for i in self.order]).permute(back)

    def lies_alike(self, x: Tensor) -> bool:
        """Whether x holds its elements in the arena's order, without gaps."""
        return x.permute(self.order).is_contiguous()

    def flat(self, x: Tensor) -> Tensor:
        """The elements of a tensor shaped like the parameter, in the arena's order."""
        return x.permute(self.order).reshape(-1)


class Units(NamedTuple):
    """The units of some tensors: a few consecutive elements, or rows or the like, of one tensor each; all int64.

    Attributes:
        tensor: The index of the tensor of each unit.
        first: Its first element in the tensor.
        size: How many it has.
        border: First unit of each tensor, then the number of units.
    """

    tensor: NDArray[np.int64]
    first: NDArray[np.int64]
    size: NDArray[np.int64]
    border: NDArray[np.int64]

    @staticmethod
    def of(sizes: NDArray[np.int64], most: NDArray[np.int64] | int) -> Units:
        """The units of tensors with so many elements each, tensor after tensor; a unit has at most `most`."""
        limits: NDArray[np.int64] = np.broadcast_to(np.asarray(most, dtype=np.int64), sizes.shape)
        counts = -(-sizes // limits)
        border = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        tensor = np.repeat(np.arange(len(sizes), dtype=np.int64), counts)
        first = (np.arange(border[-1], dtype=np.int64) - border[tensor]) * limits[tensor]
        return Units(tensor, first, np.minimum(limits[tensor], sizes[tensor] - first), border)


@dataclass(frozen=True, eq=False)
class ArenaLayout:
    """The blocks of all parameters of an arena.

    Attributes:
        slots: One for each parameter, small ones first.
        small: How many of them are small.
        index: Number of the parameter of each block: (rows,), int32.
        valid: Elements in use in each block: (rows,), int32.
        bounds: First block of each parameter, then the number of blocks: (parameters + 1,), int64.
    """

    slots: list[Slot]
    small: int
    index: Tensor
    valid: Tensor
    bounds: Tensor

    @staticmethod
    def of(updates: Sequence[TensorUpdate], params: Sequence[Tensor]) -> ArenaLayout:
        """The layout of parameters in the order of `small_first`.

        Args:
            updates: Of parameters of one precision and device.
            params: The tensors to lay out: the parameters, or this rank's shards of them.
        """
        blocks = [-(-p.numel() // BLOCK) for p in params]
        starts = list(itertools.accumulate(blocks, initial=0))
        slots = [
            Slot(update.name, p, update.param, update.group, update.entry, start, start + n, _dimension_order(p))
            for update, p, start, n in zip(updates, params, starts, blocks, strict=False)
        ]
        device = params[0].device
        valid = torch.full((starts[-1],), BLOCK, dtype=torch.int32, device="cpu")
        valid[torch.tensor(starts[1:], device="cpu") - 1] = torch.tensor(
            [p.numel() - (n - 1) * BLOCK for p, n in zip(params, blocks, strict=True)], dtype=torch.int32, device="cpu"
        )
        owners = torch.arange(len(slots), dtype=torch.int32, device="cpu")
        return ArenaLayout(
            slots=slots,
            small=sum(p.numel() < LARGE for p in params),
            index=torch.repeat_interleave(owners, torch.tensor(blocks, device="cpu")).to(device),
            valid=valid.to(device),
            bounds=torch.tensor(starts, device=device),
        )

    @functools.cached_property
    def rows(self) -> int:
        """Number of blocks."""
        return self.slots[-1].stop

    @functools.cached_property
    def small_rows(self) -> int:
        """Number of blocks of the small parameters, which come first."""
        return self.slots[self.small - 1].stop if self.small else 0

    @functools.cached_property
    def groups(self) -> list[int]:
        """Numbers of the groups that have a parameter here, ascending."""
        return sorted({slot.group for slot in self.slots})

    @functools.cached_property
    def device(self) -> torch.device:
        """The device of all parameters."""
        return self.index.device

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """The precision of all parameters."""
        return self.slots[0].param.dtype

    @functools.cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Elements of each parameter."""
        return np.array([slot.param.numel() for slot in self.slots], dtype=np.int64)

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first element of each parameter in the arena."""
        return np.array([slot.start * BLOCK for slot in self.slots], dtype=np.int64)

    @functools.cached_property
    def units(self) -> Units:
        """What a compiled CPU kernel updates at a time."""
        return Units.of(self.sizes, UNIT)

    @property
    def threads(self) -> int:
        """How many threads a kernel gets now."""
        return torch.get_num_threads() if self.rows * BLOCK > ALONE else 1


@dataclass(eq=False)
class ArenaBuffers:
    """The buffers of an arena.

    Attributes:
        elements: By name, (rows, B): "p", the entries of state kept for each element, and "w" where "p" is a master.
        numbers: Entries of state that are one number for each parameter: (parameters,), float64.
        low: The precision of parameters that have a master, else None.
        in_place: Whether the parameters stay at their address; then only their state is here.
    """

    elements: dict[str, Tensor]
    numbers: dict[str, Tensor]
    low: torch.dtype | None
    in_place: bool

    @staticmethod
    def allocate(trace: Trace, layout: ArenaLayout, *, in_place: bool) -> ArenaBuffers:
        """Buffers of zeros for the parameters of a layout and the state that their update keeps."""
        dtype, device = layout.dtype, layout.device
        low = dtype if dtype in LOW_PRECISION else None
        wide = torch.float32 if low else dtype
        made = ArenaBuffers({}, {}, low, in_place)
        # Small parameters that stay at their address are copied here at each step, as their gradients are.
        made.elements[made.outer] = _zeros(layout.small_rows if in_place else layout.rows, dtype, device)
        if low:
            made.elements["p"] = _zeros(layout.rows, wide, device)
        for name, kind in trace.entries.items():
            if kind == "element":
                made.elements[name] = _zeros(layout.rows, wide, device)
            else:
                made.numbers[name] = torch.zeros(len(layout.slots), dtype=torch.float64, device=device)
        return made

    @property
    def outer(self) -> str:
        """Name of the buffer that holds the parameters in their own precision."""
        return "w" if self.low else "p"

    @property
    def dtype(self) -> torch.dtype:
        """The precision in which updates are computed."""
        return self.elements["p"].dtype

    def adopt(self, i: int, slot: Slot) -> None:
        """Copy parameter i and its state here, and make torch's tensors views of the copies."""
        entry = slot.entry
        for name, buffer in self.elements.items():
            if name != self.outer:
                key = "master" if name == "p" else name.removeprefix(STATE)
                entry[key] = _moved(slot.view(buffer), entry[key])
            elif not self.in_place:
                slot.param.data = _own_storage(_moved(slot.view(buffer), slot.param.data))
        for name, column in self.numbers.items():
            key = name.removeprefix(STATE)
            entry[key] = _moved(column[i], entry[key])

    def blocks(self, name: str, segment: Segment, a: int, b: int) -> Tensor:
        """Blocks a to b - 1 of a buffer, all of them in this segment."""
        if name == self.outer and segment.weights is not None:
            return segment.weights[a - segment.start : b - segment.start]
        return self.elements[name][a:b]


def _zeros(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(rows, B) zeros; on a CPU with Linux in pages of 2 MiB, which makes a step about a fifth faster."""
    count = rows * BLOCK
    if device.type == "cpu" and hasattr(mmap, "MADV_HUGEPAGE") and count * dtype.itemsize >= HUGE_PAGE:
        held = mmap.mmap(-1, count * dtype.itemsize + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel built without them
            held.madvise(mmap.MADV_HUGEPAGE)
        before = -torch.frombuffer(held, dtype=torch.uint8).data_ptr() % HUGE_PAGE
        return torch.frombuffer(held, dtype=dtype, count=count, offset=before).view(rows, BLOCK)
    return torch.zeros(rows, BLOCK, dtype=dtype, device=device)


def _moved(place: Tensor, value: Tensor) -> Tensor:
    """A tensor with this value whose shard on this rank is in this memory."""
    place.copy_(local(value))
    return wrap_like(place, value)


def _own_storage(x: Tensor) -> Tensor:
    """The same memory under a storage that holds nothing else.

    `torch.save` writes the whole storage of a tensor, and tied weights are detected by equal storages.
    """
    # Of memory on a GPU, other processes can be given only storages that the allocator made.
    return torch.from_dlpack(x) if x.device.type == "cpu" else x
