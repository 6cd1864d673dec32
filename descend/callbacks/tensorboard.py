"""Writes scalars, histograms and images for TensorBoard. Needs tensorboard: pip install tensorboard.

Files go to the model's `summary_dir`, by default `tensorboard` in the run directory. A run that continues a checkpoint
takes back what was written after that checkpoint, so the series stay one.
"""

from __future__ import annotations

import time
from enum import IntEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from descend.callbacks.images import as_pixels
from descend.callbacks.name_fields import at_least, require, require_extra
from descend.errors import Unsupported, missing_library, warn
from descend.graph.fields import described, described_openly
from descend.train import Callback, Mode
from descend.train.param_groups import group_learning_rates

if TYPE_CHECKING:
    from pathlib import Path

    from descend.train import EpochView, EvaluationView, RunView, StepView
    from descend.train.callback_api import RunControl

__all__ = [
    "CategoricalAccuracyStrategy",
    "MatchType",
    "SummarizeImages",
    "Summary",
    "TrackSampleIDsStrategy",
    "close_writer",
    "missing_tensorboard",
    "open_writer",
]


# All callbacks of a run write into one file: TensorBoard reads the files of a folder one after the other, and takes the
# beginning of each for a restart that takes back what the ones before it hold.
_WRITERS: WeakKeyDictionary[RunControl, Any] = WeakKeyDictionary()


def _wait_until_ours_is_last(folder: Path) -> None:
    """TensorBoard reads the files of a folder in the order of their names, which say the second they were begun in and
    then the process: one that resumes within the same second could sort before it."""
    while (newest := max((path.name for path in folder.glob("events.out.tfevents.*")), default="")) >= _begun_now():
        begun = newest.split(".")[3]
        if not begun.isdecimal() or int(begun) > time.time() + 2:
            warn(
                f"{folder / newest} was begun later than it is now by this host's clock: TensorBoard takes this run's "
                "series for older ones and drops them; set the clock, or give the model another summary_dir"
            )
            return
        time.sleep(0.05)


def _begun_now() -> str:
    return f"events.out.tfevents.{int(time.time()):010d}"


def open_writer(run: RunView) -> Any:
    """The one `SummaryWriter` of a run; what it holds of later steps than the run's is taken back."""
    if run.control not in _WRITERS:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.control.path(f"{run.control.files.summary_dir}/.")
        _wait_until_ours_is_last(folder)
        _WRITERS[run.control] = SummaryWriter(str(folder), purge_step=run.step + 1)
    return _WRITERS[run.control]


def close_writer(run: RunView, writer: Any) -> None:
    """Close the writer of a run; callbacks that share it may all do so."""
    _WRITERS.pop(run.control, None)
    writer.close()


def missing_tensorboard(callback: Callback) -> str | None:
    """What to install for a callback that needs TensorBoard, where that is missing."""
    there = find_spec("tensorboard") is not None
    return None if there else missing_library(type(callback).__name__, "tensorboard")


class _Writing(Callback):
    """What has a writer of TensorBoard's files open during a run."""

    writer: Any

    def missing_extra(self) -> str | None:
        """See `Callback.missing_extra`."""
        return missing_tensorboard(self)

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.writer = None
        require_extra(self)

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        self.writer = open_writer(run)

    def state(self) -> dict[str, Any]:
        """See `Callback.state`: what was written before a checkpoint is in the file before it, since a run that is
        killed later continues from there."""
        if self.writer is not None:
            self.writer.flush()
        return super().state()

    def after_run(self, run: RunView) -> None:
        """See `Callback.after_run`."""
        if self.writer is not None:
            close_writer(run, self.writer)


@described_openly
class Summary(_Writing):
    """Objective, metrics and the rate of each group as scalars, weights and gradients as histograms.

    Runs:  after_setup, before_run, after_backward, after_step, after each pass, after_run.
    Reads: the objective, rates, weights and gradients. Changes nothing.
    Costs: a wait for the device every `batch_interval` steps; a copy of weights and gradients every `mat_interval`.

    Args:
        batch_interval: Steps between scalars; 0 counts as 1.
        mat_interval: Steps between histograms; 0 counts as 25.

    Raises:
        ConfigurationError: a negative interval.
        MissingExtra: at the start, without TensorBoard.
    """

    message: ClassVar[str] = "Callback.CallbackSummary"

    batch_interval: int = 1
    mat_interval: int = 25

    def __post_init__(self) -> None:
        at_least(self, 0, "batch_interval", "mat_interval")

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if step.step % (self.mat_interval or 25) == 0:
            for name, gradient in step.gradients.items():
                self.writer.add_histogram(f"gradients/{name}", gradient, step.step)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if step.step % (self.batch_interval or 1) == 0:
            self.writer.add_scalar("train/step_objective", step.loss, step.step)
            for name, rate in group_learning_rates(step.optimizer).items():
                self.writer.add_scalar(name, rate, step.step)
        if step.step % (self.mat_interval or 25) == 0:
            for name, weights in step.run.control.weights.items():
                self.writer.add_histogram(f"weights/{name}", weights.detach(), step.step)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self._scalars(epoch, Mode.TRAIN)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        self._scalars(evaluation, evaluation.mode)

    def _scalars(self, view: EpochView | EvaluationView, mode: Mode) -> None:
        for name, value in view.values.items():
            self.writer.add_scalar(f"{mode}/{name}", value, view.step)


