"""HDF5 files: a field for each data set, whose first dimension counts the samples; `key` chooses data sets or groups.

fields    the path of a data set without the first slash; of one group that was chosen, the path within it. Where the
          groups at the top are called train, test and so on, that of the role is chosen; of data sets x_train, x_test
          and so on, those of the role, without its name. Scales of other dimensions, as of netCDF-4, are left out
types     numbers, booleans (an enumeration of h5py), times of h5py and text; arrays of different lengths as those of
          Parquet; of a compound type, as PyTables writes tables, a field NAME.PART for each part
numbers   as the attributes of netCDF's conventions mean them, see cf_attributes.py; as they are stored with
          `mask_and_scale=False`
enums     their numbers, with the names as classes where these go from 0 up; as a class they are numbered from 0 up, in
          the order of their numbers

Files are opened by the process that reads, once each. Links to other files are not followed, and data sets whose
content is in other files are left out.

Source: https://docs.h5py.org; the format: https://docs.hdfgroup.org/hdf5/develop/_f_m_t3.html
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.arguments import shown
from descend.data.expansion import check_expansion
from descend.data.file_format import FileFormat
from descend.data.formats.cf_attributes import (
    Meanings,
    StoredRows,
    check_without_meaning,
    is_bare_dimension,
    is_netcdf4,
)
from descend.data.nested_fields import part_of, parts_of
from descend.data.paths import arrays_of_role, role_of
from descend.data.plain_arrays import native
from descend.data.reader_protocol import Field, Pieces
from descend.data.tables.arrow_columns import LENGTH
from descend.errors import ConfigurationError, DataError, library, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["FILE_FORMATS", "HDF5Source"]

MAX_FIELDS = 16_384
_MAX_LINKS = 32_768
_POINTER_BYTES = 16  # of an array of its own length, or of a text
_INDEX = "_i_"  # as PyTables calls the group beside a table
_MAX_DEPTH = 64
_SCANNED = 4096  # arrays of different lengths that are looked at in one go


class HDF5Source:
    """The samples of HDF5 files with the same data sets.

    Args:
        paths: The files.
        options: Those of the caller; `key`, `length`, `mask_and_scale` and classes are used.

    Raises:
        DataError: a file is damaged, or data sets differ in length or between files.
        ConfigurationError: a data set does not exist.
    """

    def __init__(self, paths: Sequence[Path], options: ReadOptions) -> None:
        self._files: dict[Path, Any] = {}
        self._stored = StoredRows()
        self._length = options.length
        self.left_out: dict[str, str] = {}
        self.classes: dict[str, list[str]] = {}
        self._meanings = Meanings()
        there = _data_sets(self._open(paths[0]), self.left_out)
        self._parts: dict[str, tuple[str, ...]] = {}  # of fields that are a part of a compound type, its place
        self._enums: dict[str, dict[int, str]] = {}  # the name of each number
        self._texts: set[str] = set()  # fields that are stored as text
        self._names = self._with_parts(_chosen(there, options.key, paths[0], self.left_out, options.role), there)
        counts: list[int] = []
        found: dict[str, Field] = {}
        self._ragged: dict[str, int] = {}
        for path in paths:
            fields, count = self._fields(path, options)
            if path != paths[0] and fields != found:
                raise DataError(f"{path} has other data sets than {paths[0]}; files of one reader must have the same")
            found = fields
            counts.append(count)
        self.fields: Mapping[str, Field] = _with_lengths(found, self._ragged)
        self._pieces = Pieces(paths, counts)
        for name in list(found):
            if name in self._enums:
                self._name(name, options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}}

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            h5py = library("h5py", "an HDF5 file")
            try:
                file = h5py.File(path, "r", locking=False)
            except OSError as error:
                raise DataError(f"{path} is not an HDF5 file, or was cut off: {str(error).splitlines()[0]}") from error
            weakref.finalize(self, file.close)
            self._files[path] = file
        return self._files[path]

    def _fields(self, path: Path, options: ReadOptions) -> tuple[dict[str, Field], int]:
        """The fields of a file and the number of its samples."""
        file, found, counts = self._open(path), dict[str, Field](), dict[str, int]()
        there = (file[name] for name in self._names.values() if name in file)
        netcdf = options.mask_and_scale and is_netcdf4(file, there)
        types: dict[str, np.dtype[Any]] = {}  # that of a compound type with many parts takes long to make
        for name, inside in list(self._names.items()):
            try:
                stored = file[inside]
                whole = types[inside] if inside in types else types.setdefault(inside, stored.dtype)
                shape, kind = part_of(whole, self._parts.get(name, ()))
                found[name] = self._field(name, stored, shape, kind)
                counts[name] = stored.shape[0]
            except (KeyError, IndexError):
                raise DataError(f"{path} has no data set '{inside}', which {next(iter(self._files))} has") from None
            except DataError as error:
                if options.key is not None:
                    raise DataError(f"{path}: {error}") from error
                self.left_out[name] = str(error)
                del self._names[name]
            else:
                if options.mask_and_scale and name in self._parts:
                    check_without_meaning(path, inside, stored)
                elif options.mask_and_scale:
                    is_enum = name in self._enums
                    found[name] = self._meanings.field(path, name, stored, found[name], netcdf=netcdf, is_enum=is_enum)
        if options.key is None:
            self._leave_out_scales(file, found, counts)
        if len(set(counts.values())) > 1:
            raise DataError(
                f"{path}: all data sets must have one entry for each sample, got {counts}; choose those that belong "
                "together with key=[...]"
            )
        if not found:
            raise DataError([f"{path} has no data set that can be read:", *_indented(self.left_out)])
        return found, next(iter(counts.values()))

    def _leave_out_scales(self, file: Any, found: dict[str, Field], counts: dict[str, int]) -> None:
        """Leave out data sets that describe a dimension, of netCDF-4 and others, where they are none of the samples."""
        scales = [name for name in counts if file[self._names[name]].is_scale]
        lengths = {count for name, count in counts.items() if name not in scales}
        for name in scales:
            bare = is_bare_dimension(file[self._names[name]])
            if lengths and (bare or (len(lengths) == 1 and counts[name] not in lengths)):
                self.left_out[name] = f"'{name}' is the scale of a dimension"
                for of in (self._names, found, counts):
                    del of[name]

    def _with_parts(self, names: Mapping[str, str], there: Mapping[str, Any]) -> dict[str, str]:
        """The path of each field, where a data set of a compound type has a field for each part."""
        found: dict[str, str] = {}
        for name, inside in names.items():
            for parts in parts_of(there[inside].dtype):
                own = ".".join((name, *parts))
                found[own] = inside
                if parts:
                    self._parts[own] = parts
        return found

    def _field(self, name: str, stored: Any, shape: tuple[int, ...], kind: np.dtype[Any]) -> Field:
        """The field of a data set, or of a part of it that has a shape and a type of its own."""
        h5py = library("h5py", "an HDF5 file")
        if stored.shape is None or not stored.shape:
            raise DataError(f"'{name}' holds a single value; the first dimension must count the samples")
        _check_filters(name, stored)
        whole = stored.shape[1:] + shape
        if kind.kind == "S" or h5py.check_string_dtype(kind) is not None:
            if name not in self._parts:
                _check_pointers(name, stored)
            self._texts.add(name)
            return Field(whole, np.dtype(str))
        if (inner := h5py.check_vlen_dtype(kind)) is not None and np.dtype(inner).kind in "fiub":
            if whole:
                raise DataError(f"'{name}' has arrays of different lengths in {len(whole) + 1} dimensions, not one")
            _check_pointers(name, stored)
            longest = self._length or max(
                (
                    len(one)
                    for i in range(0, len(stored), _SCANNED)
                    for one in _part(stored, self._parts.get(name, ()), np.s_[i : i + _SCANNED])
                ),
                default=0,
            )
            self._ragged[name] = max(self._ragged.get(name, 0), longest)
            return Field((-1,), native(np.empty(0, inner)).dtype)
        if kind.kind not in "fiubcmM":
            raise DataError(f"'{name}' is of the type {kind}, which has no array of numbers")
        _check_chunks(name, stored)
        if not stored.id.get_storage_size():  # nothing was written, so there is only the fill value
            promised = max(stored.size * kind.itemsize, len(stored))
            check_expansion(f"'{name}', of which nothing was written,", 0, promised, "write it")
        if (enum := h5py.check_enum_dtype(kind)) is not None:
            numbers = {int(number): text for text, number in sorted(enum.items(), key=lambda item: int(item[1]))}
            if self._enums.setdefault(name, numbers) != numbers:
                raise DataError(f"'{name}' has other names of its numbers than in the first file")
        return Field(whole, native(np.empty(0, kind)).dtype)

    def _name(self, name: str, options: ReadOptions) -> None:
        """Give the names of an enumeration as classes; numbers from 0 up in place of others, where it is a class."""
        names, given = self._enums[name], options.classes_of(name)
        if not options.is_class(name):
            if list(names) == list(range(len(names))):
                self.classes[name] = list(names.values())
            del self._enums[name]
            return
        self.classes[name] = list(names.values()) if given is None else given
        self.fields = {**self.fields, name: Field(self.fields[name].shape, np.dtype(np.int64))}

    def __len__(self) -> int:
        return len(self._pieces)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Rows of the data sets."""
        return self.read_fields(samples, frozenset(self.fields))

    def read_fields(self, samples: NDArray[np.int64], names: frozenset[str]) -> dict[str, Array]:
        """Rows of some data sets; that of arrays of different lengths has the field of these lengths as well."""
        read = {name: inside for name, inside in self._names.items() if {name, name + LENGTH} & names}
        pieces = list(self._pieces.split(samples))
        if len(pieces) == 1:
            path, rows, _ = pieces[0]
            return self._of_file(path, rows, read)
        parts = [self._of_file(path, rows, read) for path, rows, _ in pieces]
        order = np.argsort(np.concatenate([at for _, _, at in pieces]), kind="stable")
        return {name: np.concatenate([some[name] for some in parts])[order] for name in parts[0]}

    def _of_file(self, path: Path, rows: NDArray[np.int64], read: Mapping[str, str]) -> dict[str, Array]:
        """Rows of data sets of a file; copies are made where rows come twice or in another order alone."""
        wanted, back = np.unique(rows, return_inverse=True)  # h5py takes increasing numbers only
        in_order = len(wanted) == len(rows) and bool((back[1:] > back[:-1]).all())
        found: dict[str, Array] = {}
        for name, inside in read.items():
            found.update(self._rows(name, path, self._open(path)[inside], wanted))
        return found if in_order else {name: values[back] for name, values in found.items()}

    def _rows(self, name: str, path: Path, stored: Any, rows: NDArray[np.int64]) -> dict[str, Array]:
        if name not in self._ragged and name not in self._texts and name not in self._parts:
            values = self._stored.read(path, stored, rows)
        else:
            # A stretch is read whole if that is not much more than what is wanted: it is far faster than single rows.
            first, last = int(rows[0]), int(rows[-1]) + 1
            whole = last - first <= 4 * len(rows)
            some = _part(stored, self._parts.get(name, ()), np.s_[first:last] if whole else rows)
            values = some[rows - first] if whole else some
            if name in self._texts:
                values = _as_text(name, values)
        if name in self._ragged:
            longest = self._ragged[name]
            values = [self._meanings.values(path, name, stored, one) for one in values]
            padded = np.zeros((len(rows), longest), self.fields[name].dtype)
            for place, one in enumerate(values):
                padded[place, : len(one)] = one[:longest]
            return {name: padded, name + LENGTH: np.array([min(len(one), longest) for one in values], dtype=np.int64)}
        if name not in self._texts:
            values = self._meanings.values(path, name, stored, values)
        return {name: self._numbered(name, values) if name in self._enums else values}

    def _numbered(self, name: str, values: Array) -> Array:
        """The numbers of classes of an enumeration, from its own."""
        numbers, names = {text: number for number, text in enumerate(self.classes[name])}, self._enums[name]
        texts = [names.get(number, str(number)) for number in values.reshape(-1).tolist()]
        if unknown := [text for text in texts if text not in numbers]:
            raise ValueError(f"'{unknown[0]}' in '{name}' is none of its classes: {', '.join(numbers)}")
        return np.array([numbers[text] for text in texts], dtype=np.int64).reshape(values.shape)

    def place(self, sample: int) -> str:
        """The file, and the index in it."""
        path, row = self._pieces.piece_of(sample)
        return f"{path}, index {row}"


