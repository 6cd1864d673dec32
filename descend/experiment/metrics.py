"""Metrics of a run: any loss, and accuracy, as sums of a numerator and a denominator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from descend.errors import ConfigurationError, nearest
from descend.experiment.losses import NAMED, FunctionLoss, Loss, loss_of

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["build_metrics"]


def build_metrics(wanted: Mapping[str, Any] | Iterable[str], loss: Any) -> dict[str, Loss]:
    """Metrics by name.

    Args:
        wanted: Names such as "accuracy" or "mse"; or a mapping from names of the user's own to anything that can be a
            loss.
        loss: The objective as the user gave it; "accuracy" does not count targets that it ignores.

    Raises:
        ConfigurationError: a name is unknown, or a metric is no loss.
    """
    if isinstance(wanted, str):
        wanted = (wanted,)
    given: Any = wanted
    if not isinstance(given, Iterable):
        raise ConfigurationError(
            f"metrics must be a list of names such as 'accuracy', or a dictionary of functions, got {given!r}"
        )
    named: dict[str, Any] = dict(wanted) if isinstance(wanted, Mapping) else {name: name for name in wanted}
    ignored = getattr(loss_of(loss), "ignore_index", None)
    return {name: _measure(name, measure, ignored) for name, measure in named.items()}


def _measure(name: Any, measure: Any, ignored: int | None) -> Loss:
    if measure == "accuracy":
        return FunctionLoss(_accuracy(ignored))
    if isinstance(measure, str) and measure not in NAMED:
        known = ("accuracy", *NAMED)
        raise ConfigurationError(f"metric must be one of {', '.join(known)}, got '{measure}'{nearest(measure, known)}")
    if not isinstance(measure, str) and not callable(measure):
        raise ConfigurationError(
            f"metric '{name}' must be a name such as 'accuracy', a loss module of torch, or a function "
            f"(output, *targets), got {measure!r}"
        )
    return loss_of(measure)


def _accuracy(ignored: int | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """Accuracy: a target is hit if it is the index of the largest output along dimension 1."""

    def accuracy(output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(output, Tensor):
            raise ConfigurationError(
                "metric 'accuracy': the output must be a tensor (samples, classes, ...), got a "
                f"{type(output).__name__}: return that tensor alone, or pass a function, such as metrics={{'accuracy': "
                "lambda output, y: (output[0].argmax(1) == y).float().mean()}"
            )
        if output.ndim < 2 or output.shape[1] < 2:
            raise ConfigurationError(
                f"metric 'accuracy': the output must have shape (samples, classes, ...), got {tuple(output.shape)}: "
                "pass a function, such as metrics={'accuracy': "
                "lambda output, y: ((output > 0) == (y > 0.5)).float().mean()}"
            )
        classes = target.argmax(1) if target.is_floating_point() else target
        counted = classes == classes if ignored is None else classes != ignored
        return ((output.argmax(1) == classes) & counted).sum().double(), counted.sum()

    return accuracy
