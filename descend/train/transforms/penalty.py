"""The part of an objective that depends on parameters alone, such as L2 regularization, added once a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError
from descend.train.objective import Ratio
from descend.train.transforms.base import GradientTransform

if TYPE_CHECKING:
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients

__all__ = ["Penalty", "RequireGradient"]


class Penalty(GradientTransform):
    """Adds the penalty of the task to objective and gradient, whatever the number of micro-batches and ranks."""

    is_local: ClassVar[bool] = True
    is_stateless: ClassVar[bool] = True

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._task, self._counts = run.task, run.communicator.is_rank_zero

    def __call__(self, gradients: Gradients) -> None:
        """See `GradientTransform`."""
        penalty = self._task.penalty()
        if penalty is None:
            return
        penalty.backward()
        value, denominator = penalty.detach(), gradients.objective.denominator
        gradients.objective = Ratio(gradients.value + value, 1.0)
        if self._counts:  # of several ranks, whose totals are added up
            gradients.totals.add("objective", Ratio(value * denominator, 0.0))


class RequireGradient(GradientTransform):
    """In the first step, refuses an objective that depends on no parameter that is trained."""

    is_local: ClassVar[bool] = True
    is_stateless: ClassVar[bool] = True

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._run = run

    def __call__(self, gradients: Gradients) -> None:
        """See `GradientTransform`.

        Raises:
            ConfigurationError: there is no gradient at all.
        """
        if self._run.state.step:
            return
        trained = [p for p in self._run.strategy.parameters.values() if p.requires_grad]
        if not trained or any(p.grad is not None for p in trained):
            return
        problem = "the objective depends on none of the weights that are trained"
        if refused(Deviation.NOTHING_TO_LEARN, problem):
            raise ConfigurationError(
                f"{problem}, so nothing would be learnt: look for .detach(), torch.no_grad() or .item() in the "
                "forward pass and in the loss"
            )
