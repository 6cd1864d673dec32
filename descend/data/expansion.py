"""Refuses small files that would become very large: decompression bombs, and headers that promise more than is stored.

Text compresses about 5 to 20 times and tables of few different values up to 100 times; what people store by accident,
such as masks of zeros, may reach the limit of gzip, 1,032. So a content is refused only if it is large as well, and
before most of it is made.
"""

from __future__ import annotations

import io
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, cast

from descend.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FREE_BYTES", "MAX_EXPANSION", "WINDOW_BYTES", "check_expansion", "is_gzip", "opened"]

MAX_EXPANSION = 500  # of arrays
FREE_BYTES = 2**28  # so much may come of any few bytes
_MAX_TEXT_EXPANSION = 200
WINDOW_BYTES = 2**27  # of text, over which its expansion is judged
_COMPRESSED_AT_ONCE = 2**16
_DECOMPRESSED_AT_ONCE = 2**20
_GZIP_MAGIC = b"\x1f\x8b"


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


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed by gzip, by its content."""
    with path.open("rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


def opened(path: Path) -> BinaryIO:
    """A text, decompressed if it is compressed by gzip.

    Raises:
        DataError: here or from `read`: it is a bomb.
        zlib.error, EOFError: from `read`: it is damaged or was cut off.
    """
    if not is_gzip(path):
        return path.open("rb")
    # Before anything is parsed, which takes far longer than this. What is damaged is said by `read`.
    with _Inflated(path) as probe, suppress(EOFError, zlib.error):
        while probe.consumed * _MAX_TEXT_EXPANSION < WINDOW_BYTES and probe.read(_DECOMPRESSED_AT_ONCE):
            pass
    return cast("BinaryIO", io.BufferedReader(_Inflated(path), _DECOMPRESSED_AT_ONCE))


class _Inflated(io.RawIOBase):
    """The content of a gzip file, of one member or several, that ends in an error where it expands too much."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = path.open("rb")
        self._state = zlib.decompressobj(wbits=31)
        self._waiting = b""
        self._taken = self._given = 0  # bytes of the file and of the content
        self._window = (0, 0)  # both, where the window began

    def readable(self) -> bool:
        return True

    @property
    def consumed(self) -> int:
        """Compressed bytes that were used so far."""
        return self._taken - len(self._waiting)

    def readinto(self, buffer: object, /) -> int:
        room = memoryview(cast("bytearray", buffer)).cast("B")
        while True:
            if self._state.eof:
                rest = self._state.unused_data.lstrip(b"\0") or self._more().lstrip(b"\0")  # zeros fill up a tape
                if not rest:
                    return 0
                self._state, self._waiting = zlib.decompressobj(wbits=31), rest
            content = self._state.decompress(self._waiting, len(room))
            self._waiting = self._state.unconsumed_tail
            if content:
                room[: len(content)] = content
                self._given += len(content)
                self._check()
                return len(content)
            if not self._state.eof and not self._waiting:
                self._waiting = self._more()
                if not self._waiting:
                    raise EOFError("it ends within its content")

    def _more(self) -> bytes:
        content = self._file.read(_COMPRESSED_AT_ONCE)
        self._taken += len(content)
        return content

    def _check(self) -> None:
        taken, given = self._window
        if self._given - given < WINDOW_BYTES:
            return
        if self._given - given > _MAX_TEXT_EXPANSION * (self.consumed - taken):
            raise DataError(
                f"{self._path} expands more than {_MAX_TEXT_EXPANSION} times: {self.consumed - taken:,} bytes become "
                f"{self._given - given:,}, as in a decompression bomb; if it is none, decompress it with gunzip"
            )
        self._window = (self.consumed, self._given)

    def close(self) -> None:
        self._file.close()
        super().close()
