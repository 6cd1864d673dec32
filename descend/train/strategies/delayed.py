"""SGD whose gradients come late: each was computed at weights that have been updated several times since.

    update t     p ← rule(p, g(pₜ₋ₖ))     k, the delay: updates between the moment a worker fetched its weights and the
                                          one its gradient was applied
    DCASGD       the weights that the worker had, pₜ₋ₖ, take the place of q in the rule: one copy for each worker

`ParameterServer` says that it is so. On several ranks delays come about, see `server.py`; on one process they are made,
by `MadeDelays` below. Both are a `Late`, which is what the loop knows.

Source: Zheng et al. 2017, Algorithms 1 and 2, https://arxiv.org/abs/1609.08326
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.errors import ConfigurationError
from descend.strict_keywords import StrictKeywords
from descend.train.nonfinite_report import diagnose_batch
from descend.train.progress import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    import torch

    from descend.data import Batch
    from descend.train.session import Session
    from descend.train.task import Totals

__all__ = ["ParameterServer", "SimulatedDelays", "StaleGradients", "compensated_by", "restore_stale_weights"]


@dataclass(frozen=True)
class ParameterServer(metaclass=StrictKeywords):
    """Asynchronous descent: rank 0 keeps the weights and makes the updates, each other rank sends it gradients.

    On one process there is no delay, unless `delays` or `largest_delay` make some.

    Args:
        delays: On one process: the gradient of update t, from 0, is computed at the weights of delays[t mod n] updates
            ago, or at the first ones where there were fewer.
        largest_delay: The same with delays drawn from 0 up to this number, each as likely.
        seed: Of these draws; a delay depends on it and on the number of the update alone.
        every_steps: Record the delay of one in so many updates as a row of the history; 0 records none.

    Raises:
        ConfigurationError: a number is negative or not whole, or both kinds of delays are asked for.
    """

    delays: Sequence[int] = ()
    largest_delay: int = 0
    seed: int = 0
    every_steps: int = 1

    def __post_init__(self) -> None:
        numbers = {"largest_delay": self.largest_delay, "seed": self.seed, "every_steps": self.every_steps}
        numbers |= {f"delays[{i}]": delay for i, delay in enumerate(self.delays)}
        problems = [
            f"ParameterServer: {name} is {number!r} and is to be a whole number of at least 0"
            for name, number in numbers.items()
            if type(number) is not int or number < 0
        ]
        if self.delays and self.largest_delay:
            problems.append("ParameterServer: delays= says each delay and largest_delay= draws them; leave out one")
        if problems:
            raise ConfigurationError(problems)
        object.__setattr__(self, "delays", tuple(self.delays))

    @classmethod
    def of(cls, wanted: Any) -> ParameterServer | None:
        """What a user has asked for by `asynchronous`.

        Raises:
            ConfigurationError: it is neither a ParameterServer nor None.
        """
        if wanted is None or isinstance(wanted, cls):
            return wanted
        raise ConfigurationError(f"asynchronous is {wanted!r} and is to be descend.ParameterServer() or None")

    @property
    def made(self) -> bool:
        """Whether delays are made on one process."""
        return bool(self.delays or self.largest_delay)

    @property
    def oldest(self) -> int:
        """The longest of the delays that are made."""
        return max((*self.delays, self.largest_delay))

    def delay(self, update: int) -> int:
        """The delay that is made for an update, from 0."""
        if self.delays:
            return self.delays[update % len(self.delays)]
        return int(np.random.default_rng((self.seed, update)).integers(self.largest_delay + 1))


class StaleGradients:
    """Where the loop's gradients come from when they come late.

    Attributes:
        asked: The signal that has asked a worker for an end; None on one process.
        delay: Of the newest gradient.
        worker: The rank that it came from.
    """

    asked: str | None = None
    delay: int = 0
    worker: int = 0

    def batches(self, session: Session, epoch: int, position: int, taken: int) -> Generator[Batch]:
        """The mini-batches of an epoch in the order in which their gradients are applied; see `Feed.epoch`."""
        return session.data[Mode.TRAIN].epoch(epoch, position, taken)

    def gradient(
        self, session: Session, compute: Callable[[], tuple[torch.Tensor, Totals]]
    ) -> tuple[torch.Tensor, Totals]:
        """Leave the gradient of a mini-batch in the module; return its objective and its sums.

        Args:
            session: The run.
            compute: Does so at the present weights.
        """
        raise NotImplementedError

    def before_update(self, session: Session) -> None:
        """An update by the newest gradient is about to be made."""
        raise NotImplementedError

    def diagnose(self, batch: Batch) -> list[str]:
        """What there is to say about the samples of a gradient that is not finite."""
        return [diagnose_batch(batch)]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""


class SimulatedDelays(StaleGradients):
    """Delays on one process: weights of some updates ago are put in place while a gradient is computed.

    Args:
        rule: Says the delays.
    """

    def __init__(self, rule: ParameterServer) -> None:
        self._rule = rule
        self._past: deque[dict[str, torch.Tensor]] = deque(maxlen=rule.oldest)  # weights before the newest updates

    def gradient(
        self, session: Session, compute: Callable[[], tuple[torch.Tensor, Totals]]
    ) -> tuple[torch.Tensor, Totals]:
        """See `Late.gradient`."""
        self.delay = min(self._rule.delay(session.contexts[Mode.TRAIN].step), len(self._past))
        if not self.delay:
            return compute()
        now = _copies(session.weights)
        _put(session.weights, self._past[-self.delay])
        try:
            return compute()
        finally:
            _put(session.weights, now)

    def before_update(self, session: Session) -> None:
        """See `Late.before_update`."""
        now = session.weights
        restore_stale_weights(session.optimizer, now, self._past[-self.delay] if self.delay else now)
        if self._rule.oldest:
            self._past.append(_copies(now))

    def state(self) -> dict[str, Any]:
        """See `Late.state`; by weights, the oldest first."""
        return {"past": [dict(weights) for weights in self._past]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Late.load_state`."""
        self._past.clear()
        self._past.extend({name: tensor.clone() for name, tensor in weights.items()} for weights in state["past"])


def restore_stale_weights(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, torch.Tensor], had: Mapping[str, torch.Tensor]
) -> None:
    """Let DCASGD compensate for what has become of the weights that a gradient was computed at.

    Args:
        optimizer: Any; another rule does not look at such weights.
        weights: By name.
        had: What they were when the worker fetched them.
    """
    compensated = compensated_by(optimizer)
    for name, p in weights.items():
        if id(p) in compensated and "q" in (state := optimizer.state.get(p, {})):  # which the first update makes
            state["q"].copy_(had[name].detach())


def compensated_by(optimizer: torch.optim.Optimizer) -> set[int]:
    """Identities of the weights whose rule asks what they were when their gradient was computed."""
    groups = [group for group in optimizer.param_groups if type(group.get("rule")).__name__ == "DCASGD"]
    return {id(p) for group in groups for p in group["params"]}


def _copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in weights.items()}


def _put(weights: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    import torch

    with torch.no_grad():
        for name, p in weights.items():
            p.copy_(values[name])
