"""Tables of text: comma-separated values and their relatives, plain or compressed by gzip. A field for each column.

separator   "," unless another of ; tab | is commoner in the first line; a tab for the ending .tsv; runs of blanks where
            these make columns of numbers, see `descend.data.tables.header`, or separator=" "
blanks      a space behind each separator, and one before it, is no part of a cell where the first line has them
header      the first row has names where none of its cells is a number, or where the rows below it show that numbers
            are names, see `descend.data.tables.header`; without names columns are "0", "1", ...
names       a column without a name between others that have one is left out: pandas writes its row numbers so; as is
            the first one where the first row has a cell less than the others, as R writes names of rows
            a # before the names, which NumPy's `savetxt` writes, is no part of the first one
types       integers, floats, booleans, times, else text; a missing number is NaN: an empty cell, NA, ?, -, . and such
decimals    1,5 is a number where cells are not separated by commas, the first rows have such cells and none like 1.5
thousands   1,234.5 and 12,345,678 are numbers where all cells of a column are, in files of up to 256 MiB
text        a column of which most cells are numbers is one of numbers, and the others are errors; `text` names columns
            that stay as they are written, `missing` other cells that stand for missing values
quotes      " around cells with separators, newlines or quotes in them; `quote` says another, or "" for none; one that
            is not closed is an error
escapes     `escape` says a character before quotes and separators that are text, as Spark and MySQL write them; \\N is
            a missing value
comments    `comment` says what lines begin with that are no rows; Excel's first line sep=; is used
encoding    UTF-8, or UTF-16 where the file begins with its mark; `encoding` says another, such as "latin-1"

Source: RFC 4180, https://www.rfc-editor.org/rfc/rfc4180 (quotes, and newlines within them)
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import shown
from descend.data.expansion import compression_of, opened, plain_name
from descend.data.file_format import FileFormat
from descend.data.packed_text import samples_of_tables
from descend.data.paths import head
from descend.data.tables.arrow_source import MAX_COLUMNS
from descend.data.tables.bad_rows import repaired_csv
from descend.data.tables.cells import MISSING, csv_rows, is_any_number, may_be_tiny
from descend.data.tables.header import (
    BEFORE_NAMES,
    BLANKS,
    SEPARATORS,
    are_padded,
    are_separated_by_blanks,
    has_names,
    is_table,
    lacks_a_name,
    separator_by_commas,
)
from descend.data.tables.lines import QuoteCheck, TableCopy, excel_separator
from descend.data.tables.numbers import check_exact, inexact_columns, with_numbers, without_missing
from descend.data.tables.table_files import with_partitions
from descend.data.tables.text import BLOCK_BYTES, IN_MEMORY_BYTES, TextTables, decompressed
from descend.errors import ConfigurationError, DataError, library

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from descend.data.file_format import FileSource, ReadOptions
    from descend.data.tables.bad_rows import Repaired

__all__ = ["FILE_FORMATS", "first_row"]

_QUOTE = '"'
_NULL = "\\N"  # of MySQL and PostgreSQL
_FIRST_ROWS, _FEWEST_ROWS = 100, 5
_LISTED = 6
_COMMENT = re.compile(rb"^(?:\xef\xbb\xbf)?#", re.MULTILINE)
_LOOKED_AT, _LONGEST_LOOK = 2**16, 2**24  # characters of the first rows; so many of the fewest of them
_LONGEST_MARK = 512  # bytes at the end of a part, which go on in the next
_THOUSANDS = {mark: re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:[{mark}]\d{{3}})+") for mark in ".,"}
_FRACTION = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:[.]\d{3})+|\d{1,3}(?:,\d{3})+)([.,])\d+(?:[eE][+-]?\d+)?")


def _encoding_of(path: Path, given: str | None) -> str:
    """The encoding of a file: what was said, or UTF-16 where it begins with its mark, or UTF-8."""
    with opened(path) as file:
        begin = file.read(2)
    if given is not None:
        return given
    return "utf-16" if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"


def first_row(
    path: Path, separator: str | None, encoding: str = "utf-8", quote: str = _QUOTE, escape: str | None = None
) -> tuple[str, list[str]]:
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
    if not quote or quote not in line:
        line = line.partition("\r")[0]  # where rows end by it alone, the whole file is one line
    if separator is None:
        usual = "\t" if plain_name(path).endswith(".tsv") else ","
        bare = _without_quoted(line, quote)
        separator = max(SEPARATORS, key=lambda one: (bare.count(one), one == usual)) if usual == "," else usual
        separator = separator_by_commas(line) or (separator if separator in bare else usual)
    if not line.strip() and not _has_text(path):
        raise DataError(f"{path} has blank lines alone")
    if line.count(separator) >= MAX_COLUMNS:
        raise DataError(
            f"{path} has {line.count(separator) + 1:,} columns; at most {MAX_COLUMNS:,} are read: store arrays of "
            "numbers as .npy or Parquet"
        )
    return separator, next(csv_rows([line], separator, quote, escape), [])


def _without_quoted(line: str, quote: str) -> str:
    """A line without what is in quotes, which may have separators."""
    mark = re.escape(quote)
    return re.sub(f"{mark}[^{mark}]*{mark}", "", line) if quote else line


def _has_text(path: Path) -> bool:
    with opened(path) as file:
        return bool(file.read(BLOCK_BYTES).strip(b"\xef\xbb\xbf \t\r\n"))


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """The first lines: some characters of them, or a few where they are long."""
    with io.TextIOWrapper(opened(path), encoding=encoding, errors="replace", newline="") as file:
        size = 0
        for number in range(_FIRST_ROWS + 1):
            if size > (_LOOKED_AT if number > _FEWEST_ROWS else _LONGEST_LOOK):
                return
            line = file.readline(_LONGEST_LOOK)
            if not line:
                return
            size += len(line)
            yield line if number else line.lstrip("\ufeff")


def _first_rows(path: Path, own: ReadOptions) -> list[list[str]]:
    try:
        lines = (part for line in _lines(path, own.encoding or "") for part in io.StringIO(line, newline=""))
        return [row for row in csv_rows(lines, own.separator or "", own.quote or "", own.escape) if row]
    except csv.Error:  # a cell of more characters than the module takes
        return []


def _are_marked(path: Path, encoding: str, quote: str) -> bool:
    """Whether the cells of the first line are in quotes, and numbers of the second are not."""
    lines = [line for line in _lines(path, encoding) if line.strip()][:2]
    if not quote or len(lines) < 2 or quote not in lines[0] or any(line.count(quote) % 2 for line in lines):
        return False  # a cell of several lines leaves its quotes in other ones
    first, second = (_without_quoted(line, quote) for line in lines)
    return not any(map(str.isalnum, first)) and any(map(str.isdigit, second))


def _has_names(named: Path, options: ReadOptions, cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has names, as the caller says or the rows show.

    Raises:
        DataError: it is in doubt.
    """
    if options.header is not None:
        return options.header
    encoding = _encoding_of(named, options.encoding)
    marked = any(map(is_any_number, cells)) and _are_marked(named, encoding, _quote(options))
    found = has_names(cells, rows[1:], marked)
    if found is None:
        listed = ", ".join(shown(cell) for cell in cells[:_LISTED]) + (", ..." if len(cells) > _LISTED else "")
        raise DataError(
            f"{named}: the first row may have names, and may be a sample ({listed}): pass header=True if it has names, "
            "header=False if not"
        )
    return found


