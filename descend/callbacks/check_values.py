"""Checks every value of every step: NaN and infinities, subnormal values, samples read twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import DataError, NumericalError
from descend.graph.fields import described_openly
from descend.train import Callback, Mode

if TYPE_CHECKING:
    import torch

    from descend.train import EpochView, EvaluationView, RunView, StepView
    from descend.train.activations import Outputs

__all__ = ["CheckDataset", "CheckNaN", "CheckSmall"]


class _CheckValues(Callback):
    """Base of checks of outputs of layers, gradients and weights."""

    complaint: ClassVar[str]

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""

        def look(name: str, outputs: Outputs) -> None:
            for output in outputs:
                self._look(f"the output of layer '{name}'", output, step)

        step.watch.listen(look)

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        for name, gradient in step.gradients.items():
            self._look(f"the gradient of '{name}'", gradient, step)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        for name, weights in step.run.control.weights.items():
            self._look(f"'{name}'", weights, step)

    def _look(self, what: str, values: torch.Tensor, step: StepView) -> None:
        found = self.bad(values.detach()) if values.is_floating_point() else None
        if found is None or not bool(found.any()):
            return
        place = tuple(found.nonzero()[0].tolist())
        samples = ", ".join(map(str, step.batch.ids[:5].tolist()))
        raise NumericalError(
            f"{type(self).__name__}: {what} {self.complaint} in step {step.step} (epoch {step.epoch}): entry {place} "
            f"of shape {tuple(values.shape)} is {values[place].item():g}, and {int(found.sum()):,} in all; the "
            f"mini-batch began with the samples {samples}"
        )

    def bad(self, values: torch.Tensor) -> torch.Tensor:
        """A mask of the values that fail the check."""
        raise NotImplementedError


@described_openly
class CheckNaN(_CheckValues):
    """Ends the run at the first value that is NaN or infinite, and says in which layer or weights it was.

    Runs:  in the forward pass after each layer, after_backward, after_step.
    Reads: all outputs, gradients and weights. Changes nothing.
    Costs: a pass over all of them, and a wait for the device after each layer.

    Raises:
        NumericalError: from a hook, at the first such value. Weights are still the old ones, unless it is in them.
    """

    message: ClassVar[str] = "Callback.CallbackCheckNaN"
    complaint: ClassVar[str] = "is not finite"

    def bad(self, values: torch.Tensor) -> torch.Tensor:
        """See `_CheckValues.bad`."""
        return ~values.isfinite()


@described_openly
class CheckSmall(_CheckValues):
    """Ends the run at the first value that is not 0 and at most √(smallest normal number of its type) in magnitude:
    squares of such numbers are lost.

    Runs:  in the forward pass after each layer, after_backward, after_step.
    Reads: all outputs, gradients and weights. Changes nothing.
    Costs: a pass over all of them, and a wait for the device after each layer.

    Raises:
        NumericalError: from a hook, at the first such value.
    """

    message: ClassVar[str] = "Callback.CallbackCheckSmall"
    complaint: ClassVar[str] = "is too small to be squared"

    def bad(self, values: torch.Tensor) -> torch.Tensor:
        """See `_CheckValues.bad`."""
        import torch

        return (values != 0) & (values.abs() <= torch.finfo(values.dtype).tiny ** 0.5)


class _Counting(Callback):
    """The number of times that each sample was read in the current epoch, by mode."""

    remembers: ClassVar[tuple[str, ...]] = ("seen",)
    seen: dict[str, Any]
    pending: list[int]

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.seen, self.pending = {}, []


@described_openly
class CheckDataset(_Counting):
    """Ends the run when an epoch reads a sample twice or omits one.

    Runs:  after_backward, after_step, after_evaluation_step, and around each pass.
    Reads: numbers of samples. Changes nothing.
    Costs: a byte a sample, and a pass over those bytes a step.

    Raises:
        DataError: from a hook, with the number of a sample.
    """

    message: ClassVar[str] = "Callback.CallbackCheckDataset"
    reads_weights = False

    def before_epoch(self, epoch: EpochView) -> None:
        """See `Callback.before_epoch`."""
        self._begin(Mode.TRAIN, epoch.samples[1], again=False)

    def before_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.before_evaluation`."""
        self._begin(evaluation.mode, evaluation.samples[1], again=True)

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`; a step that makes no update is not followed by after_step."""
        self.pending += step.ids.tolist()

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        self._count_pending(step.epoch)

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`; it may come within a training step, before that is counted."""
        self._count(step.mode, step.epoch, step.ids.tolist())

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        if epoch.complete:
            self._count_pending(epoch.epoch)
            self._finish(Mode.TRAIN)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        self._finish(evaluation.mode)

    def _begin(self, mode: Mode, samples: int | None, again: bool) -> None:
        import torch

        if again or mode not in self.seen:  # a pass that continues a checkpoint has its first part there already
            self.seen[mode.value] = torch.zeros(samples or 0, dtype=torch.uint8)

    def _count_pending(self, epoch: int) -> None:
        ids, self.pending = self.pending, []
        self._count(Mode.TRAIN, epoch, ids)

    def _count(self, mode: Mode, epoch: int, ids: list[int]) -> None:
        import torch

        before = self.seen[mode.value]
        seen = torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=len(before)).to(before.dtype)
        seen[: len(before)] += before
        self.seen[mode.value] = seen
        if (twice := (seen > 1).nonzero()).numel():
            raise DataError(f"CheckDataset: {mode} sample {int(twice[0])} was read twice in epoch {epoch}")

    def _finish(self, mode: Mode) -> None:
        left_out = (self.seen.pop(mode.value) == 0).nonzero()
        if left_out.numel():
            raise DataError(
                f"CheckDataset: {mode} sample {int(left_out[0])} was not read in this epoch, and "
                f"{left_out.numel():,} in all"
            )
