"""Refuses small files that would become very large: decompression bombs, and headers that promise more than is stored.

Text compresses about 5 to 20 times and tables of few different values up to 100 times; what people store by accident,
such as masks of zeros, may reach the limit of gzip, 1,032. So a content is refused only if it is large as well, and
before most of it is made.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from descend.errors import DataError, DescendError, library

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "COMPRESSED_ENDINGS",
    "DAMAGES",
    "FREE_BYTES",
    "MAX_EXPANSION",
    "UNPACKED_BY",
    "WINDOW_BYTES",
    "begin_of",
    "check_expansion",
    "compression_of",
    "opened",
    "plain_name",
]

MAX_EXPANSION = 500  # of arrays
FREE_BYTES = 2**28  # so much may come of any few bytes
_MAX_TEXT_EXPANSION = 200
WINDOW_BYTES = 2**27  # of text, over which its expansion is judged
_COMPRESSED_AT_ONCE = 2**16
_DECOMPRESSED_AT_ONCE = 2**20
_XZ_MEMORY_BYTES = 2**28  # a header may ask for 4 GiB
COMPRESSED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
UNPACKED_BY = {"gzip": "gunzip", "bzip2": "bunzip2", "xz": "unxz", "zstd": "unzstd"}


def check_expansion(what: str, stored: int, promised: int, remedy: str) -> None:
    """Check that a content does not become much larger than the bytes that hold it.

    Args:
        what: Is decoded, for the message.
        stored: Its bytes in the file.
        promised: Its bytes in memory.
        remedy: What to do.

    Raises:
        DataError: it becomes more than `FREE_BYTES` and more than `MAX_EXPANSION` times as large.
    """
    if promised > FREE_BYTES and promised > MAX_EXPANSION * stored:
        raise DataError(
            f"{what} has {stored:,} bytes, which would become {promised:,}, more than {MAX_EXPANSION} times as many: "
            f"{remedy}"
        )


def compression_of(path: Path) -> str | None:
    """What a file is compressed by, judged by its content: "gzip", "bzip2", "xz" or "zstd"; None of another file."""
    with path.open("rb") as file:
        return _compression(file.read(_LONGEST_MAGIC))


def _compression(begin: bytes) -> str | None:
    return next((name for name, (magic, _) in _COMPRESSIONS.items() if begin.startswith(magic)), None)


def plain_name(path: Path) -> str:
    """The name of a file in lower case, without the ending that says that it is compressed."""
    name = path.name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED_ENDINGS if name.endswith(ending)), name)


def begin_of(path: Path, count: int) -> bytes:
    """The first bytes of a file, decompressed if it is compressed; as they are where they cannot be.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(max(count, _LONGEST_MAGIC))
    if (kind := _compression(content)) is None:
        return content[:count]
    try:
        with io.BufferedReader(_inflated(path, kind)) as file:
            return file.read(count)
    except (*DAMAGES, DescendError):
        return content[:count]


def opened(path: Path) -> BinaryIO:
    """A text, decompressed if it is compressed.

    Raises:
        MissingExtra: it is compressed by zstd, and pyarrow is not installed.
        DataError: here or from `read`: it is a bomb.
        zlib.error, lzma.LZMAError, EOFError, OSError: from `read`: it is damaged or was cut off.
    """
    if (kind := compression_of(path)) is None:
        return path.open("rb")
    # Before anything is parsed, which takes far longer than this. What is damaged is said by `read`.
    with _inflated(path, kind) as probe, suppress(*DAMAGES):
        while probe.consumed * _MAX_TEXT_EXPANSION < WINDOW_BYTES and probe.read(_DECOMPRESSED_AT_ONCE):
            pass
    return cast("BinaryIO", io.BufferedReader(_inflated(path, kind), _DECOMPRESSED_AT_ONCE))


class _Decompressor(Protocol):
    """One member of a compressed file, as `bz2` and `lzma` have it."""

    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most so many bytes of the content, after more of the file."""
        ...


class _Gzip:
    """See `_Decompressor`."""

    def __init__(self) -> None:
        self._state = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._state.eof

    @property
    def needs_input(self) -> bool:
        return not self._state.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._state.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._state.decompress(self._state.unconsumed_tail + data, max_length)


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)


DAMAGES = (EOFError, zlib.error, lzma.LZMAError, OSError)
_COMPRESSIONS: dict[str, tuple[bytes, Any]] = {
    "gzip": (b"\x1f\x8b", _Gzip),
    "bzip2": (b"BZh", bz2.BZ2Decompressor),
    "xz": (b"\xfd7zXZ\0", _xz),
    "zstd": (b"\x28\xb5\x2f\xfd", None),
}
_LONGEST_MAGIC = max(len(magic) for magic, _ in _COMPRESSIONS.values())


def _inflated(path: Path, kind: str) -> _Inflated:
    maker = _COMPRESSIONS[kind][1]
    return _Zstd(path, kind) if maker is None else _Members(path, kind)


class _Inflated(io.RawIOBase):
    """The content of a compressed file that ends in an error where it expands too much."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__()
        self._path, self._kind = path, kind
        self._file = path.open("rb")
        self._given = 0  # bytes of the content
        self._window = (0, 0)  # bytes of the file and of the content, where the window began

    def readable(self) -> bool:
        return True

    @property
    def consumed(self) -> int:
        """Compressed bytes that were used so far."""
        return self._file.tell()

    def _next(self, room: int) -> bytes:
        """At most so many bytes of the content; none at its end."""
        raise NotImplementedError

    def readinto(self, buffer: object, /) -> int:
        room = memoryview(cast("bytearray", buffer)).cast("B")
        content = self._next(len(room))
        room[: len(content)] = content
        self._given += len(content)
        self._check()
        return len(content)

    def _check(self) -> None:
        taken, given = self._window
        if self._given - given < WINDOW_BYTES:
            return
        if self._given - given > _MAX_TEXT_EXPANSION * (self.consumed - taken):
            raise DataError(
                f"{self._path} expands more than {_MAX_TEXT_EXPANSION} times: {self.consumed - taken:,} bytes become "
                f"{self._given - given:,}, as in a decompression bomb; if it is none, decompress it with "
                f"{UNPACKED_BY[self._kind]}"
            )
        self._window = (self.consumed, self._given)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Members(_Inflated):
    """A file of one member or several, decompressed by Python's own modules."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path, kind)
        self._state: _Decompressor = _COMPRESSIONS[kind][1]()
        self._waiting = b""  # bytes of the next member

    @property
    def consumed(self) -> int:
        return self._file.tell() - len(self._waiting)

    def _next(self, room: int) -> bytes:
        while True:
            if self._state.eof:
                rest = self._state.unused_data.lstrip(b"\0") or self._more().lstrip(b"\0")  # zeros fill up a tape
                if not rest:
                    return b""
                self._state, self._waiting = _COMPRESSIONS[self._kind][1](), rest
            if self._state.needs_input and not self._waiting:
                self._waiting = self._more()
                if not self._waiting:
                    raise EOFError("it ends within its content")
            waiting, self._waiting = self._waiting, b""
            if content := self._state.decompress(waiting, room):
                return content

    def _more(self) -> bytes:
        return self._file.read(_COMPRESSED_AT_ONCE)


class _Zstd(_Inflated):
    """A file decompressed by pyarrow; Python has a module for it from 3.14 on."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path, kind)
        arrow = library("pyarrow", f"{path}, which is compressed by zstd,")
        self._stream = arrow.CompressedInputStream(arrow.PythonFile(self._file, "r"), "zstd")

    def _next(self, room: int) -> bytes:
        return self._stream.read(room)
