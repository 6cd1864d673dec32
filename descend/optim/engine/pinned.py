"""Parameters that an arena updates in place: distributed tensors, and tensors shared with other processes.

Their owner holds the address of their memory (FSDP2 gathers whole parameters from there), so the memory must not move.
The arena works on an ordinary parameter over this rank's shard instead, with this rank's shard of the gradient. That is
enough for elementwise rules; norms and noise belong to the whole tensor, so rules that need them run tensor by tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from descend.optim.engine.step_inputs import aligned, local

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

__all__ = ["PinnedTensor", "attach", "detach"]


@dataclass(frozen=True, slots=True, eq=False)
class PinnedTensor:
    """Weights that stay where they are.

    Attributes:
        whole: As the user holds them.
        here: This rank's part, an ordinary parameter over the same memory.
    """

    whole: Tensor
    here: Tensor

    @staticmethod
    def of(p: Tensor) -> PinnedTensor:
        """See the class."""
        return PinnedTensor(p, local(p.detach()).detach().requires_grad_())

    def is_home(self) -> bool:
        """Whether the weights lie where they lay; to be called without gradients."""
        now, here = local(self.whole), self.here
        return now.data_ptr() == here.data_ptr() and now.dtype is here.dtype and now.shape == here.shape


@torch.no_grad()
def attach(guests: Iterable[PinnedTensor]) -> bool:
    """Give the parts their gradients of this step.

    Returns:
        Whether all are at the same addresses as before; if not, none may be updated.
    """
    for guest in guests:
        if not guest.is_home():
            return False
        p, g = guest.whole, guest.whole.grad
        if g is None or not p.requires_grad:
            guest.here.grad = None
        else:
            guest.here.grad = local(aligned(g, p)).to(guest.here.dtype)
    return True


def detach(guests: Iterable[PinnedTensor]) -> None:
    """Hold their gradients no longer."""
    for guest in guests:
        guest.here.grad = None
