"""Samples of objects: data sets of torch, readers, tensors, arrays, data frames, data sets of Hugging Face.

an open reader                          its fields
tensors or arrays, (x, y) or {"x": x}   indexed by whole batches; positions in a tuple are the fields "0", "1", ...
torch's TensorDataset, a Subset of one  the same
any map-style Dataset                   sample by sample, when they are asked for
a data source or MapDataset of grain    the same
a StreamingDataset of `streaming`       the same, with the samples of all ranks
a DataLoader                            its data set with its collate function; its sampler and sizes are of no meaning
an IterableDataset, a DataLoader of it  gone through once and held in memory, up to `MAX_GATHERED_BYTES`
a Dataset or DatasetDict of `datasets`  see `descend.data.hugging_face`
a data frame, a table of pyarrow        see `descend.data.object_source`

Fields have the names that they have in `fit`. No name of a library is looked at: an object is what its
methods are.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.arguments import shown
from descend.data.file_format import IMAGE_OPTIONS, check_used
from descend.data.hugging_face import hugging_face_source, is_hugging_face, kinds_of_splits, split_of_role
from descend.data.loading.map_dataset import SamplePipeline, SampleReader
from descend.data.nested_fields import as_rows
from descend.data.plain_arrays import columns_of
from descend.data.reader_protocol import Field
from descend.data.readers import ArrayReader
from descend.data.tables.arrow_columns import bounds_of, flattened
from descend.data.tables.arrow_source import ROW_NUMBERS, ArrowSource
from descend.data.tables.table_files import TableFiles, in_chunks
from descend.data.tensor_reader import is_table, tensor_reader
from descend.errors import DataError, DescendError, library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from descend.data.file_format import FileSource, ReadOptions
    from descend.data.loading.batches import Samples
    from descend.data.reader_protocol import Array
    from descend.data.tables.table_files import Chunk

__all__ = ["MAX_GATHERED_BYTES", "ReaderSource", "WholeDataset", "has_numbers", "object_source"]

MAX_GATHERED_BYTES = 2**30
_SAMPLE_BYTES = 128  # what a sample counts beside its arrays, so that endless streams of tiny ones end soon
_GATHERED_AT_ONCE = 256  # samples


def object_source(data: Any, options: ReadOptions) -> tuple[str, FileSource] | None:
    """The name of the kind of an object and its samples; None for what is none of those above.

    Raises:
        ConfigurationError: an option is set that has no meaning for this kind.
        DataError: there are no samples, they cannot be read, or a stream has too many.
    """
    if (parts := split_of_role(data, options.role)) is not None:
        options = replace(options, kinds_beside=kinds_of_splits(data))
        data = parts
    if is_hugging_face(data):
        return "hugging face", hugging_face_source(data, options)
    if is_table(data):
        return type(data).__name__, table_source(data, options)
    reader = _reader_of(data, options.role)
    if reader is None:
        return None
    name = type(data).__name__
    check_used(name, frozenset(), options)
    return name, ReaderSource(reader, data)


def _reader_of(data: Any, role: str) -> Samples | None:
    if hasattr(data, "read") and hasattr(data, "fields") and hasattr(data, "__len__"):
        return data
    if _are_arrays(data):
        return ArrayReader(_as_fields(data), role)
    collate = None
    if (torch := sys.modules.get("torch")) is not None:  # nothing is an object of torch before that is imported
        loader = None
        if isinstance(data, torch.utils.data.DataLoader):
            loader = data
            data, own = loader.dataset, torch.utils.data.default_collate
            collate = None if loader.collate_fn is own else loader.collate_fn
        if isinstance(data, torch.utils.data.IterableDataset):
            if has_numbers(data):
                data = WholeDataset(data)
            else:
                if loader is None:
                    loader = torch.utils.data.DataLoader(data, batch_size=_GATHERED_AT_ONCE)
                return ArrayReader(_gathered(loader, type(data).__name__), role)
    if collate is None and (tensors := tensor_reader(data, role)) is not None:
        return tensors
    if isinstance(data, (list, tuple, dict, str, bytes)) or not hasattr(data, "__getitem__"):
        return None
    if not hasattr(data, "__len__"):
        return None
    if len(data) == 0:
        raise DataError(f"{type(data).__name__} for '{role}' has 0 samples, and at least 1 is needed")
    return SampleReader(SamplePipeline(data, collate, 0, role))


def has_numbers(data: Any) -> bool:
    """Whether a stream of torch has its samples by number as well, as those of `streaming` do."""
    own = getattr(type(data), "__getitem__", None)
    return own is not sys.modules["torch"].utils.data.Dataset.__getitem__ and hasattr(data, "__len__")


class WholeDataset:
    """A stream whose samples have numbers, with those of all ranks: its own length is the share of one.

    Args:
        dataset: Has `__getitem__`, and `size` or `__len__`.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        size = getattr(dataset, "size", None)
        self._length = size if isinstance(size, int) else len(dataset)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def _are_arrays(data: Any) -> bool:
    some: list[Any] = list(_as_fields(data).values()) if isinstance(data, (tuple, dict, np.ndarray)) else []
    return bool(some) and all(isinstance(one, np.ndarray) for one in some)


