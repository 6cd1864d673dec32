"""The buffers of a module as they were before a step, for steps that are skipped, repeated, or fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BufferSnapshot"]


class BufferSnapshot:
    """The buffers of a module as they were before a step, so that a step that is skipped leaves no trace in them.

    All are copied before each forward pass. Torch's count of writes to a tensor does not tell which ones are needed:
    its batch norm writes to running statistics without counting.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._owners = [part for part in module.modules() if any(True for _ in part.buffers(recurse=False))]
        self._kept: dict[tuple[torch.nn.Module, str], torch.Tensor] = {}

    def keep(self) -> None:
        """Remember what all buffers hold now."""
        if self._owners:
            self._copy()

    @torch.no_grad()
    def _copy(self) -> None:
        for place, buffer in self._buffers():
            copy = self._kept.get(place)
            if copy is None or copy.shape != buffer.shape or copy.dtype != buffer.dtype:
                self._kept[place] = buffer.detach().clone()
            else:
                copy.copy_(buffer)

    @torch.no_grad()
    def restore(self) -> None:
        """Give all buffers what they held at `keep`."""
        for place, buffer in self._buffers():
            if place in self._kept:
                buffer.copy_(self._kept[place])

    def _buffers(self) -> Iterator[tuple[tuple[torch.nn.Module, str], torch.Tensor]]:
        """All buffers that are there now; a module may put another tensor in the place of one."""
        for part in self._owners:
            for name, buffer in part.named_buffers(recurse=False):
                yield (part, name), buffer

    def restored_on_error(self) -> Self:
        """Keep the buffers now; where the block raises, restore them, so that what is saved next is from before it."""
        self.keep()
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.restore()
