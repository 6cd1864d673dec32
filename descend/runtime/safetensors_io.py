"""Writes safetensors files, with a checksum for each tensor; `shards.py` reads them.

A file is the length of the header (8 bytes, little-endian), the header (JSON: dtype, shape and offsets of each tensor),
and the bytes of the tensors. Checksums are computed from memory while writing, not from the file afterwards.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import DAMAGED_FILE, StorageError, Unsupported
from descend.files import unescape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["check_layout", "damaged_tensors", "require_storable", "write_tensors"]

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_BYTES = {code: kind.itemsize for kind, code in _CODES.items()}
_LARGEST_HEADER = 100_000_000  # the limit of the safetensors library


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Write a new file and flush it to the disk.

    Returns:
        Its size in "bytes", its "sha256", and [begin, end, CRC-32] of each tensor in "tensors".

    Raises:
        StorageError: a tensor has a dtype or layout that the format does not support.
        OSError: the file cannot be written.
    """
    rows = {name: _bytes(name, tensor) for name, tensor in tensors.items()}
    order = sorted(rows, key=lambda name: (-tensors[name].element_size(), name))  # so that every tensor is aligned
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        begin, end = end, end + rows[name].numel()
        code, shape = _CODES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    first = struct.pack("<Q", len(text)) + text
    digest, facts = hashlib.sha256(first), dict[str, list[int]]()
    with path.open("xb") as file:
        file.write(first)
        for name in order:
            data: Any = rows[name].numpy()
            digest.update(data)
            begin, end = (len(first) + offset for offset in header[name]["data_offsets"])
            facts[name] = [begin, end, zlib.crc32(data)]
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(first) + end_of(header), "sha256": digest.hexdigest(), "tensors": facts}


def end_of(header: Mapping[str, Any]) -> int:
    """Total bytes of the tensors of a header."""
    return max((entry["data_offsets"][1] for entry in header.values()), default=0)


def require_storable(tensors: Mapping[str, torch.Tensor]) -> None:
    """Check before a run that its tensors can be written to a checkpoint.

    Raises:
        Unsupported: tensors have a dtype or layout that the format does not support; the message names them.
    """
    if wrong := [name for name, tensor in tensors.items() if not _is_storable(tensor)]:
        kinds = ", ".join(f"'{name}' ({tensors[name].dtype}, {tensors[name].layout})" for name in wrong[:5])
        raise Unsupported(f"no checkpoint can hold {kinds}: use another type, or run without a directory")


def _is_storable(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _CODES and tensor.layout is torch.strided


def _bytes(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not _is_storable(tensor):
        kind = f"{tensor.dtype}, {tensor.layout}"
        raise StorageError(f"'{name}' is of a type that no checkpoint can hold ({kind}); keep it out of the module")
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def check_layout(path: Path) -> None:
    """Compare the header with the size of the file, before anything of the size that it claims is allocated.

    Raises:
        StorageError: the header is invalid, or its tensors do not fill the file exactly.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
            raise StorageError(f"{path} claims a header of {length:,} bytes, and the file has {size:,}")
        text = file.read(length)
    try:
        header = json.loads(text)
        ends = [_end(entry) for name, entry in header.items() if name != "__metadata__"]
    except DAMAGED_FILE as error:
        raise StorageError(f"{path} has no valid safetensors header ({type(error).__name__})") from error
    if max(ends, default=0) != size - 8 - length:
        raise StorageError(f"{path} claims {max(ends, default=0):,} bytes of tensors and has {size - 8 - length:,}")


def _end(entry: Mapping[str, Any]) -> int:
    """The end offset of a tensor, after a check that its dtype, shape and offsets agree."""
    begin, end = entry["data_offsets"]
    shape = entry["shape"]
    if min(0, begin, *shape) < 0 or end - begin != math.prod(shape) * _BYTES[entry["dtype"]]:
        raise ValueError(entry)
    return end


def damaged_tensors(path: Path, facts: Mapping[str, Any]) -> list[str]:
    """Names of the tensors whose checksums differ from those that `write_tensors` returned."""
    found: list[str] = []
    with path.open("rb") as file:
        for name, (begin, end, crc) in facts.items():
            file.seek(begin)
            if zlib.crc32(file.read(end - begin)) != crc:
                found.append(unescape(name))
    return found
