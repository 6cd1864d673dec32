"""Metrics of a run: each is the value over all samples together, whatever the batches and ranks.

accuracy, top5, …                            hits over samples; any k; an output that is NaN is never a hit
precision, recall, f1, auroc, r2             see accumulated_metrics.py
perplexity, rmse                             exp of the mean loss, root of the mean squared error
"mse", "cross_entropy", …                    any loss by its name
a loss module, a function, a torchmetrics object
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.arguments import shown
from descend.errors import ConfigurationError, nearest
from descend.experiment.accumulated_metrics import (
    AccumulatedMetric,
    TorchMetric,
    accumulated_metric,
    binary_outputs,
    is_torchmetric,
)
from descend.experiment.losses import NAMED, FunctionLoss, Loss, TorchLoss, loss_of
from descend.machine import as_double
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["METRICS", "build_metrics"]

# What rows of the history hold beside metrics.
ROW = frozenset({"objective", "seconds", "samples", "mode", "epoch", "step", "learning_rate", "skipped_steps"})

METRICS = ("accuracy", "top5", "precision", "recall", "f1", "auroc", "perplexity", "rmse", "r2")
_TOP = re.compile(r"top[-_]?(\d+)(?:[-_]accuracy)?")


def build_metrics(wanted: Mapping[str, Any] | Iterable[str], loss: Any) -> dict[str, Loss]:
    """Metrics by name.

    Args:
        wanted: Names such as "accuracy" or "mse"; or a mapping from names of the user's own to anything that can be a
            loss, a name, or a metric object of torchmetrics.
        loss: The objective as the user gave it; metrics of classes do not count targets that it ignores.

    Raises:
        ConfigurationError: a name is unknown, or a metric is not a loss.
    """
    if isinstance(wanted, str):
        wanted = (wanted,)
    names = wanted if isinstance(wanted, Mapping) else _names_in(wanted)
    if names is None:
        raise ConfigurationError(
            f"metrics must be a list of names such as 'accuracy', or a dictionary of functions, got {shown(wanted)}"
        )
    check_metric_names(names)
    named: dict[str, Any] = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    if not named:
        return {}
    objective = loss_of(loss)
    return {name: _measure(name, measure, objective) for name, measure in named.items()}


def _names_in(names: Any) -> list[Any] | None:
    """What an iterable yields, if it yields names or what may stand for them; None for anything else."""
    try:
        return list(names)
    except Exception:  # of any class: a tensor without dimensions, a loader whose data raise
        return None


def check_metric_names(names: Iterable[Any]) -> None:
    """Refuse names that a line, a table or a terminal cannot show as they are.

    Raises:
        ConfigurationError: a name is not a string, has a newline, a control character or a bidirectional mark, or is
            that of another entry of a row.
    """
    names = list(names)
    problems = [
        f"the name of a metric must be a text that can be printed in one line, got {shown(name)}"
        for name in names
        if not isinstance(name, str) or not name or printable(name) != name
    ]
    problems += [
        f"metric '{name}' has the name of another entry of a row; choose another one"
        for name in names
        if isinstance(name, str) and name in ROW
    ]
    if problems:
        raise ConfigurationError(problems)


def _measure(name: Any, measure: Any, objective: Loss) -> Loss:
    if is_torchmetric(measure):
        return TorchMetric(name, measure)
    if isinstance(measure, str):
        return _named(measure, objective)
    if not callable(measure):
        raise ConfigurationError(
            f"metric '{name}' must be a name such as 'accuracy', a loss module of torch, or a function "
            f"(output, *targets), got {shown(measure)}"
        )
    measured = loss_of(measure)
    if isinstance(measured, FunctionLoss):
        measured.metric = name
    return measured


def _named(name: str, objective: Loss) -> Loss:
    ignored = getattr(objective, "ignore_index", None)
    probabilities = isinstance(objective, TorchLoss) and objective.kind is torch.nn.BCELoss
    if name == "accuracy":
        return FunctionLoss(_accuracy(ignored, probabilities), metric=name, exact=True)
    if match := _TOP.fullmatch(name):
        return FunctionLoss(_top(int(match[1]), ignored), metric=name, exact=True)
    if name in NAMED:
        return loss_of(name)
    if name == "perplexity":
        entropy = objective if getattr(objective, "kind", None) in _ENTROPIES else loss_of("cross_entropy")
        return _transformed(name, entropy, _exp, _require_classes)
    if name == "rmse":
        return _transformed(name, loss_of("mse"), math.sqrt)
    if found := accumulated_metric(name, ignored, probabilities):
        return found
    known = (*METRICS, *NAMED)
    raise ConfigurationError(f"metric must be one of {', '.join(known)}, got '{name}'{nearest(name, known)}")


_ENTROPIES = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf  # the largest float64 is exp(709.78)


def _transformed(
    name: str,
    loss: Loss,
    function: Callable[[float], float],
    check: Callable[[str, Any], object] = lambda name, output: None,
) -> AccumulatedMetric:
    """A function of the mean of a loss over all samples."""

    def update(output: Any, target: Tensor) -> Mapping[str, Tensor]:
        check(name, output)
        ratio = loss.ratio(output, [target], len(target))
        return {"sum loss": ratio.numerator, "sum count": torch.as_tensor(ratio.denominator)}

    def compute(parts: Mapping[str, Tensor]) -> float:
        mean = float(parts["sum loss"] / parts["sum count"])
        return function(mean) if mean == mean else mean

    return AccumulatedMetric(name, update, compute)


def _require_tensor(name: str, output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise ConfigurationError(
            f"metric '{name}': the output must be a tensor (samples, classes, ...), got a "
            f"{type(output).__name__}: return that tensor alone, or pass a function, such as metrics={{'{name}': "
            "lambda output, y: (output[0].argmax(1) == y).float().mean()}"
        )
    return output


def _require_classes(name: str, output: Any) -> Tensor:
    output = _require_tensor(name, output)
    if output.ndim < 2 or output.shape[1] < 2:
        raise ConfigurationError(
            f"metric '{name}': the output must have shape (samples, classes, ...), got {tuple(output.shape)}"
        )
    return output


class _Classes:
    """Class numbers of targets that are such, or probabilities of the classes; other numbers are refused.

    Args:
        name: Of the metric.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._checked = False  # the first micro-batch only, since that waits for the device

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if not target.is_floating_point():
            return target
        if target.shape != output.shape:
            raise ConfigurationError(
                f"metric '{self._name}': targets are {target.dtype} and have shape {tuple(target.shape)}: they must be "
                f"class indices, or probabilities of the shape of the output, {tuple(output.shape)}"
            )
        if not self._checked and target.numel():
            lowest, highest = float(target.min()), float(target.max())
            if not 0 <= lowest <= highest <= 1:
                raise ConfigurationError(
                    f"metric '{self._name}': targets must be class indices or probabilities from 0 to 1, got "
                    f"values from {lowest:.6g} to {highest:.6g}: of other numbers there is 'rmse' or 'r2'"
                )
            self._checked = True
        return target.argmax(1)


