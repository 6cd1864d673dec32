"""Metrics that are no ratio of two sums: precision, recall, F1, AUROC, R², and any metric of torchmetrics.

Each is a state that adds up over micro-batches and ranks (`Accumulated`), and a function of it, so that the value is
that of all samples together: it depends neither on the size of a mini-batch nor on the number of ranks.

    precision, recall, f1     counts of true positives, false positives and false negatives of each class
    auroc                     scores and classes of all samples, (samples, classes) float64
    r2                        Σy, Σy², Σ(y − ŷ)² and the count, for each output
    a torchmetrics object     its own states, by their own reductions

Classes are indices (samples, …) or probabilities (samples, classes, …), and outputs (samples, classes, …); of two
classes the second one is positive. Outputs and targets of one shape are binary, the output a logit, or a probability
where the loss is BCELoss. Of three classes and more, precision, recall, F1 and AUROC are means over the classes that
occur (macro averages).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from descend.errors import ConfigurationError
from descend.experiment.losses import Loss
from descend.machine import as_double
from descend.train.objective import Accumulated, Ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    Parts = Mapping[str, Tensor]

__all__ = ["AccumulatedMetric", "TorchMetric", "accumulated_metric", "binary_outputs", "is_torchmetric"]


class AccumulatedMetric(Loss):
    """A metric with a state.

    Args:
        name: Its name, for messages.
        update: From output and target of a micro-batch to the parts of the state.
        compute: From the parts over all samples to the value.
    """

    def __init__(self, name: str, update: Callable[[Any, Tensor], Parts], compute: Callable[[Parts], float]) -> None:
        self.name, self.update, self.compute = name, update, compute

    def ratio(self, output: Any, targets: Sequence[Tensor], count: int) -> Ratio:
        """Refused: it is not a ratio."""
        raise ConfigurationError(
            f"metric '{self.name}' is not a ratio of two sums, which is what a study's trials measure: use "
            "'accuracy', a loss, or a function that returns (numerator, denominator)"
        )

    def accumulated(self, output: Any, targets: Sequence[Tensor]) -> Accumulated:
        """The state over a micro-batch.

        Raises:
            ConfigurationError: there is not one target, or the output is not a tensor of its shape.
        """
        if len(targets) != 1:
            raise ConfigurationError(f"metric '{self.name}' takes one target, and a sample has {len(targets)}")
        if not isinstance(output, torch.Tensor):
            raise ConfigurationError(
                f"metric '{self.name}': the output must be a tensor, got a {type(output).__name__}: return that tensor "
                "alone, or pass a function that returns (numerator, denominator)"
            )
        return Accumulated(self.update(output, targets[0]))


def accumulated_metric(name: str, ignored: int | None, probabilities: bool) -> AccumulatedMetric | None:
    """The metric of this name; None where there is none.

    Args:
        name: "precision", "recall", "f1", "auroc" or "r2".
        ignored: The class index that is not counted.
        probabilities: Whether binary outputs are probabilities, and not logits.
    """
    if name == "r2":
        return AccumulatedMetric(name, _moments, _r2)
    if name == "auroc":
        return AccumulatedMetric(name, _ClassScores(ignored), _auroc)
    if name in _OF_COUNTS:
        return AccumulatedMetric(name, _ClassCounts(name, ignored, probabilities), _OF_COUNTS[name])
    return None


# ---- classes


def binary_outputs(output: Tensor, target: Tensor) -> bool:
    """Whether there is one score for each target, rather than one for each class."""
    return output.shape == target.shape or (output.numel() == target.numel() != 0 and output.ndim <= target.ndim + 1)


def _rows(output: Tensor, target: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """Scores (n, classes) and class indices (n,), with a single column where there is one score for each target."""
    if binary_outputs(output, target):
        scores, classes = output.reshape(-1, 1), target.reshape(-1)
    else:
        scores = output.movedim(1, -1).reshape(-1, output.shape[1])
        indices = target.argmax(1) if target.shape == output.shape else target
        classes = indices.reshape(-1)
        if len(classes) != len(scores):
            raise ConfigurationError(
                f"outputs {tuple(output.shape)} and targets {tuple(target.shape)} do not fit one another: outputs are "
                "(samples, classes, ...) and targets (samples, ...)"
            )
    if ignored is not None and not classes.is_floating_point():
        kept = classes != ignored
        scores, classes = scores[kept], classes[kept]
    return scores, classes


def _require_binary(name: str, classes: Tensor) -> None:
    """Targets of one score each are 0 or 1.

    Raises:
        ConfigurationError: there are others.
    """
    if other := classes[(classes != 0) & (classes != 1)].tolist():
        raise ConfigurationError(
            f"metric '{name}': targets of one output each must be 0 or 1, got {other[0]!r:.20}: "
            "return one output for each class"
        )


class _ClassCounts:
    """True positives, false positives and false negatives of each class; of the second class alone where binary.

    Outputs that are NaN name no class. They count as missed for the class of their sample and as false for all others,
    so that a model does not gain by them, whichever average is taken.
    """

    def __init__(self, name: str, ignored: int | None, probabilities: bool) -> None:
        self._name, self._ignored = name, ignored
        self._threshold = 0.5 if probabilities else 0.0
        self._looked = False  # whether targets are 0 and 1, of the first micro-batch, since that waits for the device

    def __call__(self, output: Tensor, target: Tensor) -> Parts:
        scores, classes = _rows(output, target, self._ignored)
        if scores.shape[1] == 1:
            if not self._looked:
                _require_binary(self._name, classes)
                self._looked = True
            found, wanted = (scores > self._threshold), (classes > 0.5).reshape(-1, 1)
        else:
            number = torch.arange(scores.shape[1], device=scores.device)
            found, wanted = scores.argmax(1, keepdim=True) == number, classes.reshape(-1, 1) == number
            if scores.shape[1] == 2:
                found, wanted = found[:, 1:], wanted[:, 1:]
        found = torch.where(scores.isnan().any(1, keepdim=True), ~wanted, found)
        return {
            "sum true_positives": (found & wanted).sum(0),
            "sum false_positives": (found & ~wanted).sum(0),
            "sum false_negatives": (~found & wanted).sum(0),
        }


def _counts(parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """The three counts of the classes that occur."""
    hit, false, missed = (parts[f"sum {name}"] for name in ("true_positives", "false_positives", "false_negatives"))
    occurs = hit + false + missed > 0
    if len(hit) == 1:
        occurs = torch.ones_like(occurs)
    return hit[occurs], false[occurs], missed[occurs]


def _mean_of(above: Tensor, below: Tensor) -> float:
    """The mean of the quotients, those without a denominator being 0; NaN without any class."""
    return float(torch.where(below > 0, above / below.clamp(min=1), 0.0).mean())


def _precision(parts: Parts) -> float:
    hit, false, _ = _counts(parts)
    return _mean_of(hit, hit + false)


def _recall(parts: Parts) -> float:
    hit, _, missed = _counts(parts)
    return _mean_of(hit, hit + missed)


def _f1(parts: Parts) -> float:
    hit, false, missed = _counts(parts)
    return _mean_of(2 * hit, 2 * hit + false + missed)


_OF_COUNTS: Mapping[str, Callable[[Parts], float]] = {"precision": _precision, "recall": _recall, "f1": _f1}


class _ClassScores:
    """Scores and classes of all samples, for what depends on their order."""

    def __init__(self, ignored: int | None) -> None:
        self._ignored = ignored

    def __call__(self, output: Tensor, target: Tensor) -> Parts:
        scores, classes = _rows(output, target, self._ignored)
        if scores.shape[1] == 2:
            scores = as_double(scores[:, 1:]) - as_double(scores[:, :1])
        elif scores.shape[1] > 2:
            scores = as_double(scores).softmax(1)
        return {"cat scores": scores.cpu(), "cat classes": classes.cpu()}


def _auroc(parts: Parts) -> float:
    """The probability that a sample of a class has a higher score than one of another; equal ones count half.

    It is the Mann-Whitney statistic over the product of both counts, of three classes and more each class against all
    others, the mean over the classes that occur beside others.
    """
    scores, classes = parts["cat scores"].numpy(), parts["cat classes"].numpy()
    if scores.shape[1] == 1:
        _require_binary("auroc", parts["cat classes"])
        return _area(scores[:, 0], classes > 0.5)
    areas = [_area(scores[:, c], classes == c) for c in range(scores.shape[1])]
    return float(np.nanmean(areas)) if not all(np.isnan(areas)) else float("nan")


def _area(scores: Any, positive: Any) -> float:
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives or np.isnan(scores).any():
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # equal scores share the mean of their ranks
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


# ---- regression


def _moments(output: Tensor, target: Tensor) -> Parts:
    if output.shape != target.shape:
        raise ConfigurationError(
            f"metric 'r2': outputs {tuple(output.shape)} and targets {tuple(target.shape)} must have one shape"
        )
    rows = as_double(target).reshape(len(target), -1)
    residuals = rows - as_double(output).reshape(len(output), -1)
    return {
        "sum count": torch.tensor([len(rows)]),
        "sum y": rows.sum(0),
        "sum y²": rows.square().sum(0),
        "sum residual²": residuals.square().sum(0),
    }


def _r2(parts: Parts) -> float:
    """1 − Σ(y − ŷ)² / Σ(y − ȳ)², the mean over outputs; NaN of fewer than two samples."""
    count = parts["sum count"]
    spread = parts["sum y²"] - parts["sum y"].square() / count
    if float(count) < 2:
        return float("nan")
    return float((1 - parts["sum residual²"] / spread).mean())


# ---- torchmetrics

_REDUCTIONS = {"dim_zero_sum": "sum", "dim_zero_max": "max", "dim_zero_min": "min", "dim_zero_cat": "cat"}


def is_torchmetric(metric: Any) -> bool:
    """Whether it is a metric of torchmetrics, which this package does not import."""
    bases = type(metric).__mro__
    return any(base.__name__ == "Metric" and base.__module__.startswith("torchmetrics.") for base in bases)


class TorchMetric(AccumulatedMetric):
    """A metric object of torchmetrics; the object itself stays as it is.

    Args:
        name: Its name in the run.
        metric: The object.

    Raises:
        ConfigurationError: one of its states has a reduction of its own, so parts cannot be put together.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self._metric = copy.deepcopy(metric)
        self._reductions = {
            state: _REDUCTIONS.get(getattr(reduction, "__name__", ""), "")
            for state, reduction in self._metric._reductions.items()  # torchmetrics has no public name for it
        }
        if wrong := [state for state, reduction in self._reductions.items() if not reduction]:
            raise ConfigurationError(
                f"metric '{name}': the state '{wrong[0]}' of {type(metric).__name__} is neither a sum, a maximum, a "
                "minimum nor a concatenation, so parts of the samples cannot be put together: call the object in a "
                "callback's after_evaluation"
            )
        super().__init__(name, self._parts, self._value)

    def accumulated(self, output: Any, targets: Sequence[Tensor]) -> Accumulated:
        """See `AccumulatedMetric.accumulated`; output and targets are handed to `update` as they are."""
        return Accumulated(self._updated(output, *targets))

    def _parts(self, output: Any, target: Tensor) -> Parts:
        return self._updated(output, target)

    def _updated(self, output: Any, *targets: Tensor) -> Parts:
        self._metric.reset()
        self._metric.update(output, *targets)
        found: dict[str, Tensor] = {}
        for state, reduction in self._reductions.items():
            value = getattr(self._metric, state)
            if isinstance(value, list):
                rows = [torch.atleast_1d(part) for part in cast("list[Tensor]", value)]
                value = torch.cat(rows) if rows else torch.zeros(0)
            found[f"{reduction} {state}:{str(value.dtype).removeprefix('torch.')}"] = value.detach().cpu()
        return found

    def _value(self, parts: Parts) -> float:
        metric = self._metric
        metric.reset()
        for key, part in parts.items():
            state, _, kind = key.partition(" ")[2].partition(":")
            value = part.to(getattr(torch, kind)).to(metric.device)
            setattr(metric, state, [value] if isinstance(getattr(metric, state), list) else value)
        metric._update_count = 1  # it warns of a metric that was never updated
        value = metric.compute()
        metric.reset()
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            form = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise ConfigurationError(
                f"metric '{self.name}': {type(metric).__name__}.compute must return one number, got {form}: pass "
                "average='macro' or the like"
            )
        return float(value)

    def to(self, device: torch.device) -> None:
        """See `Loss.to`."""
        self._metric.to(device)
