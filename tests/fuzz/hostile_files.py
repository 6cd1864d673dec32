"""Hostile data files of their real sizes: each is refused, within 5 seconds of the processor and little memory.

    python tests/fuzz/hostile_files.py

It writes 1 GB to the folder for temporary files and takes about two minutes. `tests/data/test_hostile.py` has small
forms of these files.
"""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_SECONDS = 5.0
READ = """
import sys
sys.path.insert(0, sys.argv[1])
import re, time
import numpy as np, h5py, pyarrow.csv, pyarrow.json, pyarrow.parquet
from descend.data import read
from descend.errors import DataError
begin, outcome = time.process_time(), "ACCEPTED"
try:
    reader = read(sys.argv[2])
    reader.read(np.array([0, len(reader) - 1]))
except DataError as error:
    outcome = "refused: " + str(error).replace(chr(10), " ")[:230]
seconds = time.process_time() - begin
peak = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
print(f"{seconds:5.2f} s, {peak / 2**20:.2f} GiB, {outcome}")
"""


def _gzip(unit: bytes, mebibytes: int) -> bytes:
    block = unit * (2**20 // len(unit))
    return b"".join(gzip.compress(block * 16) for _ in range(mebibytes // 16))


def _csv(columns: int, rows: int = 3) -> bytes:
    return (",".join(f"c{i}" for i in range(columns)) + "\n" + (",".join(["1"] * columns) + "\n") * rows).encode()


def _arrow(path: Path, table: pa.Table, times: int = 1) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        for _ in range(times):
            writer.write_table(table)


def _hdf5(path: Path, fill: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        fill(file)


def _all(some: object) -> None:
    list(some)  # type: ignore[call-overload]


def _many_names(file: h5py.File) -> None:
    group: h5py.Group = file
    for _ in range(40):
        inner = group.create_group("a")
        group["b"] = inner
        group = inner


def _tar(path: Path, member: tarfile.TarInfo, count: int) -> None:
    with path.open("wb") as file:
        for _ in range(count // 1000):
            file.write(member.tobuf() * 1000)
        file.write(bytes(1024))


def _link() -> tarfile.TarInfo:
    link = tarfile.TarInfo("a.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return link


def _zip(path: Path, contents: list[bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"a{number}.npy", content)


def _npy(array: np.ndarray) -> bytes:
    np.save(stream := io.BytesIO(), array)
    return stream.getvalue()


DICTIONARY = pa.DictionaryArray.from_arrays(np.zeros(200_000, np.int32), pa.array(["x" * 10**6]))
MAKERS: dict[str, Callable[[Path], object]] = {
    "columns-60000.csv": lambda path: path.write_bytes(_csv(60_000)),
    "columns-1000000.csv": lambda path: path.write_bytes(_csv(10**6)),
    "a-long-row.csv": lambda path: path.write_bytes(b"a,b\n" + b"," * 10**7 + b"\n"),
    "an-open-quote.csv": lambda path: path.write_bytes(b'a,b\n1,"' + b"x\n" * 2 * 10**7),
    "440-MB.csv.gz": lambda path: path.write_bytes(_gzip(b"1,2,3\n", 440)),
    "2-GiB.txt.gz": lambda path: path.write_bytes(_gzip(b"a word\n", 2048)),
    "440-MB.jsonl.gz": lambda path: path.write_bytes(_gzip(b'{"a":1}\n', 440)),
    "new-keys.jsonl": lambda path: path.write_text("".join(f'{{"k{i}": {i}}}\n' for i in range(60_000))),
    "empty-rows.jsonl": lambda path: path.write_text(json.dumps({f"k{i}": i for i in range(1000)}) + "\n{}" * 10**5),
    "keys-in-a-list.jsonl": lambda path: path.write_text(json.dumps({"a": [{f"k{i}": i} for i in range(60_000)]})),
    "keys-600000.jsonl": lambda path: path.write_text('{"a":1}\n' + json.dumps({f"k{i}": i for i in range(600_000)})),
    "columns-200000.parquet": lambda path: pq.write_table(
        pa.table({f"c{i}": [1] for i in range(200_000)}), path, write_statistics=False
    ),
    "zeros.parquet": lambda path: pq.write_table(pa.table({"a": [[0.0] * 2**20] * 200}), path, compression="zstd"),
    "one-text.parquet": lambda path: pq.write_table(pa.table({"a": DICTIONARY}), path, store_schema=False),
    "one-text.arrow": lambda path: _arrow(path, pa.table({"a": DICTIONARY})),
    "columns-200000.arrow": lambda path: _arrow(path, pa.table({f"c{i}": [1] for i in range(200_000)})),
    "batches-500000.arrow": lambda path: _arrow(path, pa.table({"a": [1]}), 500_000),
    "data-sets-100000.h5": lambda path: _hdf5(
        path, lambda file: _all(file.create_dataset(f"d{i}", data=[0.0]) for i in range(10**5))
    ),
    "groups-200000.h5": lambda path: _hdf5(path, lambda file: _all(file.create_group(f"d{i}") for i in range(200_000))),
    "many-names.h5": lambda path: _hdf5(path, _many_names),
    "arrays-100000000.h5": lambda path: _hdf5(
        path, lambda file: file.create_dataset("x", (10**8,), h5py.vlen_dtype(np.int32))
    ),
    "a-chunk-of-2-GiB.h5": lambda path: _hdf5(
        path, lambda file: file.create_dataset("x", (2**28,), float, chunks=(2**28,), compression="gzip")
    ),
    "links-1200000.tar": lambda path: _tar(path, _link(), 1_200_000),
    "arrays-100000.npz": lambda path: _zip(path, [_npy(np.zeros(1))] * 10**5),
    "2-GiB.npz": lambda path: _zip(path, [_npy(np.zeros(2**25))] * 8, zipfile.ZIP_DEFLATED),
}


def main() -> int:
    """Make and read each file.

    Returns:
        1 if one was not refused in time.
    """
    root, late = str(Path(__file__).resolve().parents[2]), 0
    for name, make in MAKERS.items():
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            path = Path(folder) / name
            make(path)
            done = subprocess.run(
                [sys.executable, "-c", READ, root, str(path)], capture_output=True, text=True, timeout=120, check=False
            )
            text = done.stdout.strip() or f"ended with {done.returncode}: {done.stderr[-200:]}"
            good = "refused" in text and float(text.split()[0]) < LIMIT_SECONDS
            late += not good
            sys.stdout.write(f"{'ok ' if good else 'BAD'} {name:24} {text}\n")
            sys.stdout.flush()
    return int(late > 0)


if __name__ == "__main__":
    sys.exit(main())
