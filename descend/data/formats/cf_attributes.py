"""The numbers of HDF5 data sets: rows in any order, and the meaning that netCDF's conventions give them.

_Unsigned                     "true": signed integers are unsigned ones of as many bits; "false": the other way round
_FillValue, missing_value     stored numbers that are missing; `missing_value` may be several
valid_min, valid_max          stored numbers beyond are missing, as beyond `valid_range`; where these have a point and
                              scaled integers are stored, values beyond
scale_factor, add_offset      value = stored × scale_factor + add_offset; 1 and 0 leave integers as they are

Missing values are NaN where values have a point. In files of netCDF-4 a variable of more than a byte without
`_FillValue` has a default one, which the library writes where a program wrote nothing. Scaled values are float32 where
the factor, the offset and the stored numbers fit into it: integers of 32 bits and more do not.

Sources: https://cfconventions.org/Data/cf-conventions/cf-conventions-1.11/cf-conventions.html (2.5.1, 8.1) and
https://docs.unidata.ucar.edu/nug/current/attribute_conventions.html
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.arguments import shown
from descend.data.paths import check_mapped
from descend.data.plain_arrays import native
from descend.data.reader_protocol import Field
from descend.data.tables.spilled_columns import SpilledColumns
from descend.errors import DataError, library, warn

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.reader_protocol import Array

__all__ = [
    "Meanings",
    "StoredNumbers",
    "StoredRows",
    "check_without_meaning",
    "is_bare_dimension",
    "is_netcdf4",
    "stored_numbers",
]


# https://docs.unidata.ucar.edu/netcdf-c/current/netcdf_8h.html, NC_FILL_SHORT and so on
_DEFAULTS: Mapping[str, int | float] = {
    "i2": -32_767,
    "u2": 65_535,
    "i4": -2_147_483_647,
    "u4": 4_294_967_295,
    "i8": -9_223_372_036_854_775_806,
    "u8": 18_446_744_073_709_551_614,
    "f4": 9.969209968386869e36,
    "f8": 9.969209968386869e36,
}
_OF_NUMBERS = ("_Unsigned", "_FillValue", "missing_value", "valid_min", "valid_max", "valid_range")
_SCANNED = 4096  # samples that are looked at in one go
_BARE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"  # that netCDF-4 writes


@dataclass(frozen=True)
class StoredNumbers:
    """The meaning of the stored numbers of a data set.

    Args:
        stored: Their type, where it is another one than that of the data set; else None.
        missing: Those that are missing, with the attribute that says so.
        bounds: The lowest and the highest that are not missing; None has no bound.
        of_values: Whether the bounds are those of the values.
        scale: The factor.
        offset: What is added.
        dtype: Of the values; None for that of the stored numbers.
    """

    stored: np.dtype[Any] | None
    missing: tuple[tuple[str, int | float], ...]
    bounds: tuple[int | float | None, int | float | None]
    of_values: bool
    scale: int | float
    offset: int | float
    dtype: np.dtype[Any] | None

    def values(self, stored: Array) -> tuple[Array, Array]:
        """The values of stored numbers, and where they are missing; those are NaN where values have a point."""
        stored = native(stored)
        if self.stored is not None:
            stored = stored.view(self.stored)
        missing = np.zeros(stored.shape, bool)
        for _, number in self.missing:
            missing |= stored == number
        values = stored if self.dtype is None else stored.astype(self.dtype) * self.dtype.type(self.scale)
        if self.dtype is not None and self.offset:
            values += self.dtype.type(self.offset)
        low, high = self.bounds
        bounded = values if self.of_values else stored
        if low is not None:
            missing |= bounded < low
        if high is not None:
            missing |= bounded > high
        if values.dtype.kind == "f" and missing.any():
            values = np.where(missing, values.dtype.type(math.nan), values)
        return values, missing

    @property
    def reason(self) -> str:
        """The attributes that make numbers missing."""
        low, high = self.bounds
        reasons = [f"{name} {number}" for name, number in self.missing]
        if low is not None or high is not None:
            reasons.append(f"valid from {'-inf' if low is None else low} to {'inf' if high is None else high}")
        return ", ".join(reasons)


class Meanings:
    """The meaning of the stored numbers of the fields of some files."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str], StoredNumbers] = {}
        self._lacking: dict[tuple[Path, str], str] = {}  # how many samples of a file lack a value, once it is counted

    def field(self, path: Path, name: str, stored: Any, field: Field, *, netcdf: bool, is_enum: bool) -> Field:
        """The field of a data set with what its attributes say, which is noted. See `stored_numbers`.

        Raises:
            DataError: an attribute is wrong.
        """
        if field.dtype.kind not in "iuf":
            return field
        try:
            meant = stored_numbers(name, stored, field.dtype, netcdf=netcdf, is_enum=is_enum)
        except DataError as error:
            raise DataError(f"{path}: {error}; mask_and_scale=False reads the numbers as they are stored") from None
        if meant is None:
            return field
        self._known[path, name] = meant
        return Field(field.shape, meant.values(np.empty(0, field.dtype))[0].dtype)

    def values(self, path: Path, name: str, stored: Any, numbers: Array) -> Array:
        """The values that some numbers of a data set stand for.

        Raises:
            ValueError: one is missing, and there is no NaN of its type.
        """
        meant = self._known.get((path, name))
        if meant is None:
            return native(numbers)
        values, missing = meant.values(numbers)
        if values.dtype.kind != "f" and missing.any():
            if (path, name) not in self._lacking:
                self._lacking[path, name] = _lacking(stored, meant)
            raise ValueError(
                f"'{name}' must have a value, as {values.dtype} has no NaN, and lacks one ({meant.reason}); "
                f"{self._lacking[path, name]}: leave the field out by fields=, replace such samples by skip_bad=, or "
                "read the numbers as they are stored by mask_and_scale=False"
            )
        return values


