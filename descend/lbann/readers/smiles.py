"""LBANN's reader smiles: molecules as text, a token a character.

data_filename       a text with a string on each line, up to the first blank, tab or comma (or `separator`);
                    `has_header` and `skip_rows` pass over the first lines
sample_list         a list of such files instead; the names of samples are the numbers of lines, from 0 up
vocab_filename      lines "TOKEN NUMBER": characters, and <bos>, <eos>, <pad> and <unk>
sequence_length     tokens of a sample

samples   (sequence_length,) numbers of tokens: <bos>, the characters, <eos>, then <pad>. A character without a number
          is <unk>; of a string that is too long the beginning is kept, and <eos> ends it.

Lines are found by their offsets, which are computed once; the text itself is mapped into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from descend.data.reader_protocol import Field, Format, Pieces
from descend.errors import ConfigurationError, DataError
from descend.lbann.readers.locations import FOLDERS, located
from descend.lbann.readers.sample_list import LISTS, listed_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array

__all__ = ["SMILES", "LinesOfText", "TokenizedLines", "vocabulary"]

SPECIAL = ("<bos>", "<eos>", "<pad>", "<unk>")
_CHUNK_BYTES = 2**24
_BLANKS = b" \t,"


class LinesOfText:
    """The lines of a file by their numbers, each up to a separator.

    Args:
        path: Of the file.
        skipped: Lines at the beginning that do not count.
        separators: Bytes of which the first one in a line ends its string.
    """

    def __init__(self, path: Path, skipped: int, separators: bytes) -> None:
        self._separators = separators
        size = path.stat().st_size
        self._content: NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r") if size else np.empty(0, np.uint8)
        chunks = range(0, size, _CHUNK_BYTES)
        newlines = [np.flatnonzero(self._content[start : start + _CHUNK_BYTES] == 10) + start for start in chunks]
        ends = np.concatenate([*newlines, np.empty(0, np.int64)]).astype(np.int64)
        if size and self._content[-1] != 10:
            ends = np.append(ends, size)
        begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        self._begins, self._ends = begins[skipped:], ends[skipped:]

    def __len__(self) -> int:
        return len(self._ends)

    def line(self, number: int) -> bytes:
        """The string of a line."""
        content = self._content[self._begins[number] : self._ends[number]].tobytes().rstrip(b"\r")
        ends = [at for at in (content.find(bytes([one])) for one in self._separators) if at >= 0]
        return content[: min(ends)] if ends else content


def vocabulary(path: Path) -> dict[str, int]:
    """The number of each token.

    Raises:
        DataError: a line is not "TOKEN NUMBER", a token or a number comes twice, or one of `SPECIAL` is missing.
    """
    numbers: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be a text: {error}") from error
    for place, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdecimal():
            raise DataError(f"{path}:{place}: a line of a vocabulary must be TOKEN NUMBER, got '{line.strip()}'")
        token, number = words[0], int(words[1])
        if token in numbers or number in numbers.values():
            raise DataError(f"{path}:{place}: '{token}' or {number} comes twice")
        if token not in SPECIAL and (len(token) > 1 or not token.isascii()):
            raise DataError(
                f"{path}:{place}: a token must be a character or one of {', '.join(SPECIAL)}, got '{token}'"
            )
        numbers[token] = number
    if missing := [token for token in SPECIAL if token not in numbers]:
        raise DataError(f"{path} has no {', '.join(missing)}; a vocabulary has all of {', '.join(SPECIAL)}")
    return numbers


class TokenizedLines:
    """Lines of files as numbers of tokens, of one length.

    Args:
        files: With their lines.
        chosen: (n,) numbers of the lines in all files together; None for all.
        tokens: The number of each token.
        length: Of a sample, at least 2.
    """

    def __init__(
        self, files: Sequence[LinesOfText], chosen: NDArray[np.int64] | None, tokens: Mapping[str, int], length: int
    ) -> None:
        self._files = Pieces(files, [len(one) for one in files])
        self._chosen = chosen
        self._tokens = tokens
        self._of_byte = np.full(256, tokens["<unk>"], np.float32)
        for token, number in tokens.items():
            if len(token) == 1:
                self._of_byte[ord(token)] = number
        self.fields: Mapping[str, Field] = {"samples": Field((length,), np.dtype(np.float32))}

    def __len__(self) -> int:
        return len(self._files) if self._chosen is None else len(self._chosen)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        length = self.fields["samples"].shape[0]
        found = np.full((len(samples), length), self._tokens["<pad>"], np.float32)
        found[:, 0] = self._tokens["<bos>"]
        at = samples if self._chosen is None else self._chosen[samples]
        for row, sample in enumerate(at.tolist()):
            file, number = self._files.piece_of(sample)
            string = np.frombuffer(file.line(number), np.uint8)[: length - 2]
            found[row, 1 : 1 + len(string)] = self._of_byte[string]
            found[row, 1 + len(string)] = self._tokens["<eos>"]
        return {"samples": found}


def _open_smiles(reader: Reader, seed: int) -> TokenizedLines:
    if bool(reader.data_filename) == bool(reader.sample_list):
        raise ConfigurationError("set data_filename or sample_list, one of the two: it names the text")
    if reader.sequence_length < 2:
        raise ConfigurationError(
            f"sequence_length must be at least 2, for <bos> and <eos>, got {reader.sequence_length}: set it to the "
            "tokens of a sample (LBANN's --sequence_length)"
        )
    tokens = vocabulary(located(reader, "vocab_filename"))
    skipped = reader.skip_rows + reader.has_header
    separators = reader.separator.encode() or _BLANKS
    opened: dict[Path, LinesOfText] = {}

    def lines(path: Path) -> LinesOfText:
        return opened.setdefault(path, LinesOfText(path, skipped, separators)) if path not in opened else opened[path]

    if reader.data_filename:
        return TokenizedLines([lines(located(reader, "data_filename"))], None, tokens, reader.sequence_length)
    samples = listed_samples(reader, lambda path: [str(number) for number in range(len(lines(path)))])
    files = list(dict.fromkeys(sample.path for sample in samples))
    starts = dict(zip(files, np.cumsum([0, *(len(lines(path)) for path in files)]).tolist(), strict=False))
    chosen: list[int] = []
    for sample in samples:
        if not sample.name.isdecimal() or int(sample.name) >= len(lines(sample.path)):
            raise DataError(
                f"{reader.sample_list}: {sample.path} has the lines 0 to {len(lines(sample.path)) - 1}, and no "
                f"'{sample.name}'"
            )
        chosen.append(starts[sample.path] + int(sample.name))
    return TokenizedLines([lines(p) for p in files], np.array(chosen, np.int64), tokens, reader.sequence_length)


_OWN = {
    "data_filename",
    "vocab_filename",
    "sequence_length",
    "separator",
    "has_header",
    "skip_rows",
    "max_files_to_load",
}
SMILES = Format(_open_smiles, FOLDERS | LISTS | _OWN)
