"""Worker processes that read the samples of a data set ahead: `lbann.util.data.DataReader`."""

from __future__ import annotations

import multiprocessing
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.arguments import check_integer, require
from descend.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from multiprocessing.pool import AsyncResult

    from numpy.typing import DTypeLike, NDArray

    from descend.lbann.util.data import Dataset

__all__ = ["DataReader"]

_FIELDS = ("sample", "label", "response")
_dataset: Any = None  # of a worker process


class DataReader:
    """Reads samples of a data set in processes of its own, in the order in which they were asked for.

    Use it in a `with` block, or call `terminate` at the end.

    Args:
        dataset: The data set; its class is at the top of a module, since each process gets a copy.
        num_procs: Number of processes, >= 1.
        prefetch_factor: Kept for callers that size their queue by it.
        dtype: Type of the numbers of a mini-batch.

    Raises:
        ConfigurationError: num_procs or prefetch_factor is below 1.
    """

    def __init__(
        self, dataset: Dataset, num_procs: int = 1, prefetch_factor: int = 1, dtype: DTypeLike = "float32"
    ) -> None:
        require(check_integer("num_procs", num_procs, 1))
        require(check_integer("prefetch_factor", prefetch_factor, 1))
        self.dataset, self.num_procs, self.prefetch_factor = dataset, num_procs, prefetch_factor
        self.dtype = np.dtype(dtype)
        self.sample_dims = dataset.get_sample_dims()
        self._queued: deque[AsyncResult[Any]] = deque()
        # A fork of a process with threads of torch may hang, and a fresh one imports the data set's module alone.
        how = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(how)
        self._pool = context.Pool(num_procs, _begin, (dataset,))

    def queue_samples(self, indices: Iterable[int]) -> None:
        """Ask for samples, to be read after those that were asked for before."""
        self._queued.extend(self._pool.apply_async(_read, (int(index),)) for index in indices)

    def get_batch(self, batch_size: int) -> Mapping[str, NDArray[Any]]:
        """The next samples that were asked for, waiting until they are read.

        Returns:
            An array (batch_size, *dimensions) for each of "sample", "label" and "response" that the data set has.

        Raises:
            DataError: fewer samples were asked for, or one of them has another size than declared.
            Any error of the data set itself.
        """
        if batch_size > len(self._queued):
            raise DataError(
                f"get_batch({batch_size}): {len(self._queued)} samples are queued; call queue_samples first"
            )
        samples = [self._queued.popleft().get() for _ in range(batch_size)]
        return {name: self._joined(name, samples) for name in _FIELDS if hasattr(self.sample_dims, name)}

    def _joined(self, name: str, samples: list[Mapping[str, Any]]) -> NDArray[Any]:
        shape = tuple(np.atleast_1d(getattr(self.sample_dims, name)).tolist())
        rows = [np.asarray(sample[name], self.dtype) for sample in samples]
        for row in rows:
            if row.size != np.prod(shape):
                raise DataError(f"the {name} of a sample has shape {row.shape}; the data set declares {shape}")
        return np.stack([row.reshape(shape) for row in rows]) if rows else np.empty((0, *shape), self.dtype)

    def terminate(self) -> None:
        """End the processes. What is queued is dropped."""
        self._queued.clear()
        self._pool.terminate()
        self._pool.join()

    def __enter__(self) -> DataReader:
        """The reader itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        self.terminate()


def _begin(dataset: Dataset) -> None:
    global _dataset
    _dataset = dataset


def _read(index: int) -> Mapping[str, Any]:
    return dict(vars(_dataset[index]))
