"""Mutated image files: each is read, or refused with an error of ours, within memory and time.

    python tests/fuzz/fuzz_images.py --count 20000 --seed 0

PNG, JPEG, GIF, BMP, TIFF, WebP and PPM files of several modes have bytes changed, headers that claim other sizes, or
another ending; PNG chunks get a right checksum after the change, so that what is behind it is reached.
"""

from __future__ import annotations

import io
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from PIL import Image

import descend.data
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

FORMATS = {
    "PNG": (".png", ("L", "RGB", "RGBA", "P", "1", "I;16", "LA")),
    "JPEG": (".jpg", ("L", "RGB", "CMYK")),
    "GIF": (".gif", ("L", "P")),
    "BMP": (".bmp", ("L", "RGB")),
    "TIFF": (".tif", ("L", "RGB", "F", "I;16")),
    "WEBP": (".webp", ("RGB", "RGBA")),
    "PPM": (".ppm", ("L", "RGB")),
}
SIZES = (0, 1, 2, 1000, 20_000, 60_000, 2**31 - 1, 2**32 - 1)
_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_images_"))
_MADE: dict[tuple[str, str], bytes] = {}


def image(kind: str, mode: str) -> bytes:
    """A file of 6 x 5 pixels."""
    if (kind, mode) not in _MADE:
        stream, gray = io.BytesIO(), Image.fromarray((np.arange(30, dtype=np.uint8) * 8).reshape(5, 6))
        picture = (
            Image.fromarray(np.arange(30, dtype=np.uint16).reshape(5, 6)) if mode == "I;16" else gray.convert(mode)
        )
        picture.save(stream, kind)
        _MADE[kind, mode] = stream.getvalue()
    return _MADE[kind, mode]


def other_chunk(content: bytes, draw: random.Random) -> bytes:
    """A PNG file with one chunk changed, or repeated, and its checksum made right again."""
    chunks: list[tuple[bytes, bytes]] = []
    place = 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    number = draw.randrange(len(chunks))
    name, data = chunks[number]
    match draw.randrange(5):
        case 0 if name == b"IHDR":
            data = struct.pack(">II", draw.choice(SIZES), draw.choice(SIZES)) + data[8:]
        case 1:
            chunks.insert(number, (name, data))
        case 2:  # a text or a profile that unpacks to much more than the file
            bomb = zlib.compress(bytes(draw.choice((10, 10**5, 3 * 10**7))))
            chunks.insert(1, draw.choice(((b"zTXt", b"k\0\0" + bomb), (b"iCCP", b"k\0\0" + bomb), (b"IDAT", bomb))))
        case _:
            data = other_bytes(data, draw)
    chunks[number] = (name, data)
    return content[:8] + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def mutated(draw: random.Random) -> tuple[str, bytes]:
    """The ending and the content of a file."""
    kind = draw.choice(("PNG", "PNG", *FORMATS))
    ending, modes = FORMATS[kind]
    content = image(kind, draw.choice(modes))
    match draw.randrange(6):
        case 0 | 1 if kind == "PNG":
            content = other_chunk(content, draw)
        case 2 if kind in ("GIF", "BMP", "PPM"):
            size = struct.pack("<II" if kind == "BMP" else "<HH", *(draw.choice(SIZES) % 2**16 for _ in range(2)))
            at = {"GIF": 6, "BMP": 18}.get(kind)
            content = (
                content.replace(b"6 5", f"{draw.choice(SIZES)} {draw.choice(SIZES)}".encode(), 1)
                if at is None
                else content[:at] + size + content[at + len(size) :]
            )
        case 3:
            pass
        case _:
            content = other_bytes(content, draw)
    return (draw.choice([each for each, _ in FORMATS.values()]) if draw.random() < 0.1 else ending), content


def attempt(draw: random.Random) -> None:
    """Read a folder with two classes of images, at times with their size given, or a list of the files."""
    for path in [*_FOLDER.rglob("*")]:
        if path.is_file():
            path.unlink()
    names: list[str] = []
    for number in range(draw.randint(1, 3)):
        folder = _FOLDER / draw.choice(("a", "b"))
        folder.mkdir(exist_ok=True)
        ending, content = mutated(draw) if number == 0 else (".png", image("PNG", "RGB"))
        path = folder / f"{number}{ending}"
        path.write_bytes(content)
        names.append(f"{path.relative_to(_FOLDER)} {draw.choice(('0', '1', '1', 'x', '-1', ''))}")
    options: dict[str, Any] = {}
    if draw.random() < 0.3:
        options["image_size"] = draw.choice((8, (4, 6), 1, 0, -3, 10**6))
    if draw.random() < 0.2:
        options["skip_bad"] = 3
    source = _FOLDER
    if draw.random() < 0.2:
        source = _FOLDER / "list.txt"
        source.write_text("\n".join(names))
    reader = descend.data.read(str(source), **options)
    if len(reader):
        read = reader.read(np.array([0, len(reader) - 1]))
        assert all(array.shape == (2, *reader.fields[name].shape) for name, array in read.items())


if __name__ == "__main__":
    main(attempt, __doc__ or "")