def _as_fields(data: Any) -> dict[str, Any]:
    if isinstance(data, dict):
        return cast("dict[str, Any]", data)
    if isinstance(data, np.ndarray) and data.dtype.names:
        return columns_of(data)
    parts = list(cast("tuple[Any, ...]", data)) if isinstance(data, tuple) else [data]
    return {str(place): part for place, part in enumerate(parts)}


def _gathered(batches: Iterable[Any], name: str) -> dict[str, Array]:
    """All batches of one pass, joined."""
    parts: dict[str, list[Array]] = {}
    held = 0
    for step, batch in enumerate(_made(batches, name)):
        rows = {field: _array(values) for field, values in as_rows(batch, f"batch {step} of {name}").items()}
        if parts and list(rows) != list(parts):
            raise DataError(f"batch {step} of {name} has the fields {', '.join(rows)}, those before {', '.join(parts)}")
        for field, values in rows.items():
            held += values.nbytes
            parts.setdefault(field, []).append(values)
        held += _SAMPLE_BYTES * len(next(iter(rows.values())))
        if held > MAX_GATHERED_BYTES:
            raise DataError(
                f"{name} is a stream, whose samples are held in memory to be read by number, and they take more than "
                f"{MAX_GATHERED_BYTES:,} bytes: pass it to fit as it is, or store it in files"
            )
    if not parts:
        raise DataError(f"{name} yields 0 samples, and at least 1 is needed")
    try:
        return {field: np.concatenate(some) for field, some in parts.items()}
    except ValueError as error:
        raise DataError(f"the batches of {name} cannot be joined: {error}") from error


def _made(batches: Iterable[Any], name: str) -> Iterator[Any]:
    """Batches, where what ends them is an error of the data."""
    try:
        yield from batches
    except DescendError:
        raise
    except Exception as error:  # of the program of the user, or of samples that make no batch
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{name} yields samples that cannot be put into a batch, or fails: {reason}") from error


def _array(values: Tensor | Array) -> Array:
    """A tensor as an array; bfloat16, which NumPy has not, as float32."""
    if isinstance(values, np.ndarray):
        return values
    values = values.detach().cpu().resolve_conj().resolve_neg()
    return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()


