"""The noisy quadratic with its noise drawn: a check on the expectations, and a workload of known answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from descend.study.simulate.method import Method, method
from descend.study.simulate.problem import Quadratic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["sample"]

_BLOCK = 64  # steps whose noise is drawn in one call


def sample(
    rule: str | Method,
    batch_size: float,
    rates: Sequence[Callable[[int], float] | float],
    *,
    steps: int,
    seeds: Sequence[int],
    momenta: Sequence[float] | float = 0.9,
    averages: Sequence[float] | float = 0.99,
    problem: Quadratic | None = None,
    every_steps: int = 1,
) -> NDArray[np.float64]:
    """Run several trials at once, each with its own rate, momentum and seed.

    Args:
        rule: The rule of all.
        batch_size: B.
        rates: η of each trial, a number or a schedule; (trials,).
        steps: Updates.
        seeds: Of the start and of the noise of each trial; a trial is the same whatever runs beside it.
        momenta: β of each, or of all.
        averages: γ of each, or of all.
        problem: The quadratic. Its coordinates are drawn one by one, so a small one is meant.
        every_steps: Updates between two looks at the risk.

    Returns:
        ½ Σ hᵢ θᵢ² before the first and after every `every_steps` updates, (looks, trials); inf where it overflowed.
    """
    chosen, quadratic = method(rule), problem or Quadratic()
    modes = chosen.modes(quadratic.modes)
    spread = np.repeat(np.arange(len(modes.h)), modes.weight.astype(int))
    h, sigma = modes.h[spread], np.sqrt(modes.c[spread] / batch_size)
    trials = len(rates)
    draws = [np.random.default_rng(seed) for seed in seeds]
    theta = np.stack([draw.normal(size=len(h)) for draw in draws]) * np.sqrt(modes.start[spread])
    buffer, average = np.zeros_like(theta), theta.copy()
    beta, gamma = (np.broadcast_to(np.asarray(x, dtype=np.float64), trials)[:, None] for x in (momenta, averages))
    looks: list[NDArray[np.float64]] = []
    noise = np.empty(0)
    with np.errstate(all="ignore"):
        for step in range(steps + 1):
            if step % every_steps == 0:
                counted = average if chosen.averaged else theta
                looks.append(0.5 * (h * counted * counted).sum(axis=1))
            if step == steps:
                break
            rate = np.array([one(step) if callable(one) else one for one in rates])[:, None]
            if step % _BLOCK == 0:
                noise = np.stack([draw.normal(size=(min(_BLOCK, steps - step), len(h))) for draw in draws], axis=1)
            gradient = h * theta + sigma * noise[step % _BLOCK]
            if chosen.momentum == "sgd":
                theta = theta - rate * gradient
            else:
                buffer = beta * buffer + gradient
                theta = theta - rate * (beta * buffer + gradient if chosen.momentum == "nesterov" else buffer)
            if chosen.averaged:
                average = gamma * average + (1 - gamma) * theta
        risk = np.array(looks)
    return np.where(np.isfinite(risk), risk, np.inf)
