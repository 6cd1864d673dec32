"""The workers of a parameter server, and the stale gradients that they compute."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from descend.errors import LostPeer
from descend.train.callback import Callback
from descend.train.strategies.base import Strategy
from descend.train.strategies.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from descend.data import Batch
    from descend.runtime import Communicator
    from descend.train.events import RunView, StepView
    from descend.train.stop_signal import StopSignal
    from descend.train.transforms.base import Gradients

__all__ = [
    "PendingGradient",
    "RecordDelays",
    "SimulatedDelays",
    "StaleGradients",
    "WorkerPool",
    "compensated_by",
    "restore_stale_weights",
]


@dataclass
class PendingGradient:
    """A gradient that a worker computes.

    Attributes:
        worker: The rank that computes it.
        epoch: Of the mini-batch.
        number: Of the mini-batch within the epoch.
        version: Updates that the parameters had seen.
        stale: These parameters by name, where the optimizer compensates for the delay.
        began: When it was handed out, in seconds of a monotonic clock.
        words: What the worker sends with it.
        tensors: The gradients, and the worker's buffers.
        error: Why nothing came.
        done: Set when there is one or the other.
    """

    worker: int
    epoch: int
    number: int
    version: int
    stale: dict[str, torch.Tensor]
    began: float
    words: dict[str, Any] = field(default_factory=dict[str, Any])
    tensors: list[torch.Tensor] = field(default_factory=list["torch.Tensor"])
    error: RuntimeError | None = None
    done: threading.Event = field(default_factory=threading.Event)


class WorkerPool:
    """Hands mini-batches to idle workers, and waits for their gradients.

    Args:
        world: This process, the server, among all ranks.
        channel: Sends and receives messages; as `Channel`.

    Attributes:
        signal: The name of a signal that a worker has received; None where there was none.
    """

    def __init__(self, world: Communicator, channel: Channel | None = None) -> None:
        self._channel, self._status = channel or Channel(world), world.status
        self._status.served = range(1, world.world_size)
        self._idle = deque(range(1, world.world_size))
        self._busy: dict[int, PendingGradient] = {}
        self._arrived: SimpleQueue[int] = SimpleQueue()
        self.signal: str | None = None

    @property
    def has_idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return bool(self._idle)

    @property
    def pending(self) -> list[PendingGradient]:
        """The gradients that have not been taken by `next_arrival`."""
        return list(self._busy.values())

    def assign(
        self,
        epoch: int,
        number: int,
        size: int,
        version: int,
        step: int,
        stale: dict[str, torch.Tensor],
        state: Sequence[Any],
    ) -> None:
        """Give the worker that has been idle longest a mini-batch.

        Args:
            epoch: Of the mini-batch.
            number: Of the mini-batch within the epoch.
            size: Samples of a mini-batch in this epoch.
            version: Updates that the parameters have seen.
            step: Number of the update by which its random numbers are drawn, from 0.
            stale: Copies of the parameters, where the optimizer compensates for the delay.
            state: Parameters and buffers; the answer has tensors like these.
        """
        worker = self._idle.popleft()
        self._busy[worker] = PendingGradient(worker, epoch, number, version, stale, time.monotonic())
        self._send(worker, {"epoch": epoch, "number": number, "size": size, "step": step}, state)
        # No daemon: torch aborts where Python ends under a thread that waits. It ends with its worker.
        threading.Thread(target=self._listen, args=(worker, list(state)), name="descend-server").start()

    def next_arrival(self, stop: StopSignal) -> PendingGradient:
        """Wait for the next gradient; where a signal ends the waiting, it stays to be applied after a restart.

        Raises:
            LostPeer: the worker is gone.
        """
        with self._status.waiting_patiently(), self._status.wait("a gradient of a worker"):
            # A worker that hangs is found out by how long it has had its mini-batch, whatever the others do meanwhile.
            self._status.since = min(pending.began for pending in self._busy.values())
            stop.waiting(True)
            worker = self._arrived.get()
            stop.waiting(False)
            return self._take(worker)

    def dismiss(self, words: Mapping[str, Any], tensors: Sequence[torch.Tensor] = ()) -> None:
        """Discard the pending gradients once they have come, and let the workers end with a last message."""
        for worker in list(self._busy):
            with self._status.waiting_patiently(), self._status.wait(f"the last gradient of rank {worker}"):
                self._status.since = self._busy[worker].began
                self._busy[worker].done.wait()
                self._take(worker)
        for worker in self._idle:
            self._send(worker, words, tensors)

    def _send(self, worker: int, words: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        with self._status.waiting_patiently(), self._status.wait(f"rank {worker} to take the weights"):
            self._channel.send(worker, words, tensors)

    def _listen(self, worker: int, forms: Sequence[torch.Tensor]) -> None:
        """Wait for one gradient, in a thread of its own: torch cannot wait for whichever comes first."""
        pending = self._busy[worker]
        try:
            pending.words, pending.tensors = self._channel.receive(worker, forms)
        except RuntimeError as error:
            pending.error = error
        pending.done.set()
        self._arrived.put(worker)

    def _take(self, worker: int) -> PendingGradient:
        pending = self._busy.pop(worker)
        if pending.error:
            raise LostPeer(f"rank {worker} ended with a gradient under way: {pending.error}") from pending.error
        self._idle.append(worker)
        self.signal = self.signal or pending.words["asked"]
        return pending


# ---- stale gradients: each was computed at parameters that have been updated several times since
#
#     update t     p ← rule(p, g(pₜ₋ₖ))     k, the delay: updates between the moment a worker fetched its parameters and
#                                           the one its gradient was applied
#     DCASGD       the parameters that the worker had, pₜ₋ₖ, take the place of q in the rule: one copy for each worker
#
# On several ranks delays happen, see `parameter_server.py`; on one process `SimulatedDelays` makes them.
#
# Source: Zheng et al. 2017, Algorithms 1 and 2, https://arxiv.org/abs/1609.08326


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
