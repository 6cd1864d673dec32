"""The parameter server and its workers: gradients that come late for real, over torch.distributed's messages.

    rank 0, the server     hands out the mini-batches of an epoch in their order, each with the present weights and
                           buffers to a worker that has nothing to do; makes an update by each gradient that comes in
    each other rank        computes the gradient of a mini-batch at the weights that it was given, and sends it back
                           with its sums, the buffers, and what signal it has got

To the server's loop a mini-batch is one whose gradient has come in, so updates, checkpoints, callbacks, criteria and
evaluations are those of a run on one rank. It computes no gradients itself: while it did, all others would wait. An
epoch ends when all its gradients have been applied, so each sample counts once in it.

A message is words (JSON) and tensors whose forms both sides know from the module. Li et al. 2014, Dean et al. 2012.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed

from descend import errors
from descend.data import Batch, Batches
from descend.errors import ConfigurationError, DescendError, LostPeer, Unsupported
from descend.train.nonfinite_report import diagnose_batch
from descend.train.progress import Mode
from descend.train.strategies.delayed import StaleGradients, compensated_by, restore_stale_weights
from descend.train.task import Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from descend.runtime import Communicator
    from descend.train.session import Session

__all__ = ["Channel", "ParameterServerRank", "run_worker"]

_SERVER = 0


class Channel:
    """Messages between two ranks, one after the other.

    Args:
        world: This process among all ranks, which make this together.
    """

    def __init__(self, world: Communicator) -> None:
        self._rank = world.rank
        self._group = world.group
        if distributed.get_backend(world.group) != "gloo":
            self._group = cast("distributed.ProcessGroup", distributed.new_group(backend="gloo"))

    def send(self, to: int, words: Mapping[str, Any], tensors: Sequence[torch.Tensor] = ()) -> None:
        """Send a message; returns when it is on its way."""
        text = torch.frombuffer(bytearray(json.dumps(dict(words)).encode()), dtype=torch.uint8)
        flat = _joined(tensors)
        for part in (torch.tensor([len(text), len(flat)]), text, *flat):
            distributed.send(part, group=self._group, group_dst=to)

    def receive(self, source: int, forms: Sequence[torch.Tensor]) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Wait for a message.

        Args:
            source: The rank that it comes from.
            forms: Tensors like those that it may bring; it brings all of them or none.
        """
        head = torch.zeros(2, dtype=torch.int64)
        distributed.recv(head, group=self._group, group_src=source)
        text = torch.empty(int(head[0]), dtype=torch.uint8)
        distributed.recv(text, group=self._group, group_src=source)
        words = cast("dict[str, Any]", json.loads(text.numpy().tobytes()))
        if not head[1]:
            return words, []
        flat = [torch.empty(_count(some), dtype=kind) for kind, some in _by_type(forms).items()]
        for part in flat:
            distributed.recv(part, group=self._group, group_src=source)
        return words, _parted(flat, forms)


def _by_type(tensors: Sequence[torch.Tensor]) -> dict[torch.dtype, list[torch.Tensor]]:
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.dtype, []).append(tensor)
    return found


