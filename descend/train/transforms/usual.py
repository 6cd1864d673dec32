"""The transforms that every run has: regularization, what callbacks see, the finite check, and clipping.

usual_transforms  the chain, in order, with the user's own transforms before clipping
Clip              bounds on elements, on the norm of each parameter's gradient, and on the norm of all together
Penalty           the part of an objective that depends on parameters alone, added once a step
AfterBackward     callbacks look at the whole gradient, before it is checked, changed or clipped
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_

from descend.arguments import is_number, shown
from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError
from descend.train.events import Event
from descend.train.objective import Ratio
from descend.train.transforms.base import GradientTransform, TransformChain
from descend.train.transforms.check_finite import CheckFinite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from descend.train.run import Run
    from descend.train.transforms.base import Gradients

__all__ = ["AfterBackward", "Clip", "Penalty", "RequireGradient", "usual_transforms"]


def usual_transforms(
    on_nonfinite: str = "stop",
    clip_value: float | None = None,
    clip_norm: float | None = None,
    clip_global_norm: float | None = None,
    others: Sequence[GradientTransform] = (),
) -> TransformChain:
    """The transforms of a run; see `descend.train.transforms.base`.

    Args:
        on_nonfinite: See `CheckFinite`.
        clip_value: See `Clip`.
        clip_norm: See `Clip`.
        clip_global_norm: See `Clip`.
        others: Transforms of the user's own, between the finite check and clipping. What they make is checked again.

    Raises:
        ConfigurationError: all numbers and words that are wrong.
    """
    problems: list[str] = []
    chain: list[GradientTransform] = [Penalty(), RequireGradient(), AfterBackward()]
    parts: list[Callable[[], Sequence[GradientTransform]]] = [
        lambda: [CheckFinite(on_nonfinite)],
        lambda: [*others, CheckFinite(on_nonfinite)] if others else [],
        lambda: [Clip(clip_value, clip_norm, clip_global_norm)],
    ]
    for make in parts:
        try:
            chain += make()
        except ConfigurationError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if wrong := [one for one in cast("Sequence[object]", others) if not isinstance(one, GradientTransform)]:
        problems.append(f"transforms must be instances of descend.GradientTransform, got {wrong[0]!r}")
    if problems:
        raise ConfigurationError(problems)
    return TransformChain(chain)


class Clip(GradientTransform):
    """Bounds gradients; without a bound it does nothing.

    Args:
        value: Bound on the magnitude of each element of a gradient.
        norm: Bound on the Euclidean norm of each parameter's gradient.
        global_norm: Bound on the Euclidean norm of all gradients together.

    Raises:
        ConfigurationError: a bound is not above 0.
    """

    is_stateless: ClassVar[bool] = True

    def __init__(self, value: float | None = None, norm: float | None = None, global_norm: float | None = None) -> None:
        problems = [
            f"{name} must be a number above 0, or None for no bound, got {shown(bound)}"
            for name, bound in (("clip_value", value), ("clip_norm", norm), ("clip_global_norm", global_norm))
            if bound is not None and not (is_number(bound) and bound > 0)
        ]
        if problems:
            raise ConfigurationError(problems)
        self.value, self.norm, self.global_norm = value, norm, global_norm

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._strategy = run.strategy

    def __call__(self, gradients: Gradients) -> None:
        """Clip, in the order of the arguments of the class."""
        if self.value is self.norm is self.global_norm is None:
            return
        named = {name: p for name, p in self._strategy.local_parameters().items() if p.grad is not None}
        if not named and not self._strategy.is_sharded:
            return  # which torch's functions take for an error
        if any(p.grad is not None and p.grad.is_sparse for p in named.values()):
            named = {name: _rows_of(p) for name, p in named.items()}
        parameters = list(named.values())
        if self.value is not None and parameters:
            clip_grad_value_(parameters, min(self.value, *(_largest(p) for p in parameters)))
        if self._strategy.is_sharded:
            self._clip_shards(named)
            return
        if self.norm is not None:
            for p in parameters:
                clip_grad_norm_([p], self.norm)
        if self.global_norm is not None:
            clip_grad_norm_(parameters, self.global_norm)

    def _clip_shards(self, named: dict[str, torch.Tensor]) -> None:
        """Bound norms of parameters of which this rank has a shard."""
        if self.norm is not None:
            norms, _ = self._strategy.gradient_norms(named)
            for p, norm in zip(named.values(), norms, strict=True):
                clip_grads_with_norm_([p], self.norm, norm)
        if self.global_norm is not None:
            _, total = self._strategy.gradient_norms(named)
            clip_grads_with_norm_(list(named.values()), self.global_norm, total)


def _rows_of(p: torch.Tensor) -> torch.Tensor:
    """A stand-in for a parameter with a sparse gradient, whose own gradient is the rows of that, repeated ones summed.

    The values share memory with the gradient, so clipping them clips it.
    """
    if p.grad is None or not p.grad.is_sparse:
        return p
    p.grad = p.grad.coalesce()
    rows = p.grad.values()
    stand_in = torch.empty_like(rows)
    stand_in.grad = rows
    return stand_in


def _largest(p: torch.Tensor) -> float:
    """The greatest number that a gradient of its type can be clipped to."""
    return torch.finfo(p.dtype).max if p.dtype.is_floating_point else math.inf


# ---- the part of an objective that depends on parameters alone, such as L2 regularization, added once a step


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


# ---- callbacks look at the whole gradient: after the backward passes, before it is checked, changed or clipped


class AfterBackward(GradientTransform):
    """Calls `after_backward` of the callbacks."""

    is_stateless: ClassVar[bool] = True

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._run = run

    def __call__(self, gradients: Gradients) -> None:
        """See `GradientTransform`."""
        self._run.state.signal_divisor, callbacks = gradients.divisor, self._run.callbacks
        if callbacks.wants(Event.AFTER_BACKWARD) or callbacks.wants(Event.AFTER_STEP):
            callbacks.fire(Event.AFTER_BACKWARD, gradients.view)  # which after_step sees again
