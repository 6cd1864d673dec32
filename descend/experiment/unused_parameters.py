"""Warns of unused parameters: trainable, and without a gradient in the whole first epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.errors import warn
from descend.train import Callback
from descend.train.events import Event

if TYPE_CHECKING:
    import torch

    from descend.train import EpochView, StepView

__all__ = ["WarnUnusedParameters"]


class WarnUnusedParameters(Callback):
    """Warns of trainable parameters that got no gradient in the first epoch.

    Runs:  after_backward, after_epoch.
    Reads: which parameters have a gradient. Changes nothing.
    Costs: a check of each parameter in the first step, nothing once all have had a gradient.
    """

    def __init__(self) -> None:
        self._without_gradient: dict[str, torch.nn.Parameter] = {}

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if step.step == 1:  # a resumed run has not seen all of its first epoch
            self._without_gradient = {name: p for name, p in step.module.named_parameters() if p.requires_grad}
        if self._without_gradient:
            self._without_gradient = {name: p for name, p in self._without_gradient.items() if p.grad is None}
        if not self._without_gradient:
            step.run.unsubscribe(self, Event.AFTER_BACKWARD)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if self._without_gradient and epoch.samples[0] == epoch.samples[1]:
            names = ", ".join(f"'{name}'" for name in self._without_gradient)
            warn(
                f"unused parameters: {names} got no gradient in the first epoch and are not trained, because the "
                "forward pass does not use them or detaches them; freeze them with requires_grad_(False) if intended"
            )
        self._without_gradient = {}
