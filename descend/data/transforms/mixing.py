"""Transforms of a sample and a partner: mixup and CutMix.

The partner of a sample is another one of the data set, drawn by (seed, epoch, sample, transform), not one of its batch.
So what a sample becomes depends neither on the batch size nor on the ranks and workers. It costs a second read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from descend.arguments import check_number, collect
from descend.data.transforms.base import (
    Samples,
    Transform,
    converted,
    image_shape,
    is_pixels,
    like,
    pixels_of,
    replaced,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from descend.data.order import Draws

__all__ = ["CutMix", "MixingTransform", "Mixup", "symmetric_beta"]

_LARGE = 1e150  # its square is finite


def symmetric_beta(u: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """(n,) numbers of the distribution Beta(α, α), of (n, 2) uniform ones.

    Source: Bailey 1994, https://doi.org/10.1090/S0025-5718-1994-1203732-X (Student's t with 2α degrees of freedom), and
    ½ + ½ t/√(2α + t²), which has the distribution Beta(α, α).
    """
    with np.errstate(over="ignore", divide="ignore"):
        radius = np.sqrt(np.minimum((1 - u[:, 0]) ** (-1 / alpha) - 1, _LARGE))
    ratio = radius * np.cos(2 * np.pi * u[:, 1])
    return 0.5 + 0.5 * ratio / np.hypot(1.0, ratio)


@dataclass(frozen=True)
class MixingTransform(Transform):
    """Base of the transforms of samples and partners."""

    alpha: float = 0.0

    def problems(self) -> Iterator[str]:
        """An alpha of 0, the value of an unset field."""
        yield from collect(check_number("alpha", self.alpha, above=0))

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """A sample alone stays as it is."""
        return x

    def mix(self, fields: Mapping[str, Samples], partners: Mapping[str, Samples], draws: Draws) -> dict[str, Samples]:
        """Samples and labels, each with those of its partner; other fields stay as they are.

        Args:
            fields: "samples" (n, *shape), and "labels" (n, classes) or "responses" (n, *shape).
            partners: The same fields of the partners.
            draws: Random numbers, a row for each sample.
        """
        mixed, kept = self.mixed(fields["samples"], partners["samples"], draws)
        found = {**fields, "samples": mixed}
        for name in ("labels", "responses"):
            if name in fields:
                found[name] = _average(fields[name], partners[name], kept)
        return found

    def mixed(self, x: Samples, y: Samples, draws: Draws) -> tuple[Samples, NDArray[np.float32]]:
        """The mixed samples, and (n,) the share of each that is its own."""
        raise NotImplementedError


def _average(x: Samples, y: Samples, kept: NDArray[np.float32]) -> Samples:
    share = like(x, kept.reshape(-1, *(1,) * (x.ndim - 1)))
    return converted(x, "float32") * share + converted(y, "float32") * (1 - share)


class Mixup(MixingTransform):
    """x ← λ x + (1 − λ) x', and the same for labels and responses, with λ of the distribution Beta(α, α).

    Source: Zhang et al. 2017, https://arxiv.org/abs/1710.09412
    """

    message: ClassVar[str] = "Transform.Mixup"

    def mixed(self, x: Samples, y: Samples, draws: Draws) -> tuple[Samples, NDArray[np.float32]]:
        """Two draws a sample."""
        share = symmetric_beta(draws.uniform(2), self.alpha).astype(np.float32)
        found = _average(x, y, share)
        return (pixels_of(found) if is_pixels(x) else found), share


class CutMix(MixingTransform):
    """Replace a rectangle of the image by that of its partner; labels are mixed by the areas.

    The rectangle has the proportions of the image and 1 − λ of its area, λ of the distribution Beta(α, α), its centre
    is uniform, and what lies outside the image is cut off. Labels are weighted by the area that is left.

    Source: Yun et al. 2019, https://arxiv.org/abs/1905.04899
    """

    message: ClassVar[str] = "Transform.CutMix"

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same; refuses samples that are no images."""
        image_shape(self, shape)
        return shape

    def mixed(self, x: Samples, y: Samples, draws: Draws) -> tuple[Samples, NDArray[np.float32]]:
        """Four draws a sample: two for λ, then the row and the column of the centre."""
        _, tall, wide = image_shape(self, tuple(x.shape[1:]))
        side = np.sqrt(1 - symmetric_beta(draws.uniform(2), self.alpha))
        rows, columns = (_covered(side, draws, size) for size in (tall, wide))
        inside = rows[:, :, None] & columns[:, None, :]
        share = 1 - inside.sum(axis=(1, 2)) / math.prod((tall, wide))
        return replaced(x, like(x, inside[:, None]), y), share.astype(np.float32)


def _covered(side: NDArray[np.float64], draws: Draws, size: int) -> NDArray[np.bool_]:
    """Which places of an axis the rectangle covers, (n, size); `side` is its extent as a fraction."""
    extent = (side * size).astype(np.int64)[:, None]
    start = draws.integers(size)[:, None] - extent // 2
    at = np.arange(size)
    return (at >= start) & (at < start + extent)
