"""The parameter server and its workers: stale gradients, over torch.distributed's point-to-point messages.

    rank 0, the server     hands out the mini-batches of an epoch in their order, each with the present weights and
                           buffers to a worker that has nothing to do; makes an update by each gradient that comes in
    each other rank        computes the gradient of a mini-batch at the weights that it was given, and sends it back
                           with its sums, the buffers, and what signal it has got

To the server's loop a mini-batch is one whose gradient has come in, so updates, checkpoints, callbacks, criteria and
evaluations are those of a run on one rank. It computes no gradients itself: while it did, all others would wait. An
epoch ends when all its gradients have been applied, so each sample counts once in it.

`channel.py` sends messages, `worker_pool.py` knows what each worker computes. Li et al. 2014, Dean et al. 2012.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend import errors
from descend.arguments import shown
from descend.arguments.strict_keywords import StrictKeywords
from descend.data import Batch, Batches
from descend.data.loading.map_dataset import SampleReader
from descend.errors import ConfigurationError, DescendError, LostPeer, Unsupported
from descend.runtime.gradient_check import nonfinite_parameters
from descend.train.algorithms import BatchedIterativeOptimizer
from descend.train.callback import Callbacks
from descend.train.events import Event
from descend.train.nonfinite_report import diagnose_batch
from descend.train.objective import Ratio, Totals
from descend.train.progress import Mode
from descend.train.store import RunStore
from descend.train.strategies.base import Strategy, StrategyDescription
from descend.train.strategies.channel import Channel
from descend.train.strategies.worker_pool import (
    PendingGradient,
    RecordDelays,
    SimulatedDelays,
    StaleGradients,
    WorkerPool,
    compensated_by,
    restore_stale_weights,
)
from descend.train.strategies.zero import ZeroRedundancyOptimizer
from descend.train.transforms.base import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from descend.runtime import Communicator
    from descend.train.run import Run

__all__ = ["BatchQueue", "ParameterServer", "ParameterServerRank", "Worker"]

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
        if wanted is None:
            return None
        if isinstance(wanted, cls):
            return wanted.given_by(f"asynchronous={shown(wanted)}")
        raise ConfigurationError(f"asynchronous must be descend.ParameterServer() or None, got {shown(wanted)}")

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
        return [f"{self.written} does not go with {what}" for what, is_there in wrong.items() if is_there]

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


class BatchQueue:
    """The mini-batches of an epoch that are still to hand out: new ones in order, and those whose gradient was lost.

    Attributes:
        epoch: Number of the epoch.
    """

    def __init__(self) -> None:
        self.epoch, self._next, self._again = 0, 0, list[int]()
        self._restored: Mapping[str, Any] | None = None

    def begin(self, feed: Batches, epoch: int, position: int, taken: int) -> None:
        """Begin an epoch, or go on in one.

        Args:
            feed: The training data.
            epoch: Number of the epoch.
            position: Mini-batches of it that have been applied.
            taken: Samples of them.

        Raises:
            ConfigurationError: these mini-batches had another size.
        """
        saved, self._restored = self._restored, None
        self.epoch, self._next, self._again = epoch, position, []
        if not position:
            return
        if saved and saved["epoch"] == epoch:
            self._next, self._again = saved["next"], list(saved["again"])
        if self._next - len(self._again) != position or taken != min(position * feed.batch_size, feed.num_samples):
            raise ConfigurationError(
                f"epoch {epoch} was begun with mini-batches of another size, and a parameter server hands them out by "
                "their numbers: finish it with that batch_size, and let callbacks change it between two epochs"
            )

    def pop(self, steps: int) -> int | None:
        """The number of the next mini-batch; None where all `steps` have been handed out."""
        if self._again:
            return self._again.pop(0)
        if self._next >= steps:
            return None
        self._next += 1
        return self._next - 1

    def state(self, pending: Sequence[PendingGradient]) -> dict[str, Any]:
        """What a checkpoint keeps: gradients that are pending are computed again after a restart."""
        again = sorted([*self._again, *(one.number for one in pending if one.epoch == self.epoch)])
        return {"epoch": self.epoch, "next": self._next, "again": again}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, once the epoch is begun."""
        self._restored = state


