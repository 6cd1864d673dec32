"""Weights that are trained and never get a gradient: nothing else tells of them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from descend.train import Callback

if TYPE_CHECKING:
    import torch

    from descend.train import EpochView, RunView, StepView

__all__ = ["UnusedWeights"]


class UnusedWeights(Callback):
    """Warns of the weights without a gradient in the whole first epoch.

    Runs:  before_run, after_backward, after_epoch.
    Reads: which gradients are there. Changes nothing.
    Costs: a look at each weight in the first step, nothing once all have had a gradient.
    """

    def __init__(self) -> None:
        self._silent: dict[str, torch.nn.Parameter] = {}

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        self._silent = {name: p for name, p in run.module.named_parameters() if p.requires_grad}

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if step.epoch == 0 and self._silent:
            self._silent = {name: p for name, p in self._silent.items() if p.grad is None}

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        whole = epoch.samples[0] == epoch.samples[1]  # a continued pass has not seen its first part
        if epoch.epoch == 0 and whole and self._silent:
            names = ", ".join(f"'{name}'" for name in self._silent)
            warnings.warn(
                f"no gradient reached {names} in the first epoch, so they stay as they are: the forward pass does not "
                "use them, or detaches them; freeze them with requires_grad_(False) if that is meant",
                stacklevel=2,
            )
        self._silent = {}
