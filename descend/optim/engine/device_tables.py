"""Small tables on a device that the host fills: sent when they change, from page-locked memory, without a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from descend.machine import page_locked, page_locked_copy

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DeviceTables"]


class DeviceTables:
    """Arrays of a device by name, each at one address.

    Attributes:
        held: On the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.held: dict[str, Tensor] = {}
        self._sent: dict[str, NDArray[Any]] = {}  # what lies there
        self._spare: dict[str, Tensor] = {}  # pinned memory for a step within a graph, which continues reading it
        self._kept: list[Tensor] = []

    def is_capturing(self) -> bool:
        """Whether what is launched now becomes part of a CUDA graph."""
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def send(self, name: str, values: NDArray[Any]) -> None:
        """Copy values to the device where they are not there yet; of a name always as many."""
        if name in self._sent and np.array_equal(self._sent[name], values):
            return
        self._sent[name] = values.copy()
        x = torch.from_numpy(self._sent[name])
        if name not in self.held:
            self.held[name] = x.to(self._device, copy=True)
        elif self._device.type != "cuda":
            self.held[name].copy_(x)
        elif self.is_capturing():
            # A graph copies again at each replay, so what it reads is kept and never written again.
            self._kept.append(self._spare.pop(name).copy_(x))
            self.held[name].copy_(self._kept[-1], non_blocking=True)
        else:
            self.held[name].copy_(
                page_locked_copy(x), non_blocking=True
            )  # torch keeps that memory until the copy is done

    def agree(self, name: str, values: NDArray[Any]) -> None:
        """Note that these values are on the device, which has computed them itself."""
        self._sent[name][:] = values

    def reserve(self, *names: str) -> None:
        """Set page-locked memory aside for a step within a graph, where none can be had."""
        if self._device.type == "cuda":
            for name in names:
                if name not in self._spare:
                    self._spare[name] = page_locked(self.held[name].shape, self.held[name].dtype)