def _lacking(stored: Any, meant: StoredNumbers) -> str:
    """How many samples of a data set lack a value, and the first of them."""
    count, first = 0, -1
    for start in range(0, len(stored), _SCANNED):
        rows = stored[start : start + _SCANNED]  # of numbers, or of arrays of different lengths
        lacking = np.flatnonzero([meant.values(np.asarray(row))[1].any() for row in rows])
        first = start + int(lacking[0]) if first < 0 and len(lacking) else first
        count += len(lacking)
    return f"{count:,} of {len(stored):,} samples do, the first at index {first}"


def check_without_meaning(path: Path, name: str, data_set: Any) -> None:
    """Check that no attribute of a compound data set would change its numbers: of which parts is not said.

    Raises:
        DataError: there is one.
    """
    if there := [key for key in (*_OF_NUMBERS, "scale_factor", "add_offset") if key in data_set.attrs]:
        raise DataError(
            f"{path}: '{name}' has parts of a compound type, and must have no attribute that changes numbers, got "
            f"{', '.join(map(repr, there))}: mask_and_scale=False reads the numbers as they are stored, and key=[...] "
            "leaves the data set out"
        )


def is_netcdf4(file: Any, data_sets: Iterable[Any]) -> bool:
    """Whether the netCDF-4 library wrote an HDF5 file, of which it leaves marks."""
    return "_NCProperties" in file.attrs or any(
        "_Netcdf4Dimid" in one.attrs or "_Netcdf4Coordinates" in one.attrs or is_bare_dimension(one)
        for one in data_sets
    )


def is_bare_dimension(data_set: Any) -> bool:
    """Whether a data set stands for a dimension of netCDF-4 and holds nothing."""
    title = data_set.attrs.get("NAME", b"")
    return (title if isinstance(title, bytes) else str(title).encode()).startswith(_BARE_DIMENSION)


