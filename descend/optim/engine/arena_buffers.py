"""The memory of an arena: parameters, float32 masters and state, each in one buffer of blocks.

The tensors themselves (`param.data`, `state[param][...]`) become views of the buffers, so nothing changes for torch and
the user. Parameters that must stay at their address are updated there, and only their state moves.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from descend.optim.compiler.layout import BLOCK
from descend.optim.compiler.trace import STATE
from descend.optim.engine.step_inputs import LOW_PRECISION, local, wrap_like

if TYPE_CHECKING:
    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.arena_layout import ArenaLayout, Slot
    from descend.optim.engine.segments import Segment

__all__ = ["HUGE_PAGE", "ArenaBuffers"]

HUGE_PAGE = 2**21  # bytes


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