class ParameterServerRank(StaleGradients):
    """Rank zero: keeps the parameters and makes the updates.

    Args:
        world: This process among all ranks.
        pool: Its workers; by default all other ranks.
    """

    def __init__(self, world: Communicator, pool: WorkerPool | None = None) -> None:
        self._world, self._status = world, world.status
        self._status.is_busy = True  # the first update may wait for a compiler, which workers have no use for
        self._pool = pool or WorkerPool(world)
        self._queue = BatchQueue()
        self._version = 0
        self._newest: PendingGradient | None = None  # whose gradient is being applied

    @property
    def world(self) -> Communicator:
        """See `Strategy.world`."""
        return self._world

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """See `Strategy.running`; the workers end as the server does."""
        try:
            yield
        except LostPeer:
            raise
        except DescendError as error:
            self._pool.dismiss({"error": type(error).__name__, "problems": list(error.problems)})
            raise
        run, module = self._run, self._run.task.module
        end = {
            "history": run.state.history,
            "reason": run.state.end,
            "run_dir": None if run.store.directory is None else str(run.store.directory),
            "steps": run.state.step,
        }
        self._pool.dismiss({"end": end}, [*module.parameters(), *module.buffers()])

    # ---- for the loop

    def batches(self) -> Generator[Batch]:
        """See `Strategy.batches`: in the order in which gradients arrive. A mini-batch has no fields here."""
        run, now = self._run, self._run.state.training
        epoch, position = now.epoch, now.position
        feed = _batches_of(run)
        self._queue.begin(feed, epoch, position, now.taken)
        steps, size = feed.steps_per_epoch, feed.batch_size
        for done in range(position + 1, steps + 1):
            if feed.batch_size != size:
                raise ConfigurationError(
                    "a callback has changed the size of mini-batches, which a parameter server has handed out already"
                )
            run.stop.waiting(False)  # a signal must not cut a message in two
            self._hand_out(steps)
            arrived = self._newest = self._pool.next_arrival(run.stop)
            self.worker, self.delay = arrived.worker, self._version - arrived.version
            share = feed.share_of(epoch, arrived.number)
            yield Batch({}, share.ids, epoch, share.step, share.size, done == steps)
            self._newest = None
            self._status.is_busy = False

    def gradients(self, batch: Batch, compute: Callable[[], Gradients]) -> Gradients:
        """See `Strategy.gradients`; nothing is computed here."""
        arrived, run = self._newest, self._run
        assert arrived is not None
        if run.activations.wanted:
            raise ConfigurationError(
                "a callback wants to see the outputs of layers in training, which workers compute and a parameter "
                "server does not: leave it out"
            )
        gradients, buffers = arrived.tensors[: len(self.parameters)], arrived.tensors[len(self.parameters) :]
        for (name, p), gradient in zip(self.parameters.items(), gradients, strict=True):
            p.grad = gradient.to(p.device) if p.requires_grad and name in arrived.words["present"] else None
        _copy(buffers, run.task.module.buffers())
        objective = Ratio(torch.tensor(arrived.words["objective"]), 1.0)
        return Gradients(run, batch, objective, Totals(arrived.words["totals"]), float(batch.size))

    def optimizer_step(self, batch: Batch) -> None:
        """See `Strategy.optimizer_step`."""
        assert self._newest is not None
        restore_stale_weights(self._run.optimizer, self.parameters, self._newest.stale)
        self._version += 1
        self._newest = None
        super().optimizer_step(batch)

    def diagnose(self, batch: Batch) -> list[str]:
        """See `Strategy.diagnose`."""
        why = self._newest and self._newest.words["cause"]
        return [f"rank {self.worker}: {why or 'its gradient was finite when it was sent'}"]

    def stop_requested(self) -> str | None:
        """See `Strategy.stop_requested`; workers receive signals as well."""
        return super().stop_requested() or self._pool.signal

    def own_state(self) -> dict[str, Any]:
        """See `Strategy.own_state`: which mini-batches of the epoch have not been applied."""
        return self._queue.state([*self._pool.pending, *([self._newest] if self._newest else [])])

    def load_own_state(self, state: dict[str, Any]) -> None:
        """See `Strategy.load_own_state`."""
        self._queue.load(state)

    def _hand_out(self, steps: int) -> None:
        """Give idle workers a mini-batch each, as far as the epoch goes."""
        run = self._run
        state = [*self.parameters.values(), *run.task.module.buffers()]
        stale: dict[str, torch.Tensor] = {}
        compensated = compensated_by(run.optimizer)
        while self._pool.has_idle and (number := self._queue.pop(steps)) is not None:
            if not stale:
                stale = {name: p.detach().clone() for name, p in self.parameters.items() if id(p) in compensated}
            step = run.state.step + len(self._pool.pending)
            size = _batches_of(run).batch_size
            self._pool.assign(self._queue.epoch, number, size, self._version, step, stale, state)


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

    @property
    def serve(self) -> Callable[[], dict[str, Any]]:
        """See `Strategy.serve`."""
        return self._serve

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
            batches = _batches_of(run)
            batches.batch_size = words["size"]  # which callbacks of the server may have changed between two epochs
            batch = batches.of_step(words["epoch"], words["number"])
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
        with run.buffer_snapshot.restored_on_error():
            found = compute_gradients(run, batch)
        if sparse := [name for name, p in self.parameters.items() if p.grad is not None and p.grad.is_sparse]:
            raise Unsupported(
                f"'{sparse[0]}' has a sparse gradient, and a parameter server takes none: use sparse=False"
            )
        words = {
            "asked": run.stop.requested(),
            "present": [name for name, p in self.parameters.items() if p.grad is not None],
            "objective": float(found.value),
            "totals": found.totals.plain(),
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
