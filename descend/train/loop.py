"""The training loop: how mini-batches become updates, drawn once. `events.py` shows the order of its moments."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError, DataError, NumericalError, Stopped
from descend.optim import Optimizer
from descend.runtime import Interrupted, seed_step
from descend.train.blame import blame, cause
from descend.train.control import Control
from descend.train.cut import cut_of, put_together
from descend.train.events import EpochView, EvaluationView, Event, PartView, RunView, StepView
from descend.train.memory import out_of_memory, part_size, within_memory
from descend.train.numerics import Buffers, Numerics
from descend.train.progress import ExecutionContext, Mode, Progress
from descend.train.task import Losses, Ratio, Totals
from descend.train.together import Together
from descend.train.turns import Turns
from descend.train.vote import joint_faults
from descend.train.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from descend.data import Batch, Feed
    from descend.runtime import Process
    from descend.train.asynchronous import Late
    from descend.train.callback import Callbacks
    from descend.train.sharding import Sharding
    from descend.train.statistics import Running
    from descend.train.stopping import Stop
    from descend.train.task import Preconditioner, Task
    from descend.train.vote import Vote

__all__ = ["Part", "Pass", "Session", "evaluate", "gradient", "train"]


@dataclass(frozen=True)
class Part:
    """Samples of a mini-batch that go through the module at once.

    Attributes:
        fields: (count, *shape) tensors by name, on the device of the run.
        batch: This rank's share of the mini-batch.
        step: Updates applied so far.
        start: Where the samples begin in the share.
        count: Number of samples.
        position: Where they begin in the mini-batch of all ranks.
        counts: Whether they count; see `turns.py`.
    """

    fields: dict[str, torch.Tensor]
    batch: Batch
    step: int
    start: int
    count: int
    position: int
    counts: bool = True


@dataclass
class Pass:
    """What a pass over the training samples has gathered so far; saved with a checkpoint inside it.

    Attributes:
        samples_before: Samples seen before it.
        rows_before: Rows of the history before it.
        totals: Sums of objective and metrics.
        seconds: Its training time.
        skipped: Steps left out because a gradient was not finite.
        complete: Whether its last mini-batch is done; its validation may be still to come.
        told: Whether it was cut short and has its rows all the same; they are made anew when it goes on.
        step_seconds: Length of each step since the process began.
    """

    samples_before: int
    rows_before: int
    totals: Totals = field(default_factory=Totals)
    seconds: float = 0.0
    skipped: int = 0
    complete: bool = False
    told: bool = False
    step_seconds: list[float] = field(default_factory=list[float])

    def state(self, process: Process) -> dict[str, Any]:
        """The pass of all ranks as tensors and plain values without times."""
        return {
            "samples_before": self.samples_before,
            "rows_before": self.rows_before,
            "totals": self.totals.over(process).state(),
            "skipped": self.skipped,
            "complete": self.complete,
            "told": self.told,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], process: Process) -> Pass:
        """The pass that `state` described; of several ranks the first goes on with its sums."""
        pass_ = cls(state["samples_before"], state["rows_before"], Totals(state["totals"] if process.first else None))
        pass_.skipped, pass_.complete, pass_.told = state["skipped"], state["complete"], state["told"]
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
        in_turns: Whether all ranks go through the module as often in each step.
        shard_optimizer: Whether each of several ranks keeps the optimizer's state of some weights only.
        vote: Takes the place of sums of gradients over ranks, where the ranks vote on signs.
        late: Where gradients come from that are computed at older weights; None where they are not.
    """

    name: str
    task: Task
    optimizer: torch.optim.Optimizer
    data: Mapping[Mode, Feed]
    process: Process
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
    before_part: Callable[[Part], None] = lambda part: None
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
    under_way: Pass | None = None
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
    running: Sequence[Running] = ()
    in_turns: bool = False
    shard_optimizer: bool = False
    vote: Vote | None = None
    late: Late | None = None

    def __post_init__(self) -> None:
        self.buffers = Buffers(self.task.module)
        self.weights = dict(self.task.module.named_parameters())
        self.cut = cut_of(self)
        in_turns = self.in_turns or self.cut is not None
        self.turns = Turns(self.task.module, self.process, self.in_turns) if in_turns else None
        self.adaptive = self.adaptive and self.turns is None  # no rank can leave a step that others wait in
        self.watch = Watch(self.task.module)
        self.control = Control(self)
        self.together = Together(self) if self.process.ranks > 1 else None
        self.meet("the beginning of the run")
        self._started = self.process.now()
        self._evaluation_seconds: dict[Mode, float] = {}

    @property
    def passes(self) -> int:
        """Whole passes over the training samples, the one that is just complete included."""
        return self.contexts[Mode.TRAIN].epoch + (self.under_way is not None and self.under_way.complete)

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

    def progress(self) -> Progress:
        """What a stopping criterion sees, counted from where the algorithm under way was started."""
        now, since = self.contexts[Mode.TRAIN], self.began or ExecutionContext(Mode.TRAIN)
        this_run = self.process.now() - self._started
        return Progress(
            now.step - since.step, self.passes - since.epoch, self.seconds, this_run, self.values, self._to_end()
        )

    def meet(self, at: str) -> None:
        """Wait for all ranks to come to this place of the run, and learn whether one of them asks for its end."""
        if self.together:
            self.together.meet(at)

    @property
    def own_weights(self) -> Mapping[str, torch.Tensor]:
        """The weights; of those that are cut up among ranks, stand-ins for the parts of this rank."""
        return self.cut.here(self.weights) if self.cut else self.weights

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

    def agreed_stop(self) -> str | None:
        """The name of a signal that asked for an end, which all ranks know since they last met; or None."""
        if self.together:
            return self.together.signal
        return self.stop_requested() or (self.late.asked if self.late else None)

    def _to_end(self) -> float:
        """What ending the run will take: twice the longest save, one step, and the evaluations that follow."""
        steps = self.under_way.step_seconds if self.under_way else ()
        return 2 * self.save_seconds() + (steps[-1] if steps else 0.0) + sum(self._evaluation_seconds.values())

    def seconds_of_step(self) -> float:
        """How long the step under way has taken so far."""
        return 0.0 if self.step_began is None else self.process.now() - self.step_began

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
        if self.under_way is not None and not self.under_way.told:
            self.under_way.rows_before = len(self.history)