def _with_lengths(found: Mapping[str, Field], longest: Mapping[str, int]) -> dict[str, Field]:
    """The fields with those of the lengths of arrays."""
    fields: dict[str, Field] = {}
    for name, one in found.items():
        fields[name] = Field((longest[name],), one.dtype) if name in longest else one
        if name in longest:
            fields[name + LENGTH] = Field((), np.dtype(np.int64))
    return fields


def _part(stored: Any, parts: Sequence[str], at: slice | NDArray[np.int64]) -> Any:
    """Some rows of a data set, of a part of its compound type where it has one; text as bytes."""
    values = (stored.fields(parts[0]) if parts else stored)[at]
    for part in parts[1:]:
        values = values[part]
    return values


def _as_text(name: str, values: Any) -> Array:
    """Bytes of HDF5, which are UTF-8 or ASCII, as text.

    Raises:
        ValueError: they are neither.
    """
    found = np.asarray(values)
    return np.array([_decoded(name, one) for one in found.reshape(-1).tolist()], dtype=str).reshape(found.shape)


def _decoded(name: str, one: Any) -> str:
    try:
        return one.decode() if isinstance(one, bytes) else str(one)
    except UnicodeDecodeError:
        raise ValueError(f"'{name}' must be text in UTF-8, got {shown(one)}") from None


