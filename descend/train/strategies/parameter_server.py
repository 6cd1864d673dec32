"""The parameter server and its workers: stale gradients, over torch.distributed's point-to-point messages.

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
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import distributed

from descend import errors
from descend.data import Batch, Batches
from descend.data.map_dataset import SampleReader
from descend.errors import ConfigurationError, DescendError, LostPeer, Unsupported
from descend.strict_keywords import StrictKeywords
from descend.train.algorithms import BatchedIterativeOptimizer
from descend.train.callback import Callbacks
from descend.train.events import Event
from descend.train.nonfinite_report import diagnose_batch
from descend.train.objective import Ratio, Totals
from descend.train.optimizers.zero import ZeroRedundancyOptimizer
from descend.train.progress import Mode
from descend.train.store import RunStore
from descend.train.strategies.base import Strategy, StrategyDescription
from descend.train.strategies.delayed import (
    RecordDelays,
    SimulatedDelays,
    StaleGradients,
    compensated_by,
    restore_stale_weights,
)
from descend.train.transforms.base import Gradients
from descend.train.transforms.check_finite import nonfinite_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from descend.runtime import Communicator
    from descend.train.run import Run
    from descend.train.strategies.base import RunExecutor

__all__ = ["Channel", "ParameterServer", "ParameterServerRank", "Worker"]

_SERVER = 0


@dataclass(frozen=True)
class ParameterServer(StrategyDescription, metaclass=StrictKeywords):
    """Asynchronous descent, a strategy for `fit`: rank zero keeps the parameters and makes the updates.

    Each other rank sends it gradients.

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
            f"ParameterServer: {name} must be an integer >= 0, got {number!r}"
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
        raise ConfigurationError(f"asynchronous must be descend.ParameterServer() or None, got {wanted!r}")

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

    def communicator(self, world: Communicator) -> Communicator:
        """See `StrategyDescription.communicator`: each rank takes whole mini-batches."""
        return replace(world, rank=0, world_size=1, group=None)

    def create(self, world: Communicator) -> Strategy:
        """See `StrategyDescription.create`."""
        if world.world_size == 1:
            return SimulatedDelays(self.delay, self.oldest)
        return ParameterServerRank(world) if world.is_rank_zero else Worker(world)

    def problems(self, run: Run, world: Communicator, trainers: int) -> list[str]:
        """See `StrategyDescription.problems`."""
        algorithm = run.config.algorithm
        wrong: dict[str, Any] = {
            "shard_optimizer: the server alone makes updates, so there is no state to share out": (
                isinstance(run.optimizer, ZeroRedundancyOptimizer)
            ),
            f"trainers: there are {trainers}, and one server": trainers > 1,
            f"algorithm: {type(algorithm).__name__} is not mini-batch descent": (
                not isinstance(algorithm, BatchedIterativeOptimizer)
            ),
            "precision: the loss scale of float16 follows each gradient; take bfloat16 or float32": (
                run.precision.checks_for_overflow
            ),
        }
        if world.world_size > 1:
            wrong |= self._wrong_with_workers(run, world.world_size)
        return [f"asynchronous= does not go with {what}" for what, is_there in wrong.items() if is_there]

    def prepare(self, run: Run, world: Communicator) -> None:
        """See `StrategyDescription.prepare`: the server records delays, the workers record nothing."""
        if isinstance(run.strategy, StaleGradients):
            delays = RecordDelays(run.strategy, self.every_steps, run.say)
            run.callbacks = Callbacks((delays, *run.callbacks.all))
        else:
            run.callbacks, run.store = Callbacks(), RunStore()

    def _wrong_with_workers(self, run: Run, ranks: int) -> dict[str, Any]:
        feed = run.data[Mode.TRAIN]
        reader = feed.reader if isinstance(feed, Batches) else None
        return {
            f"simulated delays on {ranks} ranks: there they happen": self.made,
            "data that come as a stream: workers take mini-batches by their numbers": not isinstance(feed, Batches),
            "workers: each rank reads a mini-batch when it is handed out": (
                isinstance(reader, SampleReader) and reader.pool
            ),
            "skip_bad: each rank would replace samples for itself": run.config.settings.get("skip_bad"),
            "callbacks that look at micro-batches, of which the server sees none": (
                run.callbacks.wants(Event.AFTER_PART)
            ),
        }


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
    """Rank zero: keeps the parameters and makes the updates.

    Args:
        world: This process among all ranks.
    """

    def __init__(self, world: Communicator) -> None:
        self._world, self._channel, self._status = world, Channel(world), world.status
        self._status.is_busy = True  # the first update may wait for a compiler, which workers have no use for
        self._status.served = range(1, world.world_size)
        self._idle = deque(range(1, world.world_size))
        self._busy: dict[int, _PendingGradient] = {}
        self._arrived: SimpleQueue[int] = SimpleQueue()
        self._forms: list[torch.Tensor] = []
        self._version = 0
        self._signal: str | None = None  # that a worker has received
        self._newest: _PendingGradient | None = None  # whose gradient is being applied
        self._epoch, self._next, self._again = 0, 0, list[int]()  # mini-batches that are still to be handed out
        self._restored: Mapping[str, Any] | None = None

    @property
    def world(self) -> Communicator:
        """See `Strategy.world`."""
        return self._world

    def execute(self, run: Run, executor: RunExecutor) -> Any:
        """See `Strategy.execute`; the workers end as the server does."""
        try:
            result = executor.train(run)
        except LostPeer:
            raise
        except DescendError as error:
            self._dismiss({"error": type(error).__name__, "problems": list(error.problems)})
            raise
        end = {
            "history": result.history,
            "reason": result.reason,
            "run_dir": None if result.run_dir is None else str(result.run_dir),
            "steps": result.steps,
        }
        self._dismiss({"end": end}, [*result.module.parameters(), *result.module.buffers()])
        return result

    # ---- for the loop

    def batches(self) -> Generator[Batch]:
        """See `Strategy.batches`: in the order in which gradients arrive. A mini-batch has no fields here."""
        run, now = self._run, self._run.state.training
        epoch, position = now.epoch, now.position
        feed = _batches_of(run)
        self._plan(feed, epoch, position, now.taken)
        steps, size = feed.steps_per_epoch, feed.batch_size
        for done in range(position + 1, steps + 1):
            if feed.batch_size != size:
                raise ConfigurationError(
                    "a callback has changed the size of mini-batches, which a parameter server has handed out already"
                )
            run.stop.waiting(False)  # a signal must not cut a message in two
            self._hand_out(steps)
            errand = self._newest = self._next_arrival()
            share = feed.share_of(epoch, errand.number)
            yield Batch({}, share.ids, epoch, share.step, share.size, done == steps)
            self._newest = None
            self._status.is_busy = False

    def gradients(self, batch: Batch, compute: Callable[[], Gradients]) -> Gradients:
        """See `Strategy.gradients`; nothing is computed here."""
        errand, run = self._newest, self._run
        assert errand is not None
        if run.activations.wanted:
            raise ConfigurationError(
                "a callback wants to see the outputs of layers in training, which workers compute and a parameter "
                "server does not: leave it out"
            )
        gradients, buffers = errand.tensors[: len(self.parameters)], errand.tensors[len(self.parameters) :]
        for (name, p), gradient in zip(self.parameters.items(), gradients, strict=True):
            p.grad = gradient.to(p.device) if p.requires_grad and name in errand.words["present"] else None
        _copy(buffers, run.task.module.buffers())
        objective = Ratio(torch.tensor(errand.words["objective"]), 1.0)
        return Gradients(run, batch, objective, Totals(errand.words["totals"]), float(batch.size))

    def optimizer_step(self, batch: Batch) -> None:
        """See `Strategy.optimizer_step`."""
        assert self._newest is not None
        restore_stale_weights(self._run.optimizer, self.parameters, self._newest.had)
        self._version += 1
        self._newest = None
        super().optimizer_step(batch)

    def diagnose(self, batch: Batch) -> list[str]:
        """See `Strategy.diagnose`."""
        why = self._newest and self._newest.words["cause"]
        return [f"rank {self.worker}: {why or 'its gradient was finite when it was sent'}"]

    def stop_requested(self) -> str | None:
        """See `Strategy.stop_requested`; workers receive signals as well."""
        return super().stop_requested() or self._signal

    def own_state(self) -> dict[str, Any]:
        """See `Strategy.own_state`: which mini-batches of the epoch have not been applied."""
        out = [*self._busy.values(), *([self._newest] if self._newest else [])]
        again = sorted([*self._again, *(errand.number for errand in out if errand.epoch == self._epoch)])
        return {"epoch": self._epoch, "next": self._next, "again": again}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """See `Strategy.load_own_state`."""
        self._restored = state

    # ---- mini-batches

    def _plan(self, feed: Batches, epoch: int, position: int, taken: int) -> None:
        """Which mini-batches of an epoch are still to hand out."""
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

    def _hand_out(self, steps: int) -> None:
        """Give those workers something to do that have nothing, as far as the epoch goes."""
        had: dict[str, torch.Tensor] = {}
        compensated = compensated_by(self._run.optimizer)
        while self._idle and (self._again or self._next < steps):
            if not had:
                had = {name: p.detach().clone() for name, p in self.parameters.items() if id(p) in compensated}
            if self._again:
                number = self._again.pop(0)
            else:
                number, self._next = self._next, self._next + 1
            worker = self._idle.popleft()
            self._busy[worker] = _PendingGradient(self._epoch, number, self._version, had, time.monotonic())
            step = self._run.state.step + len(self._busy) - 1
            words = {"epoch": self._epoch, "number": number, "step": step}
            self._give(worker, words)
            self._forms = [*self.parameters.values(), *self._run.task.module.buffers()]
            # No daemon: torch aborts where Python ends under a thread that waits. It ends with its worker.
            threading.Thread(target=self._listen, args=(worker,), name="descend-server").start()

    def _give(self, worker: int, words: Mapping[str, Any]) -> None:
        with self._status.waiting_patiently(), self._status.wait(f"rank {worker} to take the weights"):
            self._channel.send(worker, words, [*self.parameters.values(), *self._run.task.module.buffers()])

    def _listen(self, worker: int) -> None:
        """Wait for one gradient, in a thread of its own: torch cannot wait for whichever comes first."""
        errand = self._busy[worker]
        try:
            errand.words, errand.tensors = self._channel.receive(worker, self._forms)
        except RuntimeError as error:
            errand.error = error
        errand.done.set()
        self._arrived.put(worker)

    def _next_arrival(self) -> _PendingGradient:
        """The next gradient that comes in; where a signal ends the waiting, it stays to be applied after a restart."""
        with self._status.waiting_patiently(), self._status.wait("a gradient of a worker"):
            # A worker that hangs is found out by how long it has been at its errand, whatever the others do meanwhile.
            self._status.since = min(errand.began for errand in self._busy.values())
            self._run.stop.waiting(True)
            worker = self._arrived.get()
            self._run.stop.waiting(False)
            errand = self._took(worker)
        self.worker, self.delay = worker, self._version - errand.version
        return errand

    def _took(self, worker: int) -> _PendingGradient:
        errand = self._busy.pop(worker)
        if errand.error:
            raise LostPeer(f"rank {worker} has gone with a gradient under way: {errand.error}") from errand.error
        self._idle.append(worker)
        self._signal = self._signal or errand.words["asked"]
        return errand

    # ---- the end

    def _dismiss(self, words: Mapping[str, Any], tensors: Sequence[torch.Tensor] = ()) -> None:
        """Wait for what is under way, throw it away, and let the workers go with some last words."""
        for worker in list(self._busy):
            with self._status.waiting_patiently(), self._status.wait(f"the last gradient of rank {worker}"):
                self._status.since = self._busy[worker].began
                self._busy[worker].done.wait()
                self._took(worker)
        for worker in self._idle:
            with self._status.waiting_patiently(), self._status.wait(f"rank {worker} to take the weights"):
                self._channel.send(worker, words, tensors)


