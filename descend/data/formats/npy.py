"""NumPy's files: .npy with one array, .npz with several; the first dimension counts the samples.

.npy   the field "samples"; or the fields of a structured array, by name
.npz   a field for each array, by its key; `key` chooses some of them, and single values are left out; of arrays
       x_train, x_test and so on, those of the role, without its name

Arrays are mapped into memory, not read, except for compressed ones of an .npz, which are read and may be at most
`MAX_COMPRESSED_BYTES`. Arrays of Python objects are refused, since reading one runs code.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (versions 1.0 to 3.0)
"""

from __future__ import annotations

import math
import struct
import zipfile
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from descend.arguments import shown
from descend.data.expansion import check_expansion
from descend.data.file_format import FileFormat
from descend.data.nested_fields import part_of, parts_of
from descend.data.paths import arrays_of_role, check_mapped
from descend.data.plain_arrays import native
from descend.data.reader_protocol import Field, Pieces
from descend.errors import ConfigurationError, DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["FILE_FORMATS", "MAX_COMPRESSED_BYTES", "ArraySource", "StoredArray", "npy_array", "npz_arrays", "of_role"]

MAX_COMPRESSED_BYTES = 2**31
MAX_ARRAYS = 1024  # each is mapped, which takes a descriptor
_MAX_EMPTY = 2**24  # samples that take no byte
_MAX_DIRECTORY_BYTES = 2**22
_END_BYTES = 2**16 + 64  # the last record of a zip file, with its comment
_LOCAL_HEADER_BYTES = 30  # of a zip file, before the name; PKWARE's APPNOTE.TXT section 4.3.7


@dataclass(frozen=True)
class StoredArray:
    """An array in a file whose header was read and whose size matches it.

    Args:
        path: Of the file.
        member: Name within an .npz; empty for an .npy.
        dtype: Of its elements.
        shape: Of the array.
        fortran: Whether the first dimension varies fastest.
        offset: Of the elements in the file; None if they are compressed.
    """

    path: Path
    member: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int | None

    @property
    def of_rows(self) -> np.dtype[Any]:
        """The type of what `rows` returns."""
        return self.dtype

    @cached_property
    def elements(self) -> Array:
        """The array, mapped where it is not compressed."""
        if math.prod(self.shape) == 0:
            return np.empty(self.shape, self.dtype)
        order = "F" if self.fortran else "C"
        if self.offset is not None:
            return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=self.shape, order=order)
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
            return np.lib.format.read_array(cast("BinaryIO", file), allow_pickle=False)

    def rows(self, numbers: NDArray[np.int64]) -> Array:
        """Some entries along the first dimension.

        Raises:
            ValueError: the file became shorter.
        """
        if self.offset is not None:
            check_mapped(self.path, self.offset + math.prod(self.shape) * self.dtype.itemsize)
        return np.asarray(self.elements[numbers])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "elements"}


def _header(file: BinaryIO, path: Path, member: str, size: int, offset: int | None) -> StoredArray:
    """Read a header; `size` is that of the header and the elements, `offset` the place in the file where it begins."""
    place = f"{path}, array '{member.removesuffix('.npy')}'" if member else str(path)
    try:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
    except Exception as error:
        raise DataError(f"{place} is not a NumPy file: {str(error).splitlines()[0]}") from error
    if dtype.hasobject:
        raise DataError(
            f"{place} holds Python objects ({dtype}), and reading them would run code; save numbers or text instead, "
            f"for example with array.astype(float){', or choose other arrays with key=[...]' if member else ''}"
        )
    begin = file.tell()
    promised = begin + math.prod(shape) * dtype.itemsize
    if promised != size:
        raise DataError(
            f"{place} is {'truncated' if size < promised else 'longer than its header says'}: an array {shape} of "
            f"{dtype} makes {promised:,} bytes, and it has {size:,}; write it again"
        )
    if promised == begin and shape and shape[0] > _MAX_EMPTY:
        raise DataError(f"{place} promises {shape[0]:,} samples without a byte of content; write them again")
    return StoredArray(path, member, dtype, shape, fortran, None if offset is None else offset + begin)


def npy_array(path: Path) -> StoredArray:
    """The array of an .npy file.

    Raises:
        DataError: the file is damaged, or the array is of Python objects or a single value.
    """
    with path.open("rb") as file:
        return _along(_header(file, path, "", path.stat().st_size, 0))