def _quote(options: ReadOptions) -> str:
    return _QUOTE if options.quote is None else options.quote


def _decimal_point(rows: Sequence[Sequence[str]], separator: str) -> str:
    """What separates integers from their fractions, judged by the first rows."""
    if separator == ",":
        return "."
    texts = [cell.strip() for row in rows for cell in row]
    found = {cell: match[1] for cell in texts if (match := _FRACTION.fullmatch(cell)) is not None}
    commas, points = [[cell for cell, mark in found.items() if mark == one] for one in ",."]
    if not points or not commas:
        return "," if commas else "."
    is_clear = all(map(_THOUSANDS["."].fullmatch, points)) and not all(map(_THOUSANDS[","].fullmatch, commas))
    return "," if is_clear else "."


@dataclass(frozen=True)
class _Settings:
    """How Arrow reads a file."""

    read: dict[str, Any]
    parse: dict[str, Any]
    convert: dict[str, Any]

    def made(self, **convert: Any) -> dict[str, Any]:
        """The arguments of Arrow's functions, with other options of conversion."""
        arrow_csv = library("pyarrow.csv", "a table of text")
        return {
            "read_options": arrow_csv.ReadOptions(**self.read),
            "parse_options": arrow_csv.ParseOptions(**self.parse),
            "convert_options": arrow_csv.ConvertOptions(**{**self.convert, **convert}),
        }


