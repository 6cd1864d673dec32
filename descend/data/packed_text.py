"""Text for language models: documents as one sequence of tokens, cut into samples of one length.

Documents follow each other, each with an end-of-document token behind it. Sample i has the tokens i·L to (i + 1)·L − 1:

    input      (L,) int64  the tokens
    target     (L,) int64  the token after each; −100, which torch's losses ignore, where that is in another document
    document   (L,) int64  the number of the document of each token, counted from 0 over the data set

The last sample is filled up with end tokens, whose target is −100 and whose document is −1. Every token but the last is
the input of one sample.

Tokens are the bytes of the text, 0 to 255, with 256 as the end; or those of a file of the `tokenizers` library, with
the end token that it has, or one more than its vocabulary. Special tokens are not added, and truncation and padding of
the file are not applied. A document of more than `PIECE_BYTES` is tokenized in pieces that end at a line, or at a space
where a line is longer.

Tokens of a tokenizer are written once to a file in the folder for temporary files (`TMPDIR`), which is mapped into
memory and removed with the reader. Bytes of plain files are taken from the files.
"""

from __future__ import annotations

import codecs
import os
import tempfile
import weakref
from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from descend.arguments import shown
from descend.data.paths import check_mapped
from descend.data.reader_protocol import Field, Pieces
from descend.data.tables.arrow_source import ArrowSource
from descend.errors import ConfigurationError, DataError, library, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from descend.data.file_format import FileSource, ReadOptions
    from descend.data.reader_protocol import Array
    from descend.data.tables.table_files import TableFiles

__all__ = [
    "IGNORED",
    "PIECE_BYTES",
    "FileBytes",
    "Packed",
    "Piece",
    "TokenFile",
    "TokenStore",
    "Vocabulary",
    "pieces_of",
    "samples_of_tables",
    "text_begin",
    "vocabulary_of",
]

IGNORED = -100  # torch.nn.CrossEntropyLoss(ignore_index=-100)
PIECE_BYTES = 2**20  # the memory of a tokenizer is about a hundred times its text
LENGTH = 256  # tokens of a sample, unless `length` says another number
_PIECES_AT_ONCE = 1024
_MAX_TOKENIZER_BYTES = 2**28
_END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[SEP]")
_BYTES = 256


@dataclass(frozen=True)
class Piece:
    """A part of a document.

    Args:
        content: UTF-8, where there is a tokenizer.
        origin: Where its document begins: two numbers whose meaning the caller knows.
        ends: Whether the document ends with it.
    """

    content: bytes
    origin: tuple[int, int]
    ends: bool


@dataclass(frozen=True)
class Vocabulary:
    """What turns text into tokens.

    Args:
        size: Number of different tokens, the end token included.
        end: The token behind each document.
        tokenizer: Of the `tokenizers` library; None for bytes.
    """

    size: int = _BYTES + 1
    end: int = _BYTES
    tokenizer: Any = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds all tokens."""
        return np.dtype(np.uint16 if self.size <= 2**16 else np.uint32)

    def encoded(self, texts: Sequence[bytes]) -> list[Array]:
        """The tokens of some pieces.

        Raises:
            UnicodeDecodeError: one is not UTF-8, and there is a tokenizer.
        """
        if self.tokenizer is None:
            return [np.frombuffer(text, np.uint8).astype(self.dtype) for text in texts]
        found = self.tokenizer.encode_batch([str(text, "utf-8") for text in texts], add_special_tokens=False)
        return [np.array(one.ids, dtype=self.dtype) for one in found]

    def decoded(self, tokens: Array) -> str:
        """The text of some tokens, without end tokens."""
        kept = tokens[tokens != self.end]
        if self.tokenizer is None:
            return bytes(kept.astype(np.uint8)).decode("utf-8", errors="replace")
        return str(self.tokenizer.decode(kept.tolist()))


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of what `read(tokenizer=)` takes: None or "bytes", a path of a JSON file, or an object.

    Raises:
        ConfigurationError: it is something else.
        MissingExtra: `tokenizers` is not installed.
        DataError: the file is missing, too large, or not one of a tokenizer.
    """
    if tokenizer is None or (isinstance(tokenizer, str) and tokenizer == "bytes"):
        return Vocabulary()
    if isinstance(tokenizer, (str, os.PathLike)):
        made = _of_file(Path(cast("str", tokenizer)))
    else:
        own = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers' tokenizers
        if not all(hasattr(own, name) for name in ("encode_batch", "get_vocab_size", "token_to_id", "to_str")):
            raise ConfigurationError(
                "read: tokenizer must be 'bytes', the path of a tokenizer's JSON file or a tokenizers.Tokenizer, got "
                f"{shown(tokenizer)}"
            )
        made = type(own).from_str(own.to_str())  # a copy, since settings are changed
    made.no_truncation()
    made.no_padding()
    size = int(made.get_vocab_size())
    ends = (made.token_to_id(name) for name in _END_TOKENS)
    end = next((number for number in ends if number is not None), size)
    return Vocabulary(max(size, end + 1), end, made)


