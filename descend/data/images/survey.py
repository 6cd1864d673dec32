"""Finds the form of the images of a data set: the kind that holds all, by headers that are spread over the data.

Up to `LOOKED_AT` images are looked at, whatever their order. One that needs more than these have is an error when it is
read, see `pictures.py`, so nothing is lost where it was not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.data.images.pictures import ImageForm, ImageHeader, ImageKind, header_of
from descend.data.loading.read_threads import in_threads
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from descend.data.file_format import ReadOptions

__all__ = ["LOOKED_AT", "form_of_images", "spread", "strided"]

LOOKED_AT = 1024  # images whose headers tell the form
_TRIED = 100  # first images, of which one must be sound
_LOOKED_AT_BYTES = 2**28  # of contents, which have no headers that can be read alone
_LOOKED_AT_ONCE = 64
_STRIDES = 16  # passes over the data, so that those that are looked at are spread over it wherever that ends


def form_of_images(
    count: int,
    content: Callable[[int], Path | bytes | None],
    options: ReadOptions,
    place: Callable[[int], str],
    *,
    order: Sequence[int] | None = None,
    field: str = "image",
) -> ImageForm:
    """The form of a data set: the size of its first image, and the kind that holds those that are looked at.

    Args:
        count: Number of samples.
        content: The image of a sample; None where there is none.
        options: Those of the caller: `image_size`, `colors`, `depth`, and `kinds_beside` of other roles.
        place: Names a sample.
        order: The samples in an order that does not depend on how they are listed; None where theirs is such.
        field: Of the images.

    Raises:
        DataError: none of the first can be opened; the message is about the first.
    """
    if count == 0:
        raise DataError("there are no images")
    first, looked = 0, _looked_at(content, 0)
    if isinstance(looked, Exception):
        others = ((sample, _looked_at(content, sample)) for sample in range(1, min(count, _TRIED)))
        sound = next(((sample, one) for sample, one in others if not isinstance(one, Exception)), None)
        if sound is None:
            raise DataError(f"sample 0 ({place(0)}) is the first image and cannot be read: {looked}") from looked
        first, looked = sound
    kind = ImageKind(options.colors or "grey", options.depth or 8)
    samples = [first, *(order[place] if order else place for place in strided(count, LOOKED_AT))]
    kind, several = _joined_kinds(content, samples, dict(options.kinds_beside).get(field, kind))
    frames = f"{place(several[0])} has several frames or pages, and the first is read" if several else ""
    frames += f"; so it is in {len(several):,} of the images that were looked at" if len(several) > 1 else ""
    size = options.height_and_width
    may_lose = frozenset(name for name in ("colors", "depth") if getattr(options, name) is not None)
    colors, depth, notes = options.colors or kind.colors, options.depth or kind.depth, (frames,) if frames else ()
    return ImageForm(colors, depth, size or looked.size, size is not None, may_lose, notes)


def spread(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, evenly spaced, with both ends."""
    if count <= most:
        return list(range(count))
    return [number * (count - 1) // max(1, most - 1) for number in range(most)]


def strided(count: int, most: int) -> list[int]:
    """Numbers as of `spread`, in an order whose beginning is spread as well, for what ends early."""
    numbers = spread(count, most)
    return [one for start in range(_STRIDES) for one in numbers[start::_STRIDES]]


def _joined_kinds(
    content: Callable[[int], Path | bytes | None], samples: Sequence[int], kind: ImageKind
) -> tuple[ImageKind, list[int]]:
    """The kind that holds the images of some samples, and a kind that is known; those that have several frames."""
    size, several = 0, set[int]()
    for start in range(0, len(samples), _LOOKED_AT_ONCE):
        block = samples[start : start + _LOOKED_AT_ONCE]
        looked = in_threads(lambda place, block=block: _looked_at(content, block[place]), len(block))
        for sample, header in zip(block, looked, strict=True):
            if not isinstance(header, Exception):
                kind, size = kind.joined(header.kind), size + header.in_memory
                several.update([sample] if header.has_more else [])
        if size > _LOOKED_AT_BYTES:
            break
    return kind, sorted(several)


def _looked_at(content: Callable[[int], Path | bytes | None], sample: int) -> ImageHeader | Exception:
    """The header of an image, or why it cannot be read, which reading the image says as well."""
    try:
        image = content(sample)
        if image is None:
            return ValueError("the sample has no image")
        header = header_of(image)
        return header._replace(in_memory=len(image)) if isinstance(image, bytes) else header
    except Exception as error:  # of any library, and of any kind: files may contain anything
        return error
