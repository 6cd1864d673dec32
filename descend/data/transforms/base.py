"""The base of transforms, and of those of images."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.data.counter_rng import Draws

__all__ = ["ImageTransform", "Samples", "Transform", "image_shape"]

Samples = Any  # (n, *shape): NumPy's arrays and torch's tensors, whose types have no common base


@dataclass(frozen=True)
class Transform(metaclass=StrictKeywords):
    """Base of all transforms.

    Numbers are kept as the float32 values that the text form holds, so a transform that was written in Python and one
    that was read back from a text give the same bits.
    """

    message: ClassVar[str]
    needs_pixels: ClassVar[bool] = False  # whether it relies on values of 0 ... 255

    where: str | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        for name, value in self._floats():
            if isinstance(value, (int, float)):  # values of other types are reported by `descend.data.check`
                object.__setattr__(self, name, float(np.float32(value)))

    def problems(self) -> Iterator[str]:
        """Problems with the fields alone, for samples of any shape."""
        yield from ()

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a transformed sample; the same shape unless a transform says otherwise. Allocates nothing.

        Args:
            shape: Of a sample before the transform, without the batch dimension; −1 where it is not known, as of images
                of different sizes.

        Raises:
            ConfigurationError: samples of this shape cannot be transformed.
        """
        return shape

    def apply(self, x: Samples, draws: Draws) -> Samples:
        """Transform a batch of samples.

        Args:
            x: (n, *shape), n may be 0; an array or a tensor. Not changed.
            draws: Random numbers, a row for each sample.

        Returns:
            (n, *output_shape(shape)) of the same kind: bytes of bytes where an image stays one, else float32.

        Raises:
            ConfigurationError: samples of this shape cannot be transformed.
        """
        raise NotImplementedError

    def _floats(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self) if isinstance(f.default, float)]


class ImageTransform(Transform):
    """Base of transforms of images, that is samples (channels, height, width)."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same; refuses samples that are no images."""
        image_shape(self, shape)
        return shape


def image_shape(transform: Transform, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The channels, height and width of samples of a shape.

    Raises:
        ConfigurationError: they are no images.
    """
    if len(shape) != 3:
        raise ConfigurationError(
            f"transform {type(transform).__name__} needs images (channels, height, width), got samples {shape}"
        )
    return shape[0], shape[1], shape[2]