def _settings(path: Path, options: ReadOptions) -> _Settings:
    """How a file is read; see `_resolved`."""
    cells, rows = _first_cells(path, options), _first_rows(path, options)
    if options.header and any("\ufffd" in cell for cell in cells):
        raise DataError(
            f"{path}: names in the first row are not {options.encoding}; say its encoding=, such as 'latin-1'"
        )
    cells = list(rows[0]) if rows else cells  # the first row may have several lines
    if options.header and len(rows) > 1 and len(rows[1]) == len(cells) + 1 and not rows[1][-1].strip():
        cells.append("")  # rows that end with a separator, below names that do not
    names, skipped = None if options.header else [str(number) for number in range(len(cells))], 0
    if options.header and (cells[0].startswith(BEFORE_NAMES) or not all(cell.strip() for cell in cells)):
        # Names of our own, of which those that are kept are included.
        cells[0] = cells[0].removeprefix(BEFORE_NAMES)
        names, skipped = [cell if cell.strip() else f"\0{number}" for number, cell in enumerate(cells)], 1
    types = {name: library("pyarrow", "a table of text").string() for name in options.text or ()}
    return _Settings(
        {"block_size": BLOCK_BYTES, "column_names": names, "skip_rows": skipped, "encoding": options.encoding},
        {
            "delimiter": options.separator,
            "newlines_in_values": True,
            "quote_char": options.quote or False,
            "escape_char": options.escape or False,
        },
        {
            "decimal_point": _decimal_point(rows, options.separator or ""),
            "null_values": sorted(_missing(options)),
            "include_columns": [name for name in names or () if name[0] != "\0"] if skipped else None,
            "column_types": types,
        },
    )


def _missing(options: ReadOptions) -> frozenset[str]:
    return MISSING.union(options.missing or ())


def _parse(path: Path, options: ReadOptions, bytes_of: _FileBytes) -> Iterable[Any]:
    settings = _settings(path, options)
    marks = {_NULL, *(options.missing or ())}
    with decompressed(path) as stream:
        if path.stat().st_size <= IN_MEMORY_BYTES and compression_of(path) is None:
            content = stream.read_buffer()
            parts = (bytes(content[start : start + BLOCK_BYTES]) for start in range(0, content.size, BLOCK_BYTES))
            bytes_of.follow(parts)
            table = without_missing(_whole(content, settings, bytes_of.tiny), marks)
            yield with_numbers(table, settings.convert["decimal_point"], _missing(options), options.text or ())
            return
    yield from _in_blocks(path, settings, marks, bytes_of)


def _in_blocks(path: Path, settings: _Settings, marks: Collection[str], bytes_of: _FileBytes) -> Iterable[Any]:
    """The batches of a large file, whose quotes and integers are checked as it is read."""
    arrow_csv = library("pyarrow.csv", "a table of text")
    with opened(path) as file:
        bytes_of.follow(iter(partial(file.read, BLOCK_BYTES), b""))
    inexact: set[str] = set()
    with decompressed(path) as stream:
        for batch in arrow_csv.open_csv(stream, **settings.made()):  # looks at the first block
            inexact.update(inexact_columns(batch, bytes_of.tiny))
            yield without_missing(batch, marks)
    if inexact:
        with decompressed(path) as stream:
            first = 0
            for batch in arrow_csv.open_csv(stream, **_as_text(settings, sorted(inexact))):
                for name in batch.schema.names:
                    check_exact(name, batch.column(name), first)
                first += len(batch)


class _FileBytes:
    """Facts about the bytes of a file, which are gone through once.

    Args:
        encoding: Of the file.
        quotes: Follow them as well.
        marks: What the caller says is missing.
    """

    def __init__(self, encoding: str, quotes: QuoteCheck, marks: Collection[str]) -> None:
        self._quotes, self._end, self._encoding = quotes, b"", encoding.lower().replace("_", "-")
        self.absent = {mark for mark in marks if mark}  # which no cell is, as far as is seen
        self.tiny = False  # whether there are numbers that float64 may make 0

    def follow(self, parts: Iterable[bytes]) -> None:
        """Go through a whole file.

        Raises:
            DataError: a quote is not closed.
        """
        encoding = self._encoding
        if encoding.startswith(("utf-16", "utf-32")):
            parts, encoding = (text.encode() for text in codecs.iterdecode(parts, encoding, errors="replace")), "utf-8"
        forms = {mark: mark.encode(encoding, "replace") for mark in self.absent}
        for part in parts:
            self._quotes.add(part)
            whole = self._end + part
            self.tiny = self.tiny or may_be_tiny(whole)
            for mark in [*self.absent]:
                if forms[mark] in whole and re.search(rb"(?<!\w)%b(?!\w)" % re.escape(forms[mark]), whole):
                    self.absent.remove(mark)
            self._end = whole[-_LONGEST_MARK:]
        self._quotes.finish()