class MatchType(IntEnum):
    """Which samples: those that were classified wrongly, rightly, or both."""

    NOMATCH = 0
    MATCH = 1
    ALL = 2


@described
class CategoricalAccuracyStrategy:
    """The first `num_images_per_epoch` samples that a layer of accuracies calls right (1), wrong (0), or either."""

    message: ClassVar[str] = "Callback.CallbackSummarizeImages.SelectionStrategy.CategoricalAccuracyStrategy"

    accuracy_layer_name: str = ""
    match_type: MatchType = MatchType.NOMATCH
    num_images_per_epoch: int = 0

    def __post_init__(self) -> None:
        at_least(self, 0, "num_images_per_epoch")


@described
class TrackSampleIDsStrategy:
    """The same samples each time: refused, as LBANN itself no longer has it.

    Raises:
        Unsupported: always.
    """

    message: ClassVar[str] = "Callback.CallbackSummarizeImages.SelectionStrategy.TrackSampleIDsStrategy"

    input_layer_name: str = ""
    num_tracked_images: int = 0

    def __post_init__(self) -> None:
        raise Unsupported("TrackSampleIDsStrategy was removed from LBANN; use CategoricalAccuracyStrategy")


class _Pictures(_Writing):
    """Pictures of the pass under way by sample number."""

    pictures: dict[int, Any]

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        super().before_run(run)
        self.pictures = {}


@described_openly
class SummarizeImages(_Pictures):
    """Shows validation samples as pictures, those that a strategy selects, every `epoch_interval` epochs.

    Runs:  around each mini-batch of an evaluation of validation samples, and after it.
    Reads: the outputs of two layers. Changes nothing.
    Costs: a wait for the device a mini-batch, until there are enough pictures.

    Args:
        selection_strategy: CategoricalAccuracyStrategy.
        image_source_layer_name: The layer of the pictures.
        epoch_interval: 0 counts as 1.

    Raises:
        ConfigurationError: a field is missing.
        MissingExtra: at the start, without TensorBoard.
    """

    message: ClassVar[str] = "Callback.CallbackSummarizeImages"

    selection_strategy: CategoricalAccuracyStrategy | None = None
    image_source_layer_name: str = ""
    epoch_interval: int = 1

    def __post_init__(self) -> None:
        require(self, "image_source_layer_name", "selection_strategy")
        at_least(self, 0, "epoch_interval")

    @property
    def accuracy_layer_name(self) -> str:
        """The layer that says which samples were classified rightly."""
        return self._strategy.accuracy_layer_name

    @property
    def _strategy(self) -> CategoricalAccuracyStrategy:
        assert self.selection_strategy is not None  # required
        return self.selection_strategy

    def before_evaluation_step(self, step: StepView) -> None:
        """See `Callback.before_evaluation_step`."""
        if self._due(step):
            step.watch.layers((self.image_source_layer_name, self.accuracy_layer_name))

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        if not self._due(step):
            return
        right = step.watch.outputs(self.accuracy_layer_name)[0].reshape(-1).bool()
        images = step.watch.outputs(self.image_source_layer_name)[0]
        match self._strategy.match_type:
            case MatchType.MATCH:
                chosen = right
            case MatchType.NOMATCH:
                chosen = ~right
            case MatchType.ALL:
                chosen = right | True
        for i in chosen.nonzero().reshape(-1).tolist()[: self._strategy.num_images_per_epoch - len(self.pictures)]:
            self.pictures[int(step.ids[i])] = as_pixels(images[i].cpu().numpy())

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        for number, pixels in self.pictures.items():
            form = "HWC" if pixels.ndim == 3 else "HW"
            self.writer.add_image(f"sample {number}", pixels, evaluation.step, dataformats=form)
        self.pictures = {}

    def _due(self, step: StepView) -> bool:
        enough = len(self.pictures) >= self._strategy.num_images_per_epoch
        return step.mode is Mode.VALIDATION and not enough and step.epoch % (self.epoch_interval or 1) == 0
