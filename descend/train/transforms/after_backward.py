"""Callbacks look at the whole gradient: after the backward passes, before it is checked, changed or clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.train.events import Event
from descend.train.transforms.base import GradientTransform

if TYPE_CHECKING:
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients

__all__ = ["AfterBackward"]


class AfterBackward(GradientTransform):
    """Calls `after_backward` of the callbacks."""

    is_stateless: ClassVar[bool] = True

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._run = run

    def __call__(self, gradients: Gradients) -> None:
        """See `GradientTransform`."""
        self._run.state.signal_divisor, callbacks = gradients.divisor, self._run.callbacks
        if callbacks.wants(Event.AFTER_BACKWARD) or callbacks.wants(Event.AFTER_STEP):
            callbacks.fire(Event.AFTER_BACKWARD, gradients.view)  # which after_step sees again