def _check_pointers(name: str, stored: Any) -> None:
    """Check that a data set of texts or arrays has no more of them than its bytes can tell."""
    check_expansion(
        f"'{name}', with {stored.size:,} entries,",
        stored.id.get_storage_size(),
        stored.size * _POINTER_BYTES,
        "write the entries that there are",
    )


def _check_filters(name: str, stored: Any) -> None:
    """Check that the library can undo what the chunks of a data set were compressed by."""
    h5py = library("h5py", "an HDF5 file")
    if stored.chunks is None:
        return
    settings = stored.id.get_create_plist()
    for number in range(settings.get_nfilters()):
        code, _, _, called = settings.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            about = f"{code} ({called.decode('utf-8', 'replace')})" if called else str(code)
            raise DataError(
                f"'{name}' is compressed by the filter {about}, which this installation of HDF5 does not have: import "
                "a library that brings it, such as hdf5plugin, before, or write the data set with gzip"
            )


def _check_chunks(name: str, stored: Any) -> None:
    """Check that the chunk of a data set does not become far larger than all of its bytes."""
    if stored.chunks is None:
        return
    size = math.prod(stored.chunks) * stored.dtype.itemsize
    check_expansion(f"'{name}'", stored.id.get_storage_size(), size, "write it with smaller chunks")


