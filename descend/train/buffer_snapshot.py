"""The buffers of a module as they were before a step, for steps that are skipped, repeated, or fail."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Self

import torch

from descend.torch_private import foreach_copy, own_buffers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from descend.train.module_state import LossBuffers

__all__ = ["BufferSnapshot"]


class BufferSnapshot:
    """The buffers of a module as they were before a step, so that a step that is skipped leaves no trace in them.

    All are copied before each forward pass. Torch's count of writes to a tensor does not tell which ones are needed:
    its batch norm writes to running statistics without counting.

    Attributes:
        keeps_two: Whether the buffers before the last step but one are kept, too, for `step_back`.
        loss: The buffers of the user's loss, as they were at the beginning; None where there is no such loss.
    """

    loss: LossBuffers | None = None

    def __init__(self, module: torch.nn.Module) -> None:
        self._owners = [part for part in module.modules() if any(True for _ in part.buffers(recurse=False))]
        self._newest, self._older = _Copies(), _Copies()
        self.keeps_two = self._in_step = False

    def keep(self) -> None:
        """Remember what all buffers hold now."""
        if self._owners:
            if self.keeps_two:
                self._newest, self._older = self._older, self._newest
            self._newest.take(self._owners)

    def restore(self) -> None:
        """Give all buffers what they held at `keep`."""
        self._newest.give(self._owners)

    def step_back(self) -> None:
        """Give all buffers what they held at the `keep` before the last one, or at the last one if a step has ended
        since; `restore` gives them the same from now on."""
        if self._in_step:
            self._newest, self._older = self._older, self._newest
        self.restore()

    def restored_on_error(self) -> Self:
        """Keep the buffers now; where the block raises, restore them, so that what is saved next is from before it."""
        self.keep()
        return self

    def __enter__(self) -> None:
        self._in_step = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._in_step = False
        if error is not None:
            self.restore()


class _Copies:
    """Copies of buffers, made in one call for all of one type where they are the same tensors as the last time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.nn.Module, str], torch.Tensor] = {}
        self._sources: list[torch.Tensor] = []  # whose copies are made as follows
        self._at_once: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []  # copies and buffers of one type each
        self._alone: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.no_grad()
    def take(self, owners: Sequence[torch.nn.Module]) -> None:
        """Copy what the buffers of these modules hold."""
        now = [buffer for part in owners for buffer in own_buffers(part)]
        if len(now) != len(self._sources) or any(map(operator.is_not, now, self._sources)):
            self._make_room(owners)
            self._sources = now
        for copies, buffers in self._at_once:
            foreach_copy(copies, buffers)
        for copy, buffer in self._alone:
            copy.copy_(buffer)

    def _make_room(self, owners: Sequence[torch.nn.Module]) -> None:
        """Prepare for buffers of which one is another tensor than before."""
        groups: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._alone = []
        for place, buffer in _buffers(owners):
            copy, plain = self._kept.get(place), type(buffer) is torch.Tensor
            if copy is None or _form(copy) != _form(buffer):
                copy = self._kept[place] = torch.empty_like(buffer) if plain else buffer.detach().clone()
            if plain:
                copies, buffers = groups.setdefault((buffer.device, buffer.dtype), ([], []))
                copies.append(copy)
                buffers.append(buffer)
            else:
                self._alone.append((copy, buffer))
        self._at_once = list(groups.values())

    @torch.no_grad()
    def give(self, owners: Sequence[torch.nn.Module]) -> None:
        """Give the buffers what was copied."""
        for place, buffer in _buffers(owners):
            if place in self._kept and not _is_expanded(buffer):
                buffer.copy_(self._kept[place])


def _buffers(owners: Sequence[torch.nn.Module]) -> Iterator[tuple[tuple[torch.nn.Module, str], torch.Tensor]]:
    """All buffers that are there now; a module may put another tensor in the place of one."""
    for part in owners:
        for name, buffer in part.named_buffers(recurse=False):
            yield (part, name), buffer


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, so that nothing can have written to it in place, and nothing can now."""
    if tensor.layout is not torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device
