"""The entries of the footer of a Parquet file about each column of each row group.

The footer is a structure of Thrift in its compact form: fields of a number and a type, integers in groups of seven
bits. pyarrow reads it as well, but ends the process where such a description contradicts the schema, so it is not asked
for single columns.

Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["TRAILER_BYTES", "ColumnChunk", "column_chunks"]

TRAILER_BYTES = 8  # the length of the footer, and a magic number
_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_DEEPEST = 64  # structures within each other
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


@dataclass
class ColumnChunk:
    """A column of a row group.

    Attributes:
        path: Name of the column, with those of the structures around it before points.
        type: Physical type, as the format calls it.
        values: Number of values.
        stored_bytes: Compressed.
        plain_bytes: Decompressed, but encoded.
        has_dictionary: Whether values are numbers of entries of a dictionary.
        nulls: Number of missing values; None: not known.
        low: The least value as bytes; None: not known.
        high: The largest value, likewise.
    """

    path: str = ""
    type: str = ""
    values: int = 0
    stored_bytes: int = 0
    plain_bytes: int = 0
    has_dictionary: bool = False
    nulls: int | None = None
    low: bytes | None = None
    high: bytes | None = None


class _Footer:
    """Reads values of Thrift one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._content[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        size = self._varint()
        self._at += size
        if self._at > len(self._content):
            raise IndexError
        return self._content[self._at - size : self._at]

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and the type of each field of a structure; the value has to be read or skipped before the next."""
        number = 0
        while (head := self._content[self._at]) != 0:
            self._at += 1
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 0x0F
        self._at += 1

    def entries(self) -> tuple[int, int]:
        """The number of the entries of a list, and their type."""
        head = self._content[self._at]
        self._at += 1
        return (head >> 4 if head < 0xF0 else self._varint()), head & 0x0F

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise IndexError
        if kind in (_LIST, _SET):
            count, inner = self.entries()
            for _ in range(count):
                self.skip(_BYTE if inner in (_TRUE, _FALSE) else inner, depth + 1)
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._content[self._at]
                self._at += 1
                for _ in range(count):
                    self.skip(kinds >> 4, depth + 1)
                    self.skip(kinds & 0x0F, depth + 1)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind == _BINARY:
            self.binary()
        elif kind in (_BYTE, _DOUBLE):
            self._at += 1 if kind == _BYTE else 8
        elif kind not in (_TRUE, _FALSE):
            self._varint()


def column_chunks(path: Path) -> list[list[ColumnChunk]]:
    """For each row group its columns.

    Raises:
        DataError: the footer is damaged.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(size - TRAILER_BYTES)
        length = int.from_bytes(file.read(4), "little")
        file.seek(size - TRAILER_BYTES - length)
        footer = _Footer(file.read(length))
    groups: list[list[ColumnChunk]] = []
    try:
        for number, kind in footer.fields():
            if number == 4 and kind == _LIST:
                groups += [_group(footer) for _ in range(footer.entries()[0])]
            else:
                footer.skip(kind)
    except (IndexError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a Parquet file, or was cut off: its footer is damaged") from error
    return groups


def _group(footer: _Footer) -> list[ColumnChunk]:
    found: list[ColumnChunk] = []
    for number, kind in footer.fields():
        if number == 1 and kind == _LIST:
            found += [_chunk(footer) for _ in range(footer.entries()[0])]
        else:
            footer.skip(kind)
    return found


def _chunk(footer: _Footer) -> ColumnChunk:
    found = ColumnChunk()
    for number, kind in footer.fields():
        if number == 3 and kind == _STRUCT:
            _describe(footer, found)
        else:
            footer.skip(kind)
    return found


_NUMBERS = {5: "values", 6: "plain_bytes", 7: "stored_bytes"}


def _describe(footer: _Footer, found: ColumnChunk) -> None:
    for number, kind in footer.fields():
        if number == 1:
            place = footer.integer()
            found.type = _TYPES[place] if 0 <= place < len(_TYPES) else ""
        elif number == 3 and kind == _LIST:
            found.path = ".".join(footer.binary().decode() for _ in range(footer.entries()[0]))
        elif number in _NUMBERS:
            setattr(found, _NUMBERS[number], footer.integer())
        elif number == 12 and kind == _STRUCT:
            _note_statistics(footer, found)
        else:
            found.has_dictionary |= number == 11
            footer.skip(kind)


def _note_statistics(footer: _Footer, found: ColumnChunk) -> None:
    for number, kind in footer.fields():
        if number == 3:
            found.nulls = footer.integer()
        elif number == 5 and kind == _BINARY:
            found.high = footer.binary()
        elif number == 6 and kind == _BINARY:
            found.low = footer.binary()
        else:
            footer.skip(kind)
