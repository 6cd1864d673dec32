"""Batches on their way to a GPU: from page-locked memory, and large ones in a stream of their own, beside a step.
Numbers on their way back.

    host      batch n + 1 is copied to page-locked memory and its transfer launched; nothing waits
    copies    batch n + 1
    compute   step n                         | waits for the transfer, step n + 1

The host is a step ahead of the device, so the transfer of a batch runs while the step before computes. Torch keeps
page-locked memory until the copies from it are done.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from descend.data.tensor_reader import STAGED_BYTES
from descend.machine import page_locked, page_locked_copy

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HostNumber", "send_to_gpu"]

# Bytes of a batch. The transfer of a smaller one takes less time than the host needs for a stream of its own.
_SMALL = 2**20


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class HostNumber:
    """A number that was computed on a device, on its way to the host.

    Args:
        value: A 0-d tensor. It may change as soon as this returns; the host does not wait.
    """

    def __init__(self, value: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if value.device.type != "cuda":
            self._room = value.detach().clone()
            return
        self._room = page_locked((), value.dtype)
        self._room.copy_(value.detach(), non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(value.device))

    def read(self) -> float:
        """The number. Waits for what was launched before it was sent."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return float(self._room.numpy())


def send_to_gpu(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Copies of tensors of the host's memory on a GPU. The host does not wait, and later launches do.

    Args:
        tensors: On the CPU; they may be changed as soon as this returns, but for those in page-locked memory.
        device: Of the copies.
    """
    pinned = [
        tensor if tensor.nbytes <= STAGED_BYTES or tensor.is_pinned() else page_locked_copy(tensor)
        for tensor in tensors
    ]
    if sum(tensor.nbytes for tensor in pinned) < _SMALL:
        return [tensor.to(device, non_blocking=True) for tensor in pinned]
    copies, compute = _stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copies):
        sent = [tensor.to(device, non_blocking=True) for tensor in pinned]
        done = torch.cuda.Event()
        done.record(copies)
    compute.wait_event(done)
    for copy in sent:
        copy.record_stream(compute)  # so that its memory is not given away while a step reads it
    return sent
