"""Mutated image sets in the format of MNIST: each is read, or refused with an error of ours, within memory.

    python tests/fuzz/fuzz_idx.py --count 20000 --seed 0

Images and labels are changed in header, sizes and bytes, plain and compressed by gzip, in one member and in several,
with a true size at the end and with another.
"""

from __future__ import annotations

import gzip
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from descend.data import DataReader, Reader, open_readers
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

SIZES = (0, 1, 2, 3, 5, 27, 28, 255, 65536, 2**20, 2**28, 2**31, 2**32 - 1)
TYPES = (0x08, 0x08, 0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x0E, 0x00, 0x0A, 0xFF)
_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_idx_"))


def _idx(shape: tuple[int, ...], kind: int, content: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + content


def mutated(shape: tuple[int, ...], top: int, draw: random.Random) -> bytes:
    """A file of an array of this shape with entries below `top`, mostly with a mutation."""
    content = bytes(draw.randrange(top) for _ in range(int(np.prod(shape))))
    kind, sizes = 0x08, list(shape)
    match draw.randrange(8):
        case 0:
            kind = draw.choice(TYPES)
        case 1 | 2:
            sizes[draw.randrange(len(sizes))] = draw.choice(SIZES)
        case 3:
            sizes = [draw.choice(SIZES) for _ in range(draw.choice((0, 1, 2, 4, 70, 255)))]
        case 4:
            content = content[: draw.randrange(len(content) + 1)] * draw.choice((1, 1, 2))
        case _:
            pass
    file = _idx(tuple(sizes), kind, content)
    return other_bytes(file, draw) if draw.random() < 0.3 else file


def _compressed(content: bytes, draw: random.Random) -> bytes:
    match draw.randrange(6):
        case 0:  # several members
            place = draw.randrange(len(content) + 1)
            return gzip.compress(content[:place], 1) + gzip.compress(content[place:], 1)
        case 1:  # far more than the header says
            return gzip.compress(content + bytes(draw.choice((1, 10**6, 3 * 10**7))), 1)
        case 2:
            return other_bytes(gzip.compress(content, 1), draw)
        case 3:  # another size at its end
            return gzip.compress(content, 1)[:-4] + struct.pack("<I", draw.choice(SIZES))
        case _:
            return gzip.compress(content, 1)


def attempt(draw: random.Random) -> None:
    """Write images and labels, open them as a reader, and read the first and the last sample."""
    for path in _FOLDER.iterdir():
        path.unlink()
    count = draw.randint(1, 6)
    for name, shape, top in (("images", (count, 3, 4), 256), ("labels", (count,), 10)):
        content = mutated(shape, top, draw) if draw.random() < 0.7 else _idx(shape, 8, bytes(int(np.prod(shape))))
        compressed = draw.random() < 0.5
        content = _compressed(content, draw) if compressed else content
        (_FOLDER / (f"{name}.gz" if compressed else name)).write_bytes(content)
    reader = Reader(
        name="mnist", role="train", data_filedir=str(_FOLDER), data_filename="images", label_filename="labels"
    )
    samples = open_readers(DataReader([reader]))["train"]
    if len(samples):
        read = samples.read(np.array([0, len(samples) - 1]))
        assert all(array.shape == (2, *samples.fields[name].shape) for name, array in read.items())


if __name__ == "__main__":
    main(attempt, __doc__ or "")
