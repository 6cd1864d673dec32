"""Columns of Arrow tables as fields: which NumPy array stands for a column of each type.

type of the column                       field
integers, floats, booleans               one number; with missing values float64, and NaN for these, unless it is a
                                         target, which must not be missing, or an integer is none of float64
decimals                                 float64, the one next to the decimal; different ones must stay different
text, dictionaries of text               text, "" where it is missing; integers where the field is a class, which must
                                         not be missing, and whose texts must not be numbers for the most part
any of these that is to stay text        text, as Arrow writes the values
dates, times                             datetime64 or timedelta64 of the unit that is stored, NaT where it is missing
lists of one length, nested or not       an array of this shape
lists of different lengths               an array as long as the longest, or `length`: zeros follow the entries, and
                                         the field NAME_length has their number; longer lists are cut at `length`
lists of text                            text, "" behind the end of shorter ones
tensors of Arrow's extension             an array of this shape
images in bytes                          see `descend.data.images.pictures`
structures                               a field NAME.PART for each part; of the parts "bytes" and "path", as Hugging
                                         Face's `datasets` writes images, the bytes alone, under NAME
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.expansion import FREE_BYTES, check_expansion
from descend.data.reader_protocol import Field
from descend.data.tables.cells import MISSING, CellCounts
from descend.data.tables.numbers import EXACT, count_cells
from descend.errors import DataError, library

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from descend.data.reader_protocol import Array

__all__ = [
    "LENGTH",
    "Column",
    "ColumnFacts",
    "InexactError",
    "bounds_of",
    "class_names",
    "column_of",
    "empty_table",
    "facts_of",
    "flattened",
    "holds_bytes",
]

LENGTH = "_length"
_TEXT_CHARACTERS = 2**28  # of an array of text, of 4 bytes each
_REMEDY = ": leave such rows out, or allow skip_bad="


@cache  # asked for several times a column
def _arrow() -> tuple[Any, Any]:
    return library("pyarrow", "a table"), library("pyarrow.compute", "a table")


class InexactError(DataError):
    """Values of a column would become equal that are different."""


@dataclass(frozen=True)
class ColumnFacts:
    """What must be known of all values of a column before its field is known.

    Args:
        nulls: Whether values are missing.
        shortest: For each level of lists the length of the shortest.
        longest: Likewise of the longest.
        texts: The different texts; None where they are not needed.
        first: The first value that is not missing, of a column of bytes.
        low: The least integer, of a column of integers or lists of them; None where it is not known.
        high: The largest, likewise.
        cells: How many texts are numbers; None where that is not needed.
    """

    nulls: bool = False
    shortest: tuple[int, ...] = ()
    longest: tuple[int, ...] = ()
    texts: frozenset[str] | None = None
    first: bytes | None = None
    low: int | None = None
    high: int | None = None
    cells: CellCounts | None = None

    @property
    def largest(self) -> int:
        """The magnitude of the integer that is farthest from 0; 0 where none is known."""
        return max(abs(self.low or 0), abs(self.high or 0))

    def joined(self, other: ColumnFacts) -> ColumnFacts:
        """Those of two parts of a column; a part without lists at a level says nothing about it."""
        pairs = list(zip(self.shortest, other.shortest, strict=True)) if self.shortest and other.shortest else []
        return ColumnFacts(
            self.nulls or other.nulls,
            tuple(a if b < 0 else b if a < 0 else min(a, b) for a, b in pairs) or self.shortest or other.shortest,
            tuple(map(max, zip(self.longest, other.longest, strict=True)))
            if self.longest and other.longest
            else self.longest or other.longest,
            (self.texts or frozenset()) | (other.texts or frozenset()),
            self.first if self.first is not None else other.first,
            min((one for one in (self.low, other.low) if one is not None), default=None),
            max((one for one in (self.high, other.high) if one is not None), default=None),
            self.cells.joined(other.cells) if self.cells and other.cells else self.cells or other.cells,
        )


@dataclass(frozen=True)
class Column:
    """How a column of a table becomes a field.

    Args:
        name: Of the column.
        kind: "number", "text", "time", "list" or "bytes".
        dtype: Of the field.
        shape: Of the field.
        ragged: Whether its lists have different lengths, so that there is a second field, NAME_length.
        complete: Whether a value that is missing is an error of its row, where some are.
        classes: The number of each text, where the field is a class.
    """

    name: str
    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    ragged: bool = False
    complete: bool = False
    classes: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def fields(self) -> dict[str, Field]:
        """The fields that it becomes."""
        own = {self.name: Field(self.shape, self.dtype)}
        return {**own, self.name + LENGTH: Field((), np.dtype(np.int64))} if self.ragged else own

    @property
    def vectorized(self) -> bool:
        """Whether a whole chunk may be kept as a NumPy array, which is not larger than in Arrow."""
        if self.complete:
            return False
        return self.kind in ("number", "time") or (self.kind == "list" and not self.ragged and self.dtype.kind != "U")

    def arrays(self, values: Any) -> dict[str, Array]:
        """The fields of some rows.

        Args:
            values: An Arrow array, chunked or not.

        Raises:
            ValueError: a list has another length than those before, an integer in a list is missing, or a class is not
                one of those known.
        """
        if hasattr(values, "combine_chunks"):
            values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
        if self.kind == "text":
            return {self.name: self._texts(values)}
        if self.kind == "list":
            return self._lists(values)
        if self.complete and values.null_count:
            raise ValueError(f"'{self.name}' is a target, and is missing{_REMEDY}")
        return {self.name: _numbers(values, self.dtype)}

    def _texts(self, values: Any) -> Array:
        values = _as_text(values)
        texts = ["" if text is None else text for text in values.to_pylist()]
        if self.dtype.kind != "i":
            longest = max(map(len, texts), default=0)
            if longest * len(texts) > _TEXT_CHARACTERS:
                raise ValueError(
                    f"'{self.name}' has a text of {longest:,} characters, and an array of {len(texts):,} texts has "
                    "room for the longest in each: read fewer at once, or leave the field out with fields=[...]"
                )
            return np.array(texts, dtype=str) if texts else np.empty(0, dtype=str)
        if "" in texts and "" not in self.classes:
            raise ValueError(f"'{self.name}' names a class, and is missing{_REMEDY}")
        if unknown := [text for text in texts if text not in self.classes]:
            raise ValueError(f"'{unknown[0]}' in '{self.name}' is none of its classes: {', '.join(self.classes)}")
        return np.array([self.classes[text] for text in texts], dtype=np.int64)

    def _lists(self, values: Any) -> dict[str, Array]:
        values = _filled(values)
        lengths = _lengths(values)
        inner, shape = _flat(values), self.shape[1:]
        for longest in shape:
            if (np.diff(_lengths(inner), prepend=longest) != 0).any():
                raise ValueError(f"lists within '{self.name}' must have {longest} entries each")
            inner = _flat(inner)
        flat = _numbers(inner, self.dtype).reshape(int(lengths.sum()), *shape)
        longest = self.shape[0]
        if not self.ragged:
            if (lengths != longest).any():
                raise ValueError(
                    f"lists in '{self.name}' must have {longest} entries, got {lengths.min()} to {lengths.max()}"
                )
            return {self.name: flat.reshape(len(lengths), *self.shape)}
        padded = np.zeros((len(lengths), *self.shape), flat.dtype)
        column = np.arange(longest)
        kept = np.minimum(lengths, longest)
        inside = column < kept[:, None]
        starts = np.cumsum(lengths) - lengths
        padded[inside] = flat[(starts[:, None] + column)[inside]]
        return {self.name: padded, self.name + LENGTH: kept}


def _lengths(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    pa, pc = _arrow()

    if pa.types.is_fixed_size_list(values.type):
        return np.full(len(values), values.type.list_size, dtype=np.int64)
    return pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _filled(values: Any) -> Any:
    """Lists of a fixed length, with missing entries in those that are missing; others as they are."""
    pa, pc = _arrow()

    if not pa.types.is_fixed_size_list(values.type) or not values.null_count:
        return values
    size = values.type.list_size
    there = np.repeat(pc.is_valid(values).to_numpy(zero_copy_only=False), size)
    places = pa.array(np.cumsum(there) - 1, mask=~there)
    return pa.FixedSizeListArray.from_arrays(pc.list_flatten(values).take(places), size)


def _flat(values: Any) -> Any:
    """The entries of all lists, without those of missing lists."""
    _, pc = _arrow()

    return pc.list_flatten(values)


def _numbers(values: Any, dtype: np.dtype[Any]) -> Array:
    pa, pc = _arrow()

    if dtype.kind == "U":
        return np.array(["" if text is None else text for text in values.to_pylist()] or [""], dtype=str)[: len(values)]
    if pa.types.is_decimal(values.type):
        # By way of text: Arrow's cast to float64 multiplies by a power of ten, which rounds twice.
        different, values = pc.unique(values), values.cast(pa.string()).cast(pa.float64())
        if len(pc.unique(different.cast(pa.string()).cast(pa.float64()))) < len(different):
            raise ValueError(f"different decimals of the type {different.type} are the same number of float64")
    if dtype.kind in "mM":
        if pa.types.is_time(values.type):
            numbers = values.cast(pa.int32()) if pa.types.is_time32(values.type) else values
            values = numbers.cast(pa.int64()).cast(pa.duration(values.type.unit))
        return values.to_numpy(zero_copy_only=False).astype(dtype)
    if values.null_count and dtype.kind != "f":
        raise ValueError(f"a value is missing, and {dtype} has none that stands for it")
    if pa.types.is_boolean(values.type) and dtype.kind == "f":
        values = values.cast(pa.int8())
    if values.null_count:
        values = pc.fill_null(values.cast(pa.from_numpy_dtype(dtype), safe=False), float("nan"))
    return values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)


def flattened(table: Any) -> Any:
    """A table without structures, dictionaries and extensions: parts of structures are columns NAME.PART.

    Raises:
        DataError: two columns have the same name.
    """
    pa, pc = _arrow()

    for number, column in enumerate(table.schema):
        values = table.column(number)
        if isinstance(column.type, pa.BaseExtensionType):
            table = table.set_column(number, column.name, _stored(values))
        elif pa.types.is_struct(column.type) and {part.name for part in column.type} == {"bytes", "path"}:
            contents = pc.struct_field(values, "bytes")
            bare = pa.types.is_null(contents.type)  # as pyarrow has them where each is missing
            table = table.set_column(number, column.name, contents.cast(pa.binary()) if bare else contents)
    while any(pa.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()
    names = table.schema.names
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(f"there are two columns '{twice}'; give them different names")
    for number, column in enumerate(table.schema):
        if pa.types.is_run_end_encoded(column.type):
            table = table.set_column(number, column.name, pc.run_end_decode(table.column(number)))
        elif (kind := _plain_type(column.type)) != column.type:
            values = _with_plain_dictionaries(table.column(number))
            _check_texts(column.name, values)
            table = table.set_column(number, column.name, values.cast(kind))
    return table


def _with_plain_dictionaries(values: Any) -> Any:
    """A column whose dictionary, as those of polars, has views of text, with text in their place."""
    pa, _ = _arrow()

    if not pa.types.is_dictionary(values.type) or _plain_type(values.type) == values.type.value_type:
        return values
    kind = _plain_type(values.type)
    parts = [pa.DictionaryArray.from_arrays(part.indices, part.dictionary.cast(kind)) for part in values.chunks]
    return pa.chunked_array(parts, pa.dictionary(values.type.index_type, kind))


def _check_texts(name: str, values: Any) -> None:
    """Check that texts of a dictionary do not become far larger when each is written out."""
    pa, pc = _arrow()

    while _is_list(values.type):
        values = pc.list_flatten(values)
    if not pa.types.is_dictionary(values.type):
        return
    if not _is_text(values.type.value_type) and not holds_bytes(values.type.value_type):
        return
    promised = 0
    for part in values.chunks:
        longest = pc.max(pc.binary_length(part.dictionary)).as_py() or 0
        if longest * len(part) > FREE_BYTES:
            lengths = pc.binary_length(part.dictionary).cast(pa.int64())
            promised += pc.sum(lengths.take(part.indices)).as_py() or 0
    check_expansion(f"the dictionary of '{name}'", values.nbytes, promised, "write its texts without a dictionary")


def _plain_type(kind: Any) -> Any:
    """The type without dictionaries and views of text, for which Arrow has few functions.

    Views of lists stay: pyarrow 26 casts them to lists without their entries.
    """
    pa, _ = _arrow()

    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return kind
    if (inner := _plain_type(kind.value_type)) == kind.value_type:
        return kind
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def _stored(values: Any) -> Any:
    """The values of an extension: nested lists of the shape of a tensor, else as they are stored."""
    pa, _ = _arrow()

    kind, stored = values.type, [part.storage for part in values.chunks]
    tensors = getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor"
    shape, order = (kind.shape, kind.permutation) if tensors else (None, None)
    if any(part.null_count for part in stored):
        raise DataError(f"a value of the type {kind} is missing, and all of its values have a shape")
    if shape is None:
        return pa.chunked_array(stored, kind.storage_type)
    if order is not None and list(order) != sorted(order):
        raise DataError(f"tensors with permuted dimensions ({kind}) are not read; write them in the order of C")
    inner = kind.value_type
    for size in reversed(shape):
        inner = pa.list_(inner, size)
    nested = [_nested(part.flatten(), list(shape)) for part in stored]
    return pa.chunked_array(nested, inner)


def _nested(flat: Any, shape: Sequence[int]) -> Any:
    pa, _ = _arrow()

    for size in reversed(shape):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def class_names(schema: Any) -> dict[str, list[str]]:
    """The names of classes that Hugging Face's `datasets` writes beside a schema, by column."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = {name: of["names"] for name, of in features.items() if of.get("_type") == "ClassLabel"}
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or something else
        return {}
    return {name: of for name, of in found.items() if isinstance(of, list) and all(isinstance(one, str) for one in of)}


