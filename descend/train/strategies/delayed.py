"""Stale gradients: each was computed at parameters that have been updated several times since.

    update t     p ← rule(p, g(pₜ₋ₖ))     k, the delay: updates between the moment a worker fetched its parameters and
                                          the one its gradient was applied
    DCASGD       the parameters that the worker had, pₜ₋ₖ, take the place of q in the rule: one copy for each worker

On several ranks delays happen, see `parameter_server.py`; on one process `SimulatedDelays` makes them.

Source: Zheng et al. 2017, Algorithms 1 and 2, https://arxiv.org/abs/1609.08326
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from descend.train.callback import Callback
from descend.train.strategies.base import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from descend.data import Batch
    from descend.train.events import RunView, StepView
    from descend.train.transforms.base import Gradients

__all__ = ["RecordDelays", "SimulatedDelays", "StaleGradients", "compensated_by", "restore_stale_weights"]


class StaleGradients(Strategy):
    """Base of the strategies whose gradients are stale.

    Attributes:
        delay: Of the newest gradient, in updates.
        worker: The rank that it came from.
    """

    delay: int = 0
    worker: int = 0


class SimulatedDelays(StaleGradients):
    """Delays on one process: parameters of some updates ago are put in place while a gradient is computed.

    Args:
        delay_of: The delay of an update, from 0.
        oldest: The longest delay.
    """

    def __init__(self, delay_of: Callable[[int], int], oldest: int) -> None:
        self._delay_of, self._oldest = delay_of, oldest
        self._past: deque[dict[str, torch.Tensor]] = deque(maxlen=oldest)  # parameters before the newest updates

    def gradients(self, batch: Batch, compute: Callable[[], Gradients]) -> Gradients:
        """See `Strategy.gradients`."""
        self.delay = min(self._delay_of(self._run.state.step), len(self._past))
        if not self.delay:
            return compute()
        now = _copies(self.parameters)
        _put(self.parameters, self._past[-self.delay])
        try:
            return compute()
        finally:
            _put(self.parameters, now)

    def optimizer_step(self, batch: Batch) -> None:
        """See `Strategy.optimizer_step`."""
        now = self.parameters
        restore_stale_weights(self._run.optimizer, now, self._past[-self.delay] if self.delay else now)
        if self._oldest:
            self._past.append(_copies(now))
        super().optimizer_step(batch)

    def own_state(self) -> dict[str, Any]:
        """See `Strategy.own_state`; by parameters, the oldest first."""
        return {"past": [dict(parameters) for parameters in self._past]}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """See `Strategy.load_own_state`."""
        self._past.clear()
        self._past.extend({name: tensor.clone() for name, tensor in past.items()} for past in state["past"])


class RecordDelays(Callback):
    """Records the delay of updates as `train/delay`, with the rank of the worker, and says at the end what they were.

    Runs:  after_step.
    Reads: the strategy. Changes nothing.
    Costs: a row of the history each time.
    """

    remembers: ClassVar[tuple[str, ...]] = ("updates", "total", "largest")
    records: ClassVar[tuple[str, ...]] = ("delay", "worker", "mini_batch")

    def __init__(self, strategy: StaleGradients, every_steps: int, say: Callable[[str], None]) -> None:
        self._strategy, self._every_steps, self._say = strategy, every_steps, say
        self.updates = self.total = self.largest = 0

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.updates = self.total = self.largest = 0

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        strategy = self._strategy
        self.updates, self.total = self.updates + 1, self.total + strategy.delay
        self.largest = max(self.largest, strategy.delay)
        if self._every_steps and step.step % self._every_steps == 0:
            found = {"delay": strategy.delay, "worker": strategy.worker, "mini_batch": step.batch.step}
            step.run.control.record(found, step.step)

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        if self.updates:
            self._say(
                f"delays of {self.updates:,} gradients: {self.total / self.updates:.2f} updates on average, "
                f"{self.largest} at most"
            )


def restore_stale_weights(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, torch.Tensor], had: Mapping[str, torch.Tensor]
) -> None:
    """Let DCASGD compensate for the staleness of a gradient.

    Args:
        optimizer: Any; another rule does not use such parameters.
        weights: The parameters by name.
        had: What they were when the worker fetched them.
    """
    compensated = compensated_by(optimizer)
    for name, p in weights.items():
        if id(p) in compensated and "q" in (state := optimizer.state.get(p, {})):  # which the first update makes
            state["q"].copy_(had[name].detach())


def compensated_by(optimizer: torch.optim.Optimizer) -> set[int]:
    """Identities of the parameters whose rule uses what they were when their gradient was computed."""
    groups = [group for group in optimizer.param_groups if type(group.get("rule")).__name__ == "DCASGD"]
    return {id(p) for group in groups for p in group["params"]}


def _copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in weights.items()}


def _put(weights: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, p in weights.items():
            p.copy_(values[name])
