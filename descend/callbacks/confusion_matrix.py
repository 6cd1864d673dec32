"""Writes confusion matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.callbacks.name_fields import require
from descend.errors import ConfigurationError
from descend.graph.fields import described_openly
from descend.machine import as_double
from descend.train import Callback, Mode

if TYPE_CHECKING:
    from torch import Tensor

    from descend.train import EpochView, EvaluationView, RunView, StepView

__all__ = ["ConfusionMatrix"]

_OF_NONE = " of no class"


class _Counts(Callback):
    """Counts of the current epochs by mode: (classes, classes), one row for each prediction.

    Samples without a prediction, of which an output is NaN, are counted by mode and `_OF_NONE`.
    """

    remembers: ClassVar[tuple[str, ...]] = ("counts",)
    counts: dict[str, Any]

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.counts = {}


@described_openly
class ConfusionMatrix(_Counts):
    """Writes for each epoch the fraction of its samples with prediction i and label j, in row i and column j.

    A sample with an output that is NaN has no prediction, so that the fractions sum to less than 1.

    Files: PREFIXtrain-epochE.csv, PREFIXvalidation-epochE.csv, PREFIXtest.csv, E being the passes that are complete.
    Runs:  around each mini-batch, and after each pass.
    Reads: the outputs of two layers, of which the largest entry counts. Changes nothing.
    Costs: an addition a mini-batch, without a wait for the device.

    Args:
        prediction: The layer of the scores, (classes).
        label: The layer of the labels, as one-hot vectors of the same length.
        prefix: Begins each name.

    Raises:
        ConfigurationError: no layers; from a hook, layers of different sizes.
    """

    message: ClassVar[str] = "Callback.CallbackConfusionMatrix"
    reads_weights = False

    prediction: str = ""
    label: str = ""
    prefix: str = ""

    def __post_init__(self) -> None:
        require(self, "prediction", "label")

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        step.watch.layers((self.prediction, self.label))

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        import torch

        prediction, label = (step.watch.outputs(name)[0].flatten(1) for name in (self.prediction, self.label))
        if prediction.shape != label.shape:
            raise ConfigurationError(
                f"ConfusionMatrix: '{self.prediction}' has {prediction.shape[1]} outputs and '{self.label}' "
                f"{label.shape[1]}; labels must be one-hot vectors of the same length"
            )
        classes = prediction.shape[1]
        none = prediction.isnan().any(1)
        cells = (prediction.argmax(1) * classes + label.argmax(1)).where(~none, classes**2)
        counts = torch.bincount(cells, minlength=classes**2 + 1)
        self._add(step.mode.value, counts[:-1].reshape(classes, classes))
        self._add(step.mode.value + _OF_NONE, counts[-1])

    def _add(self, key: str, counts: Tensor) -> None:
        self.counts[key] = self.counts[key] + counts if key in self.counts else counts

    def before_evaluation_step(self, step: StepView) -> None:
        """See `Callback.before_evaluation_step`."""
        self.before_step(step)

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        self.after_backward(step)

    def before_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.before_evaluation`; an evaluation that was cut off starts over."""
        for key in (evaluation.mode.value, evaluation.mode.value + _OF_NONE):
            self.counts.pop(key, None)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if epoch.complete:
            self._write(epoch.run, Mode.TRAIN, f"train-epoch{epoch.finished}")

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        test = evaluation.mode is Mode.TEST
        self._write(evaluation.run, evaluation.mode, "test" if test else f"{evaluation.mode}-epoch{evaluation.epoch}")

    def _write(self, run: RunView, mode: Mode, name: str) -> None:
        counts, none = as_double(self.counts.pop(mode.value)), self.counts.pop(mode.value + _OF_NONE, 0)
        rows = (counts / (counts.sum() + none)).tolist()
        text = "".join(",".join(f"{share:.9g}" for share in row) + "\n" for row in rows)
        run.control.path(f"{self.prefix}{name}.csv").write_text(text, encoding="utf-8")