def _indented(reasons: Mapping[str, str]) -> list[str]:
    return [f"    {reason}" for reason in reasons.values()]


def _data_sets(file: Any, left_out: dict[str, str]) -> dict[str, Any]:
    """All data sets of a file by path; each group is entered once, and links to other files never."""
    h5py = library("h5py", "an HDF5 file")
    found: dict[str, Any] = {}
    entered = {file.id}
    links = fields = 0

    def walk(group: Any, path: str, depth: int) -> None:
        nonlocal links, fields
        for name in group:
            links += 1
            if links > _MAX_LINKS:
                raise DataError(
                    f"{file.filename} has more than {_MAX_LINKS:,} groups, data sets and links; its first dimension "
                    "must count the samples, so a group for each sample is too many"
                )
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                left_out[path + name] = f"{shown(path + name)} is a link to another file, which is not followed"
                continue
            try:
                item = group.get(name)
            except RuntimeError as error:  # such as links that lead in a circle
                left_out[path + name] = f"{shown(path + name)} cannot be opened: {str(error).splitlines()[0]}"
                continue
            if item is None:
                left_out[path + name] = f"{shown(path + name)} is a link to nothing"
                continue
            if isinstance(item, h5py.Dataset):
                if item.external or item.is_virtual:
                    left_out[path + name] = (
                        f"{shown(path + name)} has its content in other files: copy it into this one"
                    )
                    continue
                found[path + name] = item
                kind = item.id.get_type()
                fields += kind.get_nmembers() if isinstance(kind, h5py.h5t.TypeCompoundID) else 1
                if fields > MAX_FIELDS:
                    raise DataError(f"{file.filename} has more than {MAX_FIELDS:,} data sets and parts of these")
            elif isinstance(item, h5py.Group) and item.id not in entered and depth < _MAX_DEPTH:
                entered.add(item.id)  # a group can have any number of names
                if name.startswith(_INDEX) and "table" in group:
                    left_out[path + name] = f"{shown(path + name)} is an index of PyTables"
                    continue
                if item.attrs.get("pandas_type") in ("frame", b"frame"):
                    raise DataError(
                        f"{file.filename}: '{path}{name}' is a table in pandas' fixed layout, which has columns by "
                        "type: write it by to_hdf(..., format='table') or to_parquet"
                    )
                walk(item, f"{path}{name}/", depth + 1)

    walk(file, "", 0)
    return found


