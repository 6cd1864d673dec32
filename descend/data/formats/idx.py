"""Reads IDX files, the format of MNIST: one array with a short header, plain or compressed by gzip.

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
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from descend.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.reader_protocol import Array

__all__ = ["TYPES", "IdxFile", "open_idx"]

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"
GZIP_TRAILER_BYTES = 4  # the size of the content modulo 2³², RFC 1952 section 2.3.1
MAX_COMPRESSED_BYTES = 2**30  # gzip expands up to 1,032 times, so a small file can promise any amount of memory
_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class IdxFile:
    """An IDX file whose header was read and whose size matches it.

    Args:
        path: Of the file.
        compressed: By gzip.
        dtype: Of the elements, big-endian.
        shape: Of the array; shape[0] counts the samples.
    """

    path: Path
    compressed: bool
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "elements"}

    @property
    def header_bytes(self) -> int:
        """Offset of the elements."""
        return 4 + 4 * len(self.shape)

    @property
    def content_bytes(self) -> int:
        """Size of the header and of the elements that it promises, uncompressed."""
        return self.header_bytes + math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def elements(self) -> Array:
        """The array, which is kept."""
        return self.array()

    def array(self) -> Array:
        """The elements: mapped from a plain file, decompressed into memory from a gzip file.

        Raises:
            DataError: the content is damaged, or shorter or longer than the header promises.
        """
        if math.prod(self.shape) == 0:  # nothing can be mapped
            return np.empty(self.shape, self.dtype)
        if not self.compressed:
            return np.memmap(self.path, self.dtype, mode="r", offset=self.header_bytes, shape=self.shape)
        content = np.empty(self.content_bytes, np.uint8)  # takes no memory before bytes come
        size = _decompress(self.path, content)
        if size != self.content_bytes:
            raise DataError(_wrong_size(self, size))
        return np.frombuffer(content, self.dtype, offset=self.header_bytes).reshape(self.shape)


def open_idx(path: Path) -> IdxFile:
    """Read the header of an IDX file and check that the size of the file matches it.

    A gzip file is not decompressed for that: it ends with the size of its content. Its content is read into memory by
    `IdxFile.array`, so it may be at most `MAX_COMPRESSED_BYTES`; plain files are mapped and may be of any size.

    Raises:
        DataError: the file cannot be read, is not an IDX file, is empty, is shorter or longer than its header says, or
            is compressed and too large.
    """
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == GZIP_MAGIC
        with cast("BinaryIO", gzip.open(path)) if compressed else path.open("rb") as file:
            opened = _header(path, compressed, file)
        size = _gzip_content_bytes(path) if compressed else path.stat().st_size
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if compressed and opened.content_bytes > MAX_COMPRESSED_BYTES:
        raise DataError(
            f"{path} is compressed and its header promises {opened.content_bytes:,} bytes; at most "
            f"{MAX_COMPRESSED_BYTES:,} are decompressed into memory: decompress it with gunzip, then it is mapped"
        )
    if compressed and size != opened.content_bytes:
        # A file of several gzip members ends with the size of the last one alone.
        size = _decompress(path, np.empty(opened.content_bytes, np.uint8))
    if size != opened.content_bytes:
        raise DataError(_wrong_size(opened, size))
    return opened


def _header(path: Path, compressed: bool, file: BinaryIO) -> IdxFile:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise DataError(
            f"{path} is not an IDX file: it begins with the bytes {magic.hex(' ') or '(none)'}, and an IDX file with "
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


def _decompress(path: Path, content: NDArray[np.uint8]) -> int:
    """Decompress a file into `content`.

    Returns:
        The number of bytes in the file, or one more than `content` holds if the file has more than that.
    """
    room, filled = memoryview(content.data), 0
    try:
        with gzip.open(path) as file:
            while got := file.readinto(room[filled : filled + _CHUNK_BYTES]):
                filled += got
            return filled + len(file.read(1))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or was cut off: {error}; fetch the file again") from error


def _wrong_size(file: IdxFile, size: int) -> str:
    short = size < file.content_bytes
    fault = "truncated" if short else "longer than its header says"
    found = f"more{' when decompressed' if file.compressed else ''}"
    if short or not file.compressed:  # decompression stops at the first byte too many
        found = f"{size:,}{' when decompressed' if file.compressed else ''}"
    sizes = " x ".join(str(n) for n in file.shape)
    return (
        f"{file.path} is {fault}: its header promises {sizes} elements of {file.dtype.itemsize} bytes, which makes "
        f"{file.content_bytes:,} bytes, and it has {found}; "
        "fetch the file again"
    )
