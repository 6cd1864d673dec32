"""Risk and steps to a target in expectation, without sampling and without rounding the number of steps.

A stretch of 2ʲ steps at a constant rate is again of the form C ← F C Fᵀ + Q, and two of them make the next longer one:

    F₂ₙ = Fₙ Fₙ            Q₂ₙ = Fₙ Qₙ Fₙᵀ + Qₙ

So 100,000 steps are some hundred stretches. A stretch is at most an eighth of the steps before it, and the one in
which the risk falls below the target is halved until the step is found. Momentum lets the risk swing, and a swing may
dip below the target within a stretch: as long as swings are of a size that counts, every step is looked at. They shrink
by β a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from descend.study.simulate.method import Method
    from descend.study.simulate.problem import Modes, Quadratic

    Array = NDArray[np.float64]

__all__ = ["SimulationSettings", "first_hit", "risk_curve"]


@dataclass(frozen=True)
class SimulationSettings:
    """Numbers of a rule, several at once; each (settings,).

    Attributes:
        rate: η.
        momentum: β.
        averaging: γ.
    """

    rate: Array
    momentum: Array
    averaging: Array

    def __len__(self) -> int:
        return len(self.rate)


def _product(a: Array, b: Array) -> Array:
    """The matrix product over the first two axes, elementwise over the others."""
    total = a[:, 0, None] * b[None, 0]
    for inner in range(1, a.shape[1]):
        total += a[:, inner, None] * b[None, inner]
    return total


def _advance(f: Array, q: Array, moments: Array) -> Array:
    """F C Fᵀ + Q."""
    return _product(_product(f, moments), f.swapaxes(0, 1)) + q


@dataclass
class _Stretches:
    """F and Q of 1, 2, 4, … steps, made as they are asked for."""

    f: list[Array]
    q: list[Array]

    def get(self, level: int) -> tuple[Array, Array]:
        while len(self.f) <= level:
            self.q.append(_advance(self.f[-1], self.q[-1], self.q[-1]))
            self.f.append(_product(self.f[-1], self.f[-1]))
        return self.f[level], self.q[level]


def _stretches(rule: Method, modes: Modes, batch_size: float, settings: SimulationSettings) -> _Stretches:
    f, w = rule.system(modes.h, settings.rate, settings.momentum, settings.averaging)
    return _Stretches([f], [w[:, None] * w[None] * (modes.c / batch_size)])


def _risk(rule: Method, modes: Modes, moments: Array) -> Array:
    """½ Σ h E[θ²], (settings,)."""
    return 0.5 * (moments[rule.counts, rule.counts] * (modes.h * modes.weight)).sum(axis=-1)


def first_hit(
    rule: Method,
    batch_size: float,
    settings: SimulationSettings,
    *,
    problem: Quadratic,
    target: float,
    max_steps: int,
    all_settings: bool = False,
) -> Array:
    """The first step at which the risk is at most `target`, (settings,); inf where it is not within `max_steps`.

    Args:
        rule: The rule.
        batch_size: B.
        settings: What is tried.
        problem: The quadratic.
        target: Risk to be met.
        max_steps: Where to give up.
        all_settings: Go on after the first of the settings has met the target; else the slower ones are inf.
    """
    modes = rule.modes(problem.modes)
    found = np.full(len(settings), math.inf)
    moments = rule.begin(modes.start, len(settings))
    if problem.initial_risk <= target:
        return np.zeros(len(settings))
    with np.errstate(all="ignore"):  # a rate above the limit overflows, and never hits
        powers = _stretches(rule, modes, batch_size, settings)
        step, calm = 0, _calm_after(settings.momentum, target / problem.initial_risk)
        while step < max_steps:
            level = 0 if step < calm else max(0, (step // 8).bit_length() - 1)
            f, q = powers.get(level)
            after = _advance(f, q, moments)
            hit = (_risk(rule, modes, after) <= target) & np.isinf(found)
            for place in map(int, np.flatnonzero(hit)):
                before = moments[:, :, place : place + 1]
                found[place] = step + _halve(rule, modes, powers, level, before, place, target)
            moments, step = after, step + 2**level
            if hit.any() and (not all_settings or np.isfinite(found).all()):
                break
    return np.where(found <= max_steps, found, math.inf)


def _calm_after(momentum: Array, part: float) -> float:
    """Steps after which swings have shrunk to a hundredth of the target, which is a part of the risk at the start."""
    highest = float(momentum.max())
    return math.log(part / 100) / math.log(highest) if highest > 0 else 0.0


def _halve(
    rule: Method, modes: Modes, powers: _Stretches, level: int, moments: Array, place: int, target: float
) -> int:
    """Steps from `moments` until the target is met, which it is after 2^level of them."""
    taken = 0
    for lower in range(level - 1, -1, -1):
        f, q = (x[:, :, place : place + 1] for x in powers.get(lower))
        after = _advance(f, q, moments)
        if not _risk(rule, modes, after)[0] <= target:
            moments, taken = after, taken + 2**lower
    return taken + 1


def risk_curve(
    rule: Method,
    batch_size: float,
    rates: Sequence[Callable[[int], float]],
    *,
    problem: Quadratic,
    steps: int,
    momentum: float = 0.9,
    averaging: float = 0.99,
) -> Array:
    """The risk after 0, 1, …, `steps` updates, (steps + 1, schedules), one step at a time.

    Args:
        rule: The rule.
        batch_size: B.
        rates: Schedules: from the number of updates already applied to the rate.
        problem: The quadratic.
        steps: Updates.
        momentum: β.
        averaging: γ.
    """
    modes = rule.modes(problem.modes)
    moments = rule.begin(modes.start, len(rates))
    curve = [_risk(rule, modes, moments)]
    ones = np.ones(len(rates))
    with np.errstate(all="ignore"):
        for step in range(steps):
            now = SimulationSettings(np.array([rate(step) for rate in rates]), momentum * ones, averaging * ones)
            powers = _stretches(rule, modes, batch_size, now)
            moments = _advance(*powers.get(0), moments)
            curve.append(_risk(rule, modes, moments))
    return np.array(curve)
