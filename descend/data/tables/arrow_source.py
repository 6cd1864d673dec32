"""Samples of Arrow tables: chunks, such as row groups of Parquet files, loaded when a sample of theirs is read.

Columns that were loaded are kept up to `CACHE_BYTES` in all, the most recently used ones. Others are written to a
temporary folder where loading means decoding, so that a data set of any size is decoded once, in any order. That takes
long in random order, when the first batch has rows of all chunks: this batch alone is taken from chunks that are
decoded and given up again, so that a run begins, or goes on, while they are decoded to be kept.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.data.images.pictures import ImageForm, is_image
from descend.data.images.survey import LOOKED_AT, form_of_images, spread, strided
from descend.data.loading.read_threads import in_threads
from descend.data.reader_protocol import Field, Pieces
from descend.data.tables.arrow_columns import (
    LENGTH,
    Column,
    ColumnFacts,
    InexactError,
    column_of,
    facts_of,
    holds_bytes,
)
from descend.data.tables.cells import MISSING
from descend.data.tables.spilled_columns import SpilledColumns
from descend.errors import ConfigurationError, DataError, library, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.reader_protocol import Array
    from descend.data.tables.table_files import Chunk, TableFiles

__all__ = ["CACHE_BYTES", "ArrowSource"]

CACHE_BYTES = 2**30
MAX_COLUMNS = 65_536
ROW_NUMBERS = re.compile(r"__index_level_\d+__")
_LOOKED_AT_BYTES = 2**28  # of images, for their form
_ROWS_LOOKED_AT_ONCE = 64
SCANNED_VALUES = 2**23  # to be decoded for one batch, from which on it is taken without them being kept


class ArrowSource:
    """The samples of tables; see `FileSource`.

    Args:
        files: The tables.
        options: Those of the caller; `columns`, `length`, `text`, `missing`, those of images and of classes are used.

    Attributes:
        notes: What is suspicious in the tables, in sentences.
        largest: The magnitude of the integer that is farthest from 0, of fields of integers for which it is known.

    Raises:
        DataError: there are too many columns, or a column that was asked for cannot become a field; most cells of a
            column of text are numbers; different integers would become equal.
        ConfigurationError: a column does not exist.
    """

    def __init__(self, files: TableFiles, options: ReadOptions) -> None:
        names: list[str] = list(files.schema.names)
        if len(names) > MAX_COLUMNS:
            raise DataError(f"{_first(files)} has {len(names):,} columns; at most {MAX_COLUMNS:,} are read")
        self._files = files
        self._chunks = Pieces(files.chunks, [chunk.rows for chunk in files.chunks])
        self.left_out: dict[str, str] = dict(files.left_out) if options.columns is None else {}
        self.notes = tuple(files.notes)
        _check_texts(options.text, names)
        if options.columns is None:
            numbers = [one for one in names if ROW_NUMBERS.fullmatch(one) and one not in options.target]
            self.left_out |= dict.fromkeys(numbers, "it has the row numbers that pandas keeps beside a frame")
            names = [one for one in names if one not in numbers]
        groups = _groups(options.columns, names)
        wanted = list(dict.fromkeys(name for of in groups.values() for name in ([of] if isinstance(of, str) else of)))
        self._images: dict[str, ImageForm] = {}
        self.largest: Mapping[str, int] = {}
        self._columns = self._settle(wanted, options, explicit=options.columns is not None)
        self._groups = {name: of for name, of in groups.items() if not isinstance(of, str) or of in self._columns}
        self.fields: Mapping[str, Field] = _fields_of(self._columns, self._images, self._groups)
        alone = {name: of for name, of in self._groups.items() if isinstance(of, str)}
        self.classes = {
            name: list(self._columns[of].classes) for name, of in alone.items() if self._columns[of].classes
        }
        self.self_numbered = frozenset(name for name in self.classes if options.classes_of(name) is None)
        named = files.class_names
        self.classes |= {
            name: list(named[of])
            for name, of in alone.items()
            if of in named and self._columns[of].dtype.kind in "iu" and name not in self.classes
        }
        self.largest = {name: self.largest[of] for name, of in alone.items() if of in self.largest}
        self.pixels = frozenset(name for name, of in alone.items() if of in self._images)
        self.kinds = {name: form.kind for name, form in self._images.items()}
        self.notes += tuple(note for form in self._images.values() for note in form.notes)
        self._kept: OrderedDict[tuple[Chunk, str], Any] = OrderedDict()
        self._damaged: dict[Chunk, str] = {}  # those that could not be decoded, and why
        self._spilled = SpilledColumns() if files.decodes else None
        self._scanned = self._spilled is None  # what cannot be scanned needs not be

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict()}

    def _settle(self, wanted: Sequence[str], options: ReadOptions, explicit: bool) -> dict[str, Column]:
        """How each column becomes a field; those that cannot are left out, or refused if they were asked for."""
        types = {name: self._files.schema.field(name).type for name in wanted}
        facts = _facts(self._files, types, options)
        self.notes += _judged(self._files, facts, options)
        self.largest = {name: one.largest for name, one in facts.items() if one.largest}
        texts = frozenset(options.text or ())
        found: dict[str, Column] = {}
        for name, kind in types.items():
            is_class, classes = options.is_class(name), options.classes_of(name)
            try:
                one = column_of(name, kind, facts[name], options.length, is_class, classes, name in texts)
                if one.kind == "bytes":
                    self._images[name] = _image_form(self._files, self._chunks, name, facts[name].first, options)
                found[name] = one
            except DataError as error:
                if explicit or name in options.target or name in texts or isinstance(error, InexactError):
                    raise DataError(f"{_first(self._files)}: {error}") from error
                self.left_out[name] = str(error)
        if not found:
            reasons = [f"    {reason}" for reason in self.left_out.values()] or ["    it has no columns"]
            raise DataError([f"{_first(self._files)} has no column that can be read:", *reasons])
        return found

    def __len__(self) -> int:
        return len(self._chunks)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The rows with these numbers."""
        bad = self._files.bad
        if bad and (first := next((bad[s] for s in samples.tolist() if s in bad), None)) is not None:
            raise ValueError(first)
        if hasattr(self._files, "take"):  # files that give rows in any order
            table = cast("Any", self._files).take(samples, list(self._columns))
            of_columns = [self._arrays(column, table.column(name)) for name, column in self._columns.items()]
            # Arrow's own memory is read-only, and torch warns of that.
            taken = {
                name: values if values.flags.writeable else values.copy()
                for found in of_columns
                for name, values in found.items()
            }
            return _grouped(taken, self._groups, self.fields)
        parts: dict[str, list[Array]] = {}
        places: list[NDArray[np.int64]] = []
        pieces = list(self._chunks.split(samples))
        scanned = self._worth_a_scan([chunk for chunk, _, _ in pieces])
        self._scanned |= scanned
        for chunk, rows, at in pieces:
            places.append(at)
            for field, values in (self._scan if scanned else self._kept_rows)(chunk, rows).items():
                parts.setdefault(field, []).append(values)
        back = np.argsort(np.concatenate(places), kind="stable")
        whole = {name: (np.concatenate(some) if len(some) > 1 else some[0])[back] for name, some in parts.items()}
        return _grouped(whole, self._groups, self.fields)

    def _missing(self, chunk: Chunk) -> list[str]:
        """The columns of a chunk that are not kept."""
        kept, spilled = self._kept, self._spilled
        return [
            name
            for name in self._columns
            if (chunk, name) not in kept and (spilled is None or (chunk, name) not in spilled)
        ]

    def _worth_a_scan(self, chunks: Sequence[Chunk]) -> bool:
        """Whether rows of some chunks are taken while these are decoded: once, where that is much."""
        if self._scanned:
            return False
        values = 0
        for chunk in chunks:
            values += chunk.rows * len(self._missing(chunk))
        return values > SCANNED_VALUES

    def _scan(self, chunk: Chunk, rows: NDArray[np.int64]) -> dict[str, Array]:
        table = cast("Any", self._files).scan(chunk, rows, list(self._columns))
        found: dict[str, Array] = {}
        for name, column in self._columns.items():
            found.update(self._arrays(column, table.column(name)))
        return found

    def _kept_rows(self, chunk: Chunk, rows: NDArray[np.int64]) -> dict[str, Array]:
        self._load_missing(chunk)
        found: dict[str, Array] = {}
        for name, column in self._columns.items():
            key = (chunk, name)
            values = self._kept[key] if key in self._kept or self._spilled is None else self._spilled.get(key)
            found.update({name: values[rows]} if column.vectorized else self._arrays(column, values.take(rows)))
        return found

    def _load_missing(self, chunk: Chunk) -> None:
        """Keep the columns of a chunk, and drop those used longest ago."""
        spilled, missing = self._spilled, self._missing(chunk)
        if missing:
            if chunk in self._damaged:  # not again for each of its samples
                raise DataError(self._damaged[chunk])
            try:
                table = _load(self._files, chunk, missing)
            except DataError as error:
                self._damaged[chunk] = str(error)
                raise
            for name in missing:
                column, values = self._columns[name], table.column(name)
                self._kept[chunk, name] = column.arrays(values)[name] if column.vectorized else values
        for name in self._columns:
            if (chunk, name) in self._kept:
                self._kept.move_to_end((chunk, name))
        over = sum(one.nbytes for one in self._kept.values()) - CACHE_BYTES if missing else 0
        while over > 0 and len(self._kept) > len(self._columns):
            key, values = self._kept.popitem(last=False)
            over -= values.nbytes
            if spilled is not None:
                spilled.put(key, values)

    def column(self, name: str) -> Array | None:
        """A field of all rows; None for images, and where several columns are joined."""
        of = self._groups.get(name)
        if not isinstance(of, str) or of in self._images:
            return None
        column = self._columns[of]
        parts = [column.arrays(_load(self._files, chunk, [of]).column(of))[of] for chunk in self._files.chunks]
        return np.concatenate(parts)

    def _arrays(self, column: Column, values: Any) -> dict[str, Array]:
        if column.name not in self._images:
            return column.arrays(values)
        form = self._images[column.name]
        contents = values.to_pylist()
        return {column.name: np.stack(in_threads(lambda place: form.decode(_present(contents[place])), len(contents)))}

    def place(self, sample: int) -> str:
        """The file, and the row in it, counted from 0."""
        chunk, row = self._chunks.piece_of(sample)
        return f"{chunk.path}, row {chunk.first + row}"


