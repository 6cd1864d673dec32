"""What a training algorithm works on, and where it stands: the state of a run."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from descend.train.activations import ActivationRecorder
from descend.train.control import RunControl
from descend.train.events import Event, RunView
from descend.train.numerics import BufferSnapshot, Numerics
from descend.train.progress import ExecutionContext, Mode, Progress
from descend.train.strategies.data_parallel import DataParallelStep
from descend.train.strategies.fsdp import cut_of
from descend.train.task import Totals
from descend.train.turns import Lockstep

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from descend.data import Batch, Feed
    from descend.runtime import Communicator
    from descend.train.callback import Callbacks
    from descend.train.micro_batch import MicroBatch
    from descend.train.sharding import Sharding
    from descend.train.strategies.buffers import RunningStatistics
    from descend.train.strategies.delayed import StaleGradients
    from descend.train.strategies.majority_vote import Vote
    from descend.train.task import Preconditioner, Task

__all__ = ["EpochProgress", "Session"]


@dataclass
class EpochProgress:
    """What a pass over the training samples has gathered so far; saved with a checkpoint inside it.

    Attributes:
        samples_before: Samples seen before it.
        rows_before: Rows of the history before it.
        totals: Sums of objective and metrics.
        seconds: Its training time.
        skipped: Steps left out because a gradient was not finite.
        complete: Whether its last mini-batch is done; its validation may be still to come.
        told: Whether it was cut short and has its rows all the same; they are made anew when it goes on.
        closing: Whether its rows are being made, which a continuation from here makes anew, with what callbacks add.
        step_seconds: Length of each step since the process began.
    """

    samples_before: int
    rows_before: int
    totals: Totals = field(default_factory=Totals)
    seconds: float = 0.0
    skipped: int = 0
    complete: bool = False
    reported: bool = False
    reporting: bool = False
    step_seconds: list[float] = field(default_factory=list[float])

    def state(self, process: Communicator) -> dict[str, Any]:
        """The pass of all ranks as tensors and plain values without times."""
        return {
            "samples_before": self.samples_before,
            "rows_before": self.rows_before,
            "totals": self.totals.over(process).state(),
            "skipped": self.skipped,
            "complete": self.complete,
            "told": self.reported,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], process: Communicator) -> EpochProgress:
        """The pass that `state` described; of several ranks the first goes on with its sums."""
        pass_ = cls(
            state["samples_before"], state["rows_before"], Totals(state["totals"] if process.is_rank_zero else None)
        )
        pass_.skipped, pass_.complete, pass_.reported = state["skipped"], state["complete"], state["told"]
        return pass_


@dataclass
class Session:
    """Everything a training algorithm works on: one model, its data, and where each mode stands.

    Attributes:
        name: The model's name in logs.
        task: The module and its losses.
        optimizer: What updates the module.
        data: Mini-batches by mode; training is required, the others are optional.
        process: This process among its ranks, and its device.
        callbacks: Who watches.
        seed: Where the random numbers of the forward passes begin.
        micro_batch_size: Samples of a mini-batch that go through the module at once; None for all of them.
        adaptive: Whether a step that runs out of memory is made again with smaller micro-batches.
        unit: In training, micro-batches are made of whole units of so many samples; None where a mini-batch cannot be
            cut.
        numerics: Loss scale, look for non-finite gradients, clipping.
        epochs: Passes planned, where known.
        stop_requested: Returns the name of a signal that asked for an end, or None.
        waits: Told whether the run is waiting for a mini-batch, so that a signal may end that.
        record: Takes one row of `metrics.jsonl` as soon as it is known.
        rewrite: Takes all rows that `metrics.jsonl` is to hold, where some were taken back.
        save: Writes a checkpoint of this moment and returns its folder; see `descend.runtime.Wish`.
        save_seconds: Returns the longest that a save has taken.
        before_part: Called with each part of a mini-batch before it goes through the module.
        outside: Metrics that the module does not compute, asked at the end of each pass.
        say: Tells the user something.
        restore: Brings the session to where a checkpoint stands.
        directory: Where files of callbacks go; None for the current folder.
        scratch: Where they go on a rank that leaves no files; it is thrown away.
        summary_dir: Where TensorBoard's files go; None for a folder of the directory.
        contexts: One execution context a mode.
        began: Where the training algorithm that is under way was started; None between algorithms.
        under_way: The pass over the training samples that is under way; None between passes.
        seconds: Training time over all restarts, of whole steps.
        step_began: When the step under way began; None outside a pass over the training samples.
        history: All rows so far.
        values: The newest value of each quantity, by `mode/name`.
        skipped_in_a_row: Steps left out since the last update.
        end: Why the run ended, once it has.
        asked_to_stop: Why a callback wants training to end; None where none does.
        recut: Whether the rest of the pass is to be made into mini-batches of another size.
        preconditioner: Changes the gradient of each step before it is clipped, where the algorithm has such a thing.
        outputs: Outputs of layers that batched inference was asked for, by mode and layer.
        algorithm_state: What training algorithms remember, tensors and plain values; saved with a checkpoint.
        batches: The newest mini-batch of each mode.
        running: Buffers of the module that are running statistics of batch norm.
        signal_divisor: What gradients of outputs of layers are still to be divided by, loss scale aside.
        in_turns: Whether all ranks go through the module as often in each step.
        shard_optimizer: Whether each of several ranks keeps the optimizer's state of some weights only.
        vote: Takes the place of sums of gradients over ranks, where the ranks vote on signs.
        late: Where gradients come from that are computed at older weights; None where they are not.
    """

    name: str
    task: Task
    optimizer: torch.optim.Optimizer
    data: Mapping[Mode, Feed]
    communicator: Communicator
    callbacks: Callbacks
    seed: int = 0
    micro_batch_size: int | None = None
    adaptive: bool = False
    unit: int | None = 1
    numerics: Numerics = field(default_factory=Numerics)
    epochs: int | None = None
    stop_requested: Callable[[], str | None] = lambda: None
    waits: Callable[[bool], None] = lambda waiting: None
    record: Callable[[dict[str, Any]], None] = lambda row: None
    rewrite: Callable[[list[dict[str, Any]]], None] = lambda rows: None
    save: Callable[..., Path | None] = lambda *wish, **more: None
    save_seconds: Callable[[], float] = lambda: 0.0
    before_part: Callable[[MicroBatch], None] = lambda part: None
    outside: Callable[[], Mapping[str, float]] = dict
    say: Callable[[str], None] = lambda text: None
    restore: Callable[[Path], None] = lambda checkpoint: None
    directory: Path | None = None
    scratch: Path | None = None
    summary_dir: str | None = None
    contexts: dict[Mode, ExecutionContext] = field(
        default_factory=lambda: {mode: ExecutionContext(mode) for mode in Mode}
    )
    began: ExecutionContext | None = None
    epoch_progress: EpochProgress | None = None
    seconds: float = 0.0
    step_began: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    values: dict[str, float] = field(default_factory=dict[str, float])
    skipped_in_a_row: int = 0
    end: str = "ended by an error"
    asked_to_stop: str | None = None
    recut: bool = False
    preconditioner: Preconditioner | None = None
    outputs: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    algorithm_state: dict[str, Any] = field(default_factory=dict[str, Any])
    batches: dict[Mode, Batch] = field(default_factory=dict[Mode, "Batch"])
    running: Sequence[RunningStatistics] = ()
    signal_divisor: torch.Tensor | float = 1.0
    in_turns: bool = False
    shard_optimizer: bool = False
    vote: Vote | None = None
    late: StaleGradients | None = None

    def __post_init__(self) -> None:
        self.buffers = BufferSnapshot(self.task.module)
        self.weights = dict(self.task.module.named_parameters())
        self.cut = cut_of(self)
        in_turns = self.in_turns or self.cut is not None
        self.turns = Lockstep(self.task.module, self.communicator, self.in_turns) if in_turns else None
        self.adaptive = self.adaptive and self.turns is None  # no rank can leave a step that others wait in
        self.watch = ActivationRecorder(self.task.module, self.communicator)
        self.control = RunControl(self)
        self.together = DataParallelStep(self) if self.communicator.world_size > 1 else None
        self.meet("the beginning of the run")
        self._started = self.communicator.now()
        self._evaluation_seconds: dict[Mode, float] = {}

    @property
    def passes(self) -> int:
        """Whole passes over the training samples, the one that is just complete included."""
        return self.contexts[Mode.TRAIN].epoch + (self.epoch_progress is not None and self.epoch_progress.complete)

    def view(self, reason: str | None = None) -> RunView:
        """The run as callbacks see it."""
        return RunView(
            name=self.name,
            module=self.task.module,
            optimizer=self.optimizer,
            steps_per_epoch={mode: batches.steps_per_epoch for mode, batches in self.data.items()},
            batch_sizes={mode: (batches.first_size, batches.last_size) for mode, batches in self.data.items()},
            epochs=self.epochs,
            save=self.save,
            control=self.control,
            step=self.contexts[Mode.TRAIN].step,
            passes=self.passes,
            reason=reason,
        )

    @contextmanager
    def announced(self, acting: Callable[[], AbstractContextManager[object]] = nullcontext) -> Generator[None]:
        """Within this the run takes place: before_run comes first, after_run last, whatever ends the run.

        Every callback is told of the end, and the first error of all is the one that is raised.

        Args:
            acting: What callbacks are called within.
        """
        try:
            with acting():
                self.callbacks.fire(Event.BEFORE_RUN, self.view())
            yield
        except BaseException:
            self._say_of_end(self._end_announced(acting))
            raise
        if failures := self._end_announced(acting):
            self._say_of_end(failures[1:])
            raise failures[0]

    def _end_announced(self, acting: Callable[[], AbstractContextManager[object]]) -> list[BaseException]:
        with acting():
            return self.callbacks.fire_all(Event.AFTER_RUN, self.view(self.end))

    def _say_of_end(self, failures: Sequence[BaseException]) -> None:
        for failure in failures:
            self.say(f"after_run, called because of another error, raised {type(failure).__name__}: {failure}")

    def progress(self) -> Progress:
        """What a stopping criterion sees, counted from where the algorithm under way was started."""
        now, since = self.contexts[Mode.TRAIN], self.began or ExecutionContext(Mode.TRAIN)
        this_run = self.communicator.now() - self._started
        return Progress(
            now.step - since.step, self.passes - since.epoch, self.seconds, this_run, self.values, self._to_end()
        )

    def meet(self, at: str) -> None:
        """Wait for all ranks to come to this place of the run, and learn whether one of them asks for its end."""
        if self.together:
            self.together.synchronize(at)

    @property
    def own_weights(self) -> Mapping[str, torch.Tensor]:
        """The weights; of those that are cut up among ranks, stand-ins for the parts of this rank."""
        return self.cut.local_shards(self.weights) if self.cut else self.weights

    @property
    def sharding(self) -> Sharding | None:
        """Which rank keeps the optimizer's state of which weights; None where each has all of it."""
        return self.together.sharding if self.together else None

    def update(self) -> None:
        """One update of all weights by their gradients."""
        if self.vote:
            self.vote.cast(self.weights)
        if self.late:
            self.late.before_update(self)
        if self.sharding:
            self.sharding.step(lambda: self.numerics.step(self.optimizer))
        else:
            self.numerics.step(self.optimizer)

    def batches_to_come(self) -> Generator[Batch]:
        """The mini-batches that are left of the epoch under way."""
        now = self.contexts[Mode.TRAIN]
        at = now.epoch, now.position, now.taken
        return self.late.batches(self, *at) if self.late else self.data[Mode.TRAIN].epoch(*at)

    @contextmanager
    def undisturbed(self) -> Generator[None]:
        """Within this a signal waits: other trainers count on what is done here, and it cannot be left half done."""
        asked, waits = self.stop_requested, self.waits
        self.stop_requested, self.waits = (lambda: None), (lambda waiting: None)
        try:
            yield
        finally:
            self.stop_requested, self.waits = asked, waits

    def agreed_stop(self) -> str | None:
        """The name of a signal that asked for an end, which all ranks know since they last met; or None."""
        if self.together:
            return self.together.signal
        return self.stop_requested() or (self.late.asked if self.late else None)

    def _to_end(self) -> float:
        """What ending the run will take: twice the longest save, one step, and the evaluations that follow."""
        steps = self.epoch_progress.step_seconds if self.epoch_progress else ()
        return 2 * self.save_seconds() + (steps[-1] if steps else 0.0) + sum(self._evaluation_seconds.values())

    def seconds_of_step(self) -> float:
        """How long the step under way has taken so far."""
        return 0.0 if self.step_began is None else self.communicator.now() - self.step_began

    def note_evaluation(self, mode: Mode, seconds: float) -> None:
        """Keep how long an evaluation takes."""
        self._evaluation_seconds[mode] = max(seconds, self._evaluation_seconds.get(mode, 0.0))

    def rewind(self, rows: int) -> None:
        """Take back all rows but the first so many: they are made anew."""
        if rows < len(self.history):
            del self.history[rows:]
            self.rewrite(self.history)

    def keep(self, mode: Mode, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """Keep the outcome of one pass as a row of the history."""
        at = {"mode": mode.value, "epoch": self.passes, "step": self.contexts[Mode.TRAIN].step}
        row = {**at, **values, "samples": samples, "seconds": seconds}
        self.values.update({f"{mode.value}/{name}": value for name, value in values.items()})
        self.history.append(row)
        self.record(row)

    def note(self, values: Mapping[str, float], step: int) -> None:
        """Keep what a callback found in a training step as a row of the history."""
        row = {"mode": Mode.TRAIN.value, "epoch": self.passes, "step": step, **values}
        self.values.update({f"train/{name}": value for name, value in values.items()})
        self.history.append(row)
        self.record(row)
        self.fix_rows()

    def fix_rows(self) -> None:
        """Rows so far are not made anew when the pass under way is continued from a checkpoint."""
        if self.epoch_progress is not None and not self.epoch_progress.reported and not self.epoch_progress.reporting:
            self.epoch_progress.rows_before = len(self.history)
