"""Batches on their way to a GPU: from page-locked memory and in a stream of their own, beside the step before.

    host      batch n + 1 is copied to page-locked memory and its transfer launched; nothing waits
    copies    batch n + 1
    compute   step n                         | waits for the transfer, step n + 1

The host is a step ahead of the device, so the transfer of a batch runs while the step before computes.
"""

from __future__ import annotations

import functools
from collections import deque

import torch

__all__ = ["send_to_gpu"]

# Page-locked tensors, each with the event after which its memory may be used again.
_sent: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def send_to_gpu(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a tensor of the host's memory on a GPU. The host does not wait, and later launches do.

    Args:
        tensor: On the CPU; it may be changed as soon as this returns, unless it is in page-locked memory.
        device: Of the copy.
    """
    while _sent and _sent[0][0].query():
        _sent.popleft()
    pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
    copies, compute = _stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copies):
        copy = pinned.to(device, non_blocking=True)
        done = torch.cuda.Event()
        done.record(copies)
    _sent.append((done, pinned))
    compute.wait_event(done)
    copy.record_stream(compute)  # so that its memory is not given away while a step reads it
    return copy
