"""Shards in webdataset's layout: tar files in which members with the same name before the first dot are a sample.

ending of a member                      field, called like the ending
.jpg .png .webp ... (see `images`)      an image
.cls .cls2 .index .id                   an integer; or text, which names a class, where the first sample has text
.txt .text .transcript                  text; integers where the field is a class
.json                                   a number, text or list; of an object a field json.KEY for each key
.npy                                    an array

`columns=["jpg;png", "cls"]` takes either of two endings for a field, which is called like the first.

Arrays and lists of different lengths need `length`: they are padded by zeros or cut, and the field NAME_length says how
long each was, as for tables. Other endings are left out, except for those of pickled objects, which are refused unless
`columns` chooses others.

Headers are read once, when the files are opened, and contents by their offsets, so samples come in any order. Of a
compressed file there is a decompressed copy meanwhile, in the folder for temporary files (`TMPDIR`).

Source: https://github.com/webdataset/webdataset, "The WebDataset Format"
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.arguments import shown
from descend.data.expansion import DAMAGES, UNPACKED_BY, compression_of, opened
from descend.data.file_format import IMAGE_OPTIONS, FileFormat
from descend.data.formats.image_files import ENDINGS as IMAGE_ENDINGS
from descend.data.formats.tar_index import ShardIndex, index_of
from descend.data.images.survey import form_of_images
from descend.data.loading.read_threads import in_threads
from descend.data.paths import skipped_line
from descend.data.plain_arrays import native
from descend.data.reader_protocol import Field, Pieces
from descend.data.tables.arrow_columns import LENGTH
from descend.data.tables.cells import in_range
from descend.errors import ConfigurationError, DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.images.pictures import ImageForm, ImageKind
    from descend.data.reader_protocol import Array

__all__ = ["FILE_FORMATS", "TarShards"]

_INTEGERS = ("cls", "cls2", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript")
_PICKLED = ("pyd", "pickle", "pkl", "pth", "pt")
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_FRACTION = re.compile(r"[+-]?(?:\d+[.]\d*|[.]\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?")
_UNREAD = "with an ending that is not read"
_PROBED = 64  # samples that show the types of numbers in JSON
_OPEN_FILES = 64
_PARSING = threading.Lock()  # NumPy reads headers by `ast`, which fails in several threads: python/cpython#106905
_AT_ONCE = 2**20
MAX_COPIED_BYTES = 2**36


def _values(ending: str, content: bytes) -> dict[str, Any]:
    """What a member holds, by the names of its fields; images as they are."""
    name = _name(ending)
    kind = name.rpartition(".")[2]
    if kind in _INTEGERS:
        text = _text(name, content).strip()
        if _FRACTION.fullmatch(text):
            raise ValueError(f"'{name}' is {text}, and a class is an integer or text; store other numbers as .json")
        return {name: int(text) if _INTEGER.fullmatch(text) else text}
    if kind in _TEXTS:
        return {name: _text(name, content)}
    if kind == "npy":
        return {name: native(_array(content))}
    if kind == "json":
        return dict(_parts(name, json.loads(content, parse_float=in_range)))
    return {name: content}


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"'{name}' is no text in UTF-8: {shown(content)}") from error


def _name(ending: str) -> str:
    """The field of an ending; of several, such as "jpg;png", the first one."""
    return ending.partition(";")[0]


def _array(content: bytes) -> Array:
    """An array whose header promises no more than the content has."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with _PARSING:
        shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("the array holds Python objects, and reading them would run code")
    if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"an array {shape} of {dtype} was promised, and the file has {len(content):,} bytes")
    flat = np.frombuffer(content, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def _parts(name: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(name, np.array(value) if isinstance(value, list) else value)]
    items = cast("dict[str, Any]", value).items()
    return [part for key, inner in items for part in _parts(f"{name}.{key}", inner)]


@dataclass(frozen=True)
class _Form:
    """How the values of a member become a field.

    Args:
        ending: Of the member.
        field: Of the sample, padded.
        image: How an image is decoded.
        length: To which the first dimension is padded or cut; None refuses other lengths.
        is_class: Whether text names a class, so that blanks and newlines around it do not count.
    """

    ending: str
    field: Field
    image: ImageForm | None = None
    length: int | None = None
    is_class: bool = False

    def fitted(self, name: str, value: Any) -> Array:
        """A value in the shape and type of the field."""
        if self.image is not None:
            return self.image.decode(value)
        if self.field.dtype.kind == "U":
            if not isinstance(value, str) and name.rpartition(".")[2] not in _INTEGERS:
                raise ValueError(f"'{name}' is {shown(value)}, and text in other samples")
            return np.array(str(value).strip() if self.is_class else str(value))
        array = np.asarray(math.nan if value is None and self.field.dtype.kind == "f" else value)
        if not np.can_cast(array.dtype, self.field.dtype, "same_kind"):
            raise ValueError(f"'{name}' is {shown(value)}, and the first samples have {self.field.dtype}")
        shape = self.field.shape
        if self.length is not None and array.ndim == len(shape):
            padded = np.zeros((self.length, *array.shape[1:]), array.dtype)
            padded[: len(array)] = array[: self.length]
            array = padded
        if array.shape != shape:
            remedy = "pad or cut them with length=" if array.ndim == len(shape) > 0 else "they must be alike"
            raise ValueError(f"'{name}' has the shape {array.shape} and {shape} in the first sample; {remedy}")
        return _converted(name, array, self.field.dtype)


def _converted(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """An array in the type of a field, which must have all its values.

    Raises:
        ValueError: it has not, such as 300 of one byte, 2**53 + 1 of float64, or 1e300 of float32.
    """
    if array.dtype == dtype or array.dtype.kind not in "iuf" or dtype.kind not in "iuf":
        return array.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(dtype)
        same = (found.astype(array.dtype) == array) & ((found < 0) == (array < 0)) | (array != array)
    if not np.all(same):
        wrong = array[~same].flat[0] if array.ndim else array[()]
        raise ValueError(f"'{name}' must be {dtype}, as in other samples, which does not have {wrong}: store one type")
    return found


class _OpenFile:
    """A descriptor of a file, closed with the last reference to it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)


def _column(shard: ShardIndex, row: int, ending: str) -> int:
    """Where the index of a shard has a member of a sample, which may have one of several endings; −1: it has none."""
    for one in ending.split(";"):
        if one in shard.endings and shard.offsets[row, at := shard.endings.index(one)] >= 0:
            return at
    return -1


def _instead(shard: ShardIndex, row: int, ending: str) -> str:
    """What to do where a sample has an image of another kind."""
    there = [one for one, offset in zip(shard.endings, shard.offsets[row].tolist(), strict=True) if offset >= 0]
    others = [one for one in there if f".{one.rpartition('.')[2]}" in IMAGE_ENDINGS and one not in ending.split(";")]
    if f".{_name(ending).rpartition('.')[2]}" not in IMAGE_ENDINGS or not others:
        return ""
    return f", it has .{others[0]}; columns=['{ending};{others[0]}', ...] takes either"


class TarShards:
    """Samples of tar files; see `FileSource`.

    Args:
        paths: The shards.
        options: Those of the caller.

    Raises:
        DataError: a file is damaged or compressed, or the first samples cannot be read.
        ConfigurationError: a member that was asked for does not exist.
    """

    def __init__(self, paths: Sequence[Path], options: ReadOptions) -> None:
        self._originals: dict[Path, Path] = {}  # of decompressed copies
        shards = [index_of(path) for path in self._decompressed(paths)]
        self._shards = Pieces(shards, [len(shard) for shard in shards])
        self._descriptors: dict[Path, _OpenFile] = {}
        if not len(self._shards):
            raise DataError(f"{paths[0]} has no samples: no member is called NAME.ENDING")
        first = next(shard for shard in shards if len(shard))
        has = first.offsets[:_PROBED] >= 0
        usual = has[0] | (2 * has.sum(axis=0) > len(has))  # the first sample may lack a member
        there = [ending for ending, some in zip(first.endings, usual.tolist(), strict=True) if some]
        self.left_out: dict[str, str] = {}
        self.kinds: dict[str, ImageKind] = {}
        self._forms = self._settled(self._chosen(there, options), options)
        self.class_texts = frozenset(name for name in self._forms if name.rpartition(".")[2] in _INTEGERS)
        self.pixels = frozenset(name for name, form in self._forms.items() if form.image)
        self.notes = self._notes(paths, shards) if options.columns is None else ()
        self.notes += tuple(note for form in self._forms.values() if form.image for note in form.image.notes)
        ragged = {name + LENGTH: Field((), np.dtype(np.int64)) for name, form in self._forms.items() if form.length}
        self.fields: Mapping[str, Field] = {**{name: form.field for name, form in self._forms.items()}, **ragged}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptors": {}}

    def _decompressed(self, paths: Sequence[Path]) -> list[Path]:
        """The files, or copies of those that are compressed, which are removed with this object."""
        if not any(map(compression_of, paths)):
            return list(paths)
        folder, left = Path(tempfile.mkdtemp(prefix="descend-shards-")), MAX_COPIED_BYTES
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        found: list[Path] = []
        for number, path in enumerate(paths):
            if (kind := compression_of(path)) is None:
                found.append(path)
                continue
            found.append(folder / f"{number}.tar")
            self._originals[found[-1]] = path
            try:
                with opened(path) as file, found[-1].open("wb") as copy:
                    while left > 0 and (content := file.read(_AT_ONCE)):
                        left -= copy.write(content)
            except DAMAGES as error:
                raise DataError(f"{path} cannot be decompressed into {folder}: {error}") from error
            if left <= 0:
                raise DataError(
                    f"{path} and those before it have more than {MAX_COPIED_BYTES:,} bytes when decompressed; "
                    f"decompress them with {UNPACKED_BY[kind]}"
                )
        return found

    def _notes(self, paths: Sequence[Path], shards: Sequence[ShardIndex]) -> tuple[str, ...]:
        """One line on the members that are not read."""
        skipped: dict[str, tuple[list[str], int]] = {}
        read = {ending for form in self._forms.values() for ending in form.ending.split(";")}
        for shard in shards:
            for kind, (names, count) in shard.skipped.items():
                of_kind = skipped.setdefault(kind, ([], 0))
                skipped[kind] = ([*of_kind[0], *names], of_kind[1] + count)
            for ending in (one for one in shard.endings if one not in read):
                of_kind = skipped.setdefault(_UNREAD, ([], 0))
                count = int((shard.offsets[:, shard.endings.index(ending)] >= 0).sum())
                skipped[_UNREAD] = ([*of_kind[0], f".{ending}"], of_kind[1] + count)
        what = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        line = skipped_line(skipped, sum(shard.members for shard in shards), f"members of {what}")
        return (line,) if line else ()

    def _chosen(self, there: Sequence[str], options: ReadOptions) -> list[str]:
        """The endings that become fields."""
        if options.columns is not None:
            if isinstance(options.columns, Mapping):
                raise ConfigurationError("read: columns of a tar file are a list of endings; rename with fields={...}")
            if unknown := [one for one in options.columns if not set(one.split(";")) & set(there)]:
                raise ConfigurationError(
                    f"read: the first sample has no member .{unknown[0]}{nearest(unknown[0], there)}; it has "
                    f"{', '.join(there)}"
                )
        kept: list[str] = []
        for ending in there if options.columns is None else list(options.columns):
            kind = _name(ending).rpartition(".")[2]
            if kind in _PICKLED:
                others = [one for one in there if one.rpartition(".")[2] not in _PICKLED]
                raise DataError(
                    f"{self.place(0)} has a member .{ending} of pickled objects, and reading it would run code: store "
                    f"it as .npy or .json, or leave it out with columns={others}"
                )
            if kind in (*_INTEGERS, *_TEXTS, "npy", "json") or f".{kind}" in IMAGE_ENDINGS:
                kept.append(ending)
            else:
                self.left_out[ending] = f"there is no reader of .{kind}"
        if not kept:
            raise DataError(f"{self.place(0)} has no member that can be read: {', '.join(there)}")
        return kept

    def _settled(self, endings: Sequence[str], options: ReadOptions) -> dict[str, _Form]:
        """The form of each field, from the first samples."""
        found: dict[str, _Form] = {}
        count = min(_PROBED, len(self))
        for ending in endings:
            if f".{_name(ending).rpartition('.')[2]}" in IMAGE_ENDINGS:
                name = _name(ending)
                image = form_of_images(len(self), partial(self._image, ending=ending), options, self.place, field=name)
                self.kinds[name] = image.kind
                found[name] = _Form(ending, image.field, image)
                continue
            sample = next((one for one in range(count) if self._has(one, ending)), 0)
            try:
                of_first = self._of_first(sample, ending, count)
                kinds = {name: self._dtypes(name, ending, count) for name in of_first}
            except Exception as error:  # of any library, and of any kind: files may contain anything
                raise DataError(f"{self.place(sample)}: the member .{ending} cannot be read: {error}") from error
            for name, value in of_first.items():
                found[name] = self._form(name, ending, value, kinds[name], options)
        return found

    def _of_first(self, sample: int, ending: str, count: int) -> dict[str, Any]:
        """The values of a member of a sample; numbers in JSON that it lacks are those of another one of the first."""
        found = _values(ending, self._content(sample, ending))
        if _name(ending).rpartition(".")[2] != "json":
            return found
        more: dict[str, Any] = {}
        for other in range(count):
            with suppress(Exception):  # of any library; the sample is refused with its reason when it is read
                more.update(_values(ending, self._content(other, ending)))
        for name in (one for one in more if one not in found and f"{_name(ending)}." in one):
            if isinstance(more[name], (int, float)):
                found[name] = more[name]
            else:
                self.left_out[name] = "the first sample has none, and it is no number that may be missing"
        return found

    def _dtypes(self, name: str, ending: str, count: int) -> np.dtype[Any]:
        """The type that holds a value in each of the first samples that have one."""
        kinds: list[np.dtype[Any]] = []
        for sample in range(count):
            try:
                value = _values(ending, self._content(sample, ending)).get(name)
            except Exception:  # of any library; the sample is refused with its reason when it is read
                continue
            kinds.append(np.dtype(np.float64) if value is None else np.asarray(value).dtype)
        if _name(ending).rpartition(".")[2] in _INTEGERS:
            return kinds[0]
        if any(kind.kind == "U" for kind in kinds):
            return np.dtype(str)
        return np.result_type(*kinds)

    def _form(self, name: str, ending: str, value: Any, dtype: np.dtype[Any], options: ReadOptions) -> _Form:
        if dtype.kind == "O":
            if isinstance(value, int):
                raise DataError(f"{self.place(0)}: '{name}' must have 64 bits, got {value}: write it as text")
            raise DataError(f"{self.place(0)}: '{name}' is a list whose parts differ in length")
        if dtype.kind == "U":
            return _Form(ending, Field((), dtype), is_class=options.is_class(name))
        shape = np.asarray(value).shape
        length = options.length if shape else None
        return _Form(ending, Field((length, *shape[1:]) if length else shape, dtype), length=length)

    def _has(self, sample: int, ending: str) -> bool:
        shard, row = self._shards.piece_of(sample)
        return _column(shard, row, ending) >= 0

    def _image(self, sample: int, ending: str) -> bytes | None:
        return self._content(sample, ending) if self._has(sample, ending) else None

    def _content(self, sample: int, ending: str) -> bytes:
        shard, row = self._shards.piece_of(sample)
        return self._member(shard, row, ending)

    def _member(self, shard: ShardIndex, row: int, ending: str) -> bytes:
        at = _column(shard, row, ending)
        if at < 0:
            raise ValueError(f"the sample has no member .{_name(ending)}{_instead(shard, row, ending)}")
        if shard.path not in self._descriptors:
            if len(self._descriptors) >= _OPEN_FILES:
                self._descriptors.clear()
            self._descriptors[shard.path] = _OpenFile(shard.path)
        size = int(shard.sizes[row, at])
        content = os.pread(self._descriptors[shard.path].descriptor, size, int(shard.offsets[row, at]))
        if len(content) < size:
            raise ValueError(f"the file ends within the member .{ending}")
        return content

    def __len__(self) -> int:
        return len(self._shards)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        return self._read(samples, self._forms)

    def read_fields(self, samples: NDArray[np.int64], names: frozenset[str]) -> dict[str, Array]:
        """Some fields of the samples, whose other members are not read."""
        return self._read(samples, {name: form for name, form in self._forms.items() if {name, name + LENGTH} & names})

    def _read(self, samples: NDArray[np.int64], forms: Mapping[str, _Form]) -> dict[str, Array]:
        rows: dict[str, Any] = {
            # Text has a width of its own in each sample.
            name: [np.empty(0)] * len(samples)
            if form.field.dtype.kind == "U"
            else np.empty((len(samples), *form.field.shape), form.field.dtype)
            for name, form in forms.items()
        }
        contents: list[dict[str, bytes]] = [{} for _ in samples]
        lengths = {name: np.zeros(len(samples), np.int64) for name, form in forms.items() if form.length}
        endings = {form.ending for form in forms.values()}
        for shard, numbers, places in self._shards.split(samples):
            for at in np.argsort(numbers):  # in the order of the file
                row, place = int(numbers[at]), int(places[at])
                contents[place] = {ending: self._member(shard, row, ending) for ending in endings}

        def decode(place: int) -> None:
            values: dict[str, Any] = {}
            for ending, content in contents[place].items():
                values.update(_values(ending, content))
            if new := next((name for name in values if name not in self._forms and name not in self.left_out), None):
                raise ValueError(
                    f"the sample has '{new}', which none of the first {_PROBED} samples has: write null there where it "
                    "is missing, or leave it out of all"
                )
            for name, form in forms.items():
                if name not in values and form.field.dtype.kind != "f":
                    raise ValueError(f"the sample has no '{name}'")
                rows[name][place] = form.fitted(name, values.get(name))
                if form.length is not None:
                    lengths[name][place] = min(len(values[name]), form.length)

        in_threads(decode, len(samples))
        return {
            **{name: np.stack(some) if isinstance(some, list) else some for name, some in rows.items()},
            **{name + LENGTH: some for name, some in lengths.items()},
        }

    def place(self, sample: int) -> str:
        """The file, and the name of the sample in it."""
        shard, row = self._shards.piece_of(sample)
        return f"{self._originals.get(shard.path, shard.path)}, {shard.key(row)}"


def _is_tar(begin: bytes) -> bool:
    return begin[257:262] == b"ustar"


FILE_FORMATS = (
    FileFormat(
        "tar", (".tar", ".tgz"), TarShards, frozenset({"columns", "length"}) | IMAGE_OPTIONS, recognizes=_is_tar
    ),
)
