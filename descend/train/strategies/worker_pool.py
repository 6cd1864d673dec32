"""The workers of a parameter server: which of them are idle, and the gradients that the others are computing."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from descend.errors import LostPeer
from descend.train.strategies.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from descend.runtime import Communicator
    from descend.train.stop_signal import StopSignal

__all__ = ["PendingGradient", "WorkerPool"]


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