def train(session: Session, stop: Stop) -> str:
    """Train until `stop` says why it is enough.

    Returns:
        The reason, a sentence.

    Raises:
        Stopped: a signal asked for an end; the step that was under way is finished.
        NumericalError: a gradient was not finite. Everything is as it was before that step.
    """
    if session.began is None:
        session.began = replace(session.contexts[Mode.TRAIN])
    reason = None
    if session.under_way is None or session.under_way.told:
        reason = session.asked_to_stop or stop.reason(session.progress())
    while reason is None:
        reason = _epoch(session, stop)
    session.began = None
    return reason


def _epoch(session: Session, stop: Stop) -> str | None:
    """One pass over the training samples, or what is left of it, and the validation that follows."""
    context, batches, run = session.contexts[Mode.TRAIN], session.data[Mode.TRAIN], session.view()
    gathered = session.under_way = session.under_way or Pass(context.samples, len(session.history))
    session.rewind(gathered.rows_before)
    gathered.told = False
    epoch, total = context.epoch, batches.num_samples
    session.meet(f"the beginning of epoch {epoch}, step {context.step}")
    session.callbacks.fire(Event.BEFORE_EPOCH, EpochView(epoch, context.step, run, samples=(0, total)))
    reason = _steps(session, stop, gathered, run)
    session.step_began = None
    values = gathered.totals.over(session.process).values() | dict(session.outside())
    samples = context.samples - gathered.samples_before
    if gathered.skipped:
        values["skipped_steps"] = float(gathered.skipped)
    session.keep(Mode.TRAIN, values, samples, gathered.seconds)
    if Mode.VALIDATION in session.data:
        evaluate(session, Mode.VALIDATION)
    if gathered.complete:
        context.finish_epoch()
        session.under_way = None
    gathered.told = True
    units, times = session.task.units, tuple(gathered.step_seconds)
    view = EpochView(
        epoch, context.step, run, values, units, (samples, total), gathered.seconds, times, gathered.complete
    )
    session.callbacks.fire(Event.AFTER_EPOCH, view)
    return reason or session.asked_to_stop or stop.reason(session.progress())


