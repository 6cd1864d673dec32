"""The finite check of a run: a step whose gradient holds a NaN or an infinity changes nothing, on any rank.

Gradients are checked by `descend/runtime/gradient_check.py`. On a GPU the host need not wait: it learns of a bad
gradient when the next update is due.

    step n       a flag is computed on the device; where it is raised, the optimizer leaves the update out there
                 the flag is copied to page-locked memory
    step n + 1   forward and backward passes are launched, then the host reads the flag, which has long arrived
                 where it was raised: the run goes back to before step n, computes its gradient once more and checks
                 that as it does without a GPU, so the error, the weights and what is saved are the same

Whatever reads the run between two steps (a callback, an evaluation, a checkpoint) settles this first; see
`TransformChain.settle`. The flag is handed to the optimizer as torch's `GradScaler` does it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from descend.arguments import check_choice, require
from descend.errors import NumericalError
from descend.runtime.gpu_copies import HostNumber
from descend.runtime.gradient_check import GradientCheck, nonfinite_parameters
from descend.torch_private import skips_flagged_updates
from descend.train.events import Event
from descend.train.nonfinite_report import nonfinite_message
from descend.train.state import Bookmark
from descend.train.step import compute_gradients
from descend.train.strategies.base import Strategy
from descend.train.transforms.base import GradientTransform, Withheld

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.data import Batch
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients

__all__ = ["CheckFinite", "LateCheck"]


class CheckFinite(GradientTransform):
    """Checks every gradient before anything changes.

    Gradients that overflowed under a loss scale lower that first. Otherwise the step is bad: it ends the run, or is
    skipped, after 10 in a row of which the run ends.

    Args:
        on_nonfinite: "stop" ends the run, "skip" skips the step, "allow" does not check.

    Raises:
        ConfigurationError: the policy is unknown.
    """

    is_stateless: ClassVar[bool] = True
    POLICIES: ClassVar[tuple[str, ...]] = ("stop", "skip", "allow")
    IN_A_ROW: ClassVar[int] = 10

    def __init__(self, on_nonfinite: str = "stop") -> None:
        require(check_choice("on_nonfinite", on_nonfinite, self.POLICIES))
        self.on_nonfinite = on_nonfinite

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._run = run
        self._checks = self.on_nonfinite != "allow" or run.precision.checks_for_overflow
        self._check = GradientCheck({})
        self._late = LateCheck(run)

    def __call__(self, gradients: Gradients) -> Withheld | None:
        """See `GradientTransform`.

        Raises:
            NumericalError: a gradient is not finite, of this step or of the one before, and the run is to stop then.
        """
        self.settle()
        strategy = self._run.strategy
        names: list[str] = []
        if self._checks:
            check = self._check_of(strategy.local_parameters())
            is_late = self.on_nonfinite == "stop" and check.on_device and self._late.can_be_late()
            if is_late and self._late.launch(gradients, check):
                return None
            names = check.nonfinite()
        names = strategy.union(names)
        return self.withhold(gradients, names) if names else None

    def settle(self) -> None:
        """See `GradientTransform.settle`.

        Raises:
            NumericalError: the gradient of the newest step was not finite. Everything is as it was before that step.
        """
        gradients = self._late.found()
        if gradients is None:
            return
        try:
            names = self._check_of(self._run.strategy.local_parameters()).nonfinite()
            if not names:
                raise NumericalError(
                    f"step {self._run.state.step + 1}: a gradient was not finite, and all are when the step is "
                    "computed once more: look for a kernel whose results differ from call to call; "
                    "deterministic=True refuses those of torch"
                )
            self.withhold(gradients, names)
        finally:
            self._run.buffer_snapshot.restore()

    def _check_of(self, parameters: Mapping[str, torch.Tensor]) -> GradientCheck:
        if self._check.parameters is not parameters:
            self._check = GradientCheck(parameters)
        return self._check

    def check_again(self, gradients: Gradients, parameters: Mapping[str, torch.Tensor]) -> Withheld | None:
        """Check gradients that a later transform has changed, the same on all ranks."""
        names = nonfinite_parameters(parameters) if self._checks else []
        return self.withhold(gradients, names) if names else None

    def withhold(self, gradients: Gradients, names: Sequence[str]) -> Withheld:
        """End the run or leave the step out, which has these nonfinite parameters."""
        run, objective = self._run, float(gradients.value)
        reason = f"the gradient of '{names[0]}' is not finite"
        if math.isfinite(objective) and run.precision.lower_scale():
            return Withheld(f"{reason}: the loss scale was too large")
        run.precision.keep_scale()
        run.state.skipped_in_a_row += 1
        streak = run.state.skipped_in_a_row
        if self.on_nonfinite == "stop" or (streak >= self.IN_A_ROW and self.on_nonfinite == "skip"):
            run.clear_gradients()
            causes = run.strategy.diagnose(gradients.batch)
            raise NumericalError(nonfinite_message(run.state.step + 1, names, objective, causes, streak))
        return Withheld(reason)


_SEEN_BY_CALLBACKS = (Event.BEFORE_STEP, Event.AFTER_PART, Event.AFTER_BACKWARD, Event.AFTER_STEP)


@dataclass(frozen=True)
class _Pending:
    """An update that may have been left out.

    Attributes:
        flag: Above 0 if it was.
        batch: Its mini-batch.
        before: Where the run stood.
    """

    flag: HostNumber
    batch: Batch
    before: Bookmark


class LateCheck:
    """The flags of a run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: _Pending | None = None

    def can_be_late(self) -> bool:
        """Whether the host may learn of a bad gradient a step later: one process trains on a device, its optimizer
        leaves out the updates of a flag there, and nothing else sees the step meanwhile."""
        run = self._run
        return (
            type(run.strategy) is Strategy
            and not run.precision.checks_for_overflow
            and run.transforms.is_stateless
            and skips_flagged_updates(run.optimizer)
            and not any(map(run.callbacks.wants, _SEEN_BY_CALLBACKS))
        )

    def launch(self, gradients: Gradients, check: GradientCheck) -> bool:
        """Check the gradients of a step whose update follows. The host does not wait.

        Returns:
            Whether that is possible; if not, nothing was done.
        """
        flag = check.flag()
        if flag is None:
            return False
        run = self._run
        if run.precision.found_inf is not None:  # of a check before this one: either leaves the update out
            flag = torch.maximum(flag, run.precision.found_inf)
        run.precision.found_inf = flag
        run.buffer_snapshot.keeps_two = True
        self._pending = _Pending(HostNumber(flag), gradients.batch, Bookmark.of(run.state))
        return True

    def found(self) -> Gradients | None:
        """The gradients, computed once more, of an update that was left out, with the run as it was before that; None
        where the newest update was made, or all is known of it.

        While the gradients of the next step are there, its buffers are those that `restored_on_error` gives back.
        """
        pending, self._pending = self._pending, None
        if pending is None or not pending.flag.read():
            return None
        run = self._run
        pending.before.restore(run.state)
        run.buffer_snapshot.step_back()
        return compute_gradients(run, pending.batch)