def _as_text(settings: _Settings, names: Sequence[str]) -> dict[str, Any]:
    kind = library("pyarrow", "a table of text").string()
    return settings.made(include_columns=list(names), column_types=dict.fromkeys(names, kind), decimal_point=".")


def _whole(content: Any, settings: _Settings, tiny: bool) -> Any:
    """The table of a file, with types that hold all values."""
    arrow_csv = library("pyarrow.csv", "a table of text")

    def buffer() -> Any:
        return library("pyarrow", "a table of text").BufferReader(content)

    try:
        table = arrow_csv.read_csv(buffer(), **settings.made())
    except ValueError:  # again by one thread, which counts rows, so that the error has the number of the row
        settings.read["use_threads"] = False
        table = arrow_csv.read_csv(buffer(), **settings.made())
    if names := inexact_columns(table, tiny):
        texts = arrow_csv.read_csv(buffer(), **_as_text(settings, names))
        for name in names:
            check_exact(name, texts.column(name))
    return table


def _open_csv(paths: Sequence[Path], options: ReadOptions) -> FileSource:
    if options.separator is not None and len(options.separator) != 1:
        raise ConfigurationError(f"read: a table's separator must be one character, got {shown(options.separator)}")
    if options.encoding is not None:
        try:
            codecs.lookup(options.encoding)
        except (LookupError, ValueError) as error:
            raise ConfigurationError(f"read: there is no encoding {shown(options.encoding)}") from error
    if options.escape is not None and options.escape == _quote(options):
        raise ConfigurationError(f"read: escape must be another character than quote, got {shown(options.escape)}")
    if options.escape is not None and options.separator == BLANKS:
        raise ConfigurationError("read: escape goes with a separator of cells, and blanks are none: leave it out")
    if options.length is not None and options.tokenizer is None:
        raise ConfigurationError("read: length= is for text with tokenizer=, and a table has a value in each cell")
    plain = _PlainTables(options)
    tables = TextTables(paths, plain.parse, options.skip_bad, plain.repaired, options.columns is not None)
    tables.left_out = _without_names(*plain.of(paths[0]))
    tables.notes = plain.notes()
    tables.untyped, tables.line_of = True, plain.line_of
    return samples_of_tables(with_partitions(tables, paths, several=True), options)


