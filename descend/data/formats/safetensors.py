"""Safetensors files: a field for each tensor, whose first dimension counts the samples; `key` chooses some of them.

Tensors are mapped into memory as arrays of .npy files are, so that single samples are read; the library of the format
gives whole tensors and slices. bfloat16, which NumPy has not, becomes float32; other such types are left out. Of
tensors x_train, x_test and so on those of the role are read, without its name.

Source: https://github.com/huggingface/safetensors, "Format"
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.arguments import shown
from descend.data.file_format import FileFormat
from descend.data.formats.npy import ArraySource, StoredArray, of_role
from descend.errors import ConfigurationError, DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from descend.data.file_format import ReadOptions
    from descend.data.reader_protocol import Array

__all__ = ["FILE_FORMATS", "tensors_of"]

MAX_HEADER_BYTES = 2**22
MAX_TENSORS = 1024  # each is mapped, which takes a descriptor
_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "C64": "<c8",
    "BOOL": "?",
    "BF16": "<u2",
    **{f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
}


@dataclass(frozen=True)
class BFloat16Array(StoredArray):
    """A tensor of bfloat16, which is the upper half of float32; `elements` are the halves as they are stored."""

    @property
    def of_rows(self) -> np.dtype[Any]:
        """float32."""
        return np.dtype(np.float32)

    def rows(self, numbers: NDArray[np.int64]) -> Array:
        """Some entries along the first dimension, as float32."""
        return (super().rows(numbers).astype(np.uint32) << 16).view(np.float32)


def tensors_of(path: Path, wanted: tuple[str, ...], left_out: dict[str, str]) -> dict[str, StoredArray]:
    """The tensors of a file with the names that are wanted, or all that can be read where that is empty.

    Args:
        path: Of the file.
        wanted: Names.
        left_out: Filled with the reasons why tensors were left out.

    Raises:
        ConfigurationError: there is no tensor of a wanted name.
        DataError: the file is damaged, a tensor that is wanted cannot be read, or none can.
    """
    header, begin, size = _header(path)
    names = [name for name in header if name != "__metadata__"]
    if unknown := [name for name in wanted if name not in names]:
        raise ConfigurationError(
            f"read: {path} has no tensor '{unknown[0]}'{nearest(unknown[0], names)}; it has {', '.join(names[:50])}"
        )
    if len(wanted or names) > MAX_TENSORS:
        raise DataError(
            f"{path} has {len(names):,} tensors; at most {MAX_TENSORS:,} are read: choose some with key=[...]"
        )
    found: dict[str, StoredArray] = {}
    for name in wanted or names:
        try:
            found[name] = _tensor(path, name, header[name], begin, size)
        except ValueError as error:
            if wanted:
                raise DataError(f"{path}, tensor {shown(name)}: {error}") from error
            left_out[name] = str(error)
    if not found:
        raise DataError([f"{path} has no tensor that can be read:", *[f"    {reason}" for reason in left_out.values()]])
    return found


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """The description of the tensors, the first byte behind it, and the size of the file."""
    with path.open("rb") as file:
        size, length = path.stat().st_size, int.from_bytes(file.read(8), "little")
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise DataError(
                f"{path} is not a safetensors file, or was cut off: it promises a header of {length:,} bytes, and has "
                f"{size:,} in all (of a header at most {MAX_HEADER_BYTES:,} are read)"
            )
        content = file.read(length)
    try:
        header = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a safetensors file: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise DataError(f"{path} is not a safetensors file: its header is {shown(header)}, and an object is needed")
    return cast("dict[str, Any]", header), 8 + length, size


def _tensor(path: Path, name: str, of: Any, begin: int, size: int) -> StoredArray:
    try:
        kind, shape, (first, end) = of["dtype"], tuple(of["shape"]), of["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, first, end))
    except (TypeError, KeyError, ValueError):
        whole, kind, shape, first, end = False, "", (), 0, 0
    if not whole:
        raise DataError(f"{path}: the header says {shown(of)} of {shown(name)}; expected dtype, shape and data_offsets")
    if kind not in _TYPES:
        raise ValueError(f"'{name}' is of the type {shown(kind)}, which NumPy has not: store it as F32")
    if not shape:
        raise ValueError(f"'{name}' holds a single value; the first dimension must count the samples")
    dtype = np.dtype(_TYPES[kind])
    if end - first != math.prod(shape) * dtype.itemsize or begin + end > size:
        raise DataError(
            f"{path} is truncated or damaged: '{name}' {shape} of {kind} needs {math.prod(shape) * dtype.itemsize:,} "
            f"bytes, from byte {begin + first:,} on, and the file ends at {size:,}"
        )
    array = BFloat16Array if kind == "BF16" else StoredArray
    return array(path, name, dtype, shape, fortran=False, offset=begin + first)


def _open(paths: Sequence[Path], options: ReadOptions) -> ArraySource:
    keys, left_out = options.key, dict[str, str]()
    wanted = () if keys is None else (keys,) if isinstance(keys, str) else tuple(keys)
    source = ArraySource([of_role(tensors_of(path, wanted, left_out), options) for path in paths])
    source.left_out = left_out
    return source


FILE_FORMATS = (
    FileFormat(
        "safetensors",
        (".safetensors",),
        _open,
        frozenset({"key"}),
        recognizes=lambda begin: begin[4:8] == bytes(4) and begin[8:10] == b'{"',
        by_place=True,
    ),
)