def empty_table(schema: Any) -> Any:
    """A flattened table without rows; pyarrow's own cannot be made where there are extensions."""
    pa, _ = _arrow()

    columns = [
        pa.chunked_array([pa.ExtensionArray.from_storage(one.type, pa.array([], one.type.storage_type))])
        if isinstance(one.type, pa.BaseExtensionType)
        else pa.chunked_array([], one.type)
        for one in schema
    ]
    return flattened(pa.table(columns, schema=schema))


def facts_of(
    values: Any, texts: bool, as_text: bool = False, counted: bool = False, missing: Iterable[str] = MISSING
) -> ColumnFacts:
    """The facts of a part of a column.

    Args:
        values: A chunked Arrow array, flattened.
        texts: Whether its different texts are needed.
        as_text: Whether its values become texts.
        counted: Whether it is needed how many texts are numbers.
        missing: Texts that are no values, for that.
    """
    pa, pc = _arrow()

    kind, nulls = values.type, values.null_count > 0
    if _is_text(kind) or as_text:
        found = frozenset(text for text in pc.unique(_as_text(values)).to_pylist() if text) if texts else None
        return ColumnFacts(nulls, texts=found, cells=count_cells(values, missing) if counted and not as_text else None)
    if holds_bytes(kind):
        return ColumnFacts(nulls, first=next((v for v in values[:64].to_pylist() if v is not None), None))
    shortest: list[int] = []
    longest: list[int] = []
    whole = values
    while _is_list(values.type):
        lengths = np.concatenate([_lengths(part) for part in values.chunks] or [np.zeros(0, np.int64)])
        shortest.append(int(lengths.min(initial=2**62)) if len(lengths) else -1)
        longest.append(int(lengths.max(initial=0)))
        values = pc.list_flatten(values)
    if shortest and not pa.types.is_null(values.type):
        nulls = values.null_count > 0 or (pa.types.is_fixed_size_list(whole.type) and whole.null_count > 0)
    low, high = bounds_of(values)
    return ColumnFacts(nulls, tuple(shortest), tuple(longest), low=low, high=high)


