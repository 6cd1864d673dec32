"""A reader of tensors and arrays in memory, whose rows are the samples; batches are gathered by index."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.data.nested_fields import stored_rows
from descend.data.plain_arrays import columns_of, widened
from descend.errors import DataError
from descend.machine import page_locked

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["STAGED_BYTES", "TensorReader", "in_memory", "is_array", "is_table", "tensor_reader"]

# What CUDA copies to memory of its own at once when it is sent to a GPU, such as class numbers: the host does not wait
# for it, so it needs no page-locked memory.
STAGED_BYTES = 2**16


class TensorReader:
    """A reader of tensors in memory, whose rows are the samples.

    Args:
        rows: (samples, *shape) tensors by field.
        role: What the samples are for.
        chosen: Indices of the rows that are the samples; None for all.
        pin_memory: Gather rows of the host's memory in page-locked memory, from which they go to a GPU as they are.
    """

    def __init__(
        self,
        rows: dict[str, Tensor],
        role: str,
        chosen: NDArray[np.int64] | None = None,
        *,
        pin_memory: bool = False,
    ) -> None:
        import torch  # here, because descriptions are checked without it

        self.role = role
        self.names = tuple(rows)  # of the fields
        # Torch gathers no unsigned integers of more than a byte: their bits are gathered, and widened in each batch.
        signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
        self._unsigned = {name: values.dtype for name, values in rows.items() if values.dtype in signed}
        rows = {name: values.detach() for name, values in rows.items()}
        rows |= {name: rows[name].view(signed[kind]) for name, kind in self._unsigned.items()}
        self._rows = rows
        self._from_numpy = torch.from_numpy
        self._on_cpu = all(values.is_cpu for values in rows.values())
        self._chosen = chosen
        self._contiguous = torch.contiguous_format  # what index_select returns, too
        dense = all(values.layout is torch.strided for values in rows.values())
        self._has_slices = chosen is None and dense
        # One operation where a slice and its copy are two; of rows that are not, torch would copy all first.
        self._rows_are_contiguous = dense and all(values.is_contiguous() for values in rows.values())
        self._pins = pin_memory and self._on_cpu and dense
        self._length = len(next(iter(rows.values()))) if chosen is None else len(chosen)
        if self._length == 0:
            raise DataError(f"the data for '{role}' have 0 samples, and at least 1 is needed")

    def __len__(self) -> int:
        return self._length

    @property
    def largest(self) -> dict[str, int]:
        """The magnitude of the integer that is farthest from 0, of fields that are an integer for each sample."""
        return {
            name: max(abs(int(rows.min())), abs(int(rows.max())))
            for name, rows in self._rows.items()
            if rows.ndim == 1 and str(rows.dtype).startswith(("torch.int", "torch.uint"))
        }

    def read(self, indices: NDArray[np.int64], epoch: int = 0) -> dict[str, Tensor]:
        """The rows of each tensor."""
        index = self._from_numpy(indices if self._chosen is None else self._chosen[indices])
        if self._pins:
            batch = {name: _page_locked(rows, len(index), index) for name, rows in self._rows.items()}
        elif self._on_cpu:
            batch = {name: rows.index_select(0, index) for name, rows in self._rows.items()}
        else:
            batch = {name: rows.index_select(0, index.to(rows.device)) for name, rows in self._rows.items()}
        return self._as_unsigned(batch) if self._unsigned else batch

    def read_consecutive(self, first: int, count: int) -> dict[str, Tensor]:
        """`read` of samples that follow one another, without a look at each index; a copy, as from `read`."""
        if not self._has_slices:
            return self.read(np.arange(first, first + count, dtype=np.int64))
        found = self._sliced(first, count)
        return self._as_unsigned(found) if self._unsigned else found

    def _sliced(self, first: int, count: int) -> dict[str, Tensor]:
        end, form = first + count, self._contiguous
        if self._pins:
            return {name: _page_locked(rows[first:end], count) for name, rows in self._rows.items()}
        if self._rows_are_contiguous:
            return {name: rows.narrow_copy(0, first, count) for name, rows in self._rows.items()}
        return {name: rows[first:end].clone(memory_format=form) for name, rows in self._rows.items()}

    def _as_unsigned(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gathered bits as the numbers that they are."""
        return {**found, **{name: widened(found[name].view(kind)) for name, kind in self._unsigned.items()}}


def _page_locked(rows: Tensor, count: int, index: Tensor | None = None) -> Tensor:
    """Rows, or those of an index, copied once, many of them to page-locked memory; else another copy would follow."""
    import torch

    rows, shape = rows.detach(), (count, *rows.shape[1:])
    is_large = math.prod(shape) * rows.element_size() > STAGED_BYTES
    room = page_locked(shape, rows.dtype) if is_large else torch.empty(shape, dtype=rows.dtype)
    return room.copy_(rows) if index is None else torch.index_select(rows, 0, index, out=room)


def tensor_reader(data: Any, role: str, *, pin_memory: bool = False) -> TensorReader | None:
    """A reader of data that are tensors or arrays in memory; None for other data. See `TensorReader`."""
    from torch.utils.data import Subset

    if not in_memory(data):
        return None
    chosen: NDArray[np.int64] | None = None
    while type(data) is Subset:
        some = _rows_of(np.asarray(data.indices, dtype=np.int64), len(cast("Any", data.dataset)), role)
        chosen = some if chosen is None else some[chosen]
        data = data.dataset
    rows = stored_rows(_fields_in_memory(data), f"the data for '{role}'")
    return TensorReader(rows, role, chosen, pin_memory=pin_memory)


def in_memory(data: Any) -> bool:
    """Whether data are tensors or arrays in memory, which `tensor_reader` reads."""
    from torch.utils.data import Subset

    while type(data) is Subset:
        data = data.dataset
    fields = _fields_in_memory(data)
    parts = list(fields.values()) if isinstance(fields, dict) else fields
    return len(parts) > 0 and all(is_array(part) for part in parts)


def _fields_in_memory(data: Any) -> dict[str, Any] | tuple[Any, ...]:
    """The tensors and arrays of an object: in a tuple, or by name as those of a dictionary or a structured array."""
    from torch.utils.data import TensorDataset

    if type(data) is TensorDataset:
        return data.tensors
    if isinstance(data, np.ndarray) and data.dtype.names:
        return columns_of(data)
    if isinstance(data, (tuple, dict)):
        return cast("dict[str, Any]", data)
    return (data,) if is_array(data) else ()


def is_table(data: Any) -> bool:
    """Whether something is a table with named columns that it hands out as Arrow does."""
    return hasattr(type(data), "__arrow_c_stream__") and (hasattr(data, "columns") or hasattr(data, "column_names"))


def is_array(part: Any) -> bool:
    """Whether something is a tensor or an array."""
    import torch

    return isinstance(part, (torch.Tensor, np.ndarray))


def _rows_of(indices: NDArray[np.int64], count: int, role: str) -> NDArray[np.int64]:
    """The rows of the indices of a Subset; those below 0 count from the end, as in torch."""
    if wrong := indices[(indices < -count) | (indices >= count)].tolist():
        raise DataError(
            f"the data for '{role}' are a Subset with the index {wrong[0]:,}, and its data set has {count:,} samples"
        )
    return np.where(indices < 0, indices + count, indices)