def _of_file(path: Path) -> Any:
    tokenizers = library("tokenizers", f"the tokenizer {path}")
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise DataError(f"the tokenizer {shown(str(path))} cannot be read: {error}") from error
    if size > _MAX_TOKENIZER_BYTES:
        raise DataError(f"the tokenizer {path} has {size:,} bytes; at most {_MAX_TOKENIZER_BYTES:,} are read")
    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises Exception itself
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is not a JSON file of the tokenizers library: {reason}") from error


def text_begin(path: Path) -> int:
    """The first byte of a text: behind the mark of UTF-8, which is not a part of it.

    Raises:
        DataError: the text is in UTF-16.
    """
    with path.open("rb") as file:
        begin = file.read(3)
    _check_mark(begin, str(path))
    return len(codecs.BOM_UTF8) if begin == codecs.BOM_UTF8 else 0


def _check_mark(begin: bytes, place: str) -> None:
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{place} is in UTF-16, and text is read as UTF-8: save it as that")


def pieces_of(stream: Any, number: int, separator: bytes | None) -> Iterator[Piece]:
    """The documents of a file, in pieces that end at lines; those of white space alone are left out.

    Args:
        stream: Read from its beginning.
        number: Of the file; the origin of a document is this number and its first byte.
        separator: Between documents; None for one document.
    """
    kept = len(separator or b".") - 1  # a separator may begin in the last bytes
    rest, origin, given, begun = b"", 0, 0, False  # where the document begins, and how much of it is given already
    while block := stream.read(PIECE_BYTES):
        if not begun:
            _check_mark(block, "the text")
            origin = len(codecs.BOM_UTF8) if block.startswith(codecs.BOM_UTF8) else 0
            block, begun = block[origin:], True
        rest += block
        if separator:
            *documents, rest = rest.split(separator)
            for document in documents:
                if document.strip() or given:
                    yield Piece(document, (number, origin), ends=True)
                origin, given = origin + given + len(document) + len(separator), 0
        while len(rest) > PIECE_BYTES + kept:
            cut = _cut(rest, kept)
            yield Piece(rest[:cut], (number, origin), ends=False)
            rest, given = rest[cut:], given + cut
    if rest.strip() or given:
        yield Piece(rest, (number, origin), ends=True)


def _cut(text: bytes, kept: int) -> int:
    """Where a piece ends: behind a line, else before a space, else between two characters."""
    end = len(text) - kept - 1
    for at in (text.rfind(b"\n", 0, end) + 1, text.rfind(b" ", 0, end)):
        if at > 0:
            return at
    while end > 1 and text[end] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        end -= 1
    return end


class TokenStore(Protocol):
    """All tokens of a data set. Must be picklable."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """The number of tokens up to the end of each document, its end token included."""
        ...

    def tokens(self, starts: NDArray[np.int64], count: int) -> Array:
        """For each start the `count` tokens from there on, (n, count); anything behind the last token."""
        ...

    def place(self, document: int) -> str:
        """Where a document begins."""
        ...


class FileBytes:
    """Files whose bytes are the tokens and which are a document each; see `TokenStore`.

    Args:
        paths: The files; empty ones are left out.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        begins = {path: text_begin(path) for path in paths}
        sizes = {path: path.stat().st_size - begin for path, begin in begins.items()}
        self._paths = [path for path in paths if sizes[path] > 0]
        self._begins = [begins[path] for path in self._paths]
        self.ends = np.cumsum(np.array([sizes[path] + 1 for path in self._paths], dtype=np.int64))

    @cached_property
    def _contents(self) -> list[Array]:
        pairs = zip(self._paths, self._begins, strict=True)
        return [np.memmap(path, np.uint8, mode="r")[begin:] for path, begin in pairs]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_contents"}

    def tokens(self, starts: NDArray[np.int64], count: int) -> Array:
        """Bytes, with an end token behind each file."""
        found = np.empty((len(starts), count), np.uint16)
        files = np.searchsorted(self.ends, starts, side="right")
        for number in np.unique(files[files < len(self._paths)]).tolist():
            check_mapped(self._paths[number], self._begins[number] + len(self._contents[number]))
        for row, (start, file) in enumerate(zip(starts.tolist(), files.tolist(), strict=True)):
            end = int(self.ends[file]) - 1 if file < len(self._paths) else -1
            if start + count <= end:  # within a file, as most are
                begin = end - len(self._contents[file])
                found[row] = self._contents[file][start - begin : start - begin + count]
            else:
                found[row] = self._bytes(start, start + count)
        return found

    def _bytes(self, start: int, stop: int) -> Array:
        found = np.full(stop - start, _BYTES, np.uint16)
        for file in range(int(np.searchsorted(self.ends, start, side="right")), len(self._paths)):
            end = int(self.ends[file]) - 1  # of the end token
            begin = end - len(self._contents[file])
            if begin >= stop:
                break
            low, high = max(start, begin), min(stop, end)
            found[low - start : max(high, low) - start] = self._contents[file][low - begin : max(high, low) - begin]
        return found

    def place(self, document: int) -> str:
        """The file."""
        return str(self._paths[document])


