"""The gradients of an arena as compiled kernels read them: by address, in the order of the parameter's elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from descend.optim.engine.gradient_scan import ABSENT, MOVED, ODD, GradientScanner
from descend.optim.engine.step_inputs import check_gradient

if TYPE_CHECKING:
    from descend.optim.engine.arena_layout import ArenaLayout
    from descend.optim.engine.gradient_scan import TensorList

__all__ = ["ArenaGradients"]


class ArenaGradients:
    """Finds the gradients of an arena's parameters, step after step.

    Args:
        layout: Of the arena.
        params: Its parameters.
        state: The tensors of their state, which must stay where they are as well.

    Attributes:
        gradient: Address of the gradient of each parameter, 0 where it has none.
        absent: Numbers of the parameters without a gradient.
        copies: Of gradients whose elements are in another order than the parameter's.
    """

    def __init__(self, layout: ArenaLayout, params: TensorList, state: TensorList) -> None:
        self._layout, self._params, self._state = layout, params, state
        self.gradient = params.gradients
        self.absent: tuple[int, ...] = ()
        self.copies: list[Tensor] = []

    def look(self, scanner: GradientScanner) -> bool:
        """Find the gradients of this step.

        Returns:
            Whether all parameters and their state are at their addresses; if not, no gradient was found.

        Raises:
            RuleError: A gradient is of a kind that no rule takes.
        """
        seen = scanner.look(self._params, self._state)
        self.copies.clear()
        if seen & ODD:
            for i in np.flatnonzero(self.gradient == -1).tolist():
                self.gradient[i] = self._in_order(i)
        self.absent = tuple(np.flatnonzero(self.gradient == 0).tolist()) if seen & ABSENT else ()
        return not seen & MOVED

    @torch.no_grad()
    def _in_order(self, i: int) -> int:
        """Address of gradient i, which lies otherwise than the parameter: of a copy in the parameter's order."""
        slot = self._layout.slots[i]
        g = slot.param.grad
        assert g is not None
        check_gradient(g, slot.param, slot.name)
        self.copies.append(slot.flat(g).to(slot.param.dtype, copy=True, memory_format=torch.contiguous_format))
        return self.copies[-1].data_ptr()