def bounds_of(values: Any) -> tuple[int | None, int | None]:
    """The least and the largest value of a column of integers; None for other columns, and without values."""
    pa, pc = _arrow()

    if not pa.types.is_integer(values.type):
        return None, None
    found = pc.min_max(values)
    return found["min"].as_py(), found["max"].as_py()


def _as_text(values: Any) -> Any:
    """A column of any plain type as one of text."""
    pa, _ = _arrow()

    if _is_text(values.type):
        return values
    try:
        return values.cast(pa.large_string())
    except pa.ArrowException as error:
        raise DataError(f"a column of the type {values.type} cannot be text: {str(error).splitlines()[0]}") from error


def column_of(
    name: str,
    kind: Any,
    facts: ColumnFacts,
    length: int | None,
    is_class: bool,
    classes: Sequence[str] | None,
    as_text: bool = False,
) -> Column:
    """How a column becomes a field.

    Args:
        name: Of the column.
        kind: Its Arrow type.
        facts: Of all its values.
        length: To which lists of different lengths are padded or cut; None: of the longest.
        is_class: Whether it is a target, so that text in it names classes.
        classes: The classes in the order of their numbers; None: in the order of the alphabet.
        as_text: Whether its values become texts.

    Raises:
        DataError: it cannot become a field; the message says why.
    """
    pa, _ = _arrow()

    if as_text and (pa.types.is_nested(kind) or holds_bytes(kind)):
        raise DataError(f"'{name}' is of the type {kind}, which cannot be read as text: leave it out of text=")
    if _is_text(kind) or as_text:
        if not is_class:
            return Column(name, "text", np.dtype(str))
        ordered = sorted(facts.texts or ()) if classes is None else classes
        return Column(name, "text", np.dtype(np.int64), classes={text: i for i, text in enumerate(ordered)})
    if holds_bytes(kind):
        return Column(name, "bytes", np.dtype(np.uint8))
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        spans = pa.types.is_duration(kind) or pa.types.is_time(kind)
        unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
        return Column(name, "time", np.dtype(f"timedelta64[{unit}]" if spans else f"datetime64[{unit}]"))
    if not _is_list(kind):
        dtype = _dtype(name, kind, facts, is_class)
        return Column(name, "number", dtype, complete=is_class and facts.nulls and dtype.kind != "f")
    inner = kind
    while _is_list(inner):
        inner = inner.value_type
    dtype = np.dtype(str) if _is_text(inner) else _dtype(name, inner, facts)
    column = Column(name, "list", dtype, facts.longest)
    if facts.shortest[1:] != facts.longest[1:] and any(a >= 0 and a != b for a, b in _inner(facts)):
        raise DataError(f"lists within the lists of '{name}' have different lengths, and only the outer ones may")
    if facts.shortest[0] != facts.longest[0] or (length is not None and length != facts.longest[0]):
        return replace(column, ragged=True, shape=(length or facts.longest[0], *facts.longest[1:]))
    return column


def _inner(facts: ColumnFacts) -> list[tuple[int, int]]:
    return list(zip(facts.shortest[1:], facts.longest[1:], strict=True))


def _dtype(name: str, kind: Any, facts: ColumnFacts, is_target: bool = False) -> np.dtype[Any]:
    pa, _ = _arrow()

    if pa.types.is_null(kind) or pa.types.is_decimal(kind):
        return np.dtype(np.float64)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"'{name}' is of the type {kind}, which has no array of numbers")
    if pa.types.is_floating(kind) or not facts.nulls or is_target:
        return np.dtype(kind.to_pandas_dtype())
    if facts.largest > EXACT:
        raise InexactError(
            f"'{name}' has missing values, for which float64 is needed, and integers up to {facts.largest:,}, of which "
            f"float64 makes different ones equal above 2**53: text=['{name}'] keeps them as they are written, "
            "columns=[...] reads others"
        )
    return np.dtype(np.float64)


def _is_text(kind: Any) -> bool:
    pa, _ = _arrow()

    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def holds_bytes(kind: Any) -> bool:
    """Whether an Arrow type is one of bytes."""
    pa, _ = _arrow()

    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _is_list(kind: Any) -> bool:
    pa, _ = _arrow()

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
