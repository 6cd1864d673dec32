"""Steps to a target against the batch size, and where more samples a step stop helping.

    (S/S_min − 1)(E/E_min − 1) = 1        S steps, E = S B examples, both to the target
    S(B) = S_min (1 + B_crit/B)           E(B) = E_min (1 + B/B_crit)           B_crit = E_min/S_min

At B_crit twice the steps of an unlimited batch and twice the examples of a batch of one are needed. The fit is least
squares of log E over (log E_min, log B_crit).

Source: McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, equation 5.1; Shallue et al. 2019.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import ConfigurationError, Refused
from descend.study.analysis.intervals import Interval, median
from descend.study.analysis.optional_scipy import scipy
from descend.study.analysis.values import check_fraction, numbers, same_length

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "CriticalBatchSize",
    "critical_batch_size_interval",
    "efficiency",
    "fit_critical_batch_size",
    "largest_efficient_batch",
    "steps_to_target",
]

_LARGEST_ERROR = 0.25  # rms of log E above which the points do not lie on a hyperbola
_GRANULARITY = 0.25  # part of the fewest steps that the distance of two evaluations may have


def steps_to_target(
    steps: Sequence[int],
    values: Sequence[float],
    target: float,
    *,
    lower_is_better: bool = False,
    consecutive: int = 1,
) -> float:
    """The first evaluated step at which the target is met.

    Args:
        steps: Of the evaluations, rising.
        values: At each; NaN and infinities meet no target.
        target: The value to be met.
        lower_is_better: Whether a value at or below the target meets it, and not one at or above.
        consecutive: Evaluations in a row that must meet it; the step is that of the first of them. 2 keeps a lucky
            evaluation from counting.

    Returns:
        The step, or inf for a run that never met the target. An infinity takes part in medians; it is never dropped
        and never replaced by the budget.
    """
    same_length(steps=steps, values=values)
    if any(map(operator.ge, steps, itertools.islice(steps, 1, None))):
        raise ConfigurationError("steps of evaluations must rise")
    if consecutive < 1:
        raise ConfigurationError(f"consecutive is {consecutive!r}; expected at least 1")
    (target,) = numbers([target], "target")
    row = 0
    for place, value in enumerate(values):
        met = math.isfinite(value) and (value <= target if lower_is_better else value >= target)
        row = row + 1 if met else 0
        if row == consecutive:
            return float(steps[place - consecutive + 1])
    return math.inf


@dataclass(frozen=True)
class CriticalBatchSize:
    """The hyperbola through examples to target.

    Attributes:
        critical_batch_size: B_crit, in samples.
        minimum_examples: E_min, in the units of the examples given (samples, epochs).
        minimum_steps: S_min = E_min/B_crit; in steps if examples are in samples, else multiply by samples a unit.
        rms_log_error: Root mean square of log E − log E(B).
        exponent: a of E = E_min (1 + (B/B_crit)^a) where it was set free, a check on the form; else 1.
    """

    critical_batch_size: float
    minimum_examples: float
    minimum_steps: float
    rms_log_error: float
    exponent: float = 1.0

    def examples(self, batch_size: float) -> float:
        """E(B)."""
        return self.minimum_examples * (1 + (batch_size / self.critical_batch_size) ** self.exponent)

    def steps(self, batch_size: float) -> float:
        """S(B) = E(B)/B."""
        return self.examples(batch_size) / batch_size


def fit_critical_batch_size(
    batch_sizes: Sequence[float],
    examples_to_target: Sequence[float],
    *,
    free_exponent: bool = False,
    evaluated_every: Sequence[float] | None = None,
) -> CriticalBatchSize:
    """Fit the hyperbola, or say why it cannot be fitted.

    Args:
        batch_sizes: Distinct, in samples.
        examples_to_target: E at each: steps times batch size, or epochs; inf where the target was not reached.
        free_exponent: Fit the exponent too, a check on whether it is a hyperbola at all.
        evaluated_every: Examples between two evaluations at each batch size, in the units of E. A target is met
            somewhere between two of them, so coarse ones carry no fit.

    Raises:
        Refused: with every reason that holds: fewer than 4 batch sizes, a target that was not reached, no bend
            (max B < B_crit) or no straight part (min B > B_crit/2) among the sizes, evaluations too coarse, or points
            that lie on no hyperbola.
        ConfigurationError: lengths differ, or a number is not above 0.
    """
    sizes, examples = _checked(batch_sizes, examples_to_target)
    order = np.argsort(numbers(batch_sizes))
    reasons = [*_thin(sizes, examples), *_coarse(sizes, examples, evaluated_every, order)]
    if reasons:
        raise Refused(reasons)
    found = _least_squares(sizes, examples, free_exponent)
    if reasons := _beyond(sizes, found):
        raise Refused(reasons)
    return found


def _checked(
    batch_sizes: Sequence[float], examples_to_target: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    same_length(batch_sizes=batch_sizes, examples_to_target=examples_to_target)
    sizes, examples = numbers(batch_sizes, "batch_sizes"), numbers(examples_to_target, "examples_to_target")
    if (sizes <= 0).any() or not np.isfinite(sizes).all() or (examples <= 0).any():
        raise ConfigurationError("batch sizes and examples to target must be above 0, and batch sizes finite")
    if len(set(sizes)) < len(sizes):
        raise ConfigurationError("a batch size is given twice; give the median of its runs")
    order = np.argsort(sizes)
    return sizes[order], examples[order]


def _thin(sizes: NDArray[np.float64], examples: NDArray[np.float64]) -> list[str]:
    missed = [f"{size:g}" for size, e in zip(sizes, examples, strict=True) if not math.isfinite(e)]
    reasons = [f"the target was not reached at batch size {', '.join(missed)}"] if missed else []
    if len(sizes) < 4:
        reasons.append(f"{len(sizes)} batch sizes cannot show whether two numbers describe them: measure at least 4")
    return reasons


def _coarse(
    sizes: NDArray[np.float64],
    examples: NDArray[np.float64],
    evaluated_every: Sequence[float] | None,
    order: NDArray[np.intp],
) -> list[str]:
    if evaluated_every is None:
        return []
    every = numbers(evaluated_every, "evaluated_every")
    if len(every) != len(sizes):
        raise ConfigurationError(f"evaluated_every has {len(every)} entries for {len(sizes)} batch sizes")
    every = every[order]
    return [
        f"at batch size {size:g} evaluations are {part:.0%} of the way to the target apart: evaluate more often"
        for size, part in zip(sizes, every / examples, strict=True)
        if part > _GRANULARITY
    ]


def _beyond(sizes: NDArray[np.float64], found: CriticalBatchSize) -> list[str]:
    """Reasons that only the fit shows."""
    reasons: list[str] = []
    critical = found.critical_batch_size
    if found.rms_log_error > _LARGEST_ERROR:
        reasons.append(
            f"the points lie on no hyperbola: they miss it by {found.rms_log_error:.0%} (rms of log examples), and "
            f"{_LARGEST_ERROR:.0%} is the most that is accepted"
        )
    if sizes[-1] < critical:
        reasons.append(
            f"the largest batch size {sizes[-1]:g} is below the fitted {critical:.3g}: that number lies beyond what "
            "was measured; measure larger batches"
            if math.isfinite(critical)
            else f"up to batch size {sizes[-1]:g} examples do not grow: measure larger batches"
        )
    if sizes[0] > critical / 2:
        reasons.append(
            f"the smallest batch size {sizes[0]:g} is above half the fitted {critical:.3g}: there is no perfect "
            "scaling among the points; measure smaller batches"
        )
    return reasons


def _least_squares(sizes: NDArray[np.float64], examples: NDArray[np.float64], free: bool) -> CriticalBatchSize:
    exponents = np.linspace(0.3, 3.0, 271) if free else np.array([1.0])
    best = min((_fit_at(sizes, examples, float(a)) for a in exponents), key=lambda found: found.rms_log_error)
    if not free:
        return best
    fine = best.exponent + np.linspace(-0.01, 0.01, 21)
    return min((_fit_at(sizes, examples, float(a)) for a in fine), key=lambda found: found.rms_log_error)


def _fit_at(sizes: NDArray[np.float64], examples: NDArray[np.float64], exponent: float) -> CriticalBatchSize:
    """The best E_min and B_crit for an exponent: given B_crit, log E_min is a mean, so one number is searched."""
    low, high = math.log(sizes[0]) - 10, math.log(sizes[-1]) + 10
    while high - low > 1e-9:
        grid = np.linspace(low, high, 81)
        place = int(np.argmin(_errors(sizes, examples, np.exp(grid), exponent).std(axis=1)))
        width = (high - low) / 80
        low, high = grid[place] - width, grid[place] + width
    critical = math.exp((low + high) / 2)
    errors = _errors(sizes, examples, np.array([critical]), exponent)[0]
    if critical > sizes[-1] * math.e**9:
        critical = math.inf
    least = math.exp(errors.mean())
    return CriticalBatchSize(critical, least, least / critical, float(errors.std()), exponent)


def _errors(
    sizes: NDArray[np.float64], examples: NDArray[np.float64], critical: NDArray[np.float64], exponent: float
) -> NDArray[np.float64]:
    """log E − log(1 + (B/B_crit)^a), a row for each B_crit. Its mean is log E_min, its deviation the fit's error."""
    return np.log(examples) - np.log1p((sizes / critical[:, None]) ** exponent)


