"""Seconds to the first batch at 99 % of an epoch, in a new process: what a resumed run waits for its data.

    python benchmarks/resume.py                                   # 10 million samples, 1 million in tar shards
    python benchmarks/resume.py --samples 1000000 --formats parquet
    python benchmarks/resume.py --tar-samples 10000000            # 10 GB of shards

npy       an array of float32, 16 numbers a sample
parquet   a number and a label, in row groups of 100,000
wide      Parquet with 16 random numbers of float32 and a label, in row groups of 1,000,000, near pyarrow's 1,048,576
tar       shards of 1,000,000 samples with a class each, whose index an earlier process has kept
text      bytes, packed to samples of 64 tokens

The time begins when everything is imported; it includes opening the files and the order of the epoch. "cpu" is the
processor time of the process in it, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FORMATS = ("npy", "parquet", "wide", "tar", "text")
AT_ONCE = 100_000
SHARD = 1_000_000
TOKENS = 64


def make_npy(folder: Path, samples: int) -> Path:
    """An array of zeros, whose pages the system does not store."""
    path = folder / "x.npy"
    np.lib.format.open_memmap(path, "w+", np.float32, (samples, 16)).flush()
    return path


def make_parquet(folder: Path, samples: int) -> Path:
    """A table that is written row group by row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "t.parquet"
    schema = pa.schema([("x", pa.float32()), ("y", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, samples, AT_ONCE):
            number = np.arange(first, min(first + AT_ONCE, samples))
            writer.write_table(pa.table({"x": number.astype(np.float32), "y": number % 10}), row_group_size=AT_ONCE)
    return path


def make_wide(folder: Path, samples: int) -> Path:
    """A table as programs write it that choose nothing: large row groups, snappy."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, rng = folder / "t.parquet", np.random.default_rng(0)
    schema = pa.schema([*[(f"x{i}", pa.float32()) for i in range(16)], ("y", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, samples, SHARD):
            rows = min(SHARD, samples - first)
            columns = {f"x{i}": rng.standard_normal(rows, np.float32) for i in range(16)}
            writer.write_table(pa.table({**columns, "y": rng.integers(0, 10, rows)}), row_group_size=SHARD)
    return path


def make_tar(folder: Path, samples: int) -> Path:
    """Shards of members NUMBER.cls, a header and a block each; see `descend.data.formats.tar_index` for the header."""
    template = np.zeros(1024, np.uint8)
    for place, text in ((0, b"000000000.cls"), (100, b"0000644\0"), (108, b"0000000\0" * 2), (124, b"00000000001\0")):
        template[place : place + len(text)] = np.frombuffer(text, np.uint8)
    for place, text in ((136, b"00000000000\0"), (148, b" " * 8), (156, b"0"), (257, b"ustar\00000")):
        template[place : place + len(text)] = np.frombuffer(text, np.uint8)
    powers = 10 ** np.arange(8, -1, -1)
    for shard, begin in enumerate(range(0, samples, SHARD)):
        with (folder / f"shard-{shard:03}.tar").open("wb") as file:
            for first in range(begin, min(begin + SHARD, samples), AT_ONCE):
                number = np.arange(first, min(first + AT_ONCE, begin + SHARD, samples))
                blocks = np.tile(template, (len(number), 1))
                blocks[:, :9] += ((number[:, None] // powers) % 10).astype(np.uint8)
                sums = blocks[:, :512].sum(axis=1, dtype=np.int64)
                blocks[:, 148:154] = 48 + (sums[:, None] // 8 ** np.arange(5, -1, -1)) % 8
                blocks[:, 154], blocks[:, 512] = 0, 48 + number % 10
                file.write(blocks.tobytes())
            file.write(bytes(1024))
    return folder


def make_text(folder: Path, samples: int) -> Path:
    """A file of one repeated line."""
    path = folder / "corpus.txt"
    line = b"All work and no play makes a dull corpus, and compresses very well.\n" * 1000
    with path.open("wb") as file:
        for _ in range(samples * TOKENS // len(line) + 1):
            file.write(line)
    return path


MAKE = {"npy": make_npy, "parquet": make_parquet, "wide": make_wide, "tar": make_tar, "text": make_text}


def first_batch(kind: str, path: str) -> None:
    """Open the data and read the first batch at 99 % of an epoch; prints the times as JSON."""
    import torch

    from descend import data

    if kind in ("parquet", "wide"):
        importlib.import_module("pyarrow.parquet")  # as a run has done before its data are opened
    torch.empty(1)
    wall, processor = time.perf_counter(), time.process_time()
    reader = data.read(path, length=TOKENS) if kind == "text" else data.read(path)
    feed = data.open_data(reader, data.Loading(batch_size=256))
    batches = feed.epoch(1, int(0.99 * len(reader)) // 256)
    size = len(next(batches).ids)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    batches.close()
    print(json.dumps({"samples": len(reader), "seconds": wall, "cpu": processor, "batch": size}))


def main() -> None:
    """Make the files, and measure each in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--tar-samples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("FORMAT", "PATH"), help="used by this program itself")
    given = parser.parse_args()
    if given.child:
        first_batch(*given.child)
        return
    for kind in given.formats:
        with tempfile.TemporaryDirectory(prefix="descend-resume-") as folder:
            samples = given.tar_samples if kind == "tar" else given.samples
            path = MAKE[kind](Path(folder), samples)
            command = [sys.executable, __file__, "--child", kind, str(path)]
            found = [json.loads(subprocess.check_output(command, text=True)) for _ in range(given.rounds + 1)]
            seconds, cpu = (sorted(one[of] for one in found[1:])[given.rounds // 2] for of in ("seconds", "cpu"))
            print(f"{kind:<8} {found[0]['samples']:>12,} samples   {seconds:6.2f} s   cpu {cpu:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
