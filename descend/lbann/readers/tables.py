"""LBANN's readers of tables and arrays: csv, numpy, numpy_npz, numpy_npz_conduit_reader.

csv                         columns of numbers in a text; the label and the response are columns
numpy                       one .npy (samples, features); the last column is the label or the response
numpy_npz                   one .npz with the arrays "data", "labels" and "responses"
numpy_npz_conduit_reader    such files, one after the other, named by the lines of data_filename

Which column is which, for csv and numpy:

label       `label_col`, the last column where it is 0; none with `disable_labels`
response    `response_col`; where that is 0, the last column with `disable_labels` and none without it; none with
            `disable_responses`

A column is counted from 0, and from the end where it is negative: −1 is the last one. Three faults of LBANN's readers
are not copied: csv takes the last column for the label whatever label_col says, takes the number of samples for the
number of labels, and turns responses on where disable_responses is set; numpy reads the label one column off.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.formats.npy import StoredArray, npy_array, npz_arrays
from descend.data.plain_arrays import native
from descend.data.reader_protocol import Field, Format, Pieces, one_hot
from descend.errors import ConfigurationError, DataError
from descend.lbann.readers.locations import FOLDERS, located

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array

__all__ = ["CSV", "NUMPY", "NUMPY_NPZ", "NUMPY_NPZ_FILES", "LabelledArrays", "checked_labels"]


class LabelledArrays:
    """Samples with labels, responses, or neither, in arrays of one or several files.

    Args:
        parts: For each file its arrays: "samples" (n, *shape), "labels" (n,) integers, "responses" (n, *shape).
        num_labels: Labels come one-hot with this many entries; 0: one more than the largest label.
        scale: By which samples of 16-bit integers are multiplied.

    Raises:
        DataError: the files differ in what they have.
    """

    def __init__(self, parts: Sequence[Mapping[str, Array]], num_labels: int = 0, scale: float = 1.0) -> None:
        self._parts = Pieces(parts, [len(part["samples"]) for part in parts])
        self._scale = np.float32(scale)
        first = parts[0]
        for part in parts[1:]:
            if part.keys() != first.keys() or any(
                part[name].shape[1:] != first[name].shape[1:] or part[name].dtype != first[name].dtype for name in part
            ):
                raise DataError(f"the files have different arrays: {_shown(part)}, and before that {_shown(first)}")
        self.fields: Mapping[str, Field] = {
            name: self._field(name, array, num_labels, parts) for name, array in first.items()
        }

    def _field(self, name: str, array: Array, num_labels: int, parts: Sequence[Mapping[str, Array]]) -> Field:
        if name == "labels":
            width = num_labels or max(int(part["labels"].max(initial=0)) for part in parts) + 1
            return Field((width,), np.dtype(np.float32))
        is_pixels = name == "samples" and array.dtype == np.uint8
        return Field(array.shape[1:] or (1,), np.dtype(np.uint8 if is_pixels else np.float32))

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Rows of the arrays; labels one-hot."""
        found = {name: np.empty((len(samples), *one.shape), one.dtype) for name, one in self.fields.items()}
        for part, rows, places in self._parts.split(samples):
            for name, array in part.items():
                taken = native(np.asarray(array[rows]))
                if name == "labels":
                    found[name][places] = one_hot(taken, self.fields[name].shape[0])
                elif name == "samples" and taken.dtype == np.int16:
                    found[name][places] = self._scale * taken.astype(np.float32).reshape(found[name][places].shape)
                else:
                    found[name][places] = taken.reshape(len(rows), *self.fields[name].shape)
        return found


def _shown(part: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape} of {array.dtype}" for name, array in part.items())


