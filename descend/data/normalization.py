"""Normalized fields: (x − mean) / deviation, with statistics of the training samples.

    parts = normalize(split("train.parquet", {"train": 0.8, "validate": 0.2}), keep="statistics.json")

Statistics are computed once, in one pass over the training samples, and are those of all roles, so nothing of the other
roles is used. Images have a mean and a deviation for each channel, of values from 0 to 1; other fields one for each
entry of a sample. Values that are not finite are left out of the statistics, and a deviation of 0 is taken as 1.

Source of the joining of parts: Chan, Golub and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.arguments import shown
from descend.arguments.strict_keywords import strict_keywords
from descend.data.files import FileReader, read
from descend.data.reader_protocol import Field, WrappedSource
from descend.data.splits import is_split
from descend.errors import ConfigurationError, DataError, StorageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from descend.data.reader_protocol import Array

__all__ = ["FieldStatistics", "NormalizedSource", "normalize", "statistics_of"]

_AT_ONCE = 256  # samples
_MAX_ENTRIES = 2**20  # of a field, each with statistics of its own
_MAX_FILE_BYTES = 2**28


@dataclass(frozen=True)
class FieldStatistics:
    """Means and standard deviations of a field.

    Args:
        shape: Of a sample.
        means: Flat, one for each channel of an image or each entry of another field.
        deviations: Likewise.
        samples: How many samples they are of.
    """

    shape: tuple[int, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    samples: int


def statistics_of(reader: FileReader, names: Iterable[str]) -> dict[str, FieldStatistics]:
    """The statistics of some fields, from one pass over all samples.

    Raises:
        DataError: a sample cannot be read.
    """
    names = list(names)
    count: dict[str, Any] = dict.fromkeys(names, 0)
    mean: dict[str, Any] = dict.fromkeys(names, 0.0)
    spread: dict[str, Any] = dict.fromkeys(names, 0.0)
    for start in range(0, len(reader), _AT_ONCE):
        found = reader.read(np.arange(start, min(start + _AT_ONCE, len(reader)), dtype=np.int64))
        for name in names:
            values = _scaled(found[name], name in reader.pixels).astype(np.float64)
            rows = values if name not in reader.pixels else np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
            finite = np.isfinite(rows)
            number = finite.sum(axis=0)
            here = np.where(finite, rows, 0).sum(axis=0) / np.maximum(number, 1)
            total = np.maximum(count[name] + number, 1)
            apart = here - mean[name]
            around = (np.where(finite, rows - here, 0) ** 2).sum(axis=0)
            spread[name] = spread[name] + around + apart**2 * count[name] * number / total
            mean[name] = mean[name] + apart * number / total
            count[name] = count[name] + number
    return {
        name: FieldStatistics(
            reader.fields[name].shape,
            tuple(np.ravel(mean[name]).tolist()),
            tuple(np.ravel(np.sqrt(spread[name] / np.maximum(count[name], 1))).tolist()),
            len(reader),
        )
        for name in names
    }


def _scaled(values: Array, is_image: bool) -> Array:
    return values / np.iinfo(values.dtype).max if is_image and values.dtype.kind == "u" else values


@strict_keywords()
def normalize(data: Any, fields: Sequence[str] | None = None, *, keep: str | os.PathLike[str] | None = None) -> Any:
    """Readers with normalized fields.

    Args:
        data: Readers by role, as `split` gives them, of which that for "train" has the statistics; or a reader, or
            anything that `read` takes.
        fields: Names of the fields; by default images and floating-point numbers, without targets.
        keep: A JSON file for the statistics. If it is there, they are taken from it instead of the samples, so other
            data, such as those of a later prediction, are normalized in the same way.

    Raises:
        ConfigurationError: a field does not exist or has no numbers, or there is no reader for "train".
        DataError: a sample cannot be read; or the file is damaged, or of other fields.
        StorageError: the file cannot be written.
    """
    readers = cast("Mapping[str, FileReader]", data) if is_split(data) else {"": _reader(data)}
    first = readers.get("", readers.get("train"))
    if first is None:
        raise ConfigurationError(f"normalize: there are readers for {', '.join(readers)} and none for 'train'")
    names = _usual(first) if fields is None else _checked(first, fields)
    path = None if keep is None else Path(keep)
    if path is not None and path.exists():
        found = _loaded(path, first, names)
    else:
        found = statistics_of(first, names)
        if path is not None:
            _write(path, found)
    made = {
        role: replace(one, source=NormalizedSource(one.source, {one.names[n]: s for n, s in found.items()}))
        for role, one in readers.items()
    }
    return made if is_split(data) else made[""]


def _reader(data: Any) -> FileReader:
    return data if isinstance(data, FileReader) else read(data)


def _usual(reader: FileReader) -> list[str]:
    names = [
        name
        for name, one in reader.fields.items()
        if name not in reader.target and (one.dtype.kind == "f" or name in reader.pixels)
    ]
    if not names:
        raise ConfigurationError(
            f"normalize: no field holds images or floating-point numbers ({', '.join(reader.fields)}): name some"
        )
    return _checked(reader, names)


def _checked(reader: FileReader, names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in reader.fields:
            raise ConfigurationError(
                f"normalize: there is no field {shown(name)}{nearest(str(name), reader.fields)}; the fields are "
                f"{', '.join(reader.fields)}"
            )
        one = reader.fields[name]
        if one.dtype.kind not in "iuf" or name in reader.classes:
            raise ConfigurationError(
                f"normalize: '{name}' holds {one.dtype}, and numbers that are no classes are needed"
            )
        if name not in reader.pixels and np.prod(one.shape, dtype=np.int64) > _MAX_ENTRIES:
            raise ConfigurationError(f"normalize: '{name}' has {one.shape} entries, at most {_MAX_ENTRIES:,} are taken")
    return list(names)


def _loaded(path: Path, reader: FileReader, names: Sequence[str]) -> dict[str, FieldStatistics]:
    """The statistics in a file, compared with the fields."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes; at most {_MAX_FILE_BYTES:,} are read")
        kept = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        found = {
            name: FieldStatistics(tuple(of["shape"]), _floats(of["means"]), _floats(of["deviations"]), of["samples"])
            for name, of in kept.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} has no statistics that can be read: {type(error).__name__}: {error}") from error
    for name in names:
        shape = reader.fields[name].shape
        entries = shape[0] if name in reader.pixels else int(np.prod(shape, dtype=np.int64))
        one = found.get(name)
        fits = one is not None and len(one.means) == len(one.deviations) == entries
        if one is None or not fits or (name not in reader.pixels and one.shape != shape):
            what = "no statistics" if one is None else f"statistics of the shape {one.shape}"
            raise DataError(
                f"{path} has {what} for '{name}', whose shape is {shape}: remove the file, or name another one"
            )
    return {name: found[name] for name in names}