def critical_batch_size_interval(
    examples_by_batch: Mapping[float, Sequence[float] | Sequence[Sequence[float]]],
    *,
    confidence: float = 0.95,
    repeats: int = 1000,
    seed: int = 0,
) -> Interval:
    """An interval of B_crit, by the bootstrap over the searches of each batch size, and over the seeds of each search.

    A draw takes as many searches as there are, with replacement, and of each as many re-runs; its value at a batch size
    is the median of all of them. A resample of s searches has only (s − 1)/s of their variance, and that variance is
    estimated from few; so searches are moved apart first, log E about its mean, by √(s/(s − 1)) and by the quantile of
    Student's t over the normal one, with s − 1 degrees of freedom for each batch size.

    Args:
        examples_by_batch: Examples to target of every re-run, by batch size, as a list for each search or, of a single
            search, as one list; a run that missed the target is inf.
        confidence: Of the interval.
        repeats: Bootstrap samples.
        seed: Of the draws.

    Returns:
        The interval; its upper end is inf where that many samples show no bend.

    Raises:
        Refused: the medians themselves are refused, or more than 1 in 20 samples is, e.g. as some seeds missed the
            target.
        ConfigurationError: a batch size has numbers and lists, or the confidence is not between 0 and 1.
    """
    check_fraction(confidence, "confidence")
    sizes = list(examples_by_batch)
    by_size = [_by_search(examples_by_batch[size]) for size in sizes]
    fit_critical_batch_size(sizes, [median(np.concatenate(searches)) for searches in by_size])
    freedom = sum(len(searches) - 1 for searches in by_size)
    widened = [_widened(searches, freedom, (1 + confidence) / 2) for searches in by_size]
    draw = np.random.default_rng(seed)
    found: list[float] = []
    order = np.argsort(sizes)
    ordered = np.asarray(sizes, dtype=np.float64)[order]
    for _ in range(repeats):
        medians = [median(_resampled(searches, draw)) for searches in widened]
        if np.isfinite(medians).all():
            found.append(_fit_at(ordered, np.asarray(medians)[order], 1.0).critical_batch_size)
    if len(found) < 0.95 * repeats:
        raise Refused(f"in {repeats - len(found)} of {repeats} draws of seeds half of them miss the target somewhere")
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, (tail, 1 - tail), method="nearest")
    return Interval(float(low), float(high))


