"""LBANN's reader hdf5_data_reader: samples that are groups of HDF5 files, taken apart by two schemas.

sample_list                   files, and the names of the samples in them: each is a group at the top of its file
data_schema_filename          YAML: the tree of data sets in a sample
experiment_schema_filename    YAML: which of them are read. A node without children means all data sets below it

A node of either tree may have the entry `metadata`. It holds for all data sets below the node; deeper nodes go before
those above them, and the experiment's before the data's:

    pack        the field in which the values go: datum → "samples", label → "labels", response → "responses", another
                name is the field's. Data sets of one field are flattened and joined; without `pack` a data set is a
                field of its own, under its path
    ordering    an integer: data sets of a field are joined by it, then in the order of the data schema
    coerce      float or double, checked and computed as float32 and float64; fields are float32
    scale bias  x ← scale · x + bias; a number, or a list with one for each channel
    dims        the shape without channels
    channels    how many there are; a data set has its dims, then its channels
    layout      HWC (the default) or CHW; HWC brings the channels to the front

`enable_labels` and `enable_responses` keep the fields "labels" and "responses"; with `num_labels` a label of one
integer comes one-hot.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.data.reader_protocol import Field, Format, one_hot
from descend.errors import DataError, library, nearest
from descend.lbann.readers.locations import FOLDERS, located
from descend.lbann.readers.sample_list import LISTS, ListedSample, listed_samples
from descend.lbann.readers.tables import checked_labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array

__all__ = ["HDF5_SCHEMA", "SchemaLeaf", "SchemaSamples", "chosen_leaves"]

METADATA = "metadata"
KNOWN = ("pack", "ordering", "coerce", "scale", "bias", "dims", "channels", "layout")
FIELDS = {"datum": "samples", "label": "labels", "response": "responses"}
OPEN_FILES = 64
MAX_DEPTH = 64


@dataclass(frozen=True)
class SchemaLeaf:
    """A data set of each sample, and what is done with its values.

    Args:
        path: In the sample.
        field: In which the values go.
        packed: Whether the field was named by `pack`.
        ordering: Among the data sets of the field.
        scale, bias: One number, or one for each channel; empty for none.
        dims: Shape without channels, empty if it was not given.
        channels: 0 if they were not given.
        channels_last: Whether they are the last dimension in the file.
        double: Whether values are computed as float64.
    """

    path: str
    field: str
    packed: bool = False
    ordering: int = 0
    scale: tuple[float, ...] = ()
    bias: tuple[float, ...] = ()
    dims: tuple[int, ...] = ()
    channels: int = 0
    channels_last: bool = True
    double: bool = False

    def values(self, stored: Array) -> Array:
        """The values of a data set, (*shape) or, with channels, (channels, *dims).

        Raises:
            ValueError: they are not as many as the schema says, or no numbers.
        """
        if stored.dtype.kind not in "iufb":
            raise ValueError(f"'{self.path}' is of {stored.dtype}, and the schema reads numbers")
        x = np.asarray(stored, np.float64 if self.double else np.float32)
        promised = math.prod(self.dims) * max(self.channels, 1)
        if self.dims and x.size != promised:
            raise ValueError(
                f"'{self.path}' has the shape {x.shape}, and dims and channels of the schema make {promised}"
            )
        if self.dims and not self.channels:
            x = x.reshape(self.dims)
        elif self.channels:
            dims = self.dims or (x.size // self.channels,)
            x = x.reshape((*dims, self.channels) if self.channels_last else (self.channels, *dims))
            x = np.moveaxis(x, -1, 0) if self.channels_last else x
        column = (-1, *(1,) * (x.ndim - 1)) if self.channels else (-1,)
        for numbers, combine in ((self.scale, np.multiply), (self.bias, np.add)):
            if numbers:
                x = combine(x, numbers[0] if len(numbers) == 1 else np.array(numbers, x.dtype).reshape(column))
        return x.astype(np.float32)


def chosen_leaves(data: Mapping[str, Any], experiment: Mapping[str, Any], place: str) -> list[SchemaLeaf]:
    """The data sets that an experiment schema chooses of a data schema, in the order of the data schema.

    Args:
        data: Tree of the data sets of a sample.
        experiment: Tree of those that are read.
        place: The file of the experiment schema, for errors.

    Raises:
        DataError: the experiment has a node that the data have not, or metadata are wrong.
    """
    found = list(_leaves(data, experiment, (), {}, {}, place))
    if not found:
        raise DataError(f"{place} chooses no data set of the data schema")
    return found


def _metadata(node: Mapping[str, Any], path: tuple[str, ...], place: str) -> dict[str, Any]:
    found = node.get(METADATA) or {}
    where = "/".join(path) or "the top"
    if not isinstance(found, dict):
        raise DataError(f"{place}: metadata of {where} must be a mapping, got '{found}'")
    for name in found:
        if name not in KNOWN:
            raise DataError(
                f"{place}: metadata of {where} has '{name}'{nearest(name, KNOWN)}, which is not used; remove it "
                f"(known: {', '.join(KNOWN)})"
            )
    return cast("dict[str, Any]", found)


def _leaves(
    data: Any,
    experiment: Any,
    path: tuple[str, ...],
    of_data: dict[str, Any],
    of_experiment: dict[str, Any],
    place: str,
) -> Iterator[SchemaLeaf]:
    data, experiment = data or {}, experiment or {}
    if not isinstance(data, dict) or not isinstance(experiment, dict) or len(path) > MAX_DEPTH:
        raise DataError(f"{place}: {'/'.join(path[:MAX_DEPTH]) or 'the top'} must be a mapping of names to nodes")
    data, experiment = cast("dict[str, Any]", data), cast("dict[str, Any]", experiment)
    of_data = {**of_data, **_metadata(data, path, place)}
    of_experiment = {**of_experiment, **_metadata(experiment, path, place)}
    below = {name: node for name, node in data.items() if name != METADATA}
    wanted = {name: node for name, node in experiment.items() if name != METADATA}
    if unknown := [name for name in wanted if name not in below]:
        raise DataError(
            f"{place}: the data schema has no {'/'.join((*path, unknown[0]))}{nearest(unknown[0], below)}; at this "
            f"place "
            f"it has {', '.join(below) or 'a data set'}"
        )
    if not below and path:
        yield _leaf("/".join(path), {**of_data, **of_experiment}, place)
    for name, node in below.items():
        if not wanted or name in wanted:
            yield from _leaves(node, wanted.get(name), (*path, name), of_data, of_experiment, place)


def _leaf(path: str, metadata: Mapping[str, Any], place: str) -> SchemaLeaf:
    def numbers(name: str) -> tuple[Any, ...]:
        value = metadata.get(name, ())
        return tuple(cast("list[Any]", value)) if isinstance(value, list) else (value,) if value != () else ()

    layout, coerce = str(metadata.get("layout", "HWC")).upper(), str(metadata.get("coerce", "float"))
    if layout not in ("HWC", "CHW") or coerce not in ("float", "double"):
        raise DataError(
            f"{place}: metadata of {path}: layout must be HWC or CHW and coerce float or double, got {layout} and "
            f"{coerce}"
        )
    pack = metadata.get("pack")
    try:
        leaf = SchemaLeaf(
            path,
            FIELDS.get(str(pack), str(pack)) if pack else path,
            bool(pack),
            int(metadata.get("ordering", 0)),
            tuple(float(value) for value in numbers("scale")),
            tuple(float(value) for value in numbers("bias")),
            tuple(int(value) for value in numbers("dims")),
            int(metadata.get("channels", 0)),
            layout == "HWC",
            coerce == "double",
        )
    except (ValueError, TypeError) as error:
        raise DataError(f"{place}: metadata of {path} must be numbers: {error}") from error
    for name in ("scale", "bias"):
        if len(getattr(leaf, name)) not in (0, 1, leaf.channels):
            raise DataError(f"{place}: {name} of {path} must be one number or one for each of {leaf.channels} channels")
    return leaf


class SchemaSamples:
    """Samples of HDF5 files, by a schema.

    Args:
        samples: Their files and names.
        leaves: What is read of each, by field in the order of joining.
        num_labels: Labels come one-hot with this many entries; 0: as they are.

    Raises:
        DataError: the first sample cannot be read.
    """

    def __init__(
        self, samples: Sequence[ListedSample], leaves: Mapping[str, Sequence[SchemaLeaf]], num_labels: int
    ) -> None:
        self._samples, self._leaves, self._num_labels = samples, leaves, num_labels
        self._files: OrderedDict[Path, Any] = OrderedDict()
        if not samples:
            raise DataError("the sample list is empty: it has 0 samples, and at least 1 is needed")
        first = self._parts(0)
        self._shapes = {name: _joined(some).shape for name, some in first.items()}
        if num_labels and math.prod(self._shapes.get("labels", (1,))) != 1:
            raise DataError(f"num_labels is set and the label has the shape {self._shapes['labels']}; remove it")
        self.fields: Mapping[str, Field] = {
            name: Field(
                (num_labels,) if name == "labels" and num_labels else shape,
                np.dtype(np.float32),
                tuple(one.size for one in first[name]) if len(first[name]) > 1 else (),
            )
            for name, shape in self._shapes.items()
        }

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        found = {name: np.empty((len(samples), *shape), np.float32) for name, shape in self._shapes.items()}
        for place in np.argsort(samples, kind="stable").tolist():  # files one after the other
            for name, values in self._sample(int(samples[place])).items():
                if values.shape != self._shapes[name]:
                    raise DataError(
                        f"{self._place(int(samples[place]))}: '{name}' has the shape {values.shape}, and "
                        f"{self._shapes[name]} in the first sample"
                    )
                found[name][place] = values
        if self._num_labels and "labels" in found:
            where = f"samples {samples[0]}, ... of the list" if len(samples) else ""
            labels = checked_labels(found["labels"].reshape(len(samples)), self._num_labels, where)
            found["labels"] = one_hot(labels, self._num_labels)
        return found

    def _place(self, sample: int) -> str:
        return f"sample {sample} ({self._samples[sample].path}, '{self._samples[sample].name}')"

    def _sample(self, number: int) -> dict[str, Array]:
        return {name: _joined(some) for name, some in self._parts(number).items()}

    def _parts(self, number: int) -> dict[str, list[Array]]:
        """The values of each field of a sample, before they are joined."""
        sample = self._samples[number]
        try:
            group = self._file(sample.path)[sample.name]
            return {
                name: [leaf.values(np.asarray(group[leaf.path][()])) for leaf in leaves]
                for name, leaves in self._leaves.items()
            }
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise DataError(f"{self._place(number)} cannot be read: {error}") from error

    def _file(self, path: Path) -> Any:
        """The file, open; the one that was not read for longest is closed for it."""
        if path not in self._files:
            self._files[path] = library("h5py", "the reader 'hdf5_data_reader'").File(path, "r")
            if len(self._files) > OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(path)
        return self._files[path]


def _joined(some: Sequence[Array]) -> Array:
    """One array as it is, at least one number long; several flattened and joined."""
    return np.atleast_1d(some[0]) if len(some) == 1 else np.concatenate([one.reshape(-1) for one in some])


def _names_in(path: Path) -> list[str]:
    try:
        with library("h5py", "the reader 'hdf5_data_reader'").File(path, "r") as file:
            return list(file)
    except OSError as error:
        raise DataError(f"{path} is not an HDF5 file: {error}") from error


def _yaml(path: Path) -> dict[str, Any]:
    """A YAML file whose leaves are texts: no value is given a type, and no code is run."""
    yaml = library("yaml", "the reader 'hdf5_data_reader'")
    try:
        found = yaml.load(path.read_text(encoding="utf-8-sig"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not a YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} must be a mapping of names to nodes")
    return cast("dict[str, Any]", found)


def _open_schema(reader: Reader, seed: int) -> SchemaSamples:
    experiment = located(reader, "experiment_schema_filename")
    data = _yaml(located(reader, "data_schema_filename"))
    found = chosen_leaves(data, _yaml(experiment), str(experiment))
    kept = {"labels": reader.enable_labels, "responses": reader.enable_responses}
    leaves: dict[str, list[SchemaLeaf]] = {}
    for leaf in sorted(found, key=lambda leaf: leaf.ordering):
        if kept.get(leaf.field, True) or not leaf.packed:
            leaves.setdefault(leaf.field, []).append(leaf)
    for name, enabled in kept.items():
        if enabled and name not in leaves:
            word = next(word for word, field in FIELDS.items() if field == name)
            raise DataError(f"enable_{name} is set, and no node of {experiment} has the metadata 'pack: {word}'")
    return SchemaSamples(listed_samples(reader, _names_in), leaves, reader.num_labels)


_OWN = {"data_schema_filename", "experiment_schema_filename", "enable_labels", "enable_responses", "num_labels"}
HDF5_SCHEMA = Format(_open_schema, FOLDERS | LISTS | _OWN | {"max_files_to_load"})