def _fields_of(
    columns: Mapping[str, Column], images: Mapping[str, ImageForm], groups: Mapping[str, str | tuple[str, ...]]
) -> dict[str, Field]:
    """The fields of columns, joined where they are."""
    own: dict[str, Field] = {}
    for name, column in columns.items():
        own.update({name: images[name].field} if name in images else column.fields)
    found: dict[str, Field] = {}
    for group, of in groups.items():
        if not isinstance(of, str):
            found[group] = _joined_field(group, [own[name] for name in of])
            continue
        found[group] = own[of]
        if columns[of].ragged:
            found[group + LENGTH] = own[of + LENGTH]
    return found


def _grouped(
    found: Mapping[str, Array], groups: Mapping[str, str | tuple[str, ...]], fields: Mapping[str, Field]
) -> dict[str, Array]:
    """The fields, from those of the columns."""
    made: dict[str, Array] = {}
    for group, of in groups.items():
        if not isinstance(of, str):
            made[group] = np.stack([_joined(name, found[name], fields[group].dtype) for name in of], axis=1)
            continue
        made[group] = found[of]
        if of + LENGTH in found and group + LENGTH in fields:
            made[group + LENGTH] = found[of + LENGTH]
    return made


def _judged(files: TableFiles, facts: Mapping[str, ColumnFacts], options: ReadOptions) -> tuple[str, ...]:
    """Refuse columns of text that were meant as numbers, and note those that may be.

    Raises:
        DataError: most cells of columns of text are numbers.
    """
    problems: list[str] = []
    notes: list[str] = []
    missing = ", missing=[...] says which cells are missing values" if files.untyped else ""
    for name, one in facts.items():
        if (cells := one.cells) is None:
            continue
        is_class = options.is_class(name)
        if (found := cells.of_target() if is_class else cells.of_feature()) is not None:
            meaning = "they are texts, each of them a class" if is_class else "they are texts"
            problems.append(
                f"{_cell(files, found[0], name)}{found[1]}: write numbers there{missing}; text=['{name}'] says that "
                f"{meaning}"
            )
        elif not is_class and (found := cells.of_text()) is not None:
            notes.append(
                f"{_cell(files, found[0], name)}{found[1]}: the column is read as text; text=['{name}'] says so"
            )
    if problems:
        raise DataError(problems)
    return tuple(notes)


