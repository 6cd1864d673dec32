"""LBANN's readers of several files at once: merge_samples and merge_features.

data_file_pattern   in data_filedir, with * and ?: the files, in the order of their names
format              of each file: csv, npy (or numpy), npz (or numpy_npz)

merge_samples       the samples of one file after those of the other
merge_features      sample i has the features of sample i of all files, one after the other. Labels and responses are
                    columns of the table `label_filename`, if it is set
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from descend.data.reader_protocol import Field, Format, Pieces
from descend.errors import ConfigurationError, DataError, nearest
from descend.lbann.readers.locations import FOLDERS, folders
from descend.lbann.readers.tables import CSV, NUMPY, NUMPY_NPZ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array, SampleSource

__all__ = ["MERGE_FEATURES", "MERGE_SAMPLES", "JoinedFeatures", "JoinedSamples"]

FORMATS_OF_FILES = {"csv": CSV, "npy": NUMPY, "numpy": NUMPY, "npz": NUMPY_NPZ, "numpy_npz": NUMPY_NPZ}


class JoinedSamples:
    """The samples of several sources, one source after the other.

    Args:
        parts: Of the same fields; labels may have fewer entries in some of them.

    Raises:
        DataError: the sources have different fields.
    """

    def __init__(self, parts: Sequence[SampleSource]) -> None:
        self._parts = Pieces(parts, [len(part) for part in parts])
        fields = dict(parts[0].fields)
        for part in parts[1:]:
            for name in {**fields, **part.fields}:
                first, other = fields.get(name), part.fields.get(name)
                if name == "labels" and first and other:
                    fields[name] = max(first, other, key=lambda one: one.shape)
                elif first != other:
                    raise DataError(
                        f"the files differ: '{name}' is {_shown(first)} in one and {_shown(other)} in another"
                    )
        self.fields: Mapping[str, Field] = fields

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        found = {name: np.zeros((len(samples), *one.shape), one.dtype) for name, one in self.fields.items()}
        for part, rows, places in self._parts.split(samples):
            for name, values in part.read(rows).items():
                if name == "labels":
                    found[name][places, : values.shape[1]] = values
                else:
                    found[name][places] = values
        return found


def _shown(field: Field | None) -> str:
    return "missing" if field is None else f"{field.shape} of {field.dtype}"


class JoinedFeatures:
    """The features of several sources side by side.

    Args:
        parts: Of equally many samples; their fields "samples" are flattened and joined.
        labels: Gives the other fields; None without them.

    Raises:
        DataError: the sources differ in length.
    """

    def __init__(self, parts: Sequence[SampleSource], labels: SampleSource | None) -> None:
        self._parts, self._labels = parts, labels
        counts = [len(part) for part in (*parts, *([labels] if labels else []))]
        if len(set(counts)) != 1:
            raise DataError(f"the files must have equally many samples, got {', '.join(f'{n:,}' for n in counts)}")
        widths = tuple(int(np.prod(part.fields["samples"].shape)) for part in parts)
        others = {name: one for name, one in labels.fields.items() if name != "samples"} if labels else {}
        self.fields: Mapping[str, Field] = {
            "samples": Field((sum(widths),), np.dtype(np.float32), widths),
            **others,
        }

    def __len__(self) -> int:
        return len(self._parts[0])

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        features = [part.read(samples)["samples"].reshape(len(samples), -1) for part in self._parts]
        found = {"samples": np.concatenate(features, axis=1, dtype=np.float32)}
        if self._labels:
            found |= {name: values for name, values in self._labels.read(samples).items() if name != "samples"}
        return found


def _files(reader: Reader) -> list[Path]:
    if not reader.data_file_pattern:
        raise ConfigurationError("data_file_pattern is not set; set it to a pattern such as 'part-*.csv'")
    pattern = Path(reader.data_file_pattern)
    for folder in folders(reader):
        root = Path(pattern.anchor) if pattern.is_absolute() else folder  # a pattern may be a whole path
        if found := sorted(path for path in root.glob(str(pattern.relative_to(pattern.anchor))) if path.is_file()):
            return found[: reader.max_files_to_load or None]
    raise DataError(
        f"no file in {folders(reader)[-1].absolute()} matches data_file_pattern '{reader.data_file_pattern}'"
    )


def _opened(reader: Reader, seed: int, **changes: object) -> list[SampleSource]:
    if reader.format not in FORMATS_OF_FILES:
        raise ConfigurationError(
            f"format must be one of {', '.join(FORMATS_OF_FILES)}, got '{reader.format}'"
            f"{nearest(reader.format, FORMATS_OF_FILES)}"
        )
    one = FORMATS_OF_FILES[reader.format]
    if unused := [name for name in sorted(_OF_FILES - one.uses) if getattr(reader, name)]:
        raise ConfigurationError(
            f"{unused[0]} is set and files of the format '{reader.format}' do not use it; remove it"
        )
    return [one.open(replace(reader, data_filename=str(path.absolute()), **changes), seed) for path in _files(reader)]


def _open_samples(reader: Reader, seed: int) -> JoinedSamples:
    return JoinedSamples(_opened(reader, seed))


def _open_features(reader: Reader, seed: int) -> JoinedFeatures:
    labels = None
    if reader.label_filename:
        separator = reader.separator if reader.format == "csv" else ""
        of_labels = replace(reader, data_filename=reader.label_filename, separator=separator, skip_cols=0)
        labels = CSV.open(of_labels, seed)
    elif reader.label_col or reader.response_col or reader.num_labels:
        raise ConfigurationError("label_col, response_col and num_labels need label_filename, the table of the labels")
    parts = _opened(reader, seed, disable_labels=True, disable_responses=True)
    return JoinedFeatures(parts, labels)


_OF_FILES = frozenset({"separator", "skip_cols", "skip_rows", "has_header", "scaling_factor_int16"})
_USES = (CSV.uses | NUMPY_NPZ.uses | FOLDERS | {"data_file_pattern", "format", "max_files_to_load"}) - {"data_filename"}
MERGE_SAMPLES = Format(_open_samples, _USES)
MERGE_FEATURES = Format(_open_features, _USES | {"label_filename"})
