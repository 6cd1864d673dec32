"""Reads and writes weights and outputs in the formats of LBANN and its linear algebra library Hydrogen.

Hydrogen keeps weights as matrices: those of layers that multiply by a matrix (fully connected, embedding, GRU) as they
are, everything else as one column in row-major order.

    text      a row of the matrix a line, numbers with spaces between
    binary    height and width as little-endian integers, then the numbers column by column
    csv, tsv  a sample a line
    npy       numpy's own, (samples, *shape)
    npz       the same under the name `data`
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.callbacks.images import as_array
from descend.errors import StorageError
from descend.files import unescape
from descend.train.layers import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

__all__ = [
    "SAMPLES",
    "as_matrix",
    "as_rows",
    "column_major",
    "find_weights",
    "read_binary",
    "write_binary",
    "write_text",
]


def column_major(module: torch.nn.Module) -> set[str]:
    """Names of the weights that Hydrogen keeps as matrices; in a module without a graph all with two dimensions."""
    plan = plan_of(module)
    if plan is not None:
        return {name for name, weights in plan.weights.items() if weights.column_major and len(weights.shape) == 2}
    return {name for name, p in module.named_parameters() if p.ndim == 2}


def as_matrix(weights: torch.Tensor, matrix: bool) -> NDArray[Any]:
    """Weights as Hydrogen keeps them: (height, width)."""
    array = as_array(weights)
    return array if matrix else array.reshape(-1, 1)


def as_rows(samples: torch.Tensor) -> NDArray[Any]:
    """Flatten samples of any shape to (samples, entries)."""
    array = as_array(samples)
    return array.reshape(len(array) if array.ndim else 1, -1)


def write_text(path: Path, matrix: NDArray[Any]) -> None:
    """Write (height, width) numbers as text with enough digits to read back the same numbers."""
    with path.open("w", encoding="utf-8") as file:
        for row in matrix:
            file.write(" ".join(map(_digits, row)) + "\n")


def _digits(number: Any) -> str:
    return str(number.item()) if number.dtype.kind in "iu" else np.format_float_scientific(number, trim="0")


def write_binary(path: Path, matrix: NDArray[Any]) -> None:
    """Write (height, width) numbers in Hydrogen's binary format with a header of 32-bit integers."""
    path.write_bytes(np.array(matrix.shape, dtype="<i4").tobytes() + matrix.tobytes(order="F"))


def read_binary(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read Hydrogen's binary, whether it was built for 32- or 64-bit integers.

    Args:
        path: The file.
        dtype: The type of its numbers.

    Returns:
        (height, width)

    Raises:
        StorageError: the file cannot be read, or its length is not what its first numbers say.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    for integers in ("<i4", "<i8"):
        begin = 2 * np.dtype(integers).itemsize
        if len(data) < begin:
            continue
        height, width = map(int, np.frombuffer(data[:begin], dtype=integers))
        if min(height, width) >= 0 and len(data) == begin + height * width * dtype.itemsize:
            return np.frombuffer(data, dtype, offset=begin).reshape(height, width, order="F")
    raise StorageError(f"{path} is not a matrix of {dtype}: its length of {len(data):,} bytes does not fit its size")


def find_weights(folder: Path) -> dict[str, Path]:
    """The files `model_weights_NAME_HxW.bin` of a folder, by name of the weights."""
    found = ((re.fullmatch(r"model_weights_(.+)_\d+x\d+", path.stem), path) for path in sorted(folder.glob("*.bin")))
    return {unescape(match[1]): path for match, path in found if match}


def _csv(separator: str) -> Callable[[Path, NDArray[Any]], None]:
    def write(path: Path, samples: NDArray[Any]) -> None:
        with path.open("w", encoding="utf-8") as file:
            for row in samples.reshape(len(samples), -1 if samples.size else 0):
                file.write(separator.join(map(_digits, row)) + "\n")

    return write


def _npy(path: Path, samples: NDArray[Any]) -> None:
    np.save(path, samples)


def _npz(path: Path, samples: NDArray[Any]) -> None:
    np.savez(path, data=samples)


# Writers of (samples, *shape) by the end of a file's name.
SAMPLES: Mapping[str, Callable[[Path, NDArray[Any]], None]] = {
    "csv": _csv(","),
    "tsv": _csv("\t"),
    "npy": _npy,
    "npz": _npz,
}