def _cell(files: TableFiles, place: Any, column: str) -> str:
    """The begin of a sentence about a cell, or about a column where no cell is meant."""
    if place is None:
        return f"{_first(files)}, column '{column}': "
    path, row = place
    line = files.line_of(path, row) if files.line_of else None
    return f"{path}, row {row:,}{'' if line is None else f' (line {line:,})'}, column '{column}': "


def _image_form(
    files: TableFiles, chunks: Pieces[Chunk], name: str, first: bytes | None, options: ReadOptions
) -> ImageForm:
    """The form of a column of images, of which the first value is known, and may be damaged."""
    if first is None:
        raise DataError(f"'{name}' has no bytes in any row: read images in files of their own as a folder or a list")
    found: list[bytes] = []
    loaded = 0
    for values in _some_parts(files, chunks, name):
        found += [one for one in values.to_pylist() if one is not None]
        loaded += values.nbytes
        if loaded > _LOOKED_AT_BYTES:
            break
    if not is_image(first) and not any(map(is_image, found)):
        raise DataError(f"'{name}' holds {files.bytes_are}")
    return form_of_images(len(found), found.__getitem__, options, lambda _: f"column '{name}'", field=name)


def _some_parts(files: TableFiles, chunks: Pieces[Chunk], name: str) -> Iterator[Any]:
    """Parts of a column, each from everywhere in it, as far as they can be loaded."""
    if hasattr(files, "take"):
        rows = strided(len(chunks), LOOKED_AT)
        for start in range(0, len(rows), _ROWS_LOOKED_AT_ONCE):
            some = np.array(rows[start : start + _ROWS_LOOKED_AT_ONCE], np.int64)
            yield cast("Any", files).take(some, [name]).column(name)
        return
    numbers = strided(len(files.chunks), LOOKED_AT)
    for chunk in (files.chunks[number] for number in numbers):
        with suppress(DataError):  # reading its samples says what is wrong
            column = _load(files, chunk, [name]).column(name)
            yield column.take(spread(chunk.rows, max(1, LOOKED_AT // len(numbers))))


def _facts(files: TableFiles, types: Mapping[str, Any], options: ReadOptions) -> dict[str, ColumnFacts]:
    """What must be known of the values before the fields are: one pass over the columns where something must be."""
    pa = library("pyarrow", "a table")

    as_text, untyped = frozenset(options.text or ()), files.untyped
    texts = {name: options.is_class(name) and options.classes_of(name) is None for name in types}
    counted = {
        name: _is_text(kind) and name not in as_text and (texts[name] or (untyped and not options.is_class(name)))
        for name, kind in types.items()
    }
    missing = MISSING.union(options.missing or ())
    unknown = [
        name
        for name, kind in types.items()
        if texts[name]
        or counted[name]
        or pa.types.is_nested(kind)
        or not (_plain(kind) or name in as_text or files.without_nulls(name))
        if not holds_bytes(kind)
    ]
    found = {name: ColumnFacts() for name in types}
    for name in (name for name, kind in types.items() if pa.types.is_integer(kind)):
        found[name] = ColumnFacts(**dict(zip(("low", "high"), files.bounds(name), strict=True)))
    seen: dict[str, ColumnFacts] = {}
    for chunk in files.chunks if unknown else ():
        table = _load(files, chunk, unknown)
        for name in unknown:
            values = table.column(name)
            part = facts_of(values, texts[name], name in as_text, counted[name], missing)
            if part.cells is not None:
                part = replace(part, cells=part.cells.moved(lambda row, of=chunk: (of.path, of.first + row)))
            seen[name] = seen[name].joined(part) if name in seen else part
    bytes_of = {name: _first_bytes(files, name) for name, kind in types.items() if holds_bytes(kind)}
    return {**found, **seen, **bytes_of}


def _check_texts(texts: Sequence[str] | None, names: Sequence[str]) -> None:
    for name in texts or ():
        if name not in names:
            raise ConfigurationError(
                f"read: text names '{name}', and there is no such column{nearest(name, names)}; the columns are "
                f"{', '.join(names[:50])}"
            )


def _first_bytes(files: TableFiles, name: str) -> ColumnFacts:
    """The first values of a column of bytes: no more chunks are loaded than are needed."""
    found = ColumnFacts()
    for chunk in files.chunks:
        if (found := facts_of(_load(files, chunk, [name]).column(name), texts=False)).first is not None:
            break
    return found


def _load(files: TableFiles, chunk: Chunk, columns: Sequence[str]) -> Any:
    try:
        return files.load(chunk, columns)
    except Exception as error:  # pyarrow raises OSError, ValueError and others of its own
        raise DataError(
            f"{chunk.path}, rows {chunk.first:,} to {chunk.first + chunk.rows - 1:,} cannot be read: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error


def _plain(kind: Any) -> bool:
    """Whether the field of a column of this type is known from the type alone."""
    pa = library("pyarrow", "a table")

    return pa.types.is_floating(kind) or pa.types.is_temporal(kind) or pa.types.is_null(kind) or _is_text(kind)


def _is_text(kind: Any) -> bool:
    pa = library("pyarrow", "a table")

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _present(content: bytes | None) -> bytes:
    if content is None:
        raise ValueError("the image is missing")
    return content


def _first(files: TableFiles) -> str:
    return str(files.chunks[0].path) if files.chunks else "the table"


def _groups(columns: Any, names: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """The column of each field, or the columns that are joined to it."""
    if columns is None:
        return {name: name for name in names}
    if isinstance(columns, Mapping):
        some = cast("Mapping[str, Any]", columns).items()
        groups = {name: of if isinstance(of, str) else tuple(of) for name, of in some}
    else:
        groups: dict[str, str | tuple[str, ...]] = {name: name for name in columns}
    known = frozenset(names)
    for of in groups.values():
        for name in [of] if isinstance(of, str) else of:
            if name not in known:
                raise ConfigurationError(
                    f"read: there is no column '{name}'{nearest(str(name), names)}; the columns are "
                    f"{', '.join(names[:50])}"
                )
    return groups


def _joined(name: str, values: Array, dtype: np.dtype[Any]) -> Array:
    """A column in the type that it has with others; no integer is changed by that."""
    if dtype.kind == "f" and values.dtype.kind in "iu" and values.dtype.itemsize >= dtype.itemsize:
        exact = 2 ** (np.finfo(dtype).nmant + 1)
        if len(values) and max(abs(int(values.min())), abs(int(values.max()))) > exact:
            raise ValueError(
                f"'{name}' has integers beyond {exact:,}, which {dtype} changes, as the columns that are joined need: "
                "leave it out of them"
            )
    return values.astype(dtype, copy=False)


def _joined_field(group: str, members: Sequence[Field]) -> Field:
    if not members:
        raise ConfigurationError(f"read: no columns are joined to '{group}'")
    if any(one.shape or one.dtype.kind not in "fiub" for one in members):
        raise ConfigurationError(f"read: the columns that are joined to '{group}' must hold a number each")
    return Field((len(members),), np.result_type(*[one.dtype for one in members]))
