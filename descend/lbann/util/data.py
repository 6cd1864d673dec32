"""Data sets written in Python, and the reader that hands one to the driver.

The driver gets the data set as a pickle file. Reading a pickle runs code, so the driver reads only one that the
process that started it has written: beside a file `X` stands `X.signature`, the HMAC-SHA256 of its bytes under a key of
this process. The key goes to the driver in the environment variable DESCEND_LBANN_DATASET_KEY; that of a job that is
submitted stands in a file that only this user can read, since schedulers record the environment of jobs.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import os
import pickle
import secrets
import sys
import tempfile
from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError
from descend.lbann.core.messages import new_message
from descend.lbann.util.sample_pool import DataReader

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import ModuleType

__all__ = [
    "DataReader",
    "Dataset",
    "DistConvDataset",
    "Sample",
    "SampleDims",
    "construct_python_dataset_reader",
    "dataset_environment",
]


class _Fields:
    """sample, label and response; those that are not given are no attributes."""

    def __init__(self, sample: Any = None, label: Any = None, response: Any = None) -> None:
        given = {"sample": sample, "label": label, "response": response}
        vars(self).update({name: value for name, value in given.items() if value is not None})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Sample(_Fields):
    """One sample: an array for each field that it has.

    Args:
        sample: The data.
        label: The label.
        response: The response.
    """


class SampleDims(_Fields):
    """The dimensions of each field that samples have; for labels the number of classes or a list.

    Args:
        sample: Dimensions of the data.
        label: Those of the label.
        response: Those of the response.
    """


class Dataset(ABC):
    """A data set; subclass it in a module that the driver can import, or in the script itself."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """One sample."""

    @abstractmethod
    def get_sample_dims(self) -> SampleDims:
        """The dimensions of all samples."""


class DistConvDataset(Dataset):
    """A data set whose samples are divided over ranks. One process reads all of each sample.

    Attributes:
        rank: Which part this process reads, from 0.
        num_io_partitions: Number of parts.
    """

    rank: int = 0
    num_io_partitions: int = 1


@cache
def _key() -> str:
    return secrets.token_hex(32)


_written: list[Path] = []


def dataset_environment() -> Mapping[str, str]:
    """The key for the driver, if this process has written data sets."""
    if not _written:
        return {}
    from descend.data.formats.python_dataset import KEY_VARIABLE  # the room of data takes a while to import

    return {KEY_VARIABLE: _key()}


def construct_python_dataset_reader(
    dataset: Dataset,
    dataset_path: str | os.PathLike[str] | None = None,
    role: str = "train",
    shuffle: bool = True,
    fraction_of_data_to_use: float = 1.0,
    validation_fraction: float = 0.0,
    load_module: bool = True,
    prefetch_factor: int = 1,
) -> Any:
    """The message of a reader of a data set. The data set is pickled to a file, which the driver of this run reads.

    Args:
        dataset: The data set.
        dataset_path: The file; one with a name of its own in LBANN_EXPERIMENT_DIR, or here, without one.
        role: train, validate, test or tournament.
        shuffle: Whether each epoch has an order of its own.
        fraction_of_data_to_use: The part of the samples that is used.
        validation_fraction: The part of a train reader's samples that becomes the validation set.
        load_module: Whether the driver finds the data set's module by the folder and name of its file.
        prefetch_factor: Mini-batches that are read ahead.

    Raises:
        ConfigurationError: it cannot be pickled, or its class is defined where no other process can import it.
    """
    path = _own_path(role) if dataset_path is None else Path(dataset_path).absolute()
    source = _source(type(dataset)) if load_module else None
    data = _pickled(dataset, source)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    signature = hmac.new(_key().encode(), data, hashlib.sha256).hexdigest()
    path.with_name(f"{path.name}.signature").write_text(signature, encoding="utf-8")
    _written.append(path)
    reader: Any = new_message("Reader")
    reader.name, reader.role, reader.shuffle = "python_dataset", role, shuffle
    reader.fraction_of_data_to_use, reader.validation_fraction = fraction_of_data_to_use, validation_fraction
    reader.python_dataset.dataset_path = str(path)
    reader.python_dataset.prefetch_factor = prefetch_factor
    if source is not None:
        reader.python_dataset.module_dir = str(source.parent)
    return reader


def _own_path(role: str) -> Path:
    folder = Path(os.environ.get("LBANN_EXPERIMENT_DIR") or Path.cwd()).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(".pkl", f"{role}_dataset_", folder)
    os.close(handle)
    return Path(name)


def _source(cls: type) -> Path | None:
    """The file of the module that defines a class; None where it is in none."""
    try:
        return Path(inspect.getfile(cls)).absolute()
    except (OSError, TypeError):  # of an interactive session, or of the interpreter itself
        return None


def _pickled(dataset: Dataset, source: Path | None) -> bytes:
    """The bytes of a data set, whose classes another process finds under the name of their file."""
    module = sys.modules[type(dataset).__module__]
    stands_alone = module.__name__ == "__main__" or not (source and (source.parent / "__init__.py").exists())
    try:
        if source is None or not stands_alone:
            return pickle.dumps(dataset)
        with _called(module, source.stem):
            return pickle.dumps(dataset)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{type(dataset).__name__} cannot be handed to the driver: {error}; define it at the top of a module, and "
            "open files in its __getitem__"
        ) from error


@contextmanager
def _called(module: ModuleType, name: str) -> Generator[None]:
    """Let the classes and functions of a module be known under another name of it."""
    owned = [one for one in vars(module).values() if getattr(one, "__module__", None) == module.__name__]
    named = [one for one in owned if inspect.isclass(one) or inspect.isfunction(one)]
    before, original = sys.modules.get(name), module.__name__
    sys.modules[name] = module
    for one in named:
        one.__module__ = name
    try:
        yield
    finally:
        for one in named:
            one.__module__ = original
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
