"""A run: a dozen parts, none of them optional. What a run does not have is a null object.

config         name, seed, algorithm, settings: plain values
communicator   this process among its ranks
task           the module and its losses
optimizer      any torch optimizer
strategy       where parameters live and how ranks communicate; `strategies/`
transforms     what happens to whole gradients; `transforms/`
precision      the loss scale
data           mini-batches by mode
callbacks      what is called when; `events.py` shows the events
state          where the run stands: the counters and totals that change every step
store          rows, checkpoints and files
stop           signals, and requests by callbacks
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from descend.train.activations import ActivationRecorder
from descend.train.callback_api import RunControl
from descend.train.events import RunViews
from descend.train.micro_batch import MicroBatchSize
from descend.train.module_state import BufferSnapshot, LossBuffers, ModuleExtraState, ReplacedSamples
from descend.train.optimizers.state import OptimizerState
from descend.train.param_groups import exchange_parameters, group_learning_rates
from descend.train.progress import Mode, RunClock
from descend.train.run_checks import RunChecks
from descend.train.state import AlgorithmState, TrainState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from descend.data import Feed
    from descend.runtime import Communicator
    from descend.train.algorithms import TrainingAlgorithm
    from descend.train.callback import Callbacks
    from descend.train.objective import Task
    from descend.train.precision import Precision
    from descend.train.stop_signal import StopSignal
    from descend.train.store import RunStore
    from descend.train.strategies.base import Strategy
    from descend.train.transforms.base import TransformChain

__all__ = ["Run", "RunConfig", "RunPart"]


@dataclass(frozen=True)
class RunConfig:
    """The plain values of a run.

    Attributes:
        name: The model's name in logs.
        seed: Of the random numbers of the forward passes.
        algorithm: The training algorithm.
        default_epochs: Epochs where the algorithm sets no limit.
        settings: Compared when a run is resumed; `descend.experiment.resume` says which may differ.
        files: Text files that the run directory begins with, by name.
        metrics: Names of all metrics.
        summary_dir: Where TensorBoard's files go, below the run directory.
        resume: Continue the newest valid checkpoint of the run directory; begin where there is none.
        reset_optimizer: Drop the optimizer's state when a checkpoint is continued.
        weights_only: Begin a new run from those weights of a checkpoint that match by name and shape.
        check_ranks: Compare the weights of ranks that hold copies of them, now and then.
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
    check_ranks: bool = True
    say: Callable[[str], None] = lambda text: None


class RunPart(Protocol):
    """A part of a run that a checkpoint keeps; torch's `Stateful` with one attribute more.

    Attributes:
        resets_with_optimizer: Whether it starts over, without its state, in a run that is continued with
            `reset_optimizer`.
    """

    resets_with_optimizer: ClassVar[bool]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: tensors and plain values. All ranks call it together."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Load what `state_dict` returned. All ranks call it together."""
        ...