class ReaderSource:
    """The samples of a reader of another kind; see `FileSource`.

    Args:
        reader: Gives arrays or tensors for numbers of samples.
        original: What the caller passed to `read`.
        epoch: Whose random numbers the samples are drawn with.

    Attributes:
        original: As given.
    """

    def __init__(self, reader: Samples, original: Any, epoch: int = 0) -> None:
        self._reader = reader
        self._epoch = epoch
        self.original = original
        fields: Mapping[str, Field] | None = getattr(reader, "fields", None)
        if fields is None:
            first = {name: _array(values) for name, values in reader.read(np.zeros(1, np.int64)).items()}
            fields = {name: Field(values.shape[1:], values.dtype) for name, values in first.items()}
        self.fields: Mapping[str, Field] = fields
        self.classes: Mapping[str, Any] = getattr(reader, "classes", {})
        self.left_out: Mapping[str, str] = getattr(reader, "left_out", {})
        self.notes: tuple[str, ...] = getattr(reader, "notes", ())
        self.pixels: frozenset[str] = getattr(reader, "pixels", frozenset())

    def __len__(self) -> int:
        return len(self._reader)

    def at_epoch(self, epoch: int) -> ReaderSource:
        """The samples of another epoch."""
        return self if epoch == self._epoch else self._with(self._reader, epoch)

    def in_run(self, seed: int, role: str) -> ReaderSource:
        """The samples with the random numbers of a run."""
        if not isinstance(self._reader, SampleReader) or not isinstance(self._reader.pipeline, SamplePipeline):
            return self
        return self._with(SampleReader(replace(self._reader.pipeline, seed=seed, role=role)), self._epoch)

    def _with(self, reader: Samples, epoch: int) -> ReaderSource:
        other = object.__new__(ReaderSource)  # without reading the first sample again
        other.__dict__.update(self.__dict__, _reader=reader, _epoch=epoch)
        return other

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """The samples with these numbers."""
        try:
            found = self._reader.read(samples, self._epoch)
        except DataError as error:
            if isinstance(error.__cause__, Exception):
                raise error.__cause__ from error  # the caller says which sample it is
            raise
        return {name: _array(values) for name, values in found.items()}

    def column(self, name: str) -> Array | None:
        """A field of all samples, where the reader has it without the others."""
        own = getattr(self._reader, "column", None)
        return None if own is None else own(name)

    def place(self, sample: int) -> str:
        """Where a sample comes from."""
        place = getattr(getattr(self._reader, "source", None), "place", None)
        return place(sample) if place else f"{type(self.original).__name__}[{sample}]"


# ---- tables in memory: data frames of pandas and polars, tables of pyarrow
#
# A table is known by its columns and by Arrow's stream interface (`__arrow_c_stream__`), so no library of frames is
# imported. The row numbers that pandas keeps beside the columns of a frame are left out.
#
# Source: https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html

_USES = frozenset({"columns", "length", "text"}) | IMAGE_OPTIONS


class _TableRows(TableFiles):
    """The rows of a table; see `TableFiles`."""

    def __init__(self, data: Any) -> None:
        title = type(data).__name__
        pa = library("pyarrow", f"a {title}")
        try:
            table = pa.table(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"the {title} has no form as an Arrow table: {error}") from error
        try:
            table.validate(full=True)  # one that was read from a damaged file would lead out of its memory
        except pa.ArrowException as error:
            raise DataError(f"the {title} is damaged: {error}") from error
        kept = [name for name in table.column_names if not ROW_NUMBERS.fullmatch(name)]
        if len(set(kept)) < len(kept):
            twice = next(name for name in kept if kept.count(name) > 1)
            raise DataError(f"the {title} has two columns {shown(twice)}; give them different names")
        self._table = flattened(table.select(kept))
        self.schema: Any = self._table.schema.remove_metadata()
        name, count = Path(f"{title} of {', '.join(kept)}"[:80]), len(table)
        self.chunks = in_chunks(name, count)

    def load(self, chunk: Chunk, columns: Sequence[str]) -> Any:
        """Some columns of some rows."""
        return self._table.slice(chunk.first, chunk.rows).select(list(columns))

    def take(self, samples: NDArray[np.int64], columns: Sequence[str]) -> Any:
        """Some columns of the rows with these numbers."""
        return self._table.select(list(columns)).take(samples)

    def bounds(self, column: str) -> tuple[int | None, int | None]:
        """The least and the largest integer of a column."""
        return bounds_of(self._table.column(column))

    def without_nulls(self, column: str) -> bool:
        """Whether no row lacks a value of the column."""
        return self._table.column(column).null_count == 0


def table_source(data: Any, options: ReadOptions) -> ArrowSource:
    """The samples of a table, a row each.

    Raises:
        ConfigurationError: an option is set that has no meaning for it.
        MissingExtra: pyarrow is not installed.
        DataError: there are no rows, or no column can be read.
    """
    title = type(data).__name__
    check_used(f"a {title}", _USES, options)
    rows = _TableRows(data)
    if not rows.chunks:
        raise DataError(f"the {title} has 0 samples, and at least 1 is needed")
    return ArrowSource(rows, options)
