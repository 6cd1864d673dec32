"""Tensors in safetensors files: written with a checksum each, and read whole or as the shards of several ranks.

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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from descend.errors import DAMAGED_FILE, StorageError, Unsupported
from descend.files import unescape
from descend.runtime.dtensor import is_first_copy, is_sharded, local_region, local_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


__all__ = [
    "Region",
    "TensorFiles",
    "check_layout",
    "damaged_tensors",
    "own_shards",
    "require_storable",
    "whole_tensors",
    "write_shards",
    "write_tensors",
]

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


# ---- tensors in files, whole or as the shards of several ranks: any region of any tensor can be read
#
# A rank writes its shards into a file of its own, so that no rank needs memory for whole tensors. A reader asks for a
# region, which is put together from the shards that overlap with it: a checkpoint of any number of ranks is read by any
# other number, sharded or not.
#
#     TensorFiles(files).read("weight")                       the whole tensor
#     TensorFiles(files).read("weight", (8, 0), (4, 16))      4 x 16 elements from row 8 on


class Region(NamedTuple):
    """A rectangular part of a tensor.

    Attributes:
        offsets: Index of its first element in each dimension.
        sizes: Its shape.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def overlap(self, other: Region) -> Region | None:
        """What both have; None for nothing. Of tensors without dimensions, all."""
        first = tuple(map(max, self.offsets, other.offsets))
        ends = (min(a + n, b + m) for a, n, b, m in zip(*self, *other, strict=True))
        sizes = tuple(end - begin for begin, end in zip(first, ends, strict=True))
        return None if any(size <= 0 for size in sizes) else Region(first, sizes)

    def within(self, outer: Region) -> tuple[slice, ...]:
        """Its position in a tensor that holds `outer`."""
        begins = [mine - start for mine, start in zip(self.offsets, outer.offsets, strict=True)]
        return tuple(slice(begin, begin + size) for begin, size in zip(begins, self.sizes, strict=True))


class _Piece(NamedTuple):
    """A region of a tensor, and the file that holds it."""

    path: Path
    region: Region


def whole_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that are not sharded."""
    return {name: tensor for name, tensor in tensors.items() if not is_sharded(tensor)}


def own_shards(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The sharded ones of which this rank writes its shard: it has elements, and is the first of its copies."""
    sharded = {name: tensor for name, tensor in tensors.items() if is_sharded(tensor)}
    return {name: x for name, x in sharded.items() if is_first_copy(x) and local_shard(x).numel()}


def write_shards(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Write this rank's shards of sharded tensors to a new file.

    Returns:
        The facts of `write_tensors`, and in "shards" of each tensor the "offsets" of the shard and the "shape" of the
        whole tensor.

    Raises:
        StorageError, OSError: as `write_tensors`.
    """
    facts = write_tensors(path, {name: local_shard(tensor) for name, tensor in tensors.items()})
    facts["shards"] = {
        name: {"offsets": list(local_region(tensor)[0]), "shape": list(tensor.shape)}
        for name, tensor in tensors.items()
    }
    return facts


class TensorFiles:
    """Reads the tensors of safetensors files, some of which hold shards.

    Args:
        files: Of each file what its manifest says in "shards", or None for a file of whole tensors.

    Raises:
        StorageError: a file is not a safetensors file, or the shards of a tensor do not make up the whole.
    """

    def __init__(self, files: Mapping[Path, Mapping[str, Any] | None]) -> None:
        from safetensors import SafetensorError, safe_open

        self._open: dict[Path, Any] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path, shards in files.items():
            check_layout(path)
            try:
                file: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise StorageError(f"{path} cannot be read: {error}") from error
            self._open[path] = file
            for name in file.keys():  # noqa: SIM118  # it is not a mapping
                sizes = tuple(file.get_slice(name).get_shape())
                entry = None if shards is None else _checked(shards.get(name), path, name)
                offsets, shape = ((0,) * len(sizes), sizes) if entry is None else entry
                if self._shapes.setdefault(name, shape) != shape:
                    raise StorageError(f"{path} holds a shard of '{name}' of another shape than other files: {shape}")
                self._pieces.setdefault(name, []).append(_Piece(path, Region(offsets, sizes)))
        for name, pieces in self._pieces.items():
            self._require_complete(name, pieces)

    def _require_complete(self, name: str, pieces: Sequence[_Piece]) -> None:
        shape = self._shapes[name]
        for path, region in pieces:
            if len(region.sizes) != len(shape) or any(a + n > m for a, n, m in zip(*region, shape, strict=True)):
                raise StorageError(f"{path}: the shard of '{name}' lies outside a tensor of shape {shape}")
        held = sum(math.prod(region.sizes) for _, region in pieces)
        if held != math.prod(shape) or len({region.offsets for _, region in pieces}) < len(pieces):
            raise StorageError(f"the shards of '{name}' hold {held:,} of its {math.prod(shape):,} elements")

    def __iter__(self) -> Iterator[str]:
        """The names of all tensors."""
        return iter(self._pieces)

    def __contains__(self, name: object) -> bool:
        return name in self._pieces

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a whole tensor."""
        return self._shapes[name]

    def read(self, name: str, region: Region | None = None) -> torch.Tensor:
        """A tensor or a region of it, on the CPU.

        Raises:
            StorageError: the file cannot be read.
        """
        from safetensors import SafetensorError

        shape = self._shapes[name]
        wanted = Region((0,) * len(shape), shape) if region is None else region
        pieces = self._pieces[name]
        try:
            if len(pieces) == 1 and region is None:
                return self._open[pieces[0].path].get_tensor(name)
            found: torch.Tensor | None = None
            for path, held in pieces:
                if common := wanted.overlap(held):
                    values: torch.Tensor = self._open[path].get_slice(name)[common.within(held)]
                    found = values.new_empty(wanted.sizes) if found is None else found
                    found[common.within(wanted)] = values
        except (OSError, SafetensorError) as error:
            raise StorageError(f"'{name}' cannot be read from {pieces[0].path}: {error}") from error
        if found is None:  # a region without elements
            return self._open[pieces[0].path].get_tensor(name).new_empty(wanted.sizes)
        return found


def _checked(entry: Any, path: Path, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and shape of a shard as the manifest has them.

    Raises:
        StorageError: they are not integers >= 0.
    """
    try:
        offsets, shape = tuple(entry["offsets"]), tuple(entry["shape"])
        if len(offsets) != len(shape) or not all(type(n) is int and n >= 0 for n in (*offsets, *shape)):
            raise ValueError(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"the manifest does not say where the shard of '{name}' in {path} lies") from error
    return offsets, shape
