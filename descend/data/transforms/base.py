"""The base of transforms, and what they need of arrays and tensors alike."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from descend.data.order import Draws

__all__ = [
    "ImageTransform",
    "Samples",
    "Transform",
    "along",
    "converted",
    "copied",
    "flipped",
    "floats_of",
    "image_shape",
    "is_pixels",
    "like",
    "pixels_of",
    "replaced",
    "surrounded",
]

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


# ---- what transforms need of NumPy's arrays and torch's tensors beyond the operators that both have
#
# A transform is written once: the numbers that it draws are NumPy's, and `like` brings them to where the samples are.
# So a batch in memory, or on a GPU, becomes what the same samples become one by one, to the last bit where pixels are
# bytes.


def _torch() -> Any:
    return sys.modules["torch"]  # there are tensors, so it was imported


def like(x: Any, values: NDArray[Any]) -> Any:
    """An array as what `x` is: an array, or a tensor on its device."""
    if isinstance(x, np.ndarray):
        return values
    return _torch().from_numpy(np.ascontiguousarray(values)).to(x.device)


def converted(x: Any, dtype: str) -> Any:
    """With elements of a type such as "float32"; no copy where they have it."""
    if isinstance(x, np.ndarray):
        return x.astype(dtype, copy=False)
    return x.to(getattr(_torch(), dtype))


def copied(x: Any) -> Any:
    """In memory of its own."""
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


def floats_of(x: Any) -> Any:
    """As float32 in memory of its own, for arithmetic in place."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) else x.to(_torch().float32, copy=True)


def is_pixels(x: Any) -> bool:
    """Whether the elements are bytes, whose arithmetic is LBANN's: each transform rounds to 0 ... 255."""
    return x.dtype == np.uint8 if isinstance(x, np.ndarray) else x.dtype is _torch().uint8


def pixels_of(x: Any) -> Any:
    """Numbers as bytes: rounded to the nearest integer, halves to the even one, then clipped, as OpenCV does."""
    return converted(x.round().clip(0, 255), "uint8")


def flipped(x: Any, axis: int) -> Any:
    """In the other direction along an axis."""
    return np.flip(x, axis) if isinstance(x, np.ndarray) else x.flip(axis)


def replaced(x: Any, chosen: Any, values: Any) -> Any:
    """`values`, an array or a number, where `chosen` is true, which is broadcast; of the type of x."""
    if isinstance(x, np.ndarray):
        return np.where(chosen, np.asarray(values, x.dtype), x)
    torch = _torch()
    return torch.where(chosen, torch.as_tensor(values, dtype=x.dtype, device=x.device), x)


def along(x: Any, indices: NDArray[np.int64], axis: int) -> Any:
    """Elements of (n, channels, height, width) along the axis 2 or 3.

    Args:
        x: The samples.
        indices: (m,) for all samples, or (n, m) for each of them.
        axis: Of the elements.
    """
    if indices.ndim == 2 and len(indices) == 1:
        indices = indices[0]
    if indices.ndim == 1:
        at = like(x, indices)
        if isinstance(x, np.ndarray):
            return x.take(indices, axis)
        return x.index_select(axis, at)
    of_each = like(x, indices[:, None, :, None] if axis == 2 else indices[:, None, None, :])
    return (
        np.take_along_axis(x, of_each, axis) if isinstance(x, np.ndarray) else _torch().take_along_dim(x, of_each, axis)
    )


def surrounded(x: Any, width: int) -> Any:
    """With `width` zeros on all four sides of (n, channels, height, width)."""
    if isinstance(x, np.ndarray):
        return np.pad(x, ((0, 0), (0, 0), (width, width), (width, width)))
    return _torch().nn.functional.pad(x, (width, width, width, width))
