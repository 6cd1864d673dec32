"""Where each parameter of an arena is: its blocks, its group and the order of its dimensions.

    row 0   | parameter 0, first B elements      |      Each parameter begins at a block; the rest of its last block
    row 1   | parameter 0, next B, then padding  |      is padding. `index` maps a block to its parameter, so a number
    row 2   | parameter 1 ...                    |      for each parameter is a small table.

Small parameters come first: their gradients are copied together just before a kernel reads them, while they are still
in cache; large gradients are read at their own address.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from descend.optim.compiler.layout import BLOCK
from descend.optim.engine.parameter_checks import PLAIN_TYPES, is_dense
from descend.optim.engine.step_inputs import Entry, TensorUpdate, local

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LARGE", "ArenaLayout", "Slot", "fits_arena", "small_first"]

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