def _between(path: Path, encoding: str, quote: str, options: ReadOptions) -> str | None:
    """What is between cells where blanks around it have to go; None: there are none, or they are parts of cells."""
    if options.separator == BLANKS:
        return BLANKS
    with io.TextIOWrapper(opened(path), encoding=encoding, errors="replace", newline="") as file:
        lines = file.read(_LOOKED_AT).lstrip("\ufeff").splitlines()
    whole = lines[:-1][:_FIRST_ROWS] or lines
    rows = [one for one in whole if one.strip() and not (options.comment and one.startswith(options.comment))]
    if not rows or excel_separator(path) is not None:
        return None
    try:
        if options.separator is None and options.escape is None and are_separated_by_blanks(rows, quote):
            return BLANKS
        plain = [one for one in rows if not one.startswith("#")]
        if plain and rows[0].startswith("#") and options.comment is None and are_separated_by_blanks(plain, quote):
            raise DataError(f"{path} begins with lines that are no rows; leave out those with # by comment='#'")
        separator, names = first_row(path, options.separator, encoding, quote, options.escape)
        split = list(csv_rows(rows[1:], separator, quote, options.escape))
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
        self._notes: dict[Path, str] = {}
        self._absent = frozenset(options.missing or ())  # marks that no cell is, as far as is seen
        self._without_comments = options.comment is not None

    def of(self, path: Path) -> tuple[Path, ReadOptions]:
        """The file that is parsed in place of another, and how; whether it has a header is known."""
        if path not in self._used:
            self._used[path] = self._to_parse(path)
        copy, own = self._used[path]
        return path if copy is None else copy.path, own

    def _to_parse(self, path: Path) -> tuple[TableCopy | None, ReadOptions]:
        options, excel = self._options, excel_separator(path)
        quote, escape = _quote(options), options.escape
        encoding = _encoding_of(path, options.encoding)
        between = _between(path, encoding, quote, options)
        if excel is None and options.comment is None and between is None and escape is None:
            return None, _resolved(path, options, path)
        separator = "\t" if between == BLANKS else between or options.separator or excel
        cells = separator or first_row(path, None, encoding, quote, escape)[0]
        copy = TableCopy(path, encoding, options.comment, quote, escape, between, cells)
        self._without_comments = self._without_comments and not copy.comments
        if copy.notes:
            self._notes[path] = f"{path}: {'; '.join(copy.notes)}"
        own = replace(options, encoding=None, separator=separator)
        if between is not None:
            own = replace(own, quote=quote or _QUOTE, escape=None)
        return copy, _resolved(copy.path, own, path)

    def notes(self) -> list[str]:
        """Sentences on what is suspicious in the files that were parsed."""
        unused = [f"missing={shown(sorted(self._absent))} has no effect: no cell is that"] if self._absent else []
        if self._without_comments:
            unused.append(f"comment={shown(self._options.comment)} has no effect: no line begins with that")
        return [*self._notes.values(), *unused]

    def parse(self, path: Path) -> Iterable[Any]:
        """See `TextTables`."""
        try:
            plain, own = self.of(path)
            yield from self._parsed(path, plain, own)
        except ValueError as error:
            if self._options.skip_bad or self._options.comment is not None or not _COMMENT.search(head(path)):
                raise
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{path} cannot be read: {reason}; leave out lines that begin with # by comment='#'"
            ) from error

    def _parsed(self, path: Path, plain: Path, own: ReadOptions) -> Iterable[Any]:
        columns = len(_first_cells(plain, own))
        quotes = QuoteCheck(path, own.quote or "", own.separator or "", own.escape, columns)
        bytes_of = _FileBytes(own.encoding or "", quotes, self._absent)
        yield from _parse(plain, own, bytes_of)
        self._absent = bytes_of.absent
        if quotes.note is not None:
            self._notes[path] = f"{path}: {quotes.note}"

    def line_of(self, path: Path, row: int) -> int | None:
        """The line in which a row begins, from 1 up; None where a copy was parsed, whose lines are others."""
        copy, own = self._used[path]
        if copy is not None or self._options.skip_bad:
            return None
        with io.TextIOWrapper(opened(path), encoding=own.encoding, errors="replace", newline="") as file:
            rows = csv_rows(file, own.separator or "", own.quote or "", own.escape)
            number, line = -1 if own.header else 0, 1
            try:
                for cells in rows:
                    if number == row and cells:
                        return line
                    number, line = number + bool(cells), cast("Any", rows).line_num + 1
            except csv.Error:  # a cell of more characters than the module takes
                return None
        return None

    def repaired(self, path: Path, allowed: int) -> Repaired:
        """See `TextTables`."""
        plain, own = self.of(path)
        if own.encoding != "utf-8":
            raise DataError(f"{plain} is in {own.encoding}, and bad rows are found in UTF-8 alone: save it as that")
        return repaired_csv(plain, own, allowed, _missing(own))


def _resolved(path: Path, options: ReadOptions, named: Path) -> ReadOptions:
    """The options with what a file says of its encoding, its quotes, what is between its cells, and its header."""
    encoding, quote = _encoding_of(path, options.encoding), _quote(options)
    separator, cells = first_row(path, options.separator, encoding, quote, options.escape)
    own = replace(options, encoding=encoding, quote=quote, separator=separator)
    rows = _first_rows(path, own)
    return replace(own, header=_has_names(named, options, rows[0] if rows else cells, rows))


def _first_cells(path: Path, own: ReadOptions) -> list[str]:
    return first_row(path, own.separator, own.encoding or "", own.quote or "", own.escape)[1]


def _without_names(path: Path, options: ReadOptions) -> dict[str, str]:
    """The columns that a header has no name for, and why they are no fields."""
    if not options.header:
        return {}
    reason = "it has no name in the first row"
    of_first = f"{reason}, as the row numbers that pandas writes"
    return {
        f"column {number}": of_first if number == 1 else reason
        for number, cell in enumerate(_first_cells(path, options), start=1)
        if not cell.strip()
    }


_USES = frozenset(
    {
        *("separator", "header", "columns", "length", "tokenizer", "encoding"),
        *("comment", "quote", "escape", "missing", "text"),
    }
)
FILE_FORMATS = (FileFormat("csv", (".csv", ".tsv", ".tab", ".data", ".dat"), _open_csv, _USES, recognizes=is_table),)
