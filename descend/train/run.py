"""A run: a dozen parts, none of them optional. What a run does not have is a null object.

config         name, seed, algorithm, settings: plain values
communicator   this process among its ranks
task           the module and its losses
optimizer      any torch optimizer
strategy       where parameters live and how ranks communicate; `strategies/`
transforms     what happens to whole gradients; `transforms/`
precision      the loss scale
data           mini-batches by mode
callbacks      who is called when; `events.py` shows the moments
state          where the run stands: the only part that changes throughout
store          rows, checkpoints and files
stop           signals, and the wishes of callbacks
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from descend.train.activations import ActivationRecorder
from descend.train.buffer_snapshot import BufferSnapshot
from descend.train.callback_api import RunControl
from descend.train.events import Event, RunView, StepView
from descend.train.memory import MicroBatchSize
from descend.train.module_state import ModuleExtraState, ReplacedSamples
from descend.train.optimizers.state import OptimizerState
from descend.train.progress import ExecutionContext, Mode, Progress
from descend.train.state import AlgorithmState, TrainState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch.distributed.checkpoint.stateful import Stateful

    from descend.data import Batch, Feed
    from descend.runtime import Communicator
    from descend.train.algorithms import TrainingAlgorithm
    from descend.train.callback import Callbacks
    from descend.train.objective import Ratio, Task
    from descend.train.precision import Precision
    from descend.train.stop_signal import StopSignal
    from descend.train.store import RunStore
    from descend.train.strategies.base import Strategy
    from descend.train.transforms.base import TransformChain

__all__ = ["Run", "RunConfig"]


@dataclass(frozen=True)
class RunConfig:
    """The plain values of a run.

    Attributes:
        name: The model's name in logs.
        seed: Where random numbers of the forward passes begin.
        algorithm: What is done.
        default_epochs: Epochs where the algorithm sets no limit.
        settings: What a continuation is compared with; `descend.experiment.settings_diff` says what becomes of a
            difference.
        files: Text files that the run directory begins with, by name.
        metrics: Names of all metrics.
        summary_dir: Where TensorBoard's files go, below the run directory.
        resume: Continue the newest good checkpoint of the run directory; without one, begin.
        reset_optimizer: Continue it with an optimizer without state.
        weights_only: Begin anew with those weights of it that fit.
        say: Prints for the user.
    """

    name: str
    seed: int
    algorithm: TrainingAlgorithm
    default_epochs: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    metrics: Sequence[str] = ()
    summary_dir: str = "tensorboard"
    resume: bool = False
    reset_optimizer: bool = False
    weights_only: bool = False
    say: Callable[[str], None] = lambda text: None


@dataclass(eq=False)
class Run:
    """One model in training on this process; see the head of this file for its parts.

    Attributes:
        micro_batch_size: Samples that go through the module at once.
        parameters: Of the module, by name.
        buffers: Those of the module as they were before the step under way.
        activations: Records outputs of layers for callbacks.
        control: What callbacks may change.
        epoch_view: The run as callbacks of steps see it, made at the beginning of each epoch.
    """

    config: RunConfig
    communicator: Communicator
    task: Task
    optimizer: torch.optim.Optimizer
    strategy: Strategy
    transforms: TransformChain
    precision: Precision
    data: Mapping[Mode, Feed]
    callbacks: Callbacks
    state: TrainState
    store: RunStore
    stop: StopSignal
    micro_batch_size: MicroBatchSize = field(default_factory=MicroBatchSize)

    def __post_init__(self) -> None:
        module = self.task.module
        self.parameters = dict(module.named_parameters())
        self.buffers = BufferSnapshot(module)
        self.activations = ActivationRecorder(module, self.communicator)
        self.control = RunControl(self)
        self._clears_gradients = clears_more_than_gradients(self.optimizer)
        self.strategy.setup(self)
        self.transforms.setup(self)
        self.micro_batch_size.adaptive = self.micro_batch_size.adaptive and self.strategy.can_repeat_step
        self.start_clock()
        self.epoch_view = self.view()

    # ---- plain values

    @property
    def name(self) -> str:
        """The model's name."""
        return self.config.name

    @property
    def seed(self) -> int:
        """Where random numbers begin."""
        return self.config.seed

    @property
    def epochs(self) -> int | None:
        """Epochs planned, where known."""
        return self.config.algorithm.epochs(self.config.default_epochs)

    def say(self, text: str) -> None:
        """Print for the user."""
        self.config.say(text)

    # ---- a checkpoint is the state of these

    def stateful_parts(self) -> dict[str, Stateful]:
        """The parts that a checkpoint keeps beside parameters and buffers, in the order in which they are loaded.

        All ranks take or load them together and in this order, since some of them communicate.
        """
        return {
            "optimizer": OptimizerState(self.optimizer, self.task.module),
            "train": self.state,
            "algorithm": AlgorithmState(self.state),
            "stop": self.stop,
            "modules": ModuleExtraState(self.task.module),
            "data": ReplacedSamples(self.data, self.communicator),
            "micro_batch_size": self.micro_batch_size,
            "precision": self.precision,
            "transforms": self.transforms,
            "strategy": self.strategy,
            "callbacks": self.callbacks,
        }

    # ---- views for callbacks

    def view(self, reason: str | None = None) -> RunView:
        """The run as callbacks see it."""
        return RunView(
            name=self.name,
            module=self.task.module,
            optimizer=self.optimizer,
            steps_per_epoch={mode: batches.steps_per_epoch for mode, batches in self.data.items()},
            batch_sizes={mode: (batches.first_size, batches.last_size) for mode, batches in self.data.items()},
            epochs=self.epochs,
            save=lambda *request, **more: self.store.save(self, *request, **more),
            control=self.control,
            step=self.state.step,
            passes=self.state.epochs_done,
            reason=reason,
        )

    def step_view(self, batch: Batch, objective: Ratio | None = None) -> StepView:
        """The training step under way as callbacks see it."""
        return StepView(
            self.state.step + 1,
            self.state.training.epoch,
            batch,
            self.task.module,
            self.optimizer,
            objective,
            self.epoch_view,
            self.activations,
        )

    def clear_gradients(self) -> None:
        """Forget the gradients of the step before."""
        if self._clears_gradients:
            self.optimizer.zero_grad()
        for p in self.parameters.values():
            p.grad = None

    # ---- the course of the run

    @contextmanager
    def announced(self, within: Callable[[], AbstractContextManager[object]] = nullcontext) -> Generator[None]:
        """Within this block the run takes place: before_run is called first and after_run last, whatever ends it.

        Every callback hears of the end, and the first error is the one that is raised.

        Args:
            within: What callbacks are called within.
        """
        try:
            with within():
                self.callbacks.fire(Event.BEFORE_RUN, self.view())
            yield
        except BaseException:
            _report(self, self._announce_end(within))
            raise
        if failures := self._announce_end(within):
            _report(self, failures[1:])
            raise failures[0]

    def _announce_end(self, within: Callable[[], AbstractContextManager[object]]) -> list[BaseException]:
        with within():
            return self.callbacks.fire_all(Event.AFTER_RUN, self.view(self.state.end))

    def start_clock(self) -> None:
        """Count `seconds_this_run` from now, by the clock that all ranks read alike once they are synchronized."""
        self._began_seconds = self.communicator.now()

    def progress(self) -> Progress:
        """What a stopping criterion sees, counted from where the algorithm under way was started."""
        state = self.state
        since = state.began or ExecutionContext(Mode.TRAIN)
        steps = state.epoch_progress.step_seconds if state.epoch_progress else ()
        to_end = 2 * self.store.save_seconds + (steps[-1] if steps else 0.0) + sum(state.evaluation_seconds.values())
        return Progress(
            step=state.step - since.step,
            epoch=state.epochs_done - since.epoch,
            seconds=state.seconds,
            seconds_this_run=self.communicator.now() - self._began_seconds,
            values=state.values,
            seconds_to_end=to_end,
        )

    def external_metrics(self) -> dict[str, float]:
        """Metrics that the module does not compute, the same on all ranks."""
        return self.communicator.on_rank_zero(lambda: dict(self.task.external_metrics(self.store.directory)))

    # ---- rows

    def record(self, mode: Mode, values: Mapping[str, float], samples: int, seconds: float) -> None:
        """Keep the outcome of an epoch or an evaluation as a row of the history."""
        self._append(mode, self.state.step, values, {"samples": samples, "seconds": seconds})

    def record_step(self, values: Mapping[str, float], step: int) -> None:
        """Keep what a callback found in a training step as a row of the history."""
        self._append(Mode.TRAIN, step, values, {})
        self.state.fix_rows()

    def _append(self, mode: Mode, step: int, values: Mapping[str, float], more: Mapping[str, float]) -> None:
        row = {"mode": mode.value, "epoch": self.state.epochs_done, "step": step, **values, **more}
        self.state.values.update({f"{mode.value}/{name}": value for name, value in values.items()})
        self.state.history.append(row)
        self.store.append(row)

    def rewind(self, rows: int) -> None:
        """Take back all rows but the first so many: they are written again."""
        if rows < len(self.state.history):
            del self.state.history[rows:]
            self.store.rewrite(self)


def _report(run: Run, failures: Sequence[BaseException]) -> None:
    for failure in failures:
        run.say(f"after_run, called because of another error, raised {type(failure).__name__}: {failure}")


def clears_more_than_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has a `zero_grad` of its own."""
    import torch

    return type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad
