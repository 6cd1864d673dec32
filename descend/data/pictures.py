"""Decodes images into arrays (channels, height, width) of uint8, or of uint16 for gray ones of 16 bits.

Pillow does it, or simplejpeg where it is installed and a JPEG is plain: gray or of three channels, without marks of
cameras. Both are libjpeg-turbo and give the same pixels; simplejpeg takes two thirds of the time, since its pixels are
an array from the beginning.

Images are gray or RGB, as the first image of a data set is; others are converted to that, of 16 bits to 8 and back by
the factor 257. A size that is asked for is reached by a bilinear filter over all source pixels of an output pixel, and
the sides are scaled independently; a JPEG that is far larger is first decoded at a fraction of its size. The filter is
torch's, which takes a third of the time of Pillow's and differs by 1 of 255 in a few pixels of a thousand; of 16 bits
it is Pillow's. Orientation marks of cameras are applied.

No image may have more than `MAX_PIXELS`: a file of a few bytes can promise any number of them.
"""

from __future__ import annotations

import importlib
import io
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from descend.data.file_format import library
from descend.data.reader_protocol import Field
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.reader_protocol import Array

__all__ = ["MAX_PIXELS", "ImageForm", "decoded", "form_of_image", "form_of_images", "is_image", "png_bytes"]

MAX_PIXELS = 10**8  # 300 MB as RGB, and 800 MB while it is read
_PIXELS_AT_ONCE = 2**22
_BEGINNINGS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"\0\0\0\x0cjP  ",
)
_TRIED = 100  # first images, of which one must be sound
_AT_LEAST = 2  # times the size that is asked for, where a JPEG is decoded at a fraction of its size
_PER_BYTE = 257  # 65,535 / 255
_JPEG = b"\xff\xd8\xff"
_JPEG_ENDINGS = (".jpg", ".jpeg")
_EXIF = b"Exif\0"
_ORIENTATION = 0x0112  # Exif 2.3, section 4.6.4


def is_image(begin: bytes) -> bool:
    """Whether a file begins like an image of a common format."""
    in_box = (begin[:4] == b"RIFF" and begin[8:12] == b"WEBP") or (begin[4:12] == b"ftypavif")
    return in_box or begin.startswith(_BEGINNINGS)


@dataclass(frozen=True)
class ImageForm:
    """What all images of a data set are decoded to.

    Args:
        mode: Pillow's name of the kind of pixels: "L", "RGB" or "I;16".
        size: Height and width.
        scaled: Whether images of another size are scaled; False refuses them.
    """

    mode: str
    size: tuple[int, int]
    scaled: bool

    @property
    def field(self) -> Field:
        """The field of an image."""
        dtype = np.dtype(np.uint16 if self.mode == "I;16" else np.uint8)
        return Field((3 if self.mode == "RGB" else 1, *self.size), dtype)

    def decode(self, content: Path | bytes) -> Array:
        """An image as an array of this form.

        Raises:
            ValueError: it is of another size and is not to be scaled, or has too many pixels.
            OSError: it is damaged.
        """
        content = _with_bytes(content)
        if self.mode != "I;16":
            colors = "GRAY" if self.mode == "L" else "RGB"
            plain = _plain_jpeg(content, colors, self._fraction if self.scaled else None)
            if plain is not None:
                return self._fitted(plain, plain.shape[:2])
        return self._fitted(*self._unpacked(content))  # when Pillow's memory is given back

    def _unpacked(self, content: Path | bytes) -> tuple[Array, tuple[int, int]]:
        """The pixels (height, width) or (height, width, channels) by Pillow, and the size that the image has."""
        with _opened(content) as image:
            if self.scaled and image.format == "JPEG":
                longest = max(self.size)
                image.draft(None, (_AT_LEAST * longest, _AT_LEAST * longest))
            turned = _upright(image)
            size = (turned.height, turned.width)
            if self.mode == "I;16" and self.scaled and size != self.size:
                deep = turned if turned.mode == self.mode else _converted(turned, self.mode)
                turned = deep.resize(self.size[::-1], library("PIL.Image", "reading an image").Resampling.BILINEAR)
            return _array_of(turned, self.mode).astype(self.field.dtype, copy=False), size

    def _fraction(self, height: int, width: int) -> int:
        """What the sides of a JPEG are divided by when it is decoded; libjpeg knows a half, a quarter, an eighth.

        It is kept at least twice what is asked for, as Pillow's `draft` does; a camera's image takes a tenth of the
        time.
        """
        fits = min(height, width) // (_AT_LEAST * max(self.size))
        return next((one for one in (8, 4, 2) if one <= fits), 1)

    def _fitted(self, pixels: Array, size: tuple[int, ...]) -> Array:
        """Pixels (height, width) or (height, width, channels) of an image of a size as an array of this form."""
        height, width = self.size
        if not self.scaled and size != self.size:
            raise ValueError(
                f"the image has {size[0]} x {size[1]} pixels (height x width) and the first one of the data set "
                f"{height} x {width}: scale all with image_size=({height}, {width})"
            )
        x = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(x) if x.shape[1:] == self.size else _scaled(x, self.size)


