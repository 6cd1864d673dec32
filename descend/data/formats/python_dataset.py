"""Samples of a Python object from a pickle file, LBANN's reader "python_dataset".

    python_dataset { dataset_path: "train.pkl" module_dir: "." }

The object has `__len__`, `__getitem__` and `get_sample_dims`; a sample and the dimensions have the attributes `sample`,
`label` and `response`, those that there are, which become the fields samples, labels and responses.

Reading a pickle runs code. So it is read only in LBANN's driver, and only where the process that started the driver has
signed it: `FILE.signature` holds the HMAC-SHA256 of its bytes, in hexadecimal digits, under the key in the environment
variable DESCEND_LBANN_DATASET_KEY.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from descend.data.formats.python_module import RowFiller, SampleTaker, require_code, shape_of
from descend.data.reader_protocol import Field, Format
from descend.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array

__all__ = ["KEY_VARIABLE", "PYTHON_DATASET", "PickledSamples"]

KEY_VARIABLE: Final = "DESCEND_LBANN_DATASET_KEY"
_FIELDS = {"sample": "samples", "label": "labels", "response": "responses"}


class PickledSamples:
    """The samples of the reader "python_dataset"."""

    def __init__(self, reader: Reader, seed: int) -> None:
        require_code("the reader 'python_dataset'")
        settings = reader.python_dataset
        if settings is None or not settings.dataset_path:
            raise ConfigurationError("needs python_dataset { dataset_path: ... } that says where the data set is")
        self._path = Path(settings.dataset_path)
        folder = str(Path(settings.module_dir).absolute()) if settings.module_dir else str(Path.cwd())
        data = _signed(self._path)
        try:
            dataset = _loaded(data, folder)
            self._count = len(dataset)
            dims = dataset.get_sample_dims()
        except Exception as error:  # code of the user, which may raise anything
            raise DataError(
                f"the data set in {self._path} cannot be used: {type(error).__name__}: {error}; its module is looked "
                f"for in {folder}"
            ) from error
        shapes = {
            name: shape_of(getattr(dims, own), f"{self._path}: dimensions of {own}")
            for own, name in _FIELDS.items()
            if getattr(dims, own, None) is not None
        }
        if "samples" not in shapes:
            raise DataError(f"the data set in {self._path} has no dimensions of sample, which every sample needs")
        self.fields: Mapping[str, Field] = {name: Field(shape, np.dtype(np.float32)) for name, shape in shapes.items()}
        self._filler = RowFiller(str(self._path))
        own = {name: one for one, name in _FIELDS.items() if name in shapes}
        workers = settings.workers
        source = partial(_source, self._path, folder, own) if workers > 1 else partial(_taker, dataset, own)
        self._samples = SampleTaker(source, workers, str(self._path))

    def __len__(self) -> int:
        return self._count

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Take samples of the object, one after the other.

        Raises:
            DataError: one cannot be taken, lacks a field, or is of another size.
        """
        rows = {
            name: np.zeros((len(samples), *field.shape), np.float32) for name, field in self.fields.items()
        }  # a shorter sample leaves zeros
        for place, given in enumerate(self._samples.take(samples)):
            for name, values in given.items():
                self._filler.fill(rows[name][place], values, int(samples[place]))
        return dict(rows)


def _loaded(data: bytes, folder: str) -> Any:
    """The object of a signed pickle, whose module is looked for in a folder."""
    sys.path[:0] = [folder] if folder not in sys.path else []
    return pickle.loads(data)  # `_signed` has verified that this run's own script wrote it


def _source(path: Path, folder: str, own: Mapping[str, str]) -> Callable[[int], Mapping[str, Any]]:
    """The function that takes a sample, in a process that has not read the file yet."""
    return _taker(_loaded(_signed(path), folder), own)


def _taker(dataset: Any, own: Mapping[str, str]) -> Callable[[int], Mapping[str, Any]]:
    def take(number: int) -> Mapping[str, Any]:
        sample = dataset[number]
        return {name: getattr(sample, attribute) for name, attribute in own.items()}

    return take


def _signed(path: Path) -> bytes:
    """The bytes of a file that the process has signed that started the driver.

    Raises:
        DataError: it cannot be read, or is not signed.
    """
    key, signature = os.environ.get(KEY_VARIABLE, ""), path.with_name(f"{path.name}.signature")
    try:
        data = path.read_bytes()
        said = signature.read_text(encoding="ascii").strip() if signature.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    expected = hmac.new(key.encode(), data, hashlib.sha256).hexdigest()
    if not key or not hmac.compare_digest(expected, said):
        why = f"{KEY_VARIABLE} is not set" if not key else f"{signature.name} is {'another' if said else 'missing'}"
        raise DataError(
            f"{path} is a pickle, which runs code when it is read, and it is not signed by the process that started "
            f"this driver ({why}): start it by lbann.run, whose construct_python_dataset_reader writes and signs it"
        )
    return data


PYTHON_DATASET = Format(PickledSamples, frozenset({"python_dataset"}))
