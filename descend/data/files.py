"""`read`: a reader of files of any known format, or of an object that has samples.

read(path)     paths.py: files → their format, by content and then by ending → FileFormat.open → FileReader
read(object)   object_source.py: its samples → FileReader
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from descend.arguments import shown
from descend.data.description import ROLES
from descend.data.expansion import UNPACKED_BY, compression_of, plain_name
from descend.data.file_format import FileFormat, FileSource, ReadOptions, added_formats, file_formats, options_of
from descend.data.hugging_face import split_of_role
from descend.data.images.survey import LOOKED_AT, spread
from descend.data.numbered_texts import in_classes, with_numbers
from descend.data.object_source import object_source
from descend.data.paths import SourceFiles, head, is_path, of_role, training_beside
from descend.data.sample_cache import cached
from descend.errors import ConfigurationError, DataError, DescendError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence

    from numpy.typing import NDArray

    from descend.data.images.pictures import ImageKind
    from descend.data.reader_protocol import Array, Field

__all__ = ["FileReader", "ZippedSources", "format_of", "read"]


_COMPRESSED = (
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"7z\xbc\xaf", "7-Zip"),
    (b"Rar!", "RAR"),
)
_LFS = b"version https://git-lfs.github.com/spec/"
_HTML = (b"<!doctype html", b"<html")
_REFUSED = {
    ".xlsx": "is a workbook: save its sheet as CSV",
    ".xls": "is a workbook: save its sheet as CSV",
    ".ods": "is a workbook: save its sheet as CSV",
    ".zip": "is a zip archive: unpack it",
    ".pkl": "holds pickled objects, and reading them would run code: save arrays as .npz, tables as Parquet",
    ".pickle": "holds pickled objects, and reading them would run code: save arrays as .npz, tables as Parquet",
    ".pt": "holds pickled objects, and reading them would run code: save tensors as safetensors",
    ".pth": "holds pickled objects, and reading them would run code: save tensors as safetensors",
}
_OTHERS = (  # how files of other formats begin, what they are, and how to save them
    (b"ORC", "an ORC file", "as Parquet"),
    (b"Obj\x01", "an Avro file", "as Parquet"),
    (b"SQLite format 3", "a database of SQLite", "a table of it as Parquet or CSV"),
    (
        b"MATLAB 5.0",
        "a file of MATLAB",
        "by MATLAB's save(..., '-v7.3'), which is HDF5, or as .npz by scipy.io.loadmat",
    ),
    (b"CDF\x01", "a netCDF 3 file", "as netCDF 4, which is HDF5: nccopy -k nc4"),
    (b"CDF\x02", "a netCDF 3 file", "as netCDF 4, which is HDF5: nccopy -k nc4"),
    (b"CDF\x05", "a netCDF 3 file of 64 bits", "as netCDF 4, which is HDF5: nccopy -k nc4"),
)
_TFRECORD_GZIP = 1032  # gzip expands no more
_DOCUMENTS = frozenset(("readme", "license", "licence", "copying", "changelog", "citation"))  # that say what data are
_FILES_LOOKED_AT = 8  # of another role, for the form of images
_READ_AT_ONCE = 1024  # samples, where only one field of them is wanted


def read(
    source: Any,
    *,
    role: str = "train",
    fields: Sequence[str] | Mapping[str, str] | None = None,
    target: str | Sequence[str] | None = None,
    **options: Any,
) -> FileReader:
    """A reader of files, or of an object that has samples.

        reader = descend.data.read("train.parquet", target="price")
        reader.read(np.array([7, 0]))["price"]

    Args:
        source: A path, a folder, a pattern such as "data/*.csv", or a list of these; a mapping gives each field files
            of its own: {"x": "x.npy", "y": "y.npy"}. The format is known by content, then by the ending of names.
            Or a Dataset, an IterableDataset or a DataLoader of torch, a Dataset or DatasetDict of Hugging Face, a data
            frame, tensors or arrays as in `fit`, or another reader; see `descend.data.object_source`.
        role: "train", "validate", "test" or "tournament". A folder with files for several roles, such as train.csv and
            test.csv, gives those of this one.
        fields: Names of the fields to keep, in this order; a mapping renames them: {"x": "pixels"}.
        target: Names of the fields that a model predicts. `fit` takes them as its targets; text in them is classes.
        **options: Those of the format, see `descend.data.file_format.ReadOptions` and docs/data.md.

    Raises:
        ConfigurationError: an argument is wrong, or an option is not one of the format.
        MissingExtra: the format needs a library that is not installed; the message names it.
        DataError: files are missing, damaged, empty or of no known format.
    """
    if role not in ROLES:
        raise ConfigurationError(
            f"read: role must be one of {', '.join(ROLES)}, got {shown(role)}{nearest(role, ROLES)}"
        )
    chosen = options_of(role, target, options)
    reader = reader_of(source, chosen, fields)
    _check_classes_used(reader, chosen)
    return reader


def reader_of(source: Any, given: ReadOptions, fields: Sequence[str] | Mapping[str, str] | None = None) -> FileReader:
    """See `read`; `classes` may name fields that are not there."""
    notes: tuple[str, ...]
    if not is_path(source) and (found := object_source(source, given)) is not None:
        name, opened = found
        notes = tuple(dict.fromkeys([*getattr(source, "notes", ()), *getattr(opened, "notes", ())]))
        if given.cache:
            raise ConfigurationError(
                f"read: cache= knows files again by their names and times, and {type(source).__name__} is an object: "
                "read the files that it reads"
            )
    elif isinstance(source, Mapping):
        parts = {str(k): _open(part, given) for k, part in cast("Mapping[Any, Any]", source).items()}
        if not parts:
            raise ConfigurationError("read: the mapping of fields to files is empty")
        opened: FileSource = with_numbers(ZippedSources({name: part.source for name, part in parts.items()}), given)
        name = "+".join(dict.fromkeys(part.format for part in parts.values()))
        notes = tuple(dict.fromkeys(note for part in parts.values() for note in part.notes))
    else:
        name, opened, notes = _open(source, given)
    _check_image_options(opened, given, source)
    opened, line = _in_training_classes(name, opened, source, given)
    notes = (*notes, line) if line else notes
    if len(opened) == 0:
        raise DataError(f"{_called(source)} has 0 samples, and at least 1 is needed")
    names = _kept(opened, fields)
    if wrong := [one for one in given.target if one not in names]:
        near = nearest(wrong[0], names)
        if wrong[0] in opened.fields:
            near = ", as fields= leaves it out: name it there, too;"
        raise ConfigurationError(
            f"read: the target '{wrong[0]}' is not a field{near or ';'} there are {', '.join(names)}"
        )
    own: tuple[str, ...] = getattr(source, "target", ())
    kept = given.target or tuple(one for one in (*own, *getattr(opened, "target", ())) if one in names)
    optional: frozenset[str] = getattr(opened, "optional", frozenset()) if fields is None else frozenset()
    return FileReader(given.role, opened, name, names, kept, optional=optional, notes=notes)


def _check_classes_used(reader: FileReader, options: ReadOptions) -> None:
    """Check that the classes that a caller gave are those of fields."""
    fields, classes = {reader.names[name] for name in reader.classes}, options.classes or {}
    unused = [] if fields else ["no field"]
    if isinstance(classes, Mapping):
        unused = [name for name in classes if name not in fields]
    if unused and options.classes is not None:
        near = nearest(unused[0], reader.fields) if isinstance(classes, Mapping) else ""
        raise ConfigurationError(
            f"read: classes= must be of fields that are classes, got those of "
            f"{', '.join(unused)}{near}: name such a field by target=; the fields are "
            f"{', '.join(reader.fields)}, and those of classes {', '.join(reader.classes) or 'none'}"
        )


def _in_training_classes(kind: str, opened: FileSource, source: Any, options: ReadOptions) -> tuple[FileSource, str]:
    """The samples with the class numbers of the training data of the data set, and a line where those are beside it."""
    classes: Mapping[str, Sequence[str]] = getattr(opened, "classes", {})
    table = kind == "hugging face" or any(f.name == kind != "tar" and "columns" in f.uses for f in file_formats())
    names = [
        name
        for name, field in opened.fields.items()
        if (name in classes or (table and options.is_class(name) and field.dtype.kind in "iub"))
        if options.classes_of(name) is None
    ]
    if isinstance(source, Mapping) and is_path(next(iter(source.values()), None)):  # of which some parts have classes
        parts = cast("Mapping[str, Any]", source).items()
        source = {key: part for key, part in parts if any(name.partition(".")[0] == key for name in names)}
    training, is_beside = _training_source(source, options.role) if names and kind != "images" else (None, False)
    if training is None:
        return opened, ""
    groups: Any = options.columns if isinstance(options.columns, Mapping) else {}
    columns = {name: groups.get(name, name) for name in names} if table else options.columns
    try:
        numbers = reader_of(training, replace(options, role="train", columns=columns, cache=False)).classes
    except DescendError as error:
        if is_beside:
            return opened, ""
        raise DataError(
            f"'{names[0]}' must have the class numbers of training, and the training data cannot be read: {error}: say "
            "classes=[...] in the order of their numbers"
        ) from error
    texts: frozenset[str] = getattr(opened, "self_numbered", frozenset())
    if not is_beside and (unlike := [name for name in names if name in texts and name not in numbers]):
        raise DataError(f"'{unlike[0]}' must be numbers for '{options.role}' as it is for 'train', got texts")
    if is_beside and not all({*classes.get(name, ())} <= {*numbers.get(name, ())} for name in names):
        return opened, ""
    line = f"classes have the numbers that they have in {_called(training)}: {', '.join(numbers)}"
    return in_classes(opened, numbers), line if is_beside and numbers else ""


def _training_source(source: Any, role: str) -> tuple[Any, bool]:
    """The training data of a data set, where a role has others; None: there are none. Whether they are beside it."""
    if isinstance(source, Mapping):
        mapping = cast("Mapping[Any, Any]", source)
        with suppress(DataError):  # there is no such split
            if (split := split_of_role(mapping, "train")) is not None:
                return (split, False) if role != "train" else (None, False)
        parts = {name: _training_source(part, role) for name, part in mapping.items()}
        whole = {name: mapping[name] if part is None else part for name, (part, _) in parts.items()}
        return (whole if whole != dict(mapping) else None), any(is_beside for _, is_beside in parts.values())
    if not is_path(source):
        return None, False
    files = SourceFiles.found(source)
    with suppress(DataError):  # there are none of a role
        if role != "train" and set(files.of(role)) != set(files.of("train")):
            return source, False
    places = cast("Sequence[Any]", source) if isinstance(source, (list, tuple)) else [source]
    beside = sorted({path for place in places for path in training_beside(Path(place))})
    return beside or None, bool(beside)


class _Opened(NamedTuple):
    """The samples of some files."""

    format: str
    source: FileSource
    notes: tuple[str, ...]  # see `FileReader`


def _open(source: Any, options: ReadOptions) -> _Opened:
    files = SourceFiles.found(source)
    found, paths, others = _formatted(files, source, options)
    found.check(options)
    for path in paths if found.by_place else ():
        if (kind := compression_of(path)) is not None:
            raise DataError(
                f"{path} is compressed by {kind}, and samples of the format '{found.name}' are read by their place in "
                f"the file: decompress it with {UNPACKED_BY[kind]}"
            )
    more = {"of another format": others, "of no role": files.beside_roles()}
    if not found.folders_name_classes:
        twice = _read_twice(files, paths)
        more["in linked folders that are read anyway"] = sorted(twice)
        paths = [path for path in paths if path not in twice]
    with _blamed(found, paths, options):
        opened = with_numbers(found.open(paths, options), options)
        if beside := _kinds_of_others(found, files, source, options, opened):
            options = replace(options, kinds_beside=beside)
            opened = with_numbers(found.open(paths, options), options)
        opened = cached(opened, paths, options) if options.cache else opened
    line = files.line(_called(source), more)
    return _Opened(found.name, opened, (*([line] if line else []), *getattr(opened, "notes", ())))


@contextmanager
def _blamed(found: FileFormat, paths: Sequence[Path], options: ReadOptions) -> Generator[None]:
    """Errors of opening files as ours, with the name of the reader."""
    try:
        yield
    except DataError as error:
        raise DataError([f"reader '{found.name}' for '{options.role}': {text}" for text in error.problems]) from error
    except DescendError:
        raise
    except Exception as error:  # of any library, and of any kind: files may contain anything
        raise DataError(
            f"reader '{found.name}' for '{options.role}': {_called(paths)} cannot be read: {_reason(error)}"
        ) from error


def _check_image_options(opened: FileSource, options: ReadOptions, source: Any) -> None:
    names = [name for name in ("colors", "depth") if getattr(options, name) is not None]
    if names and not getattr(opened, "pixels", ()):
        name = _called(source) if is_path(source) else f"a {type(source).__name__}"
        raise ConfigurationError(f"read: {names[0]}= is for images, and {name} has none: remove it")


def _formatted(files: SourceFiles, source: Any, options: ReadOptions) -> tuple[FileFormat, list[Path], list[Path]]:
    """The format of the files of a role, those that have it, and those that have another one."""
    paths = files.of(options.role)
    listed = isinstance(source, (list, tuple))
    if options.format is None:
        found, chosen = _format_of_all(paths, listed)
    else:
        found = next(one for one in file_formats() if one.name == options.format)
        # Of a folder those with an ending of the format.
        chosen = paths if listed else [path for path in paths if _ending(path) in found.endings] or paths
    others = set(paths).difference(chosen)
    if options.format is None and not listed and (folder := Path(source)).is_dir():
        chosen = of_role(folder, chosen, options.role)  # folders of other files may be beside those of roles
    return found, chosen, [path for path in paths if path in others]


def _read_twice(files: SourceFiles, paths: Sequence[Path]) -> set[Path]:
    """Files that links to folders lead to once more, where names of folders mean nothing that would tell them apart."""
    if not files.linked.intersection(paths):
        return set()
    seen: set[tuple[str, ...]] = set()
    twice: set[Path] = set()
    for path in sorted(paths, key=lambda path: path in files.linked):  # those that no link leads to first
        values = [part for part in path.parts if "=" in part]  # of the columns of a partitioned table
        what = (str(path.resolve()), *values)
        if what in seen and path in files.linked:
            twice.add(path)
        seen.add(what)
    return twice


def _kinds_of_others(
    found: FileFormat, files: SourceFiles, source: Any, options: ReadOptions, opened: FileSource
) -> tuple[tuple[str, ImageKind], ...]:
    """The kinds of images in files of other roles and not in those of this one, by field: all roles have one form."""
    own: Mapping[str, ImageKind] = getattr(opened, "kinds", {})
    if not own or (options.colors is not None and options.depth is not None):
        return ()
    columns: Any = list(own)
    if isinstance(options.columns, Mapping):
        columns = {name: of for name, of in options.columns.items() if of in own}
    elif options.columns is not None:
        columns = [one for one in options.columns if one.partition(";")[0] in own]
    joined, chosen = dict(own), set(_formatted(files, source, options)[1])
    for role in ROLES:
        how = ReadOptions(role=role, format=found.name, columns=columns if "columns" in found.uses else None)
        with suppress(DescendError):  # there are none of this role, or reading them says what is wrong
            paths = _formatted(files, source, how)[1]
            most = LOOKED_AT if found.folders_name_classes else _FILES_LOOKED_AT
            if role != options.role and set(paths) != chosen:
                other = found.open([paths[one] for one in spread(len(paths), most)], how)
                kinds: Mapping[str, ImageKind] = getattr(other, "kinds", {})
                joined |= {name: one.joined(kinds.get(name, one)) for name, one in joined.items()}
    return tuple(joined.items()) if joined != dict(own) else ()


def _format_of_all(paths: list[Path], listed: bool) -> tuple[FileFormat, list[Path]]:
    """The format of the commonest kind of files, and those of it; files that were listed must all be of it."""
    data = [path for path in paths if path.name.partition(".")[0].lower() not in _DOCUMENTS]
    kinds = Counter(_ending(path) for path in data or paths)
    commonest = min(kinds, key=lambda ending: (-kinds[ending], ending))
    common = [path for path in data or paths if _ending(path) == commonest]
    found = format_of(next((path for path in common if path.stat().st_size), common[0]))
    alike = {commonest, *found.endings}
    chosen = [path for path in paths if _ending(path) in alike]
    if listed and len(chosen) < len(paths):
        odd = next(path for path in paths if _ending(path) not in alike)
        if (other := format_of(odd)) is not found:
            raise DataError(
                f"the files of one reader must have one format: {chosen[0]} is '{found.name}' and {odd} is "
                f"'{other.name}'; a mapping reads fields from different files: {{'x': ..., 'y': ...}}"
            )
        return found, paths
    return found, chosen


def _ending(path: Path) -> str:
    return Path(plain_name(path)).suffix


def format_of(path: Path) -> FileFormat:
    """The format of a file: by its first bytes, then by the ending of its name (before .gz and such).

    A format that a program added and that goes by the ending alone comes first: text of it may look like a table.

    Raises:
        DataError: it is empty, cannot be read, or no format fits.
    """
    begin, ending, formats = head(path), _ending(path), file_formats()
    if not begin:
        raise DataError(f"{path} is empty")
    _check_data(path, begin)
    for one in added_formats():
        if one.recognizes is None and ending in one.endings:
            return one
    for one in formats:
        if one.recognizes and one.recognizes(begin):
            return one
    for one in formats:
        if ending in one.endings:
            return one
    if (kind := compression_of(path)) is not None:
        raise DataError(
            f"{path} is compressed by {kind}, and what is in it is damaged or of no known format: decompress it with "
            f"{UNPACKED_BY[kind]} to see"
        )
    if (found := next((name for magic, name in _COMPRESSED if begin.startswith(magic)), None)) is not None:
        raise DataError(f"{path} is compressed by {found}, which is not read: unpack it")
    if (other := next(((kind, how) for magic, kind, how in _OTHERS if begin.startswith(magic)), None)) is not None:
        raise DataError(f"{path} is {other[0]}, which is not read: save it {other[1]}")
    if _is_tfrecord(path):
        raise DataError(
            f"{path} is a TFRecord file, which is not read: its records are messages of TensorFlow; write them as "
            "Parquet, or as tar shards in webdataset's layout, by a program with TensorFlow"
        )
    known = sorted({ending for one in formats for ending in one.endings})
    raise DataError(
        f"{path} is of no known format: it begins with the bytes {begin[:8].hex(' ')}, and the known endings are "
        f"{', '.join(known)}{nearest(ending, known)}"
    )


def _check_data(path: Path, begin: bytes) -> None:
    """Check that a file is none that stands for data, and none that has to be saved in another form."""
    if begin.startswith(_LFS):
        raise DataError(f"{path} is a pointer to a file that Git LFS has: fetch it by `git lfs pull`")
    if begin.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML):
        raise DataError(f"{path} is a page of HTML, which a server may have sent in place of the file: fetch it again")
    if (why := _REFUSED.get(_ending(path))) is not None and begin.startswith((b"PK", b"\xd0\xcf\x11\xe0", b"\x80")):
        raise DataError(f"{path} {why}")


def _is_tfrecord(path: Path) -> bool:
    """Whether a file begins as TensorFlow writes records: with a length, and a checksum of it."""
    begin = head(path)[:12]
    if len(begin) < 12 or int.from_bytes(begin[:8], "little") > path.stat().st_size * _TFRECORD_GZIP:
        return False
    total = 0xFFFFFFFF
    for byte in begin[:8]:
        total ^= byte
        for _ in range(8):
            total = (total >> 1) ^ (0x82F63B78 if total & 1 else 0)  # CRC-32C
    total ^= 0xFFFFFFFF
    masked = ((total >> 15 | total << 17) + 0xA282EAD8) & 0xFFFFFFFF  # as TensorFlow's record format says
    return masked == int.from_bytes(begin[8:], "little")


def _called(source: Any) -> str:
    paths = list(cast("list[Any]", source)) if isinstance(source, (list, tuple)) else [source]
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0] if lines else 'no reason given'} ({type(error).__name__})"


def _kept(source: FileSource, wanted: Sequence[str] | Mapping[str, str] | None) -> Mapping[str, str]:
    """The name in the source of each field of the reader."""
    if wanted is None:
        return {name: name for name in source.fields}
    if isinstance(wanted, str):
        raise ConfigurationError(f"read: fields must be a list of names or a mapping, got {shown(wanted)}")
    names = dict(wanted) if isinstance(wanted, Mapping) else {name: name for name in wanted}
    problems = [
        f"read: there is no field {shown(name)}{nearest(str(name), source.fields)}; the fields are "
        f"{', '.join(source.fields)}"
        for name in names.values()
        if name not in source.fields
    ]
    if problems or not names:
        raise ConfigurationError(problems or "read: fields must name at least one field")
    return names


@dataclass(frozen=True)
class FileReader:
    """Samples of files, or of an object, in a role; see `OpenReader`. Made by `read`.

    Args:
        role: "train", "validate", "test" or "tournament".
        source: The samples.
        format: Name of the format, for messages.
        names: The name in the source of each field.
        target: Names of the fields that a model predicts.
        shuffle: Whether each epoch has an order of its own; None: in the role "train".
        optional: Fields that `fit` leaves out where the module does not take them by name.
        notes: Lines that a run begins with: what is skipped of the files, and what is suspicious in them.
    """

    role: str
    source: FileSource = field(repr=False)
    format: str
    names: Mapping[str, str]
    target: tuple[str, ...] = ()
    shuffle: bool = True
    optional: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shuffle", self.shuffle and self.role == "train")

    @property
    def fields(self) -> Mapping[str, Field]:
        """Shape and type of each field of a sample, by name."""
        return MappingProxyType({name: self.source.fields[old] for name, old in self.names.items()})

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """For each field whose text was turned into integers, the text of 0, 1, ..."""
        of_source: Mapping[str, Sequence[str]] = getattr(self.source, "classes", {})
        return {name: of_source[old] for name, old in self.names.items() if old in of_source}

    @property
    def left_out(self) -> Mapping[str, str]:
        """Fields that the files have and the reader has not, with the reason."""
        return getattr(self.source, "left_out", {})

    @property
    def largest(self) -> Mapping[str, int]:
        """The magnitude of the integer that is farthest from 0, of fields of integers for which it is known."""
        of_source: Mapping[str, int] = getattr(self.source, "largest", {})
        return {name: of_source[old] for name, old in self.names.items() if old in of_source}

    @property
    def pixels(self) -> frozenset[str]:
        """Fields that hold images as integers from 0 up; `fit` scales them to [0, 1]."""
        of_source: frozenset[str] = getattr(self.source, "pixels", frozenset())
        return frozenset(name for name, old in self.names.items() if old in of_source)

    def __len__(self) -> int:
        return len(self.source)

    def read(self, indices: NDArray[np.int64], epoch: int = 0) -> dict[str, Array]:
        """Read samples; see `OpenReader.read`. The content of files does not depend on the epoch.

        Raises:
            DataError: a sample does not exist or cannot be read; the message names it, its file and the reader.
        """
        ids = np.asarray(indices)
        if ids.size == 0:
            return {name: np.empty((0, *one.shape), one.dtype) for name, one in self.fields.items()}
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(f"indices must be an array (n,) of integers, got {ids.ndim} dimensions of {ids.dtype}")
        if wrong := ids[(ids < 0) | (ids >= len(self))].tolist():
            raise DataError(f"there is no sample {wrong[0]:,}: {self.name} has {len(self):,}, counted from 0")
        ids = ids.astype(np.int64, copy=False)
        try:
            found = self._found(ids, epoch)
        except Exception as error:  # of any library, and of any kind: files may contain anything
            raise self._blame(ids, epoch, error) from error
        return {name: found[old] for name, old in self.names.items()}

    def column(self, name: str) -> Array:
        """The values of a field for all samples, (n, *shape), in the order of their numbers.

        Raises:
            DataError: a sample cannot be read.
        """
        own = getattr(self.source, "column", None)
        try:
            values: Array | None = None if own is None else own(self.names[name])
        except Exception as error:  # of any library, and of any kind: files may contain anything
            raise DataError(f"the field '{name}' of {self.name} cannot be read: {_reason(error)}") from error
        if values is not None:
            return values
        starts, alone = range(0, len(self), _READ_AT_ONCE), replace(self, names={name: self.names[name]})
        parts = [alone.read(np.arange(start, min(start + _READ_AT_ONCE, len(self))))[name] for start in starts]
        return np.concatenate(parts)

    @property
    def name(self) -> str:
        """The name of the reader in messages."""
        return f"reader '{self.format}' for '{self.role}'"

    @property
    def vocabulary(self) -> int | None:
        """Number of different tokens, of text; None for other data."""
        return getattr(self.source, "vocabulary", None)

    def for_module(self, taken: Collection[str]) -> FileReader:
        """Without the optional fields that a module does not take, given the names that it takes."""
        names = {name: old for name, old in self.names.items() if name not in self.optional or name in taken}
        return self if len(names) == len(self.names) else replace(self, names=names)

    @property
    def is_original(self) -> bool:
        """Whether the fields are those of the source, under their names, and no target was chosen."""
        return (
            not self.target
            and all(name == old for name, old in self.names.items())
            and len(self.names) == len(self.source.fields)
        )

    def in_role(self, role: str) -> FileReader:
        """The same samples in another role."""
        return replace(self, role=role, shuffle=role == "train")

    def _at(self, epoch: int) -> FileSource:
        """The samples of an epoch, where they are not the same in all."""
        at_epoch = getattr(self.source, "at_epoch", None)
        return self.source if at_epoch is None else at_epoch(epoch)

    def _found(self, ids: NDArray[np.int64], epoch: int) -> dict[str, Array]:
        source = self._at(epoch)
        some = getattr(source, "read_fields", None)
        return source.read(ids) if some is None else some(ids, frozenset(self.names.values()))

    def _blame(self, ids: NDArray[np.int64], epoch: int, error: Exception) -> DataError:
        """The error that names the first of some samples that cannot be read."""
        for sample in ids.tolist() if len(ids) > 1 else ():
            try:
                self._found(np.array([sample], dtype=np.int64), epoch)
            except Exception as of_sample:
                return self._error(sample, of_sample)
        return self._error(int(ids[0]), error)

    def _error(self, sample: int, error: Exception) -> DataError:
        return DataError(
            f"sample {sample} of {self.name} ({self.source.place(sample)}) cannot be read: {_reason(error)}"
        )


class ZippedSources:
    """Sources of equally many samples side by side, each giving some fields.

    Args:
        parts: By name; a source with one field gives it this name, the fields of others get it as a prefix.

    Raises:
        DataError: the sources differ in length.
    """

    def __init__(self, parts: Mapping[str, FileSource]) -> None:
        self._parts = dict(parts)
        lengths = {name: len(part) for name, part in self._parts.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"'{name}' {count:,}" for name, count in lengths.items())
            raise DataError(f"the files of all fields must have equally many samples, got {counts}")
        self.fields: Mapping[str, Field] = {
            self._named(name, one): part.fields[one] for name, part in parts.items() for one in part.fields
        }
        self.classes = self._of_parts("classes")
        self.left_out = self._of_parts("left_out")
        self.largest = self._of_parts("largest")
        self.self_numbered = frozenset(self._of_parts("self_numbered"))
        self.notes = tuple(dict.fromkeys(note for part in parts.values() for note in getattr(part, "notes", ())))
        self.pixels = frozenset(self._of_parts("pixels"))

    def _named(self, name: str, one: str) -> str:
        return name if len(self._parts[name].fields) == 1 else f"{name}.{one}"

    def _of_parts(self, attribute: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, part in self._parts.items():
            facts: Any = getattr(part, attribute, {})
            values |= {self._named(name, field): facts[field] if isinstance(facts, Mapping) else 1 for field in facts}
        return values

    def __len__(self) -> int:
        return len(next(iter(self._parts.values())))

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples of all parts."""
        found: dict[str, Array] = {}
        for name, part in self._parts.items():
            found.update({self._named(name, one): values for one, values in part.read(samples).items()})
        return found

    def place(self, sample: int) -> str:
        """Where a sample comes from, in each part."""
        return "; ".join(f"{name}: {part.place(sample)}" for name, part in self._parts.items())
