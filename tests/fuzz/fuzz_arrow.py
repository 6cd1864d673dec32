"""Damaged Arrow, Feather and Parquet files: each is read, or refused with an error of ours, within memory.

    python tests/fuzz/fuzz_arrow.py --count 20000 --seed 0

Tables of all kinds of columns, in one batch or several, with and without compression and dictionaries, have other bytes
or other integers in the places of lengths and offsets. Inputs run in processes of their own, so that one which ends its
process is found with its number.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

import descend.data
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_arrow_"))
_ROWS = 24
_TEXTS = ["up", "down", "", "ärger", "x" * 40, None] * (_ROWS // 6)
_NUMBERS = [None if i % 7 == 3 else i * 0.5 for i in range(_ROWS)]
_LISTS = [None if i % 9 == 4 else [float(j) for j in range(i % 4)] for i in range(_ROWS)]


def _columns() -> dict[str, Any]:
    """A column of each kind, by its name."""
    integers = pa.array([None if i % 11 == 5 else i * 3 - 20 for i in range(_ROWS)], pa.int64())
    fixed = pa.array([[i, i + 1, i + 2] for i in range(_ROWS)], pa.list_(pa.int16(), 3))
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(_ROWS * 4, dtype=np.float32).reshape(_ROWS, 2, 2))
    labels = pa.array(_TEXTS, pa.string()).dictionary_encode()
    return {
        "float": pa.array(_NUMBERS, pa.float64()),
        "integer": integers,
        "small": pa.array(range(_ROWS), pa.uint8()),
        "boolean": pa.array([i % 3 == 0 for i in range(_ROWS)]),
        "text": pa.array(_TEXTS, pa.string()),
        "large text": pa.array(_TEXTS, pa.large_string()),
        "text view": pa.array(_TEXTS, pa.string_view()),
        "bytes": pa.array([None if text is None else text.encode() for text in _TEXTS], pa.binary()),
        "bytes view": pa.array([b"\x89PNG" + bytes(i) for i in range(_ROWS)], pa.binary_view()),
        "dictionary": labels,
        "dictionary of numbers": integers.dictionary_encode(),
        "list": pa.array(_LISTS, pa.list_(pa.float32())),
        "large list": pa.array(_LISTS, pa.large_list(pa.float64())),
        "list view": pa.array(_LISTS, pa.list_view(pa.float64())),
        "list of lists": pa.array([[[1, 2]] * (i % 3) for i in range(_ROWS)], pa.list_(pa.list_(pa.int32()))),
        "list of texts": pa.array([["a", "bc"][: i % 3] for i in range(_ROWS)], pa.list_(pa.string())),
        "list of structures": pa.array([[{"x": i}] for i in range(_ROWS)]),
        "fixed": fixed,
        "structure": pa.array([{"a": i, "b": {"c": str(i)}} for i in range(_ROWS)]),
        "image": pa.array([{"bytes": b"\x89PNG\r\n", "path": None} for _ in range(_ROWS)]),
        "tensor": tensors,
        "runs": pa.RunEndEncodedArray.from_arrays([8, 16, _ROWS], pa.array(["a", "b", None])),
        "runs of numbers": pa.RunEndEncodedArray.from_arrays([2, _ROWS], pa.array([1.5, 2.5])),
        "map": pa.array([[("k", i)] for i in range(_ROWS)], pa.map_(pa.string(), pa.int32())),
        "union": pa.UnionArray.from_sparse(
            pa.array([i % 2 for i in range(_ROWS)], pa.int8()), [pa.array(range(_ROWS)), pa.array(_NUMBERS)]
        ),
        "decimal": pa.array([None if i == 2 else i for i in range(_ROWS)], pa.decimal128(20, 0)),
        "date": pa.array(range(_ROWS), pa.int32()).cast(pa.date32()),
        "time": pa.array(range(_ROWS), pa.int64()).cast(pa.timestamp("ns")),
        "nothing": pa.nulls(_ROWS),
        "identity": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * _ROWS, pa.binary(16))),
    }


@cache
def _all_columns() -> dict[str, Any]:
    return _columns()


def _written(table: Any, kind: str, path: Path) -> None:
    match kind:
        case "file" | "stream" | "compressed":
            options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "compressed" else None)
            new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
            with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=16)
        case "feather":
            pa.feather.write_feather(table, path, compression="lz4")
        case _:
            pa.parquet.write_table(
                table, path, row_group_size=16, compression="zstd" if kind == "parquet z" else "none"
            )


@cache
def _file(names: tuple[str, ...], kind: str) -> bytes | None:
    """A file with some columns; None where the format has not one of their types."""
    path = _FOLDER / "whole"
    try:
        _written(pa.table({name: _all_columns()[name] for name in names}), kind, path)
    except (pa.ArrowException, NotImplementedError):
        return None
    return path.read_bytes()


def _other_integers(content: bytes, draw: random.Random) -> bytes:
    """Some integers at places where Arrow has such put others in their place."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        size, form = draw.choice(((4, "<i"), (8, "<q"), (2, "<h"), (1, "<b")))
        if len(data) < size + 8:
            return bytes(data)
        place = draw.randrange(0, (len(data) - size) // size) * size
        most = 2 ** (8 * size - 1)
        old = struct.unpack_from(form, data, place)[0]
        new = draw.choice((0, 1, -1, 7, most - 1, -most, 2**20, old + 1, old - 1, old * 2, old ^ 8, 1000))
        struct.pack_into(form, data, place, min(max(new, -most), most - 1))
    return bytes(data)


def attempt(draw: random.Random) -> None:
    """Read a damaged file, at times with a target, columns or text, and then all samples, and one field alone."""
    columns = list(_all_columns())
    names = tuple(draw.sample(columns, draw.choice((1, 1, 2, 4))))
    kind = draw.choice(("file", "stream", "compressed", "feather", "parquet", "parquet z"))
    content = _file(names, kind)
    if content is None:
        return
    if draw.random() < 0.95:
        content = (_other_integers if draw.random() < 0.6 else other_bytes)(content, draw)
    path = _FOLDER / "damaged.arrow"
    path.write_bytes(content)
    options: dict[str, Any] = {}
    if draw.random() < 0.5:
        options["target"] = draw.choice(names)
    if draw.random() < 0.2:
        options["columns"] = [draw.choice(names)]
    if draw.random() < 0.1:
        options["length"] = draw.choice((1, 5))
    reader = descend.data.read(str(path), **options)
    count = min(len(reader), 100)
    reader.read(np.arange(count)[::-1])
    reader.column(draw.choice(list(reader.fields)))


if __name__ == "__main__":
    main(attempt, __doc__ or "")