def _scaled(x: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """An image (channels, height, width) of another size."""
    import torch

    small = torch.nn.functional.interpolate(torch.from_numpy(x)[None], size, mode="bilinear", antialias=True)
    return small[0].contiguous().numpy()


def decoded(content: Path | bytes) -> NDArray[np.uint8]:
    """An image of its own size, (1, height, width) if it is gray and else (3, height, width); not always contiguous.

    Pixels of three channels may have four bytes in memory, whose last one means nothing: so a pixel is one integer.

    Raises:
        ValueError: it has too many pixels, or more than 8 bits a channel.
        OSError: it is damaged.
    """
    content = _with_bytes(content)
    if (plain := _plain_jpeg(content, None)) is not None:
        return plain.transpose(2, 0, 1)[:3]
    with _opened(content) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"the image has pixels '{image.mode}' of more than 8 bits; store it with 8 bits a channel")
        turned = _upright(image)
        array = _array_of(turned, "L" if turned.mode in ("1", "L") else "RGB")
        del image, turned  # their memory
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


@cache
def _simplejpeg() -> Any | None:
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def _with_bytes(content: Path | bytes) -> Path | bytes:
    """The content of a JPEG file where simplejpeg will decode it, which takes no paths."""
    if isinstance(content, bytes) or _simplejpeg() is None or content.suffix.lower() not in _JPEG_ENDINGS:
        return content
    return content.read_bytes()


