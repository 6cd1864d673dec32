"""This process among its ranks: the device it computes on and the sums it shares.

The training loop speaks to this class alone, so one rank and many run through the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Process"]


@dataclass(frozen=True)
class Process:
    """One process of a run.

    Attributes:
        rank: Number of this process, from 0.
        ranks: How many there are.
        device: Where the module lives.
    """

    rank: int = 0
    ranks: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def here(cls) -> Process:
        """The process as torch.distributed knows it, on the GPU where there is one."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size(), device)
        return cls(device=device)

    def to_device(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        """An array as a tensor on the device of the run; the memory is shared where that device is the CPU."""
        tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        return tensor if tensor.device == self.device else tensor.to(self.device, non_blocking=True)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, in place, summed over all ranks."""
        if self.ranks > 1:
            torch.distributed.all_reduce(tensor)
        return tensor