def _steps(session: Session, stop: Stop, gathered: Pass, run: RunView) -> str | None:
    """The steps of a pass that are still to be made; the reason if one of them was the last of the run."""
    context = session.contexts[Mode.TRAIN]
    session.task.module.train()
    if gathered.complete:
        return None
    if reason := session.asked_to_stop or stop.reason(session.progress()):  # a checkpoint of the last step of all
        return reason
    session.step_began = session.process.now()
    while not gathered.complete:  # once, unless a callback changes the size of a mini-batch on the way
        session.recut = False
        with contextlib.closing(session.batches_to_come()) as steps:
            for batch in _awaited(session, steps):
                _step(session, batch, gathered, run)
                now = session.process.now()
                for_step, session.step_began = now - session.step_began, now
                gathered.step_seconds.append(for_step)
                gathered.seconds += for_step
                session.seconds += for_step
                _obey(session)
                # A pass that is complete is followed by its validation first, which a criterion may want to see.
                if not batch.last and (reason := session.asked_to_stop or stop.reason(session.progress())):
                    return reason
                if session.recut:
                    break
        if not gathered.complete and not session.recut:
            raise DataError(
                f"epoch {context.epoch} ended after {context.taken:,} samples, before its last mini-batch: the data "
                "have become fewer since the run began; continue with the same data"
            )
    return None


