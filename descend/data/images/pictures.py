"""Decodes images into arrays (channels, height, width) of uint8, or of uint16 where images of a data set have 16 bits.

Pillow does it, or simplejpeg where it is installed and a JPEG is plain: gray or of three channels, without marks of
cameras. Both are libjpeg-turbo and give the same pixels; simplejpeg takes two thirds of the time, since its pixels are
an array from the beginning.

All images of a data set have one form: it is grey if all are, else RGB, and has 16 bits where one has; see
`image_survey.py`. Grey becomes RGB by repeating it, and 8 bits become
16 by the factor 257, which loses nothing. Where a conversion would lose something, the image is an error: one with
colours among grey ones, one that is transparent in places, one of 16 bits among those of 8. `colors=` and `depth=` of
`read` say the form, and with it that such a loss is meant: colours become the brightness of ITU-R BT.601,
transparency is left out, 16 bits are divided by 257.

A size that is asked for is reached by a bilinear filter over all source pixels of an output pixel, and
the sides are scaled independently; a JPEG that is far larger is first decoded at a fraction of its size. The filter is
torch's, which takes a third of the time of Pillow's and differs by 1 of 255 in a few pixels of a thousand; of 16 bits
it is Pillow's. Orientation marks of cameras are applied.

No image may have more than `MAX_PIXELS`: a file of a few bytes can promise any number of them.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from descend.data.reader_protocol import Field
from descend.errors import library

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.reader_protocol import Array

__all__ = [
    "MAX_PIXELS",
    "ImageForm",
    "ImageHeader",
    "ImageKind",
    "decoded",
    "header_of",
    "is_image",
    "png_bytes",
]

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
_HEAD_BYTES, _BOX_BYTES = 512, 2**16  # of a JPEG 2000 and of an AVIF, in which the depth is
_AV1C = re.compile(rb"av1C\x81.(.)", re.DOTALL)
CHANNELS = {"grey": 1, "rgb": 3, "rgba": 4}
_GREY_MODES = ("1", "L", "LA", "La")
_ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
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


class ImageKind(NamedTuple):
    """The colours and depth of an image by its header, or what all of several images fit into.

    Transparency is no part of it: most images with an alpha channel are opaque, which only their pixels show.
    """

    colors: str  # "grey" or "rgb"
    depth: int  # 8 or 16 bits a channel

    def joined(self, other: ImageKind) -> ImageKind:
        """The kind that holds images of both."""
        return ImageKind(max(self.colors, other.colors), max(self.depth, other.depth))


@dataclass(frozen=True)
class ImageForm:
    """What all images of a data set are decoded to.

    Args:
        colors: "grey", "rgb" or "rgba".
        depth: Bits of a channel, 8 or 16.
        size: Height and width.
        scaled: Whether images of another size are scaled; False refuses them.
        may_lose: "colors" where colours and transparency may be lost, "depth" where bits may.
        notes: Sentences about images that were looked at.
    """

    colors: str
    depth: int
    size: tuple[int, int]
    scaled: bool
    may_lose: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.colors}, {self.depth} bits"

    @property
    def kind(self) -> ImageKind:
        """The kind of images that fit into it without a loss."""
        return ImageKind(self.colors.removesuffix("a"), self.depth)

    @property
    def field(self) -> Field:
        """The field of an image."""
        dtype = np.dtype(np.uint16 if self.depth == 16 else np.uint8)
        return Field((CHANNELS[self.colors], *self.size), dtype)

    def decode(self, content: Path | bytes) -> Array:
        """An image as an array of this form.

        Raises:
            ValueError: it is of another size and is not to be scaled, has too many pixels, or would lose something.
            OSError: it is damaged.
        """
        content = _with_bytes(content)
        if self.depth == 8 and self.colors != "rgba":
            colors = "GRAY" if self.colors == "grey" else "RGB"
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
            if "depth" not in self.may_lose:
                _check_depth(image, "pass depth=8 to read the higher 8 bits of each")
            turned = _upright(image)
            size = (turned.height, turned.width)
            pixels = _in_strips(turned, self._converted)
        if self.depth == 16 and self.scaled and size != self.size:
            pixels = _scaled_deep(pixels, self.size)
        return pixels, size

    def _converted(self, image: Any) -> Array:
        """The pixels of an image, or of a part of it.

        Raises:
            ValueError: something would be lost that may not be.
        """
        _check_bits(image)
        alpha = _alpha_of(image) if self.colors == "rgba" or "colors" not in self.may_lose else None
        if self.colors != "rgba" and alpha is not None and alpha.size and int(alpha.min()) < 255:
            raise ValueError(
                f"the image must be opaque, as the data set is read ({self}), got transparent pixels: pass "
                f"colors='rgba' to read the transparency of all, or colors='{self.colors}' to leave it out"
            )
        pixels = self._of_depth(self._of_colors(image), _is_deep(image))
        if self.colors != "rgba":
            return pixels
        opaque = np.full((image.height, image.width), 255, np.uint8)
        return np.dstack([pixels, self._of_depth(opaque if alpha is None else alpha, deep=False)])

    def _of_colors(self, image: Any) -> Array:
        """The pixels (height, width) or (height, width, 3), of the depth that the image has."""
        grey = image.mode in _GREY_MODES or _is_deep(image)
        if _is_deep(image):
            pixels = np.array(image).astype(np.uint16, copy=False)
        elif grey:
            pixels = _in_mode(image, "L")
        elif self.colors == "grey" and "colors" in self.may_lose:
            return _in_mode(image, "L")
        else:
            pixels = _in_mode(image, "RGB")
        if self.colors != "grey":
            return np.dstack([pixels] * 3) if grey else pixels
        if not grey and not (pixels == pixels[..., :1]).all():
            raise ValueError(
                f"the image must be grey, as the data set is read ({self}), got colours: pass colors='rgb' to read all "
                "with their colours, or colors='grey' to lose these"
            )
        return pixels if grey else np.ascontiguousarray(pixels[..., 0])

    def _of_depth(self, pixels: Array, deep: bool) -> Array:
        if deep == (self.depth == 16):
            return pixels
        if not deep:
            return pixels.astype(np.uint16) * np.uint16(_PER_BYTE)
        if "depth" not in self.may_lose and (pixels % _PER_BYTE).any():
            raise ValueError(
                f"the image must have 8 bits, as the data set is read ({self}), got 16: pass depth=16 to read all with "
                "16, or depth=8 to round these"
            )
        return ((pixels.astype(np.uint32) + _PER_BYTE // 2) // _PER_BYTE).astype(np.uint8)

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


def _scaled_deep(pixels: Array, size: tuple[int, int]) -> Array:
    """Pixels (height, width) or (height, width, channels) of 16 bits in another size."""
    pillow = library("PIL.Image", "reading an image")
    planes = [pixels] if pixels.ndim == 2 else [pixels[..., channel] for channel in range(pixels.shape[2])]
    images = [pillow.fromarray(np.ascontiguousarray(plane)) for plane in planes]
    small = [np.asarray(image.resize(size[::-1], pillow.Resampling.BILINEAR)) for image in images]
    return small[0].astype(np.uint16) if pixels.ndim == 2 else np.dstack(small).astype(np.uint16, copy=False)


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
        _check_depth(image, "store it with 8 bits a channel")
        turned = _upright(image)
        mode = "L" if turned.mode in ("1", "L") else "RGB"
        array = _in_strips(turned, lambda part: _in_mode(part, mode))
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


class ImageHeader(NamedTuple):
    """The kind of an image by its header."""

    kind: ImageKind
    size: tuple[int, int]  # height and width as it is shown
    in_memory: int = 0  # bytes that had to be read
    has_more: bool = False  # frames or pages behind the first, which is read


def header_of(content: Path | bytes) -> ImageHeader:
    """The kind of an image, and its size, without its pixels.

    Raises:
        ValueError: it has 32 bits a channel, or too many pixels.
        OSError, SyntaxError: it is damaged.
    """
    with _opened(content) as image:
        _check_bits(image)
        turned = image.getexif().get(_ORIENTATION, 1) >= 5  # on its side
        size = (image.width, image.height) if turned else (image.height, image.width)
        colors = "grey" if _is_deep(image) or image.mode in _GREY_MODES else "rgb"
        kind = ImageKind(colors, 16 if _is_deep(image) or _is_cut(image) else 8)
        # A camera's MPO has the same picture again, in another size.
        return ImageHeader(kind, size, has_more=getattr(image, "is_animated", False) and image.format != "MPO")


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


def _is_deep(image: Any) -> bool:
    return image.mode.startswith("I;16")


def _check_bits(image: Any) -> None:
    if image.mode.startswith(("I", "F")) and not _is_deep(image):
        raise ValueError(f"the image has pixels '{image.mode}' of 32 bits; store it with 8 or 16 bits a channel")


def _is_cut(image: Any) -> bool:
    """Whether an image has more bits a channel than Pillow's pixels of it: 16 of several channels, or 10 of AVIF.

    Must be asked before its pixels are loaded, when it is known how they are decoded.
    """
    if image.format == "AVIF":
        return _has_high_depth(image.fp)
    if _is_deep(image) or not getattr(image, "tile", None):
        return False
    if image.format == "JPEG2000":
        return _bits_of_jpeg_2000(image.fp) > 8
    decoder, *_, how = image.tile[0]
    raw, *more = how if isinstance(how, tuple) and how else (how,)
    if decoder.startswith("ppm"):
        return bool(more) and more[0] > 255  # the largest value
    return decoder == "SGI16" or (isinstance(raw, str) and ";16" in raw)


def _has_high_depth(file: BinaryIO) -> bool:
    """Whether a box "av1C" says so: AV1 Codec ISO Media File Format Binding, 2.3.3."""
    before = file.tell()
    file.seek(0)
    begin = file.read(_BOX_BYTES)
    file.seek(before)
    return any(flags[0] & 0x40 for flags in _AV1C.findall(begin))


def _bits_of_jpeg_2000(file: BinaryIO) -> int:
    """Bits of a channel: of the box "ihdr", or of the marker SIZ where there are no boxes; T.800, A.5.1 and I.5.3.1."""
    before = file.tell()
    file.seek(0)
    begin = file.read(_HEAD_BYTES)
    file.seek(before)
    boxed = begin.find(b"ihdr")
    at = boxed + 14 if boxed >= 0 else begin.find(b"\xff\x51") + 40
    return (begin[at] & 0x7F) + 1 if at < len(begin) else 8


def _check_depth(image: Any, remedy: str) -> None:
    if _is_cut(image):
        bits = "more than 8" if image.format == "AVIF" else "16"
        raise ValueError(
            f"the image has {len(image.getbands())} channels of {bits} bits, and 8 of each are read: {remedy}"
        )


def _alpha_of(image: Any) -> Array | None:
    """How opaque each pixel is, from 0 to 255; None of an image without transparency."""
    if image.mode in _ALPHA_MODES:
        has_alpha = image if image.mode in ("LA", "RGBA") else image.convert("RGBA")
        return np.asarray(has_alpha.getchannel("A"))
    if (key := image.info.get("transparency")) is None:
        return None
    if _is_deep(image):  # Pillow has no alpha beside 16 bits
        return np.where(np.asarray(image) == key, 0, 255).astype(np.uint8)
    return np.asarray(image.convert("RGBA").getchannel("A"))


def _in_mode(image: Any, mode: str) -> Array:
    return np.array(image if image.mode == mode else _without_key(image).convert(mode))


def _without_key(image: Any) -> Any:
    """An image with alpha in place of a transparent colour: Pillow warns of a palette that is converted otherwise."""
    return image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image


def _in_strips(image: Any, pixels: Callable[[Any], Array]) -> Array:
    """The pixels (height, width) or (height, width, channels) of an image, by a function of a part of it.

    Large images are converted some rows at a time: Pillow holds 4 bytes a pixel, and twice as many while it converts.
    """
    rows = max(1, _PIXELS_AT_ONCE // max(1, image.width))
    if image.height <= rows:
        return pixels(image)
    image.load()
    whole: Array | None = None
    for top in range(0, image.height, rows):
        part = pixels(image.crop((0, top, image.width, min(top + rows, image.height))))
        whole = np.empty((image.height, *part.shape[1:]), part.dtype) if whole is None else whole
        whole[top : top + len(part)] = part
    assert whole is not None
    return whole


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