class Worker(Strategy):
    """Any other rank: computes gradients for the server until it has no more use for them.

    Args:
        world: This process among all ranks.
    """

    def __init__(self, world: Communicator) -> None:
        self._world, self._channel = world, Channel(world)

    @property
    def world(self) -> Communicator:
        """See `Strategy.world`."""
        return self._world

    def execute(self, run: Run, executor: RunExecutor) -> Any:
        """See `Strategy.execute`."""
        return executor.serve(run, self._serve)

    def _serve(self) -> dict[str, Any]:
        """Answer the server's messages; its last words.

        Raises:
            DescendError: what the server ended with.
        """
        run = self._run
        forms = [*self.parameters.values(), *run.task.module.buffers()]
        status = run.communicator.status
        while True:
            with status.waiting_patiently(), status.wait("weights of the parameter server"):
                words, tensors = self._channel.receive(_SERVER, forms)
            if "error" in words:
                raise _error_of(words)
            _copy(tensors, forms)
            if "end" in words:
                return words["end"]
            batch = _batches_of(run).of_step(words["epoch"], words["number"])
            run.state.training.step = words["step"]
            answer = self._answer(batch)
            with status.waiting_patiently(), status.wait("the parameter server to take a gradient"):
                self._channel.send(_SERVER, *answer)
            status.steps += 1

    def _answer(self, batch: Batch) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """What is sent for a mini-batch."""
        from descend.train.step import compute_gradients  # which needs strategies

        run = self._run
        run.task.module.train()
        with run.buffers.restored_on_error():
            found = compute_gradients(run, batch)
        if sparse := [name for name, p in self.parameters.items() if p.grad is not None and p.grad.is_sparse]:
            raise Unsupported(
                f"'{sparse[0]}' has a sparse gradient, and a parameter server takes none: use sparse=False"
            )
        words = {
            "asked": run.stop.requested(),
            "present": [name for name, p in self.parameters.items() if p.grad is not None],
            "objective": float(found.value),
            "totals": {name: pair.tolist() for name, pair in found.totals.state().items()},
            "cause": diagnose_batch(batch) if nonfinite_parameters(self.parameters) else None,
        }
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters.values()]
        return words, [*gradients, *run.task.module.buffers()]


@torch.no_grad()
def _copy(values: Sequence[torch.Tensor], places: Any) -> None:
    for place, value in zip(places, values, strict=True):
        place.copy_(value)


def _batches_of(run: Run) -> Batches:
    feed = run.data[Mode.TRAIN]
    assert isinstance(feed, Batches)  # looked at before anything began
    return feed


def _error_of(words: Mapping[str, Any]) -> DescendError:
    kind = getattr(errors, words["error"], LostPeer)
    return kind(words["problems"])
