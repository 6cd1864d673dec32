"""Messages between two ranks: words (JSON), and tensors whose shapes and types both sides know from the module."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.runtime import Communicator

__all__ = ["Channel"]


class Channel:
    """Messages between two ranks, one after the other.

    Args:
        world: This process among all ranks, which make this together.
    """

    def __init__(self, world: Communicator) -> None:
        self._rank = world.rank
        self._group = world.group
        if distributed.get_backend(world.group) != "gloo":
            self._group = cast("distributed.ProcessGroup", distributed.new_group(backend="gloo"))

    def send(self, to: int, words: Mapping[str, Any], tensors: Sequence[torch.Tensor] = ()) -> None:
        """Send a message; returns when it is on its way."""
        text = torch.frombuffer(bytearray(json.dumps(dict(words)).encode()), dtype=torch.uint8)
        flat = _joined(tensors)
        for part in (torch.tensor([len(text), len(flat)]), text, *flat):
            distributed.send(part, group=self._group, group_dst=to)

    def receive(self, source: int, forms: Sequence[torch.Tensor]) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Wait for a message.

        Args:
            source: The rank that it comes from.
            forms: Tensors like those that it may bring; it brings all of them or none.
        """
        head = torch.zeros(2, dtype=torch.int64)
        distributed.recv(head, group=self._group, group_src=source)
        text = torch.empty(int(head[0]), dtype=torch.uint8)
        distributed.recv(text, group=self._group, group_src=source)
        words = cast("dict[str, Any]", json.loads(text.numpy().tobytes()))
        if not head[1]:
            return words, []
        flat = [torch.empty(_count(some), dtype=kind) for kind, some in _by_type(forms).items()]
        for part in flat:
            distributed.recv(part, group=self._group, group_src=source)
        return words, _parted(flat, forms)


def _by_type(tensors: Sequence[torch.Tensor]) -> dict[torch.dtype, list[torch.Tensor]]:
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.dtype, []).append(tensor)
    return found


def _count(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _joined(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the CPU, those of one type side by side."""
    return [torch.cat([t.detach().reshape(-1) for t in some]).cpu() for some in _by_type(tensors).values()]


def _parted(flat: Sequence[torch.Tensor], forms: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What was joined, in the order and the shapes of `forms`."""
    parts = {
        kind: iter(one.split([tensor.numel() for tensor in some]))
        for one, (kind, some) in zip(flat, _by_type(forms).items(), strict=True)
    }
    return [next(parts[tensor.dtype]).view(tensor.shape) for tensor in forms]
