"""Weights that are trained and never get a gradient: nothing else tells of them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from descend.train import Callback

if TYPE_CHECKING:
    import torch

    from descend.train import EpochView, StepView

__all__ = ["WarnUnusedParameters"]


class WarnUnusedParameters(Callback):
    """Warns of the weights without a gradient in the whole first epoch.

    Runs:  after_backward, after_epoch.
    Reads: which gradients are there. Changes nothing.
    Costs: a look at each weight in the first step, nothing once all have had a gradient.
    """

    def __init__(self) -> None:
        self._silent: dict[str, torch.nn.Parameter] = {}

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if step.step == 1:  # a run that is continued has not seen all of its first epoch
            self._silent = {name: p for name, p in step.module.named_parameters() if p.requires_grad}
        if self._silent:
            self._silent = {name: p for name, p in self._silent.items() if p.grad is None}

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if self._silent and epoch.samples[0] == epoch.samples[1]:
            names = ", ".join(f"'{name}'" for name in self._silent)
            warnings.warn(
                f"no gradient reached {names} in the first epoch, so they stay as they are: the forward pass does not "
                "use them, or detaches them; freeze them with requires_grad_(False) if that is meant",
                stacklevel=2,
            )
        self._silent = {}
