"""The fewest steps that a rule needs, over its learning rate, momentum and averaging.

Every setting of a grid runs at once, and the first one that meets the target ends the search. With `refine` finer grids
around the best setting follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.errors import ConfigurationError
from descend.study.analysis.values import numbers
from descend.study.simulate.exact import SimulationSettings, first_hit, risk_curve
from descend.study.simulate.method import Method, method
from descend.study.simulate.problem import Quadratic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["AVERAGES", "MOMENTA_TRIED", "MOMENTUM_RATES", "RATES", "Tuned", "steps_to_target", "tuned"]

# The grids that are tried unless others are given; the published table of this model was made with ones like these.
RATES = tuple(1.98617 * 10 ** (-0.1023337 * k) for k in range(43))
MOMENTUM_RATES = tuple(3.55 * 10 ** (-0.206829 * k) for k in range(23))
MOMENTA_TRIED = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
# Momentum with a preconditioner has lower ones in that table; larger ones need fewer steps below a batch of 4,096.
PRECONDITIONED_RATES = tuple(3.54 * 1.608**-k for k in range(23))
PRECONDITIONED_MOMENTA = MOMENTA_TRIED[:5]
AVERAGES = (0.0, 0.7, 0.9, 0.97, 0.99, 0.997, 0.999)

_ROUNDS = 4  # finer grids, each a third as wide as the one before
_FINE = 9  # settings along each side of one


@dataclass(frozen=True)
class Tuned:
    """The best setting found.

    Attributes:
        steps: To the target; inf if no setting met it.
        rate: η.
        momentum: β; 0 for a rule without.
        averaging: γ; 0 for a rule without.
        on_edge: Which of these lie at an end of their grid, so that better ones may lie beyond.
    """

    steps: float
    rate: float
    momentum: float
    averaging: float
    on_edge: tuple[str, ...]


def steps_to_target(
    rule: str | Method,
    batch_size: float,
    *,
    target: float = 0.01,
    problem: Quadratic | None = None,
    rates: Sequence[float] | None = None,
    momenta: Sequence[float] | None = None,
    averages: Sequence[float] | None = None,
    schedule: Callable[[float, int], Callable[[int], float]] | None = None,
    refine: bool = False,
    max_steps: int = 1_000_000,
) -> float:
    """Steps to a target risk on the noisy quadratic, with the best of the settings.

    Args:
        rule: A name such as "sgd", "heavy_ball", "nesterov", "sgd+average", "heavy_ball:0.5" (preconditioned by the
            root of the curvature), or a `Method`.
        batch_size: B; math.inf is the full batch.
        target: Risk to be met.
        problem: The quadratic; Zhang et al.'s without one.
        rates: Learning rates to try.
        momenta: Momenta to try, of a rule that has one; of another at most 0.
        averages: Averaging factors to try, of a rule that averages; of another at most 0.
        schedule: A function of peak rate and number of steps that gives a schedule. Then a run's length is part of its
            settings, and the steps are those of the shortest run that ends at the target.
        refine: Go on with finer grids around the best setting.
        max_steps: Where to give up.

    Returns:
        An integer of steps, or inf.

    Raises:
        ConfigurationError: the rule is unknown, a number is out of range, or the rule has no such number.
    """
    grids = {"rates": rates, "momenta": momenta, "averages": averages}
    if schedule is not None:
        return _shortest(method(rule), batch_size, target, problem or Quadratic(), schedule, grids, max_steps)
    return tuned(rule, batch_size, target=target, problem=problem, refine=refine, max_steps=max_steps, **grids).steps


def tuned(
    rule: str | Method,
    batch_size: float,
    *,
    target: float = 0.01,
    problem: Quadratic | None = None,
    rates: Sequence[float] | None = None,
    momenta: Sequence[float] | None = None,
    averages: Sequence[float] | None = None,
    refine: bool = False,
    max_steps: int = 1_000_000,
) -> Tuned:
    """As `steps_to_target`, with the setting that was best and whether it lies on the edge of its grid."""
    chosen, quadratic = method(rule), problem or Quadratic()
    axes = _axes(chosen, rates, momenta, averages, published=not refine)
    _check(batch_size, target, axes)
    best = _best(chosen, batch_size, axes, quadratic, target, max_steps)
    edges = _edges(chosen, best, axes, float(quadratic.modes.h.max()))
    if refine and math.isfinite(best.steps):
        for finer in range(1, _ROUNDS + 1):
            near = tuple(_around(axis, value, finer) for axis, value in zip(axes, _point(best), strict=True))
            found = _best(chosen, batch_size, near, quadratic, target, max_steps)
            best = min(best, found, key=lambda one: one.steps)
    return Tuned(best.steps, best.rate, best.momentum, best.averaging, edges)


def _axes(
    rule: Method,
    rates: Sequence[float] | None,
    momenta: Sequence[float] | None,
    averages: Sequence[float] | None,
    *,
    published: bool = False,
) -> tuple[Array, ...]:
    """What is tried of each setting; with `published` the grids of the table where nothing else is said."""

    _check_used(rule, momenta, averages)

    def axis(given: Sequence[float] | None, usual: Sequence[float], used: bool = True) -> Array:
        return numbers(usual if given is None else given, "settings", least=0) if used else np.zeros(1)

    lower = published and rule.remembers and rule.preconditioner > 0
    usual_rates = MOMENTUM_RATES if rule.remembers else RATES
    return (
        axis(rates, PRECONDITIONED_RATES if lower else usual_rates),
        axis(momenta, PRECONDITIONED_MOMENTA if lower else MOMENTA_TRIED, rule.remembers),
        axis(averages, AVERAGES, rule.averaged),
    )


def _check_used(rule: Method, momenta: Sequence[float] | None, averages: Sequence[float] | None) -> None:
    """That nothing is given which the rule would not use: a momentum or an average other than none."""
    averaging = Method(rule.momentum, True, rule.preconditioner).name
    problems = [
        f"{name} are {list(given)} and the rule {rule.name} has none: leave them out, or take {other}"
        for name, given, used, other in (
            ("momenta", momenta, rule.remembers, "heavy_ball or nesterov"),
            ("averages", averages, rule.averaged, averaging),
        )
        if given is not None and not used and any(value != 0 for value in given)
    ]
    if problems:
        raise ConfigurationError(problems)


def _check(batch_size: float, target: float, axes: tuple[Array, ...]) -> None:
    problems = [
        f"{name} must be > 0, got {value!r}"
        for name, value in (("batch_size", batch_size), ("target", target))
        if isinstance(value, str) or not value > 0
    ]
    for name, axis, top in zip(("rates", "momenta", "averages"), axes, (math.inf, 1.0, 1.0), strict=True):
        if not axis.size or not ((axis >= 0) & (axis < top)).all():
            problems.append(f"{name} must be one or more numbers >= 0 and < {top:g}, got {axis.tolist()}")
    if problems:
        raise ConfigurationError(problems)


def _best(
    rule: Method,
    batch_size: float,
    axes: tuple[Array, ...],
    problem: Quadratic,
    target: float,
    max_steps: int,
) -> Tuned:
    """The best of all combinations; equal ones by the smaller rate."""
    combined = [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]
    settings = SimulationSettings(*combined)
    steps = first_hit(rule, batch_size, settings, problem=problem, target=target, max_steps=max_steps)
    place = int(np.argmin(steps))
    return Tuned(float(steps[place]), *(float(values[place]) for values in combined), on_edge=())


def _point(best: Tuned) -> tuple[float, float, float]:
    return best.rate, best.momentum, best.averaging


def _edges(rule: Method, best: Tuned, axes: tuple[Array, ...], h: float) -> tuple[str, ...]:
    """Names of settings at an end of a grid that better ones may lie beyond: not 0, and no rate at its limit."""
    names = ("rate", "momentum", "averaging")
    limit = rule.stable_below(h ** (1 - rule.preconditioner), best.momentum)
    return tuple(
        name
        for name, value, axis in zip(names, _point(best), axes, strict=True)
        if len(axis) > 1
        and value in (axis.min(), axis.max())
        and value != 0
        and not (name == "rate" and value > 0.98 * limit)
    )


def _around(axis: Array, value: float, finer: int) -> Array:
    """Settings around a value, within its neighbours on the grid; a momentum by its distance from 1."""
    if len(axis) == 1:
        return axis
    from_one = axis.max() < 1 and axis.min() == 0
    points = np.sort(1 - axis if from_one else axis)
    points = points[points > 0]
    here = 1 - value if from_one else value
    place = int(np.argmin(np.abs(np.log(points / here))))
    ratio = max(points[min(place + 1, len(points) - 1)] / points[max(place - 1, 0)], 1.0) ** (0.5 / 3 ** (finer - 1))
    fine = here * np.geomspace(1 / ratio, ratio, _FINE)
    return 1 - np.minimum(fine, 1.0) if from_one else fine


def _shortest(
    rule: Method,
    batch_size: float,
    target: float,
    problem: Quadratic,
    schedule: Callable[[float, int], Callable[[int], float]],
    grids: dict[str, Any],
    max_steps: int,
) -> float:
    """The shortest run that ends at the target, by doubling and halving its length."""
    peaks, momenta, averages = _axes(rule, **grids)
    _check(batch_size, target, (peaks, momenta, averages))

    def ends_there(steps: int) -> bool:
        rates = [schedule(float(peak), steps) for peak in peaks]
        return any(
            (
                risk_curve(rule, batch_size, rates, problem=problem, steps=steps, momentum=b, averaging=y)[-1] <= target
            ).any()
            for b in momenta
            for y in averages
        )

    high = 1
    while not ends_there(high):
        if high >= max_steps:
            return math.inf
        high = min(2 * high, max_steps)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ends_there(middle) else (middle, high)
    return float(high)