def _floats(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise TypeError(f"a list of numbers is needed, got {shown(values)}")
    return tuple(float(value) for value in cast("list[Any]", values))


def _write(path: Path, found: Mapping[str, FieldStatistics]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(json.dumps({name: asdict(one) for name, one in found.items()}), encoding="utf-8")
        beside.replace(path)  # ranks that write at the same time write the same
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.kind == "f" and dtype.itemsize >= 4 else np.dtype(np.float32)


class NormalizedSource(WrappedSource):
    """Samples of a source, some fields of which are normalized; these have a floating-point type.

    Args:
        source: Whose samples they are.
        statistics: Of each field that is normalized.
    """

    def __init__(self, source: Any, statistics: Mapping[str, FieldStatistics]) -> None:
        super().__init__(source)
        self.statistics = statistics
        self._images = self.pixels & statistics.keys()
        self.pixels = self.pixels - statistics.keys()
        self.fields = {
            name: Field(one.shape, _floating(one.dtype)) if name in statistics else one
            for name, one in source.fields.items()
        }

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        found = super().read(samples)
        return {
            name: self._normal(name, values) if name in self.statistics else values for name, values in found.items()
        }

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the source has it without the others."""
        values = super().column(name)
        return values if values is None or name not in self.statistics else self._normal(name, values)

    def _normal(self, name: str, values: Array) -> Array:
        one, shape = self.statistics[name], values.shape[1:]
        wide = (-1, *(1,) * (len(shape) - 1)) if name in self._images else shape
        mean = np.array(one.means).reshape(wide)
        deviation = np.array(one.deviations).reshape(wide)
        scaled = _scaled(values, name in self._images)
        return ((scaled - mean) / np.where(deviation > 0, deviation, 1)).astype(self.fields[name].dtype)