def _plain_jpeg(
    content: Path | bytes, colors: str | None, fraction: Callable[[int, int], int] | None = None
) -> NDArray[np.uint8] | None:
    """The pixels (height, width, channels) of a JPEG by simplejpeg; None where Pillow has to decode it.

    Args:
        content: Bytes, or a path, which Pillow opens.
        colors: "GRAY" or "RGB"; None for those of the image, in four bytes a pixel where it is not gray.
        fraction: From height and width to 1, 2, 4 or 8, by which both are divided.

    Raises:
        ValueError: it is damaged, or has too many pixels.
    """
    simplejpeg = _simplejpeg()
    if simplejpeg is None or not isinstance(content, bytes) or not content.startswith(_JPEG):
        return None
    if _has_exif(content):  # it may have to be turned
        return None
    try:
        height, width, kind, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None  # Pillow says what is wrong with it
    if kind not in ("Gray", "YCbCr"):
        return None
    _check_size(width, height)
    own = "GRAY" if kind == "Gray" else "RGBX"
    if colors == "GRAY" and own != colors:
        return None  # the brightness that Pillow computes from the colours is another
    divided = fraction(height, width) if fraction else 1
    if divided == 1:
        return simplejpeg.decode_jpeg(content, colors or own)
    return simplejpeg.decode_jpeg(
        content, colors or own, min_height=-(-height // divided), min_width=-(-width // divided)
    )


def _has_exif(content: bytes) -> bool:
    """Whether a JPEG has marks of a camera before its pixels, or no proper segments there; T.81, section B.1.1."""
    at = 2
    while content[at : at + 1] == b"\xff":
        kind = content[at + 1 : at + 2]
        if kind == b"\xff":  # a byte that fills up
            at += 1
            continue
        if kind == b"\xda":  # pixels follow
            return False
        if kind == b"\xe1" and content.startswith(_EXIF, at + 4):
            return True
        at += 2 + int.from_bytes(content[at + 2 : at + 4])
    return True


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ValueError(f"the image promises {width} x {height} pixels; at most {MAX_PIXELS:,} are read")


def form_of_images(
    contents: Iterable[Path | bytes | None], size: tuple[int, int] | None, place: Callable[[int], str]
) -> ImageForm:
    """The form of a data set with these first images: that of the first one that can be opened.

    Args:
        contents: Of the samples in order, as far as they are needed; None where there is none.
        size: The height and width that was asked for.
        place: Names a sample.

    Raises:
        DataError: none can be opened; the message is about the first.
    """
    first: DataError | None = None
    for sample, content in enumerate(islice(contents, _TRIED)):
        try:
            if content is None:
                raise DataError(f"sample {sample} ({place(sample)}) has no image")
            return form_of_image(content, size, f"sample {sample} ({place(sample)})")
        except DataError as error:
            first = first or error
    raise first or DataError("there are no images")


def form_of_image(content: Path | bytes, size: tuple[int, int] | None, place: str) -> ImageForm:
    """The form of a data set with this first image; `size` is the height and width that was asked for.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with _opened(content) as image:
            mode = "L" if image.mode in ("1", "L") else "I;16" if image.mode.startswith("I;16") else "RGB"
            turned = image.getexif().get(_ORIENTATION, 1) >= 5  # on its side
            own = (image.width, image.height) if turned else (image.height, image.width)
            return ImageForm(mode, size or own, size is not None)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{place} is the first image and cannot be read: {error}") from error


def _opened(content: Path | bytes) -> Any:
    pillow = library("PIL.Image", "reading an image")
    file: Path | BinaryIO = io.BytesIO(content) if isinstance(content, bytes) else content
    limit, pillow.MAX_IMAGE_PIXELS = pillow.MAX_IMAGE_PIXELS, None  # it would warn first; ours follows
    try:
        image = pillow.open(file)
    finally:
        pillow.MAX_IMAGE_PIXELS = limit
    try:
        _check_size(image.width, image.height)
    except ValueError:
        image.close()
        raise
    return image


def _upright(image: Any) -> Any:
    if image.getexif().get(_ORIENTATION, 1) == 1:
        return image
    return library("PIL.ImageOps", "reading an image").exif_transpose(image)


def _array_of(image: Any, mode: str) -> Array:
    """The pixels (height, width) or (height, width, channels) of an image in a mode of Pillow's.

    Large images are converted some rows at a time: Pillow holds 4 bytes a pixel, and twice as many while it converts.
    """
    rows = max(1, _PIXELS_AT_ONCE // max(1, image.width))
    if image.height <= rows:
        return np.array(image if image.mode == mode else _converted(image, mode))
    image.load()
    whole: Array | None = None
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        part = np.asarray(strip if strip.mode == mode else _converted(strip, mode))
        whole = np.empty((image.height, *part.shape[1:]), part.dtype) if whole is None else whole
        whole[top : top + len(part)] = part
    assert whole is not None
    return whole


def _converted(image: Any, mode: str) -> Any:
    deep = image.mode.startswith("I;16")
    if image.mode.startswith(("I", "F")) and not deep:
        raise ValueError(f"the image has pixels '{image.mode}' of 32 bits; store it with 8 or 16 bits a channel")
    if deep != mode.startswith("I;16"):  # Pillow would cut values off, or leave them as they are
        pillow = library("PIL.Image", "reading an image")
        if not deep:
            return pillow.fromarray(np.asarray(_converted(image, "L")).astype(np.uint16) * np.uint16(_PER_BYTE))
        eight = (np.asarray(image).astype(np.uint32) + _PER_BYTE // 2) // _PER_BYTE
        image = pillow.fromarray(eight.astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)


def png_bytes(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of 8 bits a channel, without filters, of an image (height, width) or (height, width, 3).

    Source: https://www.w3.org/TR/png-3
    """
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    colour = 2 if pixels.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body