def _chosen(
    found: Mapping[str, Any], key: str | Sequence[str] | None, path: Path, left_out: Mapping[str, str], role: str
) -> dict[str, str]:
    """The path in the file of each field."""
    if key is None:
        if not found:
            raise DataError([f"{path} has no data sets that can be read", *_indented(left_out)])
        own = arrays_of_role([name for name, one in found.items() if one.shape], role)
        if own is not None:
            return {name.replace("/", "."): inside for name, inside in own.items()}
        roles = {name.partition("/")[0]: role_of(name.partition("/")[0], whole=True) for name in found if "/" in name}
        if len(set(roles.values())) > 1 and all(roles.values()) and all("/" in name for name in found):
            groups = [group for group, of in roles.items() if of == role]
            if not groups:
                raise DataError(f"{path} has groups for {', '.join(roles)} and none for '{role}'; choose one with key=")
            return _chosen(found, groups[0], path, left_out, role)
        return {name.replace("/", "."): name for name in found}
    wanted = [key] if isinstance(key, str) else list(key)
    names: dict[str, str] = {}
    for one in (name.strip("/") for name in wanted):
        group = {name[len(one) + 1 :]: name for name in found if name.startswith(f"{one}/")}
        if one not in found and not group:
            raise ConfigurationError(
                f"read: {path} has no data set or group '{one}'{nearest(one, found)}; it has "
                f"{', '.join(list(found)[:50])}"
            )
        if one in found:
            names[one.replace("/", ".")] = one
        else:
            names.update({name.replace("/", "."): inside for name, inside in group.items()})
    return names


FILE_FORMATS = (
    FileFormat(
        "hdf5",
        (".h5", ".hdf5", ".hdf"),
        HDF5Source,
        frozenset({"key", "length", "mask_and_scale"}),
        recognizes=lambda begin: begin.startswith(b"\x89HDF\r\n\x1a\n"),
        by_place=True,
    ),
)