def npz_arrays(path: Path, wanted: tuple[str, ...]) -> dict[str, StoredArray]:
    """The arrays of an .npz file with the names that are wanted, or all of them where that is empty.

    Raises:
        ConfigurationError: there is no array of a wanted name.
        DataError: the file is damaged, or an array is of Python objects, a single value, or compressed and too large.
    """
    if (size := _directory_bytes(path)) > _MAX_DIRECTORY_BYTES:
        raise DataError(
            f"{path} has a directory of {size:,} bytes, for more arrays than are read, {MAX_ARRAYS:,}: write the "
            "samples as one array"
        )
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is not an .npz file: {error}") from error
    with archive, path.open("rb") as raw:
        members = {info.filename: info for info in archive.infolist()}
        if other := [name for name in members if not name.endswith(".npy")]:
            raise DataError(
                f"{path} is a zip file with {shown(other[0])} in it, and an .npz has members that end in .npy only: "
                "unpack it with unzip, and read what it holds"
            )
        if not members:
            raise DataError(f"{path} has no arrays")
        if len(wanted or members) > MAX_ARRAYS:
            raise DataError(
                f"{path} has {len(members):,} arrays; at most {MAX_ARRAYS:,} are read: write the samples as one array, "
                "or choose some with key=[...]"
            )
        names = [name.removesuffix(".npy") for name in members]
        if unknown := [name for name in wanted if name not in names]:
            raise ConfigurationError(
                f"read: {path} has no array '{unknown[0]}'{nearest(unknown[0], names)}; it has {', '.join(names)}"
            )
        found: dict[str, StoredArray] = {}
        chosen = [members[f"{name}.npy"] for name in wanted or names]
        check_expansion(
            str(path),
            sum(info.compress_size for info in chosen),
            sum(info.file_size for info in chosen),
            "save it with numpy.savez, then it is mapped",
        )
        for name, info in zip(wanted or names, chosen, strict=True):
            if info.compress_type != zipfile.ZIP_STORED and info.file_size > MAX_COMPRESSED_BYTES:
                raise DataError(
                    f"{path}, array '{name}' is compressed and has {info.file_size:,} bytes; at most "
                    f"{MAX_COMPRESSED_BYTES:,} are decompressed into memory: save it with numpy.savez"
                )
            offset = _offset(raw, info) if info.compress_type == zipfile.ZIP_STORED else None
            with archive.open(info) as file:
                one = _header(cast("BinaryIO", file), path, info.filename, info.file_size, offset)
            if one.shape or wanted:
                found[name] = _along(one)
        if not found:
            raise DataError(f"{path} has single values alone; the first dimension of an array must count the samples")
        return found


def _directory_bytes(path: Path) -> int:
    """The size of the list of members at the end of a zip file, which is read whole; 0 if there is none."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _END_BYTES))
        tail = file.read()
        if (end := tail.rfind(b"PK\5\6")) < 0 or len(tail) < end + 16:
            return 0
        found = int.from_bytes(tail[end + 12 : end + 16], "little")
        if tail[max(0, end - 20) : end].startswith(b"PK\6\7"):  # the place of a record with longer numbers
            file.seek(min(int.from_bytes(tail[end - 12 : end - 4], "little"), size))
            found = max(found if found < 2**32 - 1 else 0, int.from_bytes(file.read(56)[40:48], "little"))
        return found


def _along(array: StoredArray) -> StoredArray:
    """The array, if its first dimension can count samples."""
    if not array.shape:
        place = f"{array.path}, array '{array.member.removesuffix('.npy')}'" if array.member else str(array.path)
        raise DataError(f"{place} holds a single value; the first dimension must count the samples")
    return array


def _offset(raw: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Where the content of a stored member begins: behind its name and the extra field of its local header."""
    raw.seek(info.header_offset)
    header = raw.read(_LOCAL_HEADER_BYTES)
    name, extra = struct.unpack("<HH", header[26:30])
    return info.header_offset + _LOCAL_HEADER_BYTES + name + extra