class TokenFile:
    """Tokens in a temporary file, which is removed with this object; see `TokenStore`.

    Args:
        pieces: Of all documents, in order.
        vocabulary: Makes tokens of them.
        place: Names the origin of a document, see `Piece`.

    Raises:
        DataError: a text is not UTF-8 and there is a tokenizer.
    """

    def __init__(
        self, pieces: Iterable[Piece], vocabulary: Vocabulary, place: Callable[[tuple[int, int]], str]
    ) -> None:
        self._dtype, self._end = vocabulary.dtype, vocabulary.end
        self._place = place
        handle, name = tempfile.mkstemp(prefix="descend-tokens-")
        self._path = Path(name)
        weakref.finalize(self, self._path.unlink, missing_ok=True)
        ends, origins = array("q"), array("q")
        count = 0
        with os.fdopen(handle, "wb") as file:
            for some in _batches(pieces):
                for piece, tokens in zip(some, self._encoded(some, vocabulary), strict=True):
                    tokens.tofile(file)
                    count += len(tokens)
                    if piece.ends:
                        np.array([self._end], self._dtype).tofile(file)
                        count += 1
                        ends.append(count)
                        origins.extend(piece.origin)
        self.ends = np.array(ends, dtype=np.int64)
        self._origins = np.array(origins, dtype=np.int64).reshape(-1, 2)

    def _encoded(self, pieces: Sequence[Piece], vocabulary: Vocabulary) -> list[Array]:
        try:
            return vocabulary.encoded([piece.content for piece in pieces])
        except UnicodeDecodeError:
            for piece in pieces:
                try:
                    piece.content.decode()
                except UnicodeDecodeError as error:
                    raise DataError(f"{self._place(piece.origin)}: the text that begins there is not UTF-8") from error
            raise

    @cached_property
    def _mapped(self) -> Array:
        return np.memmap(self._path, self._dtype, mode="r") if len(self.ends) else np.empty(0, self._dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_mapped"}

    def tokens(self, starts: NDArray[np.int64], count: int) -> Array:
        """Of the mapped file."""
        if len(self._mapped) < count or (len(starts) and int(starts.max()) > len(self._mapped) - count):
            return np.take(self._mapped, starts[:, None] + np.arange(count), mode="clip")
        return np.lib.stride_tricks.sliding_window_view(self._mapped, count)[starts]  # copies of whole rows

    def place(self, document: int) -> str:
        """What the maker of the pieces calls it."""
        file, at = self._origins[document].tolist()
        return self._place((file, at))


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces that are tokenized at once."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece.content)
        if size >= PIECE_BYTES or len(held) >= _PIECES_AT_ONCE:
            yield held
            held, size = [], 0
    if held:
        yield held


class Packed:
    """Samples of one length from the tokens of all documents; see `FileSource`, and above for the fields.

    Args:
        store: The tokens.
        vocabulary: Of the tokens.
        length: Tokens of a sample.

    Attributes:
        vocabulary: Number of different tokens, the end token included.
    """

    target = ("target",)
    optional = frozenset({"document"})

    def __init__(self, store: TokenStore, vocabulary: Vocabulary, length: int) -> None:
        self._store, self._vocabulary, self._length = store, vocabulary, length
        self.vocabulary = vocabulary.size
        field = Field((length,), np.dtype(np.int64))
        self.fields: Mapping[str, Field] = dict.fromkeys(("input", "target", "document"), field)
        self._total = int(store.ends[-1]) if len(store.ends) else 0

    def __len__(self) -> int:
        return -(-(self._total - 1) // self._length) if self._total > 1 else 0

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        return self.read_fields(samples, tuple(self.fields))

    def read_fields(self, samples: NDArray[np.int64], names: Collection[str]) -> dict[str, Array]:
        """Some fields of the samples with these numbers; those that are not wanted take no time."""
        starts = samples * self._length
        tokens = self._store.tokens(starts, self._length + 1)
        first, rows, columns = self._next_documents(starts)
        found: dict[str, Array] = {}
        if "input" in names:
            found["input"] = tokens[:, :-1].astype(np.int64)
        if "target" in names:
            found["target"] = tokens[:, 1:].astype(np.int64)
            found["target"][rows, columns - 1] = IGNORED
        if "document" in names:
            numbers = np.zeros((len(starts), self._length + 1), np.int64)
            numbers[rows, columns] = 1
            numbers[:, 0] = first
            found["document"] = np.cumsum(numbers[:, :-1], axis=1)
        fillings = {"input": self._vocabulary.end, "target": IGNORED, "document": -1}
        for row in np.flatnonzero(starts + self._length >= self._total).tolist():  # filled up
            for name, values in found.items():
                values[row, self._total - int(starts[row]) - 1 :] = fillings[name]
        return found

    def _next_documents(
        self, starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For samples that begin there: the document of the first token, and rows and columns where others begin.

        Columns are from 1 to L, where L is behind the last token of the input.
        """
        ends = self._store.ends
        first = np.searchsorted(ends, starts, side="right")
        counts = np.searchsorted(ends, starts + self._length, side="right") - first
        rows = np.repeat(np.arange(len(starts)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        # An empty document has an end token, so no two documents begin at the same place.
        return first, rows, ends[np.repeat(first, counts) + within] - starts[rows]

    def place(self, sample: int) -> str:
        """Where the document of the first token begins."""
        return self._store.place(int(np.searchsorted(self._store.ends, sample * self._length, side="right")))

    def shown(self, values: Array) -> str:
        """The text of the tokens in a field."""
        return self._vocabulary.decoded(values[values >= 0])


def samples_of_tables(files: TableFiles, options: ReadOptions) -> FileSource:
    """The rows of tables; with a tokenizer, the packed text of one of their columns, a document a row.

    Raises:
        ConfigurationError: it is not clear which column has the text, or it has none.
        DataError: from the tables.
    """
    if options.tokenizer is None:
        return ArrowSource(files, options)
    column = _text_column(files.schema, options.columns)
    chunks = list(files.chunks)
    rows = Pieces(chunks, [chunk.rows for chunk in chunks])

    vocabulary = vocabulary_of(options.tokenizer)
    store = TokenFile(_rows(files, column), vocabulary, _TablePlace(rows))
    return Packed(store, vocabulary, options.length or LENGTH)


@dataclass(frozen=True)
class _TablePlace:
    """Names the row of a document."""

    rows: Pieces[Any]

    def __call__(self, origin: tuple[int, int]) -> str:
        chunk, row = self.rows.piece_of(origin[1])
        return f"{chunk.path}, row {chunk.first + row}"


def _rows(files: TableFiles, column: str) -> Iterator[Piece]:
    number = 0
    for chunk in files.chunks:
        for text in files.load(chunk, [column]).column(column).to_pylist():
            rest = b"" if text is None else text.encode()
            whole = bool(rest.strip())
            while len(rest) > PIECE_BYTES:
                cut = _cut(rest, 0)
                yield Piece(rest[:cut], (0, number), ends=False)
                rest = rest[cut:]
            if whole:
                yield Piece(rest, (0, number), ends=True)
            number += 1


def _text_column(schema: Any, chosen: Any) -> str:
    pa = library("pyarrow", "a table")
    texts = [one.name for one in schema if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)]
    names = [chosen] if isinstance(chosen, str) else list(chosen or ())
    if len(names) == 1 and names[0] in texts:
        return str(names[0])
    if names:
        odd = next((one for one in names if one not in texts), names[0])
        raise ConfigurationError(
            f"read: with tokenizer= columns must name one column of text, got {shown(odd)}"
            f"{nearest(str(odd), texts)}; there are {', '.join(texts) or 'none'}"
        )
    if "text" in texts or len(texts) == 1:
        return "text" if "text" in texts else texts[0]
    raise ConfigurationError(
        f"read: which column has the text is not clear ({', '.join(texts) or 'none holds text'}): pass columns=['...']"
    )