def stored_numbers(
    name: str, data_set: Any, of_file: np.dtype[Any], *, netcdf: bool, is_enum: bool
) -> StoredNumbers | None:
    """Read the attributes of a data set of numbers.

    Args:
        name: Of the field, for messages.
        data_set: Has the attributes.
        of_file: The type of its numbers: integers, or numbers with a point.
        netcdf: Whether it has the default fill values of netCDF-4.
        is_enum: Whether its numbers are those of an enumeration, which are not scaled.

    Returns:
        None where the numbers stand for themselves.

    Raises:
        DataError: a factor or an offset is no number.
    """
    attributes = _Attributes(name, data_set.attrs)
    of_file = np.dtype(f"{of_file.kind}{of_file.itemsize}")  # without the names of an enumeration
    kind = of_file
    if of_file.kind in "iu" and (unsigned := attributes.flag("_Unsigned")) is not None:
        kind = np.dtype(f"{'u' if unsigned else 'i'}{of_file.itemsize}")
    scale, offset = (1, 0) if is_enum else (attributes.factor("scale_factor", 1), attributes.factor("add_offset", 0))
    dtype = None if (scale, offset) == (1, 0) else _type_of_values(kind, attributes.types)
    missing = [(key, n) for key in ("_FillValue", "missing_value") for n in attributes.numbers(key) or ()]
    if netcdf and not is_enum and "_FillValue" not in data_set.attrs and _is_filled(data_set):
        default = _DEFAULTS.get(of_file.str[1:])
        missing += [] if default is None else [("netCDF's own fill value", default)]
    bounds = attributes.bounds()
    of_values = dtype is not None and kind.kind in "iu" and any(isinstance(bound, float) for bound in bounds)
    low, high = bounds if of_values else (_seen(bound, of_file, kind) for bound in bounds)
    missing = [(key, number) for key, n in missing if (number := _stored(_seen(n, of_file, kind), kind)) is not None]
    if kind == of_file and dtype is None and not missing and (low, high) == (None, None):
        return None
    distinct = tuple({number: (key, number) for key, number in reversed(missing)}.values())[::-1]
    return StoredNumbers(kind if kind != of_file else None, distinct, (low, high), of_values, scale, offset, dtype)


def _is_filled(data_set: Any) -> bool:
    """Whether the library writes fill values at all."""
    h5py = library("h5py", "an HDF5 file")
    return data_set.id.get_create_plist().get_fill_time() != h5py.h5d.FILL_TIME_NEVER


def _seen(number: int | float | None, of_file: np.dtype[Any], kind: np.dtype[Any]) -> int | float | None:
    """A number of the type in the file as one of the type that it stands for."""
    if number is None or kind == of_file or not math.isfinite(number) or number != int(number):
        return number
    bits = 8 * kind.itemsize
    number = int(number)
    if kind.kind == "u":
        return number + 2**bits if -(2 ** (bits - 1)) <= number < 0 else number
    return number - 2**bits if 2 ** (bits - 1) <= number < 2**bits else number


def _stored(number: int | float | None, kind: np.dtype[Any]) -> int | float | None:
    """A number as data of a type have it; None where they cannot have it."""
    if number is None or number != number:
        return None  # NaN is missing in any case
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            found = float(np.array(number, np.float64).astype(kind))
        return found if math.isfinite(found) or not math.isfinite(number) else None
    if not math.isfinite(number) or number != int(number):
        return None
    limits = np.iinfo(kind)
    return int(number) if limits.min <= number <= limits.max else None


def _type_of_values(kind: np.dtype[Any], of_attributes: list[np.dtype[Any]]) -> np.dtype[Any]:
    """The type of scaled numbers."""
    given = [one if one.kind == "f" else np.dtype(np.float64) for one in of_attributes]
    if kind.kind == "f":
        given.append(kind)
    elif kind.itemsize > 2:  # float32 has integers of 24 bits
        given.append(np.dtype(np.float64))
    return np.result_type(np.float32, *given)


