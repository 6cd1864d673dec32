"""Tables of text: comma-separated values and their relatives, plain or compressed by gzip. A field for each column.

separator   "," unless another of ; tab | is commoner in the first line; a tab for the ending .tsv
header      the first row has names, unless one of its cells is a number; without names columns are "0", "1", ...
types       integers, floats, booleans, times, else text; a missing number is NaN

Source: RFC 4180, https://www.rfc-editor.org/rfc/rfc4180 (quotes, and newlines within them)
"""

from __future__ import annotations

import codecs
import csv
import gzip
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from descend.arguments import shown
from descend.data.arrow_source import MAX_COLUMNS
from descend.data.bad_rows import is_number, repaired_csv
from descend.data.file_format import FileFormat, library
from descend.data.packed_text import samples_of_tables
from descend.data.text_tables import BLOCK_BYTES, IN_MEMORY_BYTES, TextTables, decompressed
from descend.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from descend.data.bad_rows import Repaired
from descend.data.file_format import FileSource, ReadOptions

__all__ = ["FILE_FORMATS", "first_row", "is_header"]

_SEPARATORS = ",;\t|"


def first_row(path: Path, separator: str | None) -> tuple[str, list[str]]:
    """The separator of a file and the cells of its first row.

    Raises:
        DataError: the row is longer than `BLOCK_BYTES`, has more than `MAX_COLUMNS` cells, or is no text.
    """
    with path.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
    with cast("BinaryIO", gzip.open(path)) if compressed else path.open("rb") as file:
        content = file.readline(BLOCK_BYTES + 1)
        if len(content) > BLOCK_BYTES:
            raise DataError(f"{path}: the first row is longer than {BLOCK_BYTES:,} bytes; is this a table of text?")
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{path} is in UTF-16; save it as UTF-8, which is what tables of text are read as")
        if b"\0" in content:
            raise DataError(f"{path}: the first row has a byte 0, so this is no table of text")
    line = content.decode("utf-8-sig", errors="replace").rstrip("\r\n")
    if '"' not in line:
        line = line.partition("\r")[0]  # where rows end by it alone, the whole file is one line
    if separator is None:
        usual = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
        separator = max(_SEPARATORS, key=lambda one: (line.count(one), one == usual)) if usual == "," else usual
        separator = separator if separator in line else usual
    if line.count(separator) >= MAX_COLUMNS:
        raise DataError(
            f"{path} has {line.count(separator) + 1:,} columns; at most {MAX_COLUMNS:,} are read: store arrays of "
            "numbers as .npy or Parquet"
        )
    return separator, next(csv.reader([line], delimiter=separator), [])


def is_header(cells: Sequence[str]) -> bool:
    """Whether the first row has names: no cell is a number, and none is empty."""
    return all(cell.strip() and not is_number(cell) for cell in cells)


def _parse(path: Path, options: ReadOptions) -> Iterable[Any]:
    arrow_csv = library("pyarrow.csv", "a table of text")
    separator, cells = first_row(path, options.separator)
    header = is_header(cells) if options.header is None else options.header
    names = None if header else [str(number) for number in range(len(cells))]
    settings = {
        "read_options": arrow_csv.ReadOptions(block_size=BLOCK_BYTES, column_names=names),
        "parse_options": arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
    }
    with decompressed(path) as stream:
        if path.stat().st_size <= IN_MEMORY_BYTES and not path.name.endswith(".gz"):
            yield _whole(arrow_csv, stream, settings)
        else:
            yield from arrow_csv.open_csv(stream, **settings)  # looks at the first block


def _whole(arrow_csv: Any, stream: Any, settings: dict[str, Any]) -> Any:
    """The table of a file, with types that hold all values."""
    content = stream.read_buffer()
    try:
        return arrow_csv.read_csv(library("pyarrow", "a table of text").BufferReader(content), **settings)
    except ValueError:  # again by one thread, which counts rows, so that the error has the number of the row
        settings["read_options"].use_threads = False
        return arrow_csv.read_csv(library("pyarrow", "a table of text").BufferReader(content), **settings)


def _open_csv(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    if options.separator is not None and len(options.separator) != 1:
        raise ConfigurationError(f"read: a table's separator must be one character, got {shown(options.separator)}")
    if options.length is not None and options.tokenizer is None:
        raise ConfigurationError("read: length= is for text with tokenizer=, and a table has a value in each cell")
    tables = TextTables(paths, partial(_parse, options=options), options.skip_bad, partial(_repaired, options=options))
    return samples_of_tables(tables, options)


def _repaired(path: Path, allowed: int, options: ReadOptions) -> Repaired:
    separator, cells = first_row(path, options.separator)
    return repaired_csv(path, separator, is_header(cells) if options.header is None else options.header, allowed)


_USES = frozenset({"separator", "header", "columns", "length", "tokenizer"})
FILE_FORMATS = (FileFormat("csv", (".csv", ".tsv", ".tab"), _open_csv, _USES),)