def _by_search(values: Sequence[float] | Sequence[Sequence[float]]) -> list[NDArray[np.float64]]:
    nested = [np.ndim(one) > 0 for one in values]
    if any(nested) and not all(nested):
        raise ConfigurationError("examples of a batch size are numbers, or a list for each search, and not both")
    return [numbers(one) for one in values] if any(nested) else [numbers(values)]  # pyright: ignore[reportArgumentType]


def _widened(searches: list[NDArray[np.float64]], freedom: int, quantile: float) -> list[NDArray[np.float64]]:
    """Searches moved apart, so that a resample of them scatters as their mean does."""
    middles = [median(one) for one in searches]
    if len(searches) < 2 or not np.isfinite(middles).all():
        return searches
    functions, logs = scipy("special", "Student's t"), np.log(middles)
    few = float(functions.stdtrit(freedom, quantile) / functions.ndtri(quantile))
    shifts = (few * math.sqrt(len(searches) / (len(searches) - 1)) - 1) * (logs - logs.mean())
    return [one * math.exp(shift) for one, shift in zip(searches, shifts, strict=True)]


def _resampled(searches: list[NDArray[np.float64]], draw: np.random.Generator) -> NDArray[np.float64]:
    chosen = [searches[i] for i in draw.integers(len(searches), size=len(searches))]
    return np.concatenate([one[draw.integers(len(one), size=len(one))] for one in chosen])


def efficiency(batch_sizes: Sequence[float], examples_to_target: Sequence[float]) -> list[float]:
    """Examples at the smallest batch over examples at each: 1 is perfect scaling, and 0 where the target was missed."""
    sizes, examples = _checked(batch_sizes, examples_to_target)
    by_size = dict(zip(sizes, examples, strict=True))
    return [float(examples[0] / by_size[size]) if math.isfinite(examples[0]) else math.nan for size in batch_sizes]


def largest_efficient_batch(
    batch_sizes: Sequence[float], examples_to_target: Sequence[float], overhead: float = 0.2
) -> float:
    """The largest batch size that costs at most `overhead` more examples than the smallest one."""
    parts = efficiency(batch_sizes, examples_to_target)
    return max(size for size, part in zip(batch_sizes, parts, strict=True) if part * (1 + overhead) >= 1 - 1e-12)
