"""Files of text for language models: bytes or tokens, packed to samples of one length.

A file is a document, or has several with `separator` between them, such as "<|endoftext|>" or an empty line, "\\n\\n".
See `descend.data.packed_text` for fields, tokens and the end of a document. Lists of images end in .txt as well and are
known by their first line; `format="text"` reads one as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from descend.data.expansion import DAMAGES, compression_of, opened
from descend.data.file_format import FileFormat
from descend.data.packed_text import (
    LENGTH,
    FileBytes,
    Packed,
    TokenFile,
    Vocabulary,
    pieces_of,
    text_begin,
    vocabulary_of,
)
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from descend.data.file_format import ReadOptions
    from descend.data.packed_text import Piece

__all__ = ["FILE_FORMATS", "MAX_DECOMPRESSED_BYTES"]

MAX_DECOMPRESSED_BYTES = 2**30  # a small file can promise any amount of text


class _Bounded:
    """A decompressed stream that ends in an error where it is too long."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path, self._left = stream, path, MAX_DECOMPRESSED_BYTES

    def read(self, count: int) -> bytes:
        try:
            content = self._stream.read(count)
        except DAMAGES as error:
            raise DataError(f"{self._path} is damaged or was cut off: {error}; fetch the file again") from error
        self._left -= len(content)
        if self._left < 0:
            raise DataError(
                f"{self._path} has more than {MAX_DECOMPRESSED_BYTES:,} bytes when decompressed: decompress it with "
                "gunzip, then it is mapped"
            )
        return content


@dataclass(frozen=True)
class _Place:
    """Names the file and the first byte of a document."""

    paths: Sequence[Path]

    def __call__(self, origin: tuple[int, int]) -> str:
        return f"{self.paths[origin[0]]}, byte {origin[1]:,}"


def _pieces(paths: Sequence[Path], separator: str | None) -> Iterator[Piece]:
    between = None if separator is None else separator.encode()
    for number, path in enumerate(paths):
        if compression_of(path) is None:
            with path.open("rb") as stream:
                yield from pieces_of(stream, number, between)
            continue
        with opened(path) as stream:
            yield from pieces_of(_Bounded(stream, path), number, between)


def _open_text(paths: Sequence[Path], options: ReadOptions) -> Packed:
    vocabulary: Vocabulary = vocabulary_of(options.tokenizer)
    length = options.length or LENGTH
    for path in paths:
        text_begin(path)  # the name of a file that is in UTF-16
    if vocabulary.tokenizer is None and options.separator is None and not any(map(compression_of, paths)):
        return Packed(FileBytes(paths), vocabulary, length)
    return Packed(TokenFile(_pieces(paths, options.separator), vocabulary, _Place(paths)), vocabulary, length)


FILE_FORMATS = (
    FileFormat("text", (".txt", ".text", ".md", ".rst"), _open_text, frozenset({"tokenizer", "length", "separator"})),
)