class _Attributes:
    """The attributes of a data set as numbers.

    Args:
        name: Of the field.
        given: Of h5py.

    Attributes:
        types: Those of the factors that were asked for.
    """

    def __init__(self, name: str, given: Any) -> None:
        self._name, self._given = name, given
        self.types: list[np.dtype[Any]] = []

    def _array(self, key: str) -> Array | None:
        value = self._given.get(key)
        if value is None or getattr(value, "shape", ()) is None:  # nothing, or an empty attribute
            return None
        array = native(np.asarray(value).reshape(-1))
        if array.dtype.kind in "SUO":  # some programs write numbers as text
            texts = [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in array.tolist()]
            try:
                return np.array([float(text) for text in texts])
            except ValueError:
                raise DataError(f"the attribute '{key}' must be a number, got {shown(', '.join(texts))}") from None
        if array.dtype.kind not in "fiub":
            raise DataError(f"the attribute '{key}' must be a number, got an array of {array.dtype}")
        return array

    def numbers(self, key: str) -> list[int | float] | None:
        """The numbers of an attribute that says what is missing; one that is no number is not used."""
        try:
            array = self._array(key)
        except DataError as error:
            warn(f"'{self._name}': {error}; it is not used")
            return None
        return None if array is None else array.tolist()

    def flag(self, key: str) -> bool | None:
        """Whether an attribute says true or false; None where it says neither."""
        value = self._given.get(key)
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
        return {"true": True, "false": False}.get(text.lower())

    def factor(self, key: str, usual: int) -> int | float:
        """The number of an attribute, or the usual one.

        Raises:
            DataError: it is none.
        """
        try:
            array = self._array(key)
        except DataError as error:
            raise DataError(f"'{self._name}': {error}") from None
        if array is None or not len(array):
            return usual
        number = array[0].item()
        if len(array) > 1 or not math.isfinite(number) or (key == "scale_factor" and number == 0):
            value = number if len(array) == 1 else f"{len(array)} numbers"
            wanted = "a finite number" + (" other than 0" if key == "scale_factor" else "")
            raise DataError(f"'{self._name}': the attribute '{key}' must be {wanted}, got {value}")
        self.types.append(array.dtype)
        return number

    def bounds(self) -> tuple[int | float | None, int | float | None]:
        """The lowest and the highest number that is valid."""
        both = self.numbers("valid_range")
        if both is not None and len(both) == 2:
            low, high = both
        else:
            low, high = ((self.numbers(key) or [None])[0] for key in ("valid_min", "valid_max"))
        return (None if low != low else low), (None if high != high else high)


# ---- rows of HDF5 data sets in any order, without decoding a chunk for each of them
#
# contiguous    mapped into memory: the numbers are in the file as they are
# in chunks     whole chunks are decoded and kept, at most `HELD_BYTES` in memory and the others in the folder for
#               temporary files, so that in random order a chunk is decoded once
#
# A chunk that is decoded for one of its rows costs as much as all of them, and in random order nearly every batch has a
# row of nearly every chunk.

HELD_BYTES = 2**30


class StoredRows:
    """Reads rows of the data sets of one source; a copy in another process begins empty."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Hashable, Array] = OrderedDict()
        self._held = 0
        self._spilled = SpilledColumns()
        self._mapped: dict[Hashable, np.memmap[Any, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredRows, ()

    def read(self, path: Path, stored: Any, rows: NDArray[np.int64]) -> Array:
        """Rows of a data set of numbers.

        Args:
            path: Of its file.
            stored: The data set, open.
            rows: (n,) in increasing order, none twice.
        """
        if 0 in stored.shape:  # of which the library selects no rows
            return np.empty((len(rows), *stored.shape[1:]), stored.dtype)
        if stored.chunks is None:
            return self._contiguous(path, stored, rows)
        size = stored.chunks[0]
        found = np.empty((len(rows), *stored.shape[1:]), stored.dtype)
        blocks = rows // size
        for at in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(blocks)) + 1):
            if len(at):
                number = int(blocks[at[0]])
                found[at] = self._block((path, stored.name, number), stored, number * size)[rows[at] - number * size]
        return found

    def _contiguous(self, path: Path, stored: Any, rows: NDArray[np.int64]) -> Array:
        key = (path, stored.name)
        if key not in self._mapped:
            offset = stored.id.get_offset()
            if offset is None:  # nothing was written, so there is only the fill value
                return np.asarray(stored[rows])
            self._mapped[key] = np.memmap(path, stored.dtype, "r", offset, stored.shape)
        mapped = self._mapped[key]
        check_mapped(path, mapped.offset + mapped.nbytes)
        return mapped[rows]

    def _block(self, key: Hashable, stored: Any, begin: int) -> Array:
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        if key in self._spilled:
            return self._spilled.get(key)
        block = np.asarray(stored[begin : begin + stored.chunks[0]])
        self._blocks[key] = block
        self._held += block.nbytes
        while self._held > HELD_BYTES and len(self._blocks) > 1:
            oldest, values = self._blocks.popitem(last=False)
            self._held -= values.nbytes
            self._spilled.put(oldest, values)
        return block
