"""The gradient noise scale: how many samples a batch needs before the gradient is more signal than noise.

    E‖g_B‖² = ‖G‖² + tr(Σ)/B            G the true gradient, Σ the covariance of one sample's gradient
    B_simple = tr(Σ)/‖G‖²

From m parts of b samples each, gradients g_j, q = mean ‖g_j‖², Q = ‖mean g_j‖²:

    ‖G‖²  ≈  (m Q − q)/(m − 1)          tr(Σ)  ≈  b m/(m − 1) (q − Q)

Both are unbiased, and ‖G‖² may come out negative: it is averaged as it is. The scale is the ratio of the averages; the
average of ratios is too large. Samples must be independent given the weights: under batch norm the unit is the group.

Source: McCandlish et al. 2018, https://arxiv.org/abs/1812.06162, appendix A.1, with all m parts used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import ConfigurationError, Refused
from descend.study.analysis.intervals import Interval
from descend.study.analysis.values import numbers, same_length

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NoiseScale", "noise_scale"]


@dataclass(frozen=True)
class NoiseScale:
    """What a stretch of training says about its gradients.

    Attributes:
        scale: B_simple, in samples.
        signal: ‖G‖².
        noise: tr(Σ), of one sample.
        interval: Of the scale, by the bootstrap over steps; None with one step. Its upper end may be inf.
    """

    scale: float
    signal: float
    noise: float
    interval: Interval | None


def noise_scale(
    part_squares: Sequence[float],
    whole_squares: Sequence[float],
    parts: int,
    part_size: int,
    *,
    confidence: float = 0.95,
    repeats: int = 1000,
    seed: int = 0,
) -> NoiseScale:
    """Estimate the scale from the parts of a batch: micro-batches, or ranks.

    Args:
        part_squares: q of each step, the mean over parts of the squared norm of the part's mean gradient.
        whole_squares: Q of each step, the squared norm of the mean gradient of the whole batch.
        parts: m, at least 2.
        part_size: b, samples of a part.
        confidence: Of the interval.
        repeats: Bootstrap samples.
        seed: Of the draws.

    Raises:
        Refused: the averaged signal is not above 0: too few steps for so noisy a gradient.
    """
    same_length(part_squares=part_squares, whole_squares=whole_squares)
    if parts < 2 or part_size < 1:
        raise ConfigurationError(f"expected at least 2 parts of at least 1 sample, and got {parts} of {part_size}")
    q, whole = numbers(part_squares, "part_squares"), numbers(whole_squares, "whole_squares")
    signal = (parts * whole - q) / (parts - 1)
    noise = part_size * parts / (parts - 1) * (q - whole)
    if signal.mean() <= 0:
        raise Refused(f"{len(q)} steps of {parts} parts do not separate gradient and noise: measure more steps")
    interval = None
    if len(q) > 1:
        draw = np.random.default_rng(seed).integers(len(q), size=(repeats, len(q)))
        below = signal[draw].mean(axis=1)
        above = noise[draw].mean(axis=1)
        scales = np.where(below > 0, above / np.where(below > 0, below, 1), np.inf)
        tail = (1 - confidence) / 2
        low, high = np.quantile(scales, (tail, 1 - tail), method="nearest")
        interval = Interval(float(low), float(high))
    return NoiseScale(float(noise.mean() / signal.mean()), float(signal.mean()), float(noise.mean()), interval)