def _awaited(session: Session, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batch after batch. A signal that comes while one is waited for ends the run there: no step is under way."""
    while True:
        try:
            session.waits(True)
            batch = next(batches, None)
            session.waits(False)
        except Interrupted:
            _obey(session)
            raise
        except BaseException:
            session.waits(False)
            raise
        if batch is None:
            return
        yield batch


def _obey(session: Session) -> None:
    """End the run between two steps if a signal has asked for it."""
    if signal := session.agreed_stop():
        at = session.contexts[Mode.TRAIN]
        where = f"in epoch {at.epoch} (step {at.position} of the epoch)"
        raise Stopped(f"stopped by {signal} after step {at.step:,}, {where}")


def _step(session: Session, batch: Batch, gathered: Pass, run: RunView) -> None:
    """One update: forward and backward over the parts of the mini-batch, then one division and one step."""
    context, callbacks, optimizer = session.contexts[Mode.TRAIN], session.callbacks, session.optimizer

    number, epoch = context.step + 1, context.epoch

    def view(objective: torch.Tensor | None) -> StepView:
        return StepView(number, epoch, batch, session.task.module, optimizer, objective, run, session.watch)

    session.batches[Mode.TRAIN] = batch
    if callbacks.wants(Event.BEFORE_STEP):
        callbacks.fire(Event.BEFORE_STEP, view(None))
        batch = session.batches[Mode.TRAIN]
    session.buffers.keep()
    if session.together:
        session.together.begin()
    try:
        if session.late:
            objective, totals = session.late.gradient(session, lambda: gradient(session, batch, run))
        else:
            objective, totals = gradient(session, batch, run)
        seen = view(objective) if callbacks.wants(Event.AFTER_BACKWARD) or callbacks.wants(Event.AFTER_STEP) else None
        callbacks.fire(Event.AFTER_BACKWARD, seen)
    except NumericalError:
        session.buffers.restore()  # what is saved next is the state before this step
        raise
    faulty = session.numerics.faulty(session.own_weights)
    if session.vote or session.cut:
        faulty = joint_faults(faulty, session.process)
    if session.preconditioner is not None and not faulty:
        faulty = session.preconditioner.apply()
    if faulty:
        _leave_out(session, batch, gathered, faulty, objective)
        gathered.totals.join(totals)
        session.watch.clear()
        return
    session.numerics.clip(session.own_weights, session.cut.norms if session.cut else None)
    session.update()
    if session.together:
        session.together.end(batch)
    session.skipped_in_a_row = 0
    gathered.totals.join(totals)
    context.advance(batch.size)
    session.process.doing.steps += 1
    gathered.complete = batch.last  # before anybody may save this moment
    callbacks.fire(Event.AFTER_STEP, seen)
    session.watch.clear()


def _leave_out(session: Session, batch: Batch, gathered: Pass, faulty: list[str], objective: torch.Tensor) -> None:
    """Pass over a mini-batch whose gradient is not finite, or end the run; weights and state have not changed."""
    session.buffers.restore()
    too_large = math.isfinite(float(objective)) and session.numerics.lower_scale()
    if not too_large:
        session.skipped_in_a_row += 1
        streak = session.skipped_in_a_row >= session.numerics.IN_A_ROW
        if session.numerics.on_nonfinite == "stop" or streak:
            step = session.contexts[Mode.TRAIN].step + 1
            session.optimizer.zero_grad()
            looking = session.together or session.late
            causes = looking.causes(batch) if looking else [cause(batch)]
            raise NumericalError(blame(step, faulty, float(objective), causes, session.skipped_in_a_row))
    gathered.skipped += 1
    session.contexts[Mode.TRAIN].leave_out(batch.size)
    gathered.complete = batch.last


def gradient(session: Session, batch: Batch, run: RunView) -> tuple[torch.Tensor, Totals]:
    """Leave the gradient of the whole mini-batch in the module; return its objective, detached, and its sums.

    A step that is made again draws the same random numbers, so nothing but the memory differs.
    """

    def attempt() -> tuple[torch.Tensor, Totals]:
        _clear(session)
        seed_step(session.seed, session.contexts[Mode.TRAIN].step)
        if session.together:
            session.together.attempt()
        if session.preconditioner:
            session.preconditioner.begin()
        with session.watch.attached():
            return _backward(session, batch, run)

    return within_memory(session, _largest_share(session, batch), session.unit, attempt, session.buffers.restore)


def _largest_share(session: Session, batch: Batch) -> int:
    """Samples of a mini-batch on the rank that has most of them, so that all ranks choose micro-batches alike."""
    if session.process.ranks == 1:
        return len(batch.ids)
    unit = session.unit or 1
    return math.ceil(math.ceil(batch.size / unit) / session.process.ranks) * unit


def _clear(session: Session) -> None:
    """Forget the gradients of the step before; an optimizer that does more than that is asked to."""
    if type(session.optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
        session.optimizer.zero_grad()
    for p in session.weights.values():
        p.grad = None


def _backward(session: Session, batch: Batch, run: RunView) -> tuple[torch.Tensor, Totals]:
    """The gradient, with the micro-batches that are set.

    The backward pass of one part begins with its share of the mean, which costs nothing. Several parts are summed and
    divided once at the end, so that how they were cut changes nothing.
    """
    parts, totals = list(_parts(session, batch, session.unit)), Totals()
    alone = len(parts) == 1 and session.together is None
    spare = _spare(session, batch, parts)
    with _told_if_out_of_memory(session, session.together, batch) if session.together else contextlib.nullcontext():
        ratios = [_backward_of(session, part, i, len(parts), alone, totals, run) for i, part in enumerate(parts)]
        _let_through(session, spare, backward=True)
    if alone:
        session.numerics.unscale(session.optimizer)
        top, denominator = ratios[0]
        objective = top / denominator
    else:
        sums = sum((ratio.numerator for ratio in ratios), torch.zeros(())), sum(ratio.denominator for ratio in ratios)
        objective, denominator = _divide(session, batch, *sums)
    if session.preconditioner:
        session.preconditioner.gathered(1.0 if alone else denominator)
    penalty = session.task.penalty()
    if penalty is not None:
        penalty.backward()
        objective = objective + penalty.detach()
        if session.process.first:  # of several ranks, which add up their totals
            totals.add("objective", Ratio(penalty.detach() * denominator, 0.0))
    if session.contexts[Mode.TRAIN].step == 0 and denominator:
        _require_gradient(session)
    return objective, totals


def _require_gradient(session: Session) -> None:
    """Raise an error where the objective depends on no weights; one that has been frozen on the way may."""
    trained = [p for p in session.weights.values() if p.requires_grad]
    if trained and all(p.grad is None for p in trained):
        raise ConfigurationError(
            "the objective depends on none of the weights that are trained, so nothing would be learnt: look for "
            ".detach(), torch.no_grad() or .item() in the forward pass and in the loss"
        )


def _backward_of(
    session: Session, part: Part, index: int, parts: int, alone: bool, totals: Totals, run: RunView
) -> Ratio:
    """Add the gradient of one part; its objective, detached. A part that is alone has its gradient divided at once."""
    if session.together and index == parts - 1 and not session.cut:
        session.together.last_part()
    preconditioner = session.preconditioner
    with preconditioner.watching(part) if preconditioner else contextlib.nullcontext():
        losses = _forward(session, part)
    _count(totals, losses)
    top, bottom = losses.objective
    bottom = _counted(bottom) if alone else bottom
    if top.requires_grad:  # nothing to differentiate where every trained weight has been frozen since
        torch.autograd.backward(top, session.numerics.scaled(_start(top, bottom if alone else 1.0)))
    if session.callbacks.wants(Event.AFTER_PART):
        view = PartView(part.step + 1, index, parts, part.count, session.task.module, run)
        session.callbacks.fire(Event.AFTER_PART, view)
    return Ratio(top.detach(), bottom)


@contextlib.contextmanager
def _told_if_out_of_memory(session: Session, together: Together, batch: Batch) -> Generator[None]:
    """Where memory runs out and the step can be made again, the other ranks make it again too."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if session.adaptive and out_of_memory(error):
            together.add_up(batch, torch.zeros(2, dtype=torch.float64), short=error)
        raise


def _forward(session: Session, part: Part) -> Losses:
    session.before_part(part)
    return session.task.losses(part.fields)


def _spare(session: Session, batch: Batch, parts: Sequence[Part]) -> list[Part]:
    """Parts that count nothing, where all ranks have to go through the module as often."""
    return session.turns.spare(batch, parts, session.contexts[Mode.TRAIN].step) if session.turns else []


def _let_through(session: Session, spare: Sequence[Part], backward: bool = False) -> None:
    """Go through the module with parts that count nothing."""
    for part in spare:
        with session.turns.leaving_no_trace() if session.turns else contextlib.nullcontext():
            top = _forward(session, part).objective.numerator
            if backward and top.requires_grad:
                torch.autograd.backward(top, torch.zeros_like(top))


def _start(top: torch.Tensor, divisor: torch.Tensor | float) -> torch.Tensor:
    """What a backward pass begins with for the gradient of top / divisor; a node of its own would take 15 µs more."""
    return top.new_full((), 1 / divisor) if isinstance(divisor, float) else torch.ones_like(top) / divisor


def _counted(denominator: torch.Tensor | float) -> torch.Tensor | float:
    """The denominator, or 1 where nothing was counted: then the numerator is 0 and so is the gradient."""
    if isinstance(denominator, torch.Tensor):
        return denominator + (denominator == 0)
    return denominator or 1.0


def _divide(
    session: Session, batch: Batch, numerator: torch.Tensor, denominator: torch.Tensor | float
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """Sum gradients, numerator and denominator over ranks and divide once; the objective and what it was divided by."""
    sums = torch.stack([numerator.double(), torch.as_tensor(denominator, dtype=torch.float64, device=numerator.device)])
    own = _counted(sums[1].clone())
    if session.together:
        sums = session.together.add_up(batch, sums)
    session.numerics.unscale(session.optimizer)
    top, bottom = sums
    bottom = _counted(bottom)
    divisor = own if session.vote else bottom  # who votes has an opinion of its own samples alone
    for p in session.own_weights.values():
        if p.grad is not None:
            p.grad.div_(divisor)
    return top / bottom, bottom


def _count(totals: Totals, losses: Losses) -> None:
    totals.add("objective", losses.objective)
    for name, ratio in losses.metrics.items():
        totals.add(name, ratio)


def _parts(session: Session, batch: Batch, unit: int | None = 1) -> Iterator[Part]:
    """The mini-batch cut into micro-batches of whole units, on the device of the run."""
    count, step = len(batch.ids), session.contexts[Mode.TRAIN].step
    if not count:  # of a rank without samples; modules need not take empty inputs
        return
    fields = {name: session.process.to_device(array) for name, array in batch.fields.items()}
    before = batch.position
    size = part_size(session.micro_batch_size, count, unit)
    if size >= count:
        yield Part(fields, batch, step, 0, count, before)
        return
    for start in range(0, count, size):
        some = {name: tensor[start : start + size] for name, tensor in fields.items()}
        yield Part(some, batch, step, start, min(size, count - start), before + start)


@torch.no_grad()
def evaluate(session: Session, mode: Mode) -> dict[str, float]:
    """Objective and metrics over every sample of `mode`, each counted once whatever the size of a mini-batch.

    Returns:
        "objective" and each metric by name.

    Raises:
        Stopped: a signal asked for an end; the evaluation is to be made again from its beginning.
    """
    batches, run, at = session.data[mode], session.view(), session.contexts[Mode.TRAIN]
    total = batches.num_samples
    view = EvaluationView(mode, session.passes, at.step, run, samples=(0, total))
    session.callbacks.fire(Event.BEFORE_EVALUATION, view)
    session.meet(f"the beginning of {mode} at step {at.step}")
    began = session.process.now()
    with _averaged(session):
        totals, seen, times = _measure(session, mode, run)
        penalty = session.task.penalty()
        values = totals.over(session.process).values() | dict(session.outside())
    seconds = session.process.now() - began
    session.note_evaluation(mode, seconds)
    if penalty is not None:
        values["objective"] += float(penalty)
    session.keep(mode, values, seen, seconds)
    counts, units = (seen, total), session.task.units
    view = EvaluationView(mode, session.passes, at.step, run, values, units, counts, seconds, tuple(times))
    session.callbacks.fire(Event.AFTER_EVALUATION, view)
    return values


@contextlib.contextmanager
def _averaged(session: Session) -> Generator[None]:
    """`averaged` on all ranks, of which each can only make its own weights those to evaluate."""
    with averaged(session.optimizer):
        if session.sharding:
            session.sharding.exchange()
        yield
    if session.sharding:
        session.sharding.exchange()


def averaged(optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
    """Within this block weights are those to evaluate, where the optimizer's rule trains at another point."""
    return optimizer.averaged() if isinstance(optimizer, Optimizer) else contextlib.nullcontext()


def _measure(session: Session, mode: Mode, run: RunView) -> tuple[Totals, int, list[float]]:
    """Sums over all samples of a mode, how many there were, and how long each mini-batch took."""
    context, module = session.contexts[mode], session.task.module
    totals, seen, times, clock = Totals(), 0, list[float](), session.process.now()
    was_training = module.training
    module.eval()
    try:
        with contextlib.closing(session.data[mode].epoch(0)) as steps:
            for batch in _awaited(session, steps):
                number = context.step + len(times) + 1
                _evaluate_batch(session, _evaluation_step(session, mode, batch, number, run), totals)
                seen += batch.size
                session.meet(f"{mode} batch {batch.step} of {batch.size} samples{', the last' if batch.last else ''}")
                now = session.process.now()
                times.append(now - clock)
                clock = now
                _obey(session)
    finally:
        module.train(was_training)
        put_together(module)
        session.watch.clear()
    if mode is not Mode.TRAIN:  # whose context says where training stands
        context.step += len(times)
        context.samples += seen
        context.epoch += 1
    return totals, seen, times


def _evaluation_step(session: Session, mode: Mode, batch: Batch, number: int, run: RunView) -> StepView:
    module, optimizer = session.task.module, session.optimizer
    return StepView(number, session.passes, batch, module, optimizer, None, run, session.watch, mode)


def _evaluate_batch(session: Session, step: StepView, totals: Totals) -> None:
    """Add the sums of one mini-batch to `totals`."""
    session.batches[step.mode] = step.batch
    session.callbacks.fire(Event.BEFORE_EVALUATION_STEP, step)

    def attempt() -> Totals:
        sums = Totals()
        parts = list(_parts(session, step.batch))
        spare = _spare(session, step.batch, parts) if session.cut else []
        with session.watch.attached():
            for part in parts:
                _count(sums, _forward(session, part))
        _let_through(session, spare)
        return sums

    totals.join(within_memory(session, len(step.batch.ids), 1, attempt, lambda: None))
    session.process.doing.steps += 1
    session.callbacks.fire(Event.AFTER_EVALUATION_STEP, step)
    session.watch.clear()