def _accuracy(ignored: int | None, probabilities: bool) -> Callable[..., tuple[Tensor, Tensor | float]]:
    """Accuracy: a target is hit if it is the index of the largest output along dimension 1 and none of them is NaN.

    Where there is one output for each target, of 0 or 1, that is on its side of 0; of 0.5, if it is a probability.
    """
    threshold = 0.5 if probabilities else 0.0
    classes_of = _Classes("accuracy")
    binary = None  # whether targets are 0 and 1 alone; of the first micro-batch, since that waits for the device

    def accuracy(output: Any, target: Tensor) -> tuple[Tensor, Tensor | float]:
        nonlocal binary
        output = _require_tensor("accuracy", output)
        one_column = output.ndim < 2 or output.shape[1] < 2
        if one_column and binary is None:
            binary = binary_outputs(output, target) and bool(((target == 0) | (target == 1)).all())
        if one_column and binary:
            scores = output.reshape(-1)
            hits = ((scores > threshold) == (target.reshape(-1) > 0.5)) & (scores == scores)
            return as_double(hits.sum()), torch.tensor(hits.numel(), device=hits.device)
        if one_column:
            raise ConfigurationError(
                f"metric 'accuracy': the output must have shape (samples, classes, ...), got {tuple(output.shape)}: "
                "pass a function, such as metrics={'accuracy': "
                "lambda output, y: ((output > 0) == (y > 0.5)).float().mean()}"
            )
        classes = classes_of(output, target)
        place = output.argmax(1)  # that of a NaN where there is one
        largest = output.gather(1, place.unsqueeze(1)).squeeze(1)
        hits = (place == classes) & (largest == largest)
        if ignored is None:
            return as_double(hits.sum()), float(hits.numel())
        counted = classes != ignored
        if ignored >= 0:  # of others none is hit
            hits &= counted
        return as_double(hits.sum()), counted.sum()

    accuracy.__qualname__ = "accuracy"  # errors call it by the name that the user gave
    return accuracy


def _top(k: int, ignored: int | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """Top-k accuracy: a target is hit if its output is among the k largest along dimension 1 and none is NaN."""
    if k < 1:
        raise ConfigurationError(f"metric 'top{k}': k must be >= 1")
    classes_of = _Classes(f"top{k}")

    def top(output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        output = _require_tensor(f"top{k}", output)
        if output.ndim < 2 or output.shape[1] <= k:
            raise ConfigurationError(
                f"metric 'top{k}': the output must have shape (samples, classes, ...) with more than {k} classes, got "
                f"{tuple(output.shape)}"
            )
        classes = classes_of(output, target)
        counted = classes == classes if ignored is None else classes != ignored
        largest, places = output.topk(k, dim=1)  # NaN counts as the largest
        hits = (places == classes.unsqueeze(1)).any(1) & (largest == largest).all(1)
        return as_double((hits & counted).sum()), counted.sum()

    return top