def checked_labels(labels: Array, num_labels: int, place: str) -> NDArray[np.int64]:
    """Labels as integers.

    Args:
        labels: (n,), or (n, 1).
        num_labels: They are below this, if it is not 0.
        place: Where they come from, for errors.

    Raises:
        DataError: one is not an integer or out of range.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iufb":
        raise DataError(f"{place}: labels must be one integer a sample, got {labels.shape} of {labels.dtype}")
    values = np.asarray(labels, dtype=np.float64)
    wrong = ~np.isfinite(values) | (values < 0) | (values != np.floor(values))
    if num_labels:
        wrong |= values >= num_labels
    if wrong.any():
        sample = int(np.flatnonzero(wrong)[0])
        upper = f"to {num_labels - 1} (num_labels={num_labels})" if num_labels else "up"
        raise DataError(
            f"{place}: sample {sample} has the label {values[sample]:g}, and labels are integers from 0 {upper}; "
            f"{int(wrong.sum()):,} of {len(values):,} are not: correct them, label_col or num_labels"
        )
    return values.astype(np.int64)


def _roles_of_columns(reader: Reader, columns: int, place: str) -> tuple[int | None, int | None]:
    """The columns of the label and of the response."""

    def column(setting: str) -> int:
        number: int = getattr(reader, setting) or -1
        if not -columns <= number < columns:
            raise DataError(f"{place} has {columns} columns, and {setting} is {number}; they are counted from 0")
        return number % columns

    label = None if reader.disable_labels else column("label_col")
    wanted = not reader.disable_responses and (reader.response_col != 0 or reader.disable_labels)
    response = column("response_col") if wanted else None
    if label is not None and label == response:
        raise DataError(
            f"{place}: column {label} is the label and the response; set label_col or response_col to another column, "
            "or disable_labels or disable_responses"
        )
    return label, response


def _split_columns(reader: Reader, table: Array, place: str) -> dict[str, Array]:
    """The samples, labels and responses of a table (samples, columns)."""
    label, response = _roles_of_columns(reader, table.shape[1], place)
    kept = [c for c in range(reader.skip_cols, table.shape[1]) if c not in (label, response)]
    if not kept:
        raise DataError(f"{place} has {table.shape[1]} columns, and none is left for the samples")
    stretch = kept == list(range(kept[0], kept[-1] + 1))  # a view, where an array is mapped from a file
    found = {"samples": table[:, kept[0] : kept[-1] + 1] if stretch else table[:, kept]}
    if label is not None:
        found["labels"] = checked_labels(table[:, label], reader.num_labels, f"{place}, column {label}")
    if response is not None:
        found["responses"] = table[:, response : response + 1]
    return found


def _open_csv(reader: Reader, seed: int) -> LabelledArrays:
    path = located(reader, "data_filename")
    separator = reader.separator or ","
    if len(separator) != 1:
        raise ConfigurationError(f"separator must be one character, got '{separator}'")
    skipped = reader.skip_rows + reader.has_header
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a file without rows, which is refused below
            table = np.loadtxt(
                path, delimiter=separator, skiprows=skipped, ndmin=2, comments=None, quotechar='"', encoding="utf-8-sig"
            )
    except (ValueError, OSError, EOFError) as error:
        raise DataError(
            f"{path} is not a table of numbers: {error} (rows are counted from 0 after the {skipped} that skip_rows "
            "and has_header pass over)"
        ) from error
    if table.size == 0:
        raise DataError(f"{path} has no rows after the {skipped} that skip_rows and has_header pass over")
    part = _split_columns(reader, table, str(path))
    part["samples"] = part["samples"].astype(np.float32)
    return LabelledArrays([part], reader.num_labels)


def _open_numpy(reader: Reader, seed: int) -> LabelledArrays:
    path = located(reader, "data_filename")
    array = npy_array(path).elements
    _numbers(array, str(path))
    if reader.disable_labels and reader.disable_responses:
        return LabelledArrays([{"samples": array}])
    if array.ndim != 2:
        raise DataError(
            f"{path} has the shape {array.shape}; a label or response is the last column of an array of two "
            "dimensions: set disable_labels and disable_responses"
        )
    return LabelledArrays([_split_columns(reader, array, str(path))], reader.num_labels)


def _open_npz(reader: Reader, seed: int) -> LabelledArrays:
    return _of_npz(reader, [located(reader, "data_filename")])


def _open_npz_files(reader: Reader, seed: int) -> LabelledArrays:
    listing = located(reader, "data_filename")
    try:
        names = [line.strip() for line in listing.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{listing} must be a text with the name of an .npz file on each line: {error}") from error
    names = names[: reader.max_files_to_load or None]
    if not names:
        raise DataError(f"{listing} names no file")
    paths = [listing.parent / name for name in names]
    if missing := [path for path in paths if not path.is_file()]:
        raise DataError(f"{listing}: there is no file {missing[0]}")
    return _of_npz(reader, paths)


def _of_npz(reader: Reader, paths: Sequence[Path]) -> LabelledArrays:
    wanted = {"data": "samples"}
    wanted |= {} if reader.disable_labels else {"labels": "labels"}
    wanted |= {} if reader.disable_responses else {"responses": "responses"}
    parts = [_npz_part(reader, path, wanted) for path in paths]
    if reader.scaling_factor_int16 and parts[0]["samples"].dtype != np.int16:
        raise DataError(
            f"scaling_factor_int16 is set and 'data' of {paths[0]} is of {parts[0]['samples'].dtype}, not int16; "
            f"remove it"
        )
    return LabelledArrays(parts, reader.num_labels, reader.scaling_factor_int16 or 1.0)


def _npz_part(reader: Reader, path: Path, wanted: Mapping[str, str]) -> dict[str, Array]:
    stored = npz_arrays(path, ())
    for key in wanted:
        if key not in stored:
            advice = f"; set disable_{key}: true to read the file without them" if key != "data" else ""
            raise DataError(f"{path} has no array '{key}', it has {', '.join(stored) or 'none'}{advice}")
    found: dict[str, Array] = {}
    for key, name in wanted.items():
        array = _same_length(stored[key], stored["data"], key)
        _numbers(array, f"{path}, array '{key}'")
        found[name] = checked_labels(array, reader.num_labels, f"{path}, 'labels'") if name == "labels" else array
    return found


def _same_length(stored: StoredArray, data: StoredArray, key: str) -> Array:
    if stored.shape[0] != data.shape[0]:
        raise DataError(f"{data.path}: 'data' has {data.shape[0]:,} samples and '{key}' has {stored.shape[0]:,}")
    return stored.elements


def _numbers(array: np.ndarray[Any, Any], place: str) -> None:
    if array.dtype.kind not in "iufb":
        raise DataError(f"{place} must be of numbers, got {array.dtype}")


_NPZ = FOLDERS | {"data_filename", "num_labels", "disable_labels", "disable_responses", "scaling_factor_int16"}
_TABLE = FOLDERS | {"data_filename", "num_labels", "disable_labels", "disable_responses"}
_COLUMNS = {"skip_cols", "label_col", "response_col"}
CSV = Format(_open_csv, _TABLE | _COLUMNS | {"separator", "skip_rows", "has_header"})
NUMPY = Format(_open_numpy, _TABLE)
NUMPY_NPZ = Format(_open_npz, _NPZ)
NUMPY_NPZ_FILES = Format(_open_npz_files, _NPZ | {"max_files_to_load"})