def _count(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _joined(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the CPU, those of one type side by side."""
    return [torch.cat([t.detach().reshape(-1) for t in some]).cpu() for some in _by_type(tensors).values()]


def _parted(flat: Sequence[torch.Tensor], forms: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What was joined, in the order and the shapes of `forms`."""
    parts = {
        kind: iter(one.split([tensor.numel() for tensor in some]))
        for one, (kind, some) in zip(flat, _by_type(forms).items(), strict=True)
    }
    return [next(parts[tensor.dtype]).view(tensor.shape) for tensor in forms]


@dataclass
class _PendingGradient:
    """What a worker is at, and what came of it.

    Attributes:
        epoch: Of the mini-batch.
        number: Of the mini-batch within the epoch.
        version: Updates that the weights had seen.
        had: These weights by name, where they are asked for later.
        began: When it was handed out.
        words: What the worker has to say.
        tensors: Its gradients, and its buffers.
        error: Why nothing came.
        done: Set when there is one or the other.
    """

    epoch: int
    number: int
    version: int
    had: dict[str, torch.Tensor]
    began: float
    words: dict[str, Any] = field(default_factory=dict[str, Any])
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    error: RuntimeError | None = None
    done: threading.Event = field(default_factory=threading.Event)


class ParameterServerRank(StaleGradients):
    """Rank 0: where the weights are.

    Args:
        world: This process among all ranks.
    """

    def __init__(self, world: Communicator) -> None:
        self._mail, self._doing = Channel(world), world.status
        self._doing.is_busy = True  # the first update may wait for a compiler, which workers have no use for
        self._doing.served = range(1, world.world_size)
        self._idle = deque(range(1, world.world_size))
        self._busy: dict[int, _PendingGradient] = {}
        self._arrived: SimpleQueue[int] = SimpleQueue()
        self._forms: list[torch.Tensor] = []
        self._version = 0
        self._newest: _PendingGradient | None = None  # whose gradient is being applied
        self._epoch, self._next, self._again = 0, 0, list[int]()  # mini-batches that are still to be handed out
        self._restored: Mapping[str, Any] | None = None

    # ---- for the loop

    def batches(self, session: Session, epoch: int, position: int, taken: int) -> Generator[Batch]:
        """See `Late.batches`; a mini-batch has no fields here."""
        feed = _batches_of(session)
        self._plan(feed, epoch, position, taken)
        steps, size = feed.steps_per_epoch, feed.batch_size
        for done in range(position + 1, steps + 1):
            if feed.batch_size != size:
                raise ConfigurationError(
                    "a callback has changed the size of mini-batches, which a parameter server has handed out already"
                )
            session.waits(False)  # a signal must not cut a message in two
            self._hand_out(session, steps)
            errand = self._newest = self._next_arrival(session)
            share = feed.share_of(epoch, errand.number)
            yield Batch({}, share.ids, epoch, share.step, share.size, done == steps)
            self._newest = None
            self._doing.is_busy = False

    def gradient(
        self, session: Session, compute: Callable[[], tuple[torch.Tensor, Totals]]
    ) -> tuple[torch.Tensor, Totals]:
        """See `Late.gradient`; nothing is computed here."""
        errand = self._newest
        assert errand is not None
        if session.watch.wanted:
            raise ConfigurationError(
                "a callback wants to see the outputs of layers in training, which workers compute and a parameter "
                "server does not: leave it out"
            )
        gradients, buffers = errand.tensors[: len(session.weights)], errand.tensors[len(session.weights) :]
        for (name, p), gradient in zip(session.weights.items(), gradients, strict=True):
            p.grad = gradient.to(p.device) if p.requires_grad and name in errand.words["present"] else None
        _copy(buffers, session.task.module.buffers())
        return torch.tensor(errand.words["objective"]), Totals(errand.words["totals"])

    def before_update(self, session: Session) -> None:
        """See `Late.before_update`."""
        assert self._newest is not None
        restore_stale_weights(session.optimizer, session.weights, self._newest.had)
        self._version += 1
        self._newest = None

    def diagnose(self, batch: Batch) -> list[str]:
        """See `Late.causes`."""
        why = self._newest and self._newest.words["cause"]
        return [f"rank {self.worker}: {why or 'its gradient was finite when it was sent'}"]

    def state(self) -> dict[str, Any]:
        """See `Late.state`: which mini-batches of the epoch have not been applied."""
        out = [*self._busy.values(), *([self._newest] if self._newest else [])]
        again = sorted([*self._again, *(errand.number for errand in out if errand.epoch == self._epoch)])
        return {"epoch": self._epoch, "next": self._next, "again": again}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Late.load_state`."""
        self._restored = state

    # ---- mini-batches

    def _plan(self, feed: Batches, epoch: int, position: int, taken: int) -> None:
        """What of an epoch is to be handed out."""
        saved, self._restored = self._restored, None
        self._epoch, self._next, self._again = epoch, position, []
        if not position:
            return
        if saved and saved["epoch"] == epoch:
            self._next, self._again = saved["next"], list(saved["again"])
        whole = position * feed.batch_size
        if self._next - len(self._again) != position or not whole - feed.batch_size < taken <= whole:
            raise ConfigurationError(
                f"epoch {epoch} was begun with mini-batches of another size, and a parameter server hands them out by "
                "their numbers: finish it with that batch_size"
            )

    def _hand_out(self, session: Session, steps: int) -> None:
        """Give those workers something to do that have nothing, as far as the epoch goes."""
        had: dict[str, torch.Tensor] = {}
        compensated = compensated_by(session.optimizer)
        while self._idle and (self._again or self._next < steps):
            if not had:
                had = {name: p.detach().clone() for name, p in session.weights.items() if id(p) in compensated}
            if self._again:
                number = self._again.pop(0)
            else:
                number, self._next = self._next, self._next + 1
            worker = self._idle.popleft()
            self._busy[worker] = _PendingGradient(self._epoch, number, self._version, had, time.monotonic())
            step = session.contexts[Mode.TRAIN].step + len(self._busy) - 1
            words = {"epoch": self._epoch, "number": number, "step": step}
            self._give(worker, session, words)
            self._forms = [*session.weights.values(), *session.task.module.buffers()]
            # No daemon: torch aborts where Python ends under a thread that waits. It ends with its worker.
            threading.Thread(target=self._listen, args=(worker,), name="descend-server").start()

    def _give(self, worker: int, session: Session, words: Mapping[str, Any]) -> None:
        with self._doing.waiting_patiently(), self._doing.wait(f"rank {worker} to take the weights"):
            self._mail.send(worker, words, [*session.weights.values(), *session.task.module.buffers()])

    def _listen(self, worker: int) -> None:
        """Wait for one gradient, in a thread of its own: torch cannot wait for whichever comes first."""
        errand = self._busy[worker]
        try:
            errand.words, errand.tensors = self._mail.receive(worker, self._forms)
        except RuntimeError as error:
            errand.error = error
        errand.done.set()
        self._arrived.put(worker)

    def _next_arrival(self, session: Session) -> _PendingGradient:
        """The next gradient that comes in; where a signal ends the waiting, it stays to be applied after a restart."""
        with self._doing.waiting_patiently(), self._doing.wait("a gradient of a worker"):
            # A worker that hangs is found out by how long it has been at its errand, whatever the others do meanwhile.
            self._doing.since = min(errand.began for errand in self._busy.values())
            session.waits(True)
            worker = self._arrived.get()
            session.waits(False)
            errand = self._took(worker)
        self.worker, self.delay = worker, self._version - errand.version
        return errand

    def _took(self, worker: int) -> _PendingGradient:
        errand = self._busy.pop(worker)
        if errand.error:
            raise LostPeer(f"rank {worker} has gone with a gradient under way: {errand.error}") from errand.error
        self._idle.append(worker)
        self.asked = self.asked or errand.words["asked"]
        return errand

    # ---- the end

    def dismiss(self, words: Mapping[str, Any], tensors: Sequence[torch.Tensor] = ()) -> None:
        """Wait for what is under way, throw it away, and let the workers go with some last words."""
        for worker in list(self._busy):
            with self._doing.waiting_patiently(), self._doing.wait(f"the last gradient of rank {worker}"):
                self._doing.since = self._busy[worker].began
                self._busy[worker].done.wait()
                self._took(worker)
        for worker in self._idle:
            with self._doing.waiting_patiently(), self._doing.wait(f"rank {worker} to take the weights"):
                self._mail.send(worker, words, tensors)

    def fail(self, error: DescendError) -> None:
        """Let the workers end as the server does."""
        self.dismiss({"error": type(error).__name__, "problems": list(error.problems)})


def run_worker(
    session: Session, mail: Channel, compute: Callable[[Session, Batch], tuple[torch.Tensor, Totals]]
) -> dict[str, Any]:
    """Compute gradients for the server until it has no more use for them; its last words.

    Raises:
        DescendError: what the server ended with.
    """
    forms = [*session.weights.values(), *session.task.module.buffers()]
    doing = session.communicator.status
    while True:
        with doing.waiting_patiently(), doing.wait("weights of the parameter server"):
            words, tensors = mail.receive(_SERVER, forms)
        if "error" in words:
            raise _error_of(words)
        _copy(tensors, forms)
        if "end" in words:
            return words["end"]
        batch = _batches_of(session).of_step(words["epoch"], words["number"])
        session.contexts[Mode.TRAIN].step = words["step"]
        answer = _answer(session, batch, compute)
        with doing.waiting_patiently(), doing.wait("the parameter server to take a gradient"):
            mail.send(_SERVER, *answer)
        doing.steps += 1


def _answer(
    session: Session, batch: Batch, compute: Callable[[Session, Batch], tuple[torch.Tensor, Totals]]
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """What is sent for a mini-batch."""
    objective, totals = compute(session, batch)
    weights = session.weights
    if sparse := [name for name, p in weights.items() if p.grad is not None and p.grad.is_sparse]:
        raise Unsupported(f"'{sparse[0]}' has a sparse gradient, and a parameter server takes none: use sparse=False")
    words = {
        "asked": session.stop_requested(),
        "present": [name for name, p in weights.items() if p.grad is not None],
        "objective": float(objective),
        "totals": {name: pair.tolist() for name, pair in totals.state().items()},
        "cause": diagnose_batch(batch) if session.numerics.nonfinite_parameters(weights) else None,
    }
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights.values()]
    return words, [*gradients, *session.task.module.buffers()]


@torch.no_grad()
def _copy(values: Sequence[torch.Tensor], places: Any) -> None:
    for place, value in zip(places, values, strict=True):
        place.copy_(value)


def _batches_of(session: Session) -> Batches:
    feed = session.data[Mode.TRAIN]
    assert isinstance(feed, Batches)  # looked at before anything began
    return feed


def _error_of(words: Mapping[str, Any]) -> DescendError:
    kind = getattr(errors, words["error"], LostPeer)
    return kind(words["problems"])
