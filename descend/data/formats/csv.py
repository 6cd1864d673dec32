"""Tables of text: comma-separated values and their relatives, plain or compressed by gzip. A field for each column.

separator   "," unless another of ; tab | is commoner in the first line; a tab for the ending .tsv; runs of blanks where
            these make columns of numbers, see `descend.data.table_layout`, or separator=" "
blanks      a space behind each separator, and one before it, is no part of a cell where the first line has them
header      the first row has names, unless one of its cells is a number; without names columns are "0", "1", ...
names       a column without a name between others that have one is left out: pandas writes its row numbers so; as is
            the first one where the first row has a cell less than the others, as R writes names of rows
            a # before the names, which NumPy's `savetxt` writes, is no part of the first one
types       integers, floats, booleans, times, else text; a missing number is NaN: an empty cell, NA, ?, -, . and such
decimals    1,5 is a number where cells are not separated by commas, the first rows have such cells and none like 1.5
thousands   1,234.5 and 12,345,678 are numbers where all cells of a column are, in files of up to 256 MiB
quotes      " around cells with separators, newlines or quotes in them; `quote` says another
comments    `comment` says what lines begin with that are no rows; Excel's first line sep=; is used
encoding    UTF-8, or UTF-16 where the file begins with its mark; `encoding` says another, such as "latin-1"

Source: RFC 4180, https://www.rfc-editor.org/rfc/rfc4180 (quotes, and newlines within them)
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from descend.arguments import shown
from descend.data.arrow_source import MAX_COLUMNS
from descend.data.bad_rows import MISSING, is_number, repaired_csv
from descend.data.expansion import compression_of, opened, plain_name
from descend.data.file_format import FileFormat, library
from descend.data.packed_text import samples_of_tables
from descend.data.partitions import with_partitions
from descend.data.paths import head
from descend.data.table_layout import (
    BEFORE_NAMES,
    BLANKS,
    SEPARATORS,
    are_padded,
    are_separated_by_blanks,
    is_any_number,
    is_table,
    lacks_a_name,
    separator_by_commas,
)
from descend.data.table_lines import TableCopy, excel_separator
from descend.data.text_tables import BLOCK_BYTES, IN_MEMORY_BYTES, TextTables, decompressed
from descend.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from descend.data.bad_rows import Repaired
    from descend.data.file_format import FileSource, ReadOptions

__all__ = ["FILE_FORMATS", "first_row", "is_header"]

_QUOTE = '"'
_FIRST_CELLS = 100
_COMMENT = re.compile(rb"^(?:\xef\xbb\xbf)?#", re.MULTILINE)
_LOOKED_AT = 2**16  # characters, for the decimal point
_FRACTION = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:[.]\d{3})+|\d{1,3}(?:,\d{3})+)([.,])\d+(?:[eE][+-]?\d+)?")


def _encoding_of(path: Path, given: str | None) -> str:
    """The encoding of a file: what was said, or UTF-16 where it begins with its mark, or UTF-8."""
    with opened(path) as file:
        begin = file.read(2)
    if given is not None:
        return given
    return "utf-16" if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"


def first_row(path: Path, separator: str | None, encoding: str = "utf-8", quote: str = _QUOTE) -> tuple[str, list[str]]:
    """The separator of a file and the cells of its first row.

    Raises:
        DataError: the row is longer than `BLOCK_BYTES`, has more than `MAX_COLUMNS` cells, or is no text.
    """
    with opened(path) as file:
        content = file.readline(BLOCK_BYTES + 1)
        if len(content) > BLOCK_BYTES:
            raise DataError(f"{path}: the first row is longer than {BLOCK_BYTES:,} bytes; is this a table of text?")
    if encoding.startswith("utf-8") and b"\0" in content:
        raise DataError(
            f"{path}: the first row has a byte 0, so this is no table of text, or one in UTF-16 without its mark: "
            "encoding='utf-16-le'"
        )
    line = content.decode(encoding, errors="replace").lstrip("\ufeff").partition("\n")[0].rstrip("\r\ufffd")
    if quote not in line:
        line = line.partition("\r")[0]  # where rows end by it alone, the whole file is one line
    if separator is None:
        usual = "\t" if plain_name(path).endswith(".tsv") else ","
        separator = max(SEPARATORS, key=lambda one: (line.count(one), one == usual)) if usual == "," else usual
        separator = separator_by_commas(line) or (separator if separator in line else usual)
    if not line.strip() and not _has_text(path):
        raise DataError(f"{path} has blank lines alone")
    if line.count(separator) >= MAX_COLUMNS:
        raise DataError(
            f"{path} has {line.count(separator) + 1:,} columns; at most {MAX_COLUMNS:,} are read: store arrays of "
            "numbers as .npy or Parquet"
        )
    return separator, next(csv.reader([line], delimiter=separator, quotechar=quote), [])


def _has_text(path: Path) -> bool:
    with opened(path) as file:
        return bool(file.read(BLOCK_BYTES).strip(b"\xef\xbb\xbf \t\r\n"))


def is_header(cells: Sequence[str]) -> bool:
    """Whether the first row has names: no cell is a number, and some are not empty."""
    return any(cell.strip() for cell in cells) and not any(map(is_any_number, cells))


def _first_rows(path: Path, separator: str, encoding: str, quote: str) -> list[list[str]]:
    with io.TextIOWrapper(opened(path), encoding=encoding, errors="replace", newline="") as file:
        text = file.read(_LOOKED_AT).lstrip("\ufeff")
    try:
        return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, quotechar=quote) if row]
    except csv.Error:  # a cell of more characters than the module takes
        return []


def _decimal_point(rows: Sequence[Sequence[str]], separator: str) -> str:
    """What separates integers from their fractions, judged by the first rows."""
    if separator == ",":
        return "."
    cells = (_FRACTION.fullmatch(cell.strip()) for row in rows for cell in row)
    return "," if {cell[1] for cell in cells if cell is not None} == {","} else "."


def _parse(path: Path, options: ReadOptions) -> Iterable[Any]:
    arrow_csv = library("pyarrow.csv", "a table of text")
    encoding = _encoding_of(path, options.encoding)
    quote = options.quote or _QUOTE
    separator, cells = first_row(path, options.separator, encoding, quote)
    header = is_header(cells) if options.header is None else options.header
    if header and any("\ufffd" in cell for cell in cells):
        raise DataError(f"{path}: names in the first row are not {encoding}; say its encoding=, such as 'latin-1'")
    rows = _first_rows(path, separator, encoding, quote)
    if header and len(rows) > 1 and len(rows[1]) == len(cells) + 1 and not rows[1][-1].strip():
        cells.append("")  # rows that end with a separator, below names that do not
    names, skipped = None if header else [str(number) for number in range(len(cells))], 0
    if header and (cells[0].startswith(BEFORE_NAMES) or not all(cell.strip() for cell in cells)):
        # Names of our own, of which those that are kept are included.
        cells[0] = cells[0].removeprefix(BEFORE_NAMES)
        names, skipped = [cell if cell.strip() else f"\0{number}" for number, cell in enumerate(cells)], 1
    settings = {
        "read_options": arrow_csv.ReadOptions(
            block_size=BLOCK_BYTES, column_names=names, skip_rows=skipped, encoding=encoding
        ),
        "parse_options": arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True, quote_char=quote),
        "convert_options": arrow_csv.ConvertOptions(
            decimal_point=_decimal_point(rows, separator),
            null_values=sorted(MISSING),
            include_columns=[name for name in names or () if name[0] != "\0"] if skipped else None,
        ),
    }
    with decompressed(path) as stream:
        if path.stat().st_size <= IN_MEMORY_BYTES and compression_of(path) is None:
            yield _with_numbers(_whole(arrow_csv, stream, settings), settings["convert_options"].decimal_point)
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


def _with_numbers(table: Any, decimal: str) -> Any:
    """A table in which columns of texts such as 1,234.5 and 12,345,678 are numbers.

    They are if all of a column are of this form, and one can be nothing else: 1,234 alone may be a fraction.
    """
    arrow, compute = library("pyarrow", "a table of text"), library("pyarrow.compute", "a table of text")
    group = "." if decimal == "," else ","
    form = rf"^\s*[+-]?\d{{1,3}}(?:[{group}]\d{{3}})*(?:[{decimal}]\d+)?\s*$"
    certain = rf"[{group}]\d{{3}}(?:[{group}]\d{{3}}|[{decimal}])"
    missing = arrow.array(sorted(MISSING))
    for number, field in enumerate(table.schema):
        if not arrow.types.is_string(field.type):
            continue
        cells = table.column(number)
        _check_names_once(field.name, cells, missing)
        for some in (cells.slice(0, _FIRST_CELLS), cells):  # most columns of text show it soon
            absent = compute.is_in(some, value_set=missing)
            if not compute.all(compute.or_(absent, compute.match_substring_regex(some, form))).as_py():
                break
        else:
            if compute.any(compute.match_substring_regex(cells, certain)).as_py():
                plain = compute.replace_substring(compute.utf8_trim_whitespace(cells), group, "")
                plain = compute.replace_substring(plain, decimal, ".")
                values = compute.if_else(compute.is_in(cells, value_set=missing), None, plain).cast(arrow.float64())
                table = table.set_column(number, field.name, values)
    return table


def _check_names_once(name: str, cells: Any, missing: Any) -> None:
    """Check that a column of numbers is not one of text because names come again, as in files that were joined."""
    arrow, compute = library("pyarrow", "a table of text"), library("pyarrow.compute", "a table of text")
    again = compute.equal(cells, name)
    if is_number(name) or not compute.any(again).as_py():
        return
    rows = compute.indices_nonzero(again)
    rest = cells.filter(compute.and_(compute.invert(again), compute.invert(compute.is_in(cells, value_set=missing))))
    if len(rest) and all(map(is_number, rest.slice(0, _FIRST_CELLS).to_pylist())):
        try:
            rest.cast(arrow.float64())
        except arrow.ArrowInvalid:
            return
        raise ValueError(
            f"row {rows[0].as_py():,} has the names of the columns again ('{name}'), as {len(rows):,} of the rows: "
            f"remove them, or pass skip_bad={len(rows)}"
        )


def _open_csv(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    if options.separator is not None and len(options.separator) != 1:
        raise ConfigurationError(f"read: a table's separator must be one character, got {shown(options.separator)}")
    if options.encoding is not None:
        try:
            codecs.lookup(options.encoding)
        except (LookupError, ValueError) as error:
            raise ConfigurationError(f"read: there is no encoding {shown(options.encoding)}") from error
    if options.length is not None and options.tokenizer is None:
        raise ConfigurationError("read: length= is for text with tokenizer=, and a table has a value in each cell")
    plain = _PlainTables(options)
    tables = TextTables(paths, plain.parse, options.skip_bad, plain.repaired, options.columns is not None)
    tables.left_out = _without_names(*plain.of(paths[0]))
    return samples_of_tables(with_partitions(tables, paths, several=True), options)


def _between(path: Path, encoding: str, quote: str, options: ReadOptions) -> str | None:
    """What is between cells where blanks around it have to go; None: there are none, or they are parts of cells."""
    if options.separator == BLANKS:
        return BLANKS
    with io.TextIOWrapper(opened(path), encoding=encoding, errors="replace", newline="") as file:
        lines = file.read(_LOOKED_AT).lstrip("\ufeff").splitlines()
    whole = lines[:-1][:_FIRST_CELLS] or lines
    rows = [one for one in whole if one.strip() and not (options.comment and one.startswith(options.comment))]
    if not rows or excel_separator(path) is not None:
        return None
    try:
        if options.separator is None and are_separated_by_blanks(rows, quote):
            return BLANKS
        plain = [one for one in rows if not one.startswith("#")]
        if plain and rows[0].startswith("#") and options.comment is None and are_separated_by_blanks(plain, quote):
            raise DataError(f"{path} begins with lines that are no rows; leave out those with # by comment='#'")
        separator, names = first_row(path, options.separator, encoding, quote)
        split = list(csv.reader(rows[1:], delimiter=separator, quotechar=quote))
        if options.header is not False and split and all(lacks_a_name(names, cells) for cells in split):
            return separator
        return separator if are_padded(rows[0], separator, quote) else None
    except csv.Error:  # a cell of more characters than the module takes
        return None


class _PlainTables:
    """The files, or copies of them without the lines that are no rows.

    Args:
        options: Those of the caller.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._used: dict[Path, tuple[TableCopy | None, ReadOptions]] = {}

    def of(self, path: Path) -> tuple[Path, ReadOptions]:
        """What is parsed in place of a file, and how."""
        if path not in self._used:
            self._used[path] = self._to_parse(path)
        copy, own = self._used[path]
        return path if copy is None else copy.path, own

    def _to_parse(self, path: Path) -> tuple[TableCopy | None, ReadOptions]:
        options, excel = self._options, excel_separator(path)
        quote = options.quote or _QUOTE
        encoding = _encoding_of(path, options.encoding)
        between = _between(path, encoding, quote, options)
        if excel is None and options.comment is None and between is None:
            return None, options
        copy = TableCopy(path, encoding, options.comment, quote, between)
        separator = "\t" if between == BLANKS else between or options.separator or excel
        return copy, replace(options, encoding=None, separator=separator)

    def parse(self, path: Path) -> Iterable[Any]:
        """See `TextTables`."""
        try:
            yield from _parse(*self.of(path))
        except ValueError as error:
            if self._options.skip_bad or self._options.comment is not None or not _COMMENT.search(head(path)):
                raise
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{path} cannot be read: {reason}; leave out lines that begin with # by comment='#'"
            ) from error

    def repaired(self, path: Path, allowed: int) -> Repaired:
        """See `TextTables`."""
        plain, options = self.of(path)
        return _repaired(plain, allowed, options)


def _without_names(path: Path, options: ReadOptions) -> dict[str, str]:
    """The columns that a header has no name for, and why they are no fields."""
    _, cells = first_row(path, options.separator, _encoding_of(path, options.encoding), options.quote or _QUOTE)
    if options.header is False or not is_header(cells):
        return {}
    reason = "it has no name in the first row, as the row numbers that pandas writes"
    return {f"column {number}": reason for number, cell in enumerate(cells, start=1) if not cell.strip()}


def _repaired(path: Path, allowed: int, options: ReadOptions) -> Repaired:
    if (encoding := _encoding_of(path, options.encoding)) != "utf-8":
        raise DataError(f"{path} is in {encoding}, and bad rows are found in UTF-8 alone: save it as that")
    quote = options.quote or _QUOTE
    separator, cells = first_row(path, options.separator, quote=quote)
    header = is_header(cells) if options.header is None else options.header
    return repaired_csv(path, separator, header, allowed, quote)


_USES = frozenset({"separator", "header", "columns", "length", "tokenizer", "encoding", "comment", "quote"})
FILE_FORMATS = (FileFormat("csv", (".csv", ".tsv", ".tab", ".data", ".dat"), _open_csv, _USES, recognizes=is_table),)