class ArraySource:
    """Samples of arrays in files.

    Args:
        files: For each file its arrays by the names of fields.

    Attributes:
        left_out: Why arrays of the files are no fields, by their names.

    Raises:
        DataError: arrays of a file differ in length, or files in their fields.
    """

    def __init__(self, files: Sequence[Mapping[str, StoredArray]]) -> None:
        self.left_out: dict[str, str] = {}
        counts: list[int] = []
        for arrays in files:
            lengths = {name: array.shape[0] for name, array in arrays.items()}
            if len(set(lengths.values())) != 1:
                path = next(iter(arrays.values())).path if arrays else "a file"
                raise DataError(
                    f"{path}: all arrays must have one entry for each sample, got lengths {lengths}; choose those that "
                    "belong together with key=[...]"
                )
            counts.append(next(iter(lengths.values())))
        self._files: Pieces[Mapping[str, StoredArray]] = Pieces(files, counts)
        self.fields: Mapping[str, Field] = _fields(files[0])
        for arrays in files[1:]:
            if (joined := _joined(self.fields, other := _fields(arrays))) is None:
                raise DataError(
                    f"{_path(arrays)} has the fields {_shown(other)} and {_path(files[0])} has {_shown(self.fields)}; "
                    "files of one reader must have the same: for files with a field each, pass a mapping "
                    "{'x': 'x.npy', 'y': 'y.npy'}"
                )
            self.fields = joined

    def __len__(self) -> int:
        return len(self._files)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Rows of the arrays."""
        found = {name: np.empty((len(samples), *one.shape), one.dtype) for name, one in self.fields.items()}
        for arrays, rows, places in self._files.split(samples):
            for name, array in arrays.items():
                taken = array.rows(rows)
                for parts in parts_of(taken.dtype):
                    values = taken
                    for part in parts:
                        values = values[part]
                    found[".".join(parts) or name][places] = native(values)
        return found

    def place(self, sample: int) -> str:
        """The file, and the index in it."""
        arrays, row = self._files.piece_of(sample)
        return f"{_path(arrays)}, index {row}"


def _fields(arrays: Mapping[str, StoredArray]) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for name, array in arrays.items():
        for parts in parts_of(array.of_rows):
            shape, kind = part_of(array.of_rows, parts)
            found[".".join(parts) or name] = Field(array.shape[1:] + shape, native(np.empty(0, kind)).dtype)
    return found


def _joined(first: Mapping[str, Field], second: Mapping[str, Field]) -> Mapping[str, Field] | None:
    """Fields of types that hold the values of both, as NumPy's `concatenate` has; None where there are none."""
    if first == second:
        return first
    if first.keys() != second.keys() or any(first[name].shape != one.shape for name, one in second.items()):
        return None
    kinds = {name: {first[name].dtype.kind, one.dtype.kind} for name, one in second.items()}
    if not all(len(of) == 1 or of <= set("iufc") for of in kinds.values()):
        return None
    return {name: Field(one.shape, np.result_type(first[name].dtype, one.dtype)) for name, one in second.items()}


def _path(arrays: Mapping[str, StoredArray]) -> Path:
    return next(iter(arrays.values())).path


def _shown(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name} {one.shape} {one.dtype}" for name, one in fields.items())


def _open_npy(paths: Sequence[Path], options: ReadOptions) -> ArraySource:
    return ArraySource([{"samples": npy_array(path)} for path in paths])


def _open_npz(paths: Sequence[Path], options: ReadOptions) -> ArraySource:
    keys = options.key
    wanted = () if keys is None else (keys,) if isinstance(keys, str) else tuple(keys)
    return ArraySource([of_role(npz_arrays(path, wanted), options) for path in paths])


def of_role(arrays: Mapping[str, StoredArray], options: ReadOptions) -> Mapping[str, StoredArray]:
    """The arrays of the role, where their names tell roles and none was chosen; else all of them."""
    names = arrays_of_role(arrays, options.role) if options.key is None else None
    return arrays if names is None else {name: arrays[inside] for name, inside in names.items()}


FILE_FORMATS = (
    FileFormat("npy", (".npy",), _open_npy, recognizes=lambda begin: begin.startswith(b"\x93NUMPY"), by_place=True),
    FileFormat(
        "npz",
        (".npz",),
        _open_npz,
        frozenset({"key"}),
        recognizes=lambda begin: begin.startswith(b"PK\x03\x04"),
        by_place=True,
    ),
)