@dataclass(eq=False)
class Run:
    """One model in training on this process; see the top of this file for its parts.

    Attributes:
        micro_batch_size: Samples that go through the module at once.
        parameters: Of the module, by name.
        buffer_snapshot: Buffers of the module as they were before the current step.
        activations: Records outputs of layers for callbacks.
        control: What callbacks may change.
        clock: Measures how far the run has come, for stopping criteria.
        views: What callbacks see of the run.
        history: Adds rows to the history.
        checks: Says what had no effect, and compares ranks.
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
        self.buffer_snapshot = BufferSnapshot(module)
        self.buffer_snapshot.loss = LossBuffers(getattr(self.task, "functions", {}).get("loss"))
        self.activations = ActivationRecorder(module, self.communicator)
        self.control = RunControl(self)
        self._clears_gradients = clears_more_than_gradients(self.optimizer)
        self.clock, self.views, self.history = RunClock(self), RunViews(self), RunHistory(self)
        self.checks = RunChecks(self)
        self.strategy.setup(self)
        self.transforms.setup(self)
        self.micro_batch_size.adaptive = self.micro_batch_size.adaptive and self.strategy.can_repeat_step

    def take_form(self, form: Any, draws: Callable[[str], torch.Generator] | None = None) -> None:
        """Let other layers stand in some places of a graph; see `descend.experiment.graph_task.GraphTask.take_form`.

        The optimizer has no state of weights that are new, and the settings of those that they replace.
        """
        task: Any = self.task  # that of a graph: forms come from no other
        task.take_form(form, draws)
        before, module = self.parameters, task.module
        now = dict(module.named_parameters())
        if [(name, id(p)) for name, p in before.items()] == [(name, id(p)) for name, p in now.items()]:
            return
        self.clear_gradients()
        exchange_parameters(self.optimizer, before, now, task.replaced_by())
        self.parameters = now
        self.buffer_snapshot = BufferSnapshot(module)
        self.strategy.setup(self)
        self.views.begin_epoch()

    # ---- plain values

    @property
    def name(self) -> str:
        """The model's name."""
        return self.config.name

    @property
    def seed(self) -> int:
        """Of the random numbers of the run."""
        return self.config.seed

    @property
    def epochs(self) -> int | None:
        """Epochs planned, where known."""
        return self.config.algorithm.epochs(self.config.default_epochs)

    def say(self, text: str) -> None:
        """Print for the user."""
        self.config.say(text)

    # ---- a checkpoint is the state of these

    def stateful_parts(self) -> dict[str, RunPart]:
        """The parts that a checkpoint keeps beside parameters and buffers, in the order in which they are loaded.

        All ranks take or load them together and in this order, since some of them communicate.
        """
        return {
            "optimizer": OptimizerState(self.optimizer, self.task.module),
            "train": self.state,
            "algorithm": AlgorithmState(self.state),
            "stop": self.stop,
            "modules": ModuleExtraState(self.task.module),
            **({"loss": loss} if (loss := self.buffer_snapshot.loss) else {}),
            "data": ReplacedSamples(self.data, self.communicator),
            "micro_batch_size": self.micro_batch_size,
            "precision": self.precision,
            "transforms": self.transforms,
            "strategy": self.strategy,
            "callbacks": self.callbacks,
        }

    def clear_gradients(self) -> None:
        """Drop the gradients of the previous step."""
        if self._clears_gradients:
            self.optimizer.zero_grad()
        for p in self.parameters.values():
            p.grad = None


def clears_more_than_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has a `zero_grad` of its own."""
    import torch

    return type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad


# ---- rows of a run: what each epoch, evaluation and callback found, in the history and in the store's
# `metrics.jsonl`


class RunHistory:
    """Adds rows to the history of a run, and removes those that are written again.

    The rows themselves are in `TrainState.history`, since a checkpoint keeps how many there were.

    Args:
        run: The run.

    Attributes:
        nothing_counted: For each mode that this process has measured, whether no sample of its newest pass counted,
            which leaves the objective undefined.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.nothing_counted: dict[Mode, bool] = {}

    def record(self, mode: Mode, values: Mapping[str, float], samples: int, seconds: float, is_empty: bool) -> None:
        """Add the outcome of an epoch, with the learning rates in force at its end, or of an evaluation.

        Args:
            mode: What was measured.
            values: By name.
            samples: How many were seen.
            seconds: How long it took.
            is_empty: Whether none of the samples counted.
        """
        self.nothing_counted[mode] = is_empty
        rates = group_learning_rates(self._run.optimizer) if mode is Mode.TRAIN else {}
        self._append(mode, self._run.state.step, values, {**rates, "samples": samples, "seconds": seconds})

    def record_step(self, values: Mapping[str, float], step: int) -> None:
        """Add what a callback found in a training step; a run that is resumed later does not write it again."""
        self._append(Mode.TRAIN, step, values, {})
        self._run.state.fix_rows()

    def truncate(self, rows: int) -> None:
        """Keep only the first so many rows: the others are written again."""
        run = self._run
        if rows < len(run.state.history):
            run.state.history.cut(rows)
            run.store.rewrite(run)

    def _append(self, mode: Mode, step: int, values: Mapping[str, float], more: Mapping[str, float]) -> None:
        state = self._run.state
        row = {"mode": mode.value, "epoch": state.epochs_done, "step": step, **values, **more}
        state.values.update({f"{mode.value}/{name}": value for name, value in values.items()})
        state.history.append(row)
        self._run.store.append(row)
