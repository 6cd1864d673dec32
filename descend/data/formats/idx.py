"""IDX files, the format of MNIST: one array with a short header, plain or compressed by gzip.

    bytes 0 and 1   0 0
    byte 2          type of the elements, see TYPES; all are big-endian
    byte 3          number of dimensions, r
    r times 4       size of each dimension, an unsigned 32-bit big-endian integer; the first one counts the samples
    the rest        the elements, the last dimension varying fastest

Source: The MNIST database of handwritten digits, "File formats", http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from descend.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from descend.data.reader_protocol import Array

__all__ = ["TYPES", "IdxFile", "open_idx"]

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"
GZIP_TRAILER_BYTES = 4  # the size of the content modulo 2³², RFC 1952 section 2.3.1


@dataclass(frozen=True)
class IdxFile:
    """An IDX file whose header was read and whose size fits it.

    Args:
        path: Of the file.
        compressed: By gzip.
        dtype: Of the elements, big-endian as they stand.
        shape: Of the array; shape[0] counts the samples.
    """

    path: Path
    compressed: bool
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def header_bytes(self) -> int:
        """Where the elements begin."""
        return 4 + 4 * len(self.shape)

    @property
    def content_bytes(self) -> int:
        """What the header promises, itself included, when not compressed."""
        return self.header_bytes + math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """The elements: mapped from a plain file, decompressed into memory from a gzip file.

        Raises:
            DataError: the content is damaged or shorter than the header promises.
        """
        if math.prod(self.shape) == 0:  # nothing can be mapped
            return np.empty(self.shape, self.dtype)
        if not self.compressed:
            return np.memmap(self.path, self.dtype, mode="r", offset=self.header_bytes, shape=self.shape)
        content = _decompress(self.path)
        if len(content) != self.content_bytes:
            raise DataError(_wrong_size(self, len(content)))
        return np.frombuffer(content, self.dtype, offset=self.header_bytes).reshape(self.shape)


def open_idx(path: Path) -> IdxFile:
    """Read the header of an IDX file and see whether the size of the file fits it.

    A gzip file is not decompressed for that: it ends with the size of its content.

    Raises:
        DataError: the file cannot be read, is no IDX file, is empty, or is shorter or longer than its header says.
    """
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == GZIP_MAGIC
        with cast("BinaryIO", gzip.open(path)) if compressed else path.open("rb") as file:
            opened = _header(path, compressed, file)
        size = _gzip_content_bytes(path) if compressed else path.stat().st_size
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if compressed and size != opened.content_bytes % 2**32:
        size = len(_decompress(path))  # a file of several gzip members ends with the size of the last one alone
    if size != opened.content_bytes and not (compressed and size == opened.content_bytes % 2**32):
        raise DataError(_wrong_size(opened, size))
    return opened


def _header(path: Path, compressed: bool, file: BinaryIO) -> IdxFile:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise DataError(
            f"{path} is no IDX file: it begins with the bytes {magic.hex(' ') or '(none)'}, and an IDX file with "
            f"00 00, a type ({', '.join(f'{code:02x}' for code in TYPES)}) and a number of dimensions"
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(
            f"{path} ends within its header: {magic[3]} dimensions need {4 + 4 * magic[3]} bytes and it has "
            f"{4 + len(sizes)}; fetch the file again"
        )
    return IdxFile(path, compressed, np.dtype(TYPES[magic[2]]), struct.unpack(f">{magic[3]}I", sizes))


def _gzip_content_bytes(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(-GZIP_TRAILER_BYTES, 2)
        return int.from_bytes(file.read(GZIP_TRAILER_BYTES), "little")


def _decompress(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or was cut off: {error}; fetch the file again") from error


def _wrong_size(file: IdxFile, size: int) -> str:
    fault = "truncated" if size < file.content_bytes else "longer than its header says"
    sizes = " x ".join(str(n) for n in file.shape)
    return (
        f"{file.path} is {fault}: its header promises {sizes} elements of {file.dtype.itemsize} bytes, which makes "
        f"{file.content_bytes:,} bytes, and it has {size:,}{' when decompressed' if file.compressed else ''}; "
        "fetch the file again"
    )
