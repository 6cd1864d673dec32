"""Asynchronous runs: what goes with them, a record of the delays, and the two roles of a run on several ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from descend.callbacks.console import say
from descend.data import Batches
from descend.data.map_dataset import SampleReader
from descend.errors import ConfigurationError, DescendError, LostPeer
from descend.experiment.ranks import compare
from descend.experiment.runner import Result, Work, execute, open_run, result_of
from descend.runtime import Communicator, SignalHandler
from descend.train import BatchedIterativeOptimizer, Callback, Event, Mode
from descend.train.callback import Callbacks
from descend.train.step import gradient
from descend.train.strategies.delayed import SimulatedDelays
from descend.train.strategies.parameter_server import Channel, ParameterServerRank, run_worker

if TYPE_CHECKING:
    import os

    import torch

    from descend.data import Batch
    from descend.train import ParameterServer, RunView, StepView
    from descend.train.session import Session
    from descend.train.strategies.delayed import StaleGradients
    from descend.train.task import Totals

__all__ = ["alone", "check_asynchronous", "execute_asynchronous"]


class Delays(Callback):
    """Records the delay of updates as `train/delay`, with the rank of the worker, and says at the end what they were.

    Runs:  after_step.
    Reads: where gradients come from. Changes nothing.
    Costs: a row of the history each time.
    """

    remembers: ClassVar[tuple[str, ...]] = ("updates", "total", "largest")
    records: ClassVar[tuple[str, ...]] = ("delay", "worker", "mini_batch")

    def __init__(self, late: StaleGradients, every_steps: int) -> None:
        self._late, self._every_steps = late, every_steps
        self.updates = self.total = self.largest = 0

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.updates = self.total = self.largest = 0

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        late = self._late
        self.updates, self.total = self.updates + 1, self.total + late.delay
        self.largest = max(self.largest, late.delay)
        if self._every_steps and step.step % self._every_steps == 0:
            found = {"delay": late.delay, "worker": late.worker, "mini_batch": step.batch.step}
            step.run.control.record(found, step.step)

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        if self.updates:
            say(
                f"delays of {self.updates:,} gradients: {self.total / self.updates:.2f} updates on average, "
                f"{self.largest} at most"
            )


def check_asynchronous(rule: Any, ranks: int, trainers: int, work: Work, skip_bad: int) -> None:
    """Refuse what has no meaning where gradients come late.

    Args:
        rule: What was asked for.
        ranks: How many there are.
        trainers: Likewise.
        work: The run.
        skip_bad: Samples that may be replaced.

    Raises:
        ConfigurationError: all such things.
    """
    wrong = {
        "shard_optimizer: the server alone makes updates, so there is no state to share out": work.shard_optimizer,
        "gradient_compression: gradients come one by one, and there is nothing to vote on": work.compression,
        f"trainers: there are {trainers}, and one server": trainers > 1,
        f"algorithm: {type(work.algorithm).__name__} is not mini-batch descent": (
            not isinstance(work.algorithm, BatchedIterativeOptimizer)
        ),
        "precision: the loss scale of float16 follows each gradient; take bfloat16 or float32": work.numerics.scaler,
    }
    if ranks > 1:
        wrong |= _wrong_with_workers(rule, ranks, work, skip_bad)
    if problems := [f"asynchronous= does not go with {what}" for what, there in wrong.items() if there]:
        raise ConfigurationError(problems)


def _wrong_with_workers(rule: ParameterServer, ranks: int, work: Work, skip_bad: int) -> dict[str, Any]:
    feed = work.data[Mode.TRAIN]
    reader = feed.reader if isinstance(feed, Batches) else None
    return {
        f"made delays on {ranks} ranks: there they come about": rule.made,
        "data that come as a stream: workers take mini-batches by their numbers": not isinstance(feed, Batches),
        "workers: each rank reads a mini-batch when it is handed out": isinstance(reader, SampleReader) and reader.pool,
        "skip_bad: each rank would replace samples for itself": skip_bad,
        "callbacks that look at micro-batches, of which the server sees none": (
            Callbacks(work.callbacks).wants(Event.AFTER_PART)
        ),
    }


def alone(rule: ParameterServer, work: Work) -> Work:
    """The run of one process, whose delays are made."""
    return _with(work, SimulatedDelays(rule), rule)


def _with(work: Work, late: StaleGradients, rule: ParameterServer) -> Work:
    return replace(work, late=late, callbacks=(Delays(late, rule.every_steps), *work.callbacks))


def execute_asynchronous(
    rule: ParameterServer, work: Work, world: Communicator, run_dir: str | os.PathLike[str] | None, **kept: bool
) -> Result:
    """Carry out a run as the server, or as one of its workers.

    Args:
        rule: What was asked for.
        work: The run of a process that is alone.
        world: This process among all ranks.
        run_dir: See `conduct`.
        kept: See `conduct`.

    Raises:
        Errors of `descend.errors`, the same on all ranks where the server has come to them.
    """
    compare(work, world)
    if world.is_rank_zero:
        return _as_server(ParameterServerRank(world), rule, work, run_dir, **kept)
    return _as_worker(Channel(world), work)


def _as_server(
    server: ParameterServerRank, rule: ParameterServer, work: Work, run_dir: str | os.PathLike[str] | None, **kept: bool
) -> Result:
    try:
        result = execute(_with(work, server, rule), run_dir, **kept)
    except LostPeer:
        raise
    except DescendError as error:
        server.fail(error)
        raise
    end = {
        "history": result.history,
        "reason": result.reason,
        "run_dir": None if result.run_dir is None else str(result.run_dir),
        "steps": result.steps,
    }
    server.dismiss({"end": end}, [*result.module.parameters(), *result.module.buffers()])
    return result


def _as_worker(mail: Channel, work: Work) -> Result:
    def compute(session: Session, batch: Batch) -> tuple[torch.Tensor, Totals]:
        session.task.module.train()
        session.buffers.keep()
        return gradient(session, batch, session.view())

    with SignalHandler() as requests, open_run(replace(work, callbacks=()), None, requests, keep_files=False) as opened:
        end = run_worker(opened.session, mail, compute)
        own = result_of(opened, end["reason"])
    folder = end["run_dir"] and Path(end["run_dir"])
    return replace(own, history=end["history"], run_dir=folder, steps=end["steps"])
