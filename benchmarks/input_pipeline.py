"""Samples per second and memory of input pipelines: descend's beside those of its peers, in one run.

    python benchmarks/input_pipeline.py                                # descend and torch's DataLoader
    python benchmarks/input_pipeline.py --environments build/peers     # with datasets, webdataset and grain
    python benchmarks/input_pipeline.py --cases jpeg --images 200 --rounds 3
    python benchmarks/input_pipeline.py --profile images               # where the time of descend goes

images     Fashion-MNIST in memory: padded, cut at random, flipped at random, normalized
jpeg       JPEG files of the sizes of ImageNet's: a random part, scaled to 224 x 224, flipped at random, normalized
photos     the same files, scaled to 256 x 256, cut to 224 x 224 at random, flipped at random, normalized
parquet    a table of sixteen columns of float32 and a label
hdf5       images of 3 x 32 x 32 bytes in chunks of 64, compressed by gzip
tar        the JPEG files in four shards of webdataset's form, scaled to 224 x 224, as numbers from 0 to 1
text       documents of bytes, packed to rows of 256 tokens, each with the token after it

All give shuffled mini-batches of torch tensors; webdataset shuffles within a buffer. Each library runs in processes of
its own, without workers and with one and two of them, and its best counts. Contenders make an epoch each in turn,
`--rounds` times after one of warming up. A number of workers with which a library was less than half as fast as with
another while warming up gets no more turns, nor does a contender that has run for `--seconds` and had one. The table
has the median of samples per second, its spread (quarter to three quarters), the median of the ratios to torch's
DataLoader of the same round, and the most memory of a process with its workers. Where simplejpeg is installed, descend
decodes with it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import shutil
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path

import input_contenders
import numpy as np

CASES = {
    "images": ("descend", "torch", "grain"),
    "jpeg": ("descend", "torch", "datasets", "grain"),
    "photos": ("descend", "torch", "datasets", "grain"),
    "parquet": ("descend", "torch", "datasets"),
    "hdf5": ("descend", "torch", "grain"),
    "tar": ("descend", "webdataset"),
    "text": ("descend", "torch", "datasets"),
}
WITH_WORKERS = {"descend": ("jpeg", "photos", "parquet", "hdf5", "tar", "text")}  # others in all cases
BATCH = {"jpeg": 32, "photos": 32, "tar": 32}  # 256 elsewhere
PACKAGES = ["torch==2.13.0", "numpy", "pillow", "h5py", "pyarrow", "datasets", "webdataset", "grain"]
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
CHILD = Path(input_contenders.__file__)


# The data


def make_data(folder: Path, images: int, rows: int) -> None:
    """Write the files of all cases, those that are not there."""
    rng = np.random.default_rng(0)
    for made, make in (
        ("train-images-idx3-ubyte", lambda: make_idx(folder, rng)),
        ("jpeg", lambda: make_jpeg(folder, rng, images)),
        ("table.parquet", lambda: make_parquet(folder, rng, rows)),
        ("images.h5", lambda: make_hdf5(folder, rng, rows // 10)),
        ("corpus.txt", lambda: make_corpus(folder, rng, rows * 50)),
    ):
        if not (folder / made).exists():
            make()


def make_idx(folder: Path, rng: np.random.Generator) -> None:
    """Fashion-MNIST, or noise of its shape where it is not installed."""
    import gzip

    for name, shape in (("train-images-idx3-ubyte", (60_000, 28, 28)), ("train-labels-idx1-ubyte", (60_000,))):
        if (packed := FASHION_MNIST / f"{name}.gz").exists():
            (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
            continue
        values = rng.integers(0, 256 if len(shape) == 3 else 10, shape).astype(np.uint8)
        header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        (folder / name).write_bytes(header + values.tobytes())


def make_jpeg(folder: Path, rng: np.random.Generator, count: int) -> None:
    """JPEG files of about 500 x 375 pixels and 110 kB, and the same in tar files."""
    from PIL import Image

    place = folder / "jpeg.part"
    place.mkdir(exist_ok=True)
    lines = []
    for number in range(count):
        height, width = (int(side) for side in rng.normal((375, 500), 60).clip(150, 1000))
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3)).astype(np.uint8)).resize((width, height))
        noise = rng.normal(0, 12, (height, width, 3))
        pixels = (np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{number:06}.jpg", quality=90)
        lines.append(f"{number:06}.jpg {number % 1000}")
    (place / "list").write_text("\n".join(lines) + "\n")
    for shard in range(4):
        with tarfile.open(folder / f"shard-{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard, count, 4):
                tar.add(place / f"{number:06}.jpg", f"{number:06}.jpg")
                label = place / "label"
                label.write_text(str(number % 1000))
                tar.add(label, f"{number:06}.cls")
    place.rename(folder / "jpeg")


def make_parquet(folder: Path, rng: np.random.Generator, count: int) -> None:
    """A table of float32 and a label."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: rng.normal(size=count).astype(np.float32) for name in input_contenders.COLUMNS}
    pq.write_table(pa.table({**columns, "y": rng.integers(0, 10, count)}), folder / "table.parquet")


def make_hdf5(folder: Path, rng: np.random.Generator, count: int) -> None:
    """Images and labels."""
    import h5py

    with h5py.File(folder / "images.h5", "w") as file:
        pixels = rng.integers(0, 64, (count, 3, 32, 32)).astype(np.uint8)
        file.create_dataset("x", data=pixels, chunks=(64, 3, 32, 32), compression="gzip", shuffle=True)
        file.create_dataset("y", data=rng.integers(0, 10, count))


def make_corpus(folder: Path, rng: np.random.Generator, size: int) -> None:
    """Words of a small vocabulary in documents of different lengths."""
    words = ["".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(2, 9))) for _ in range(2000)]
    documents, written = [], 0
    while written < size:
        text = " ".join(words[i] for i in rng.zipf(1.3, rng.integers(20, 400)) % len(words))
        documents.append(text)
        written += len(text)
    (folder / "corpus.txt").write_text("\n\n".join(documents))


# The measurement


@dataclass
class Contender:
    """A library with a number of workers, in a process of its own.

    Args:
        python: The interpreter of its environment.
        arguments: Of the process.
    """

    python: Path
    arguments: list[str]
    rates: list[float] = field(default_factory=list)
    seconds: float = 0.0
    mebibytes: float = 0.0
    held: list[float] = field(default_factory=list[float])
    process: subprocess.Popen[str] | None = None

    def epoch(self) -> bool:
        """Make one more epoch; whether that was possible."""
        if self.process is None:
            pipe, errors = subprocess.PIPE, subprocess.DEVNULL
            command = [str(self.python), str(CHILD), *self.arguments]
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("epoch\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        if not (line := self.process.stdout.readline()):
            return False
        found = json.loads(line)
        self.seconds += found["seconds"]
        self.rates.append(found["samples"] / found["seconds"])
        self.mebibytes = max(self.mebibytes, found["mebibytes"])
        self.held.append(found["held"])
        return True

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def environment(folder: Path) -> Path | None:
    """The interpreter of an environment with the peers, made if it is not there; None, with a message, without one."""
    python = folder / "input" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "input", with_pip=True)
        made = subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], capture_output=True, text=True)
        if made.returncode:
            print(f"the peers are left out: {made.stderr.strip().splitlines()[-1:]}")
            shutil.rmtree(folder / "input")  # so that the next run tries again
            return None
    return python


def measure(case: str, folder: Path, peers: Path | None, given: argparse.Namespace) -> dict[str, Contender]:
    """The best contender of each library, after at most `given.rounds` epochs in turn."""
    taking: dict[tuple[str, int], Contender] = {}
    for library in CASES[case]:
        python = Path(sys.executable) if library in ("descend", "torch") else peers
        if python is None:
            continue
        useful = given.workers if case in WITH_WORKERS.get(library, (case,)) else [0]
        for count in useful:
            arguments = [library, case, str(count), str(folder), str(BATCH.get(case, 256))]
            taking[library, count] = Contender(python, arguments)
    for turn in range(given.rounds + 1):
        for key, one in list(taking.items()):
            if turn > 1 and one.seconds > given.seconds:
                continue
            if not one.epoch():
                print(f"  {key[0]} with {key[1]} workers cannot run: {' '.join(one.arguments)}")
                taking.pop(key).close()
        if turn == 0:
            drop_slow(taking)
    best: dict[str, Contender] = {}
    for (library, _), one in taking.items():
        one.close()
        one.rates = one.rates[1:]
        if library not in best or statistics.median(one.rates) > statistics.median(best[library].rates):
            best[library] = one
    return best


def drop_slow(taking: dict[tuple[str, int], Contender]) -> None:
    """End the contenders that are less than half as fast as another of their library after the first epoch."""
    for (library, count), one in list(taking.items()):
        if one.rates[0] < max(other.rates[0] for (name, _), other in taking.items() if name == library) / 2:
            taking.pop((library, count)).close()


def report(case: str, best: dict[str, Contender]) -> None:
    """One table."""
    print(f"\n{case}")
    base = best.get("torch") or best.get("webdataset")
    for library, one in best.items():
        several = len(one.rates) > 1
        low, middle, high = statistics.quantiles(one.rates, n=4, method="inclusive") if several else one.rates * 3
        spread = f"({low:,.0f} to {high:,.0f})"
        ratios = [a / b for a, b in zip(one.rates, base.rates, strict=False)] if base else []
        ratio = f"{statistics.median(ratios):7.2f} x" if ratios else " " * 9
        name = f"{library}, {one.arguments[2]} workers"
        held = f"held {one.held[0]:,.0f} to {one.held[-1]:,.0f}"
        print(f"  {name:<24}{middle:12,.0f} samples/s  {spread:<24}{ratio}{one.mebibytes:8,.0f} MiB, {held}")


def profile(case: str, folder: Path) -> None:
    """Where the time of descend goes, without workers and without its thread."""
    epoch = input_contenders.of_descend(case, 0, folder, BATCH.get(case, 256))
    sum(input_contenders.samples_of(one) for one in epoch(0))
    import threading

    recorder = cProfile.Profile()
    threading.setprofile(lambda *_: recorder.enable())  # the thread that reads ahead does the work
    sum(input_contenders.samples_of(one) for one in epoch(1))
    threading.setprofile(None)
    pstats.Stats(recorder).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60.0, help="after which a contender has no more than one turn")
    parser.add_argument("--images", type=int, default=1000, help="JPEG files")
    parser.add_argument("--rows", type=int, default=200_000, help="of the table; a tenth are HDF5's images")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--environments", type=Path, default=None, help="folder for the environment of the peers")
    parser.add_argument("--data", type=Path, default=None, help="folder for the files, kept; else a temporary one")
    parser.add_argument("--profile", choices=list(CASES), default=None)
    given = parser.parse_args()
    folder = given.data or Path(tempfile.mkdtemp(prefix="descend-input-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        make_data(folder, given.images, given.rows)
        if given.profile:
            profile(given.profile, folder)
            return
        if os.getloadavg()[0] > 0.5:
            print(f"the machine is busy (load {os.getloadavg()[0]:.1f}): trust ratios only")
        peers = environment(given.environments) if given.environments else None
        for case in given.cases:
            report(case, measure(case, folder, peers, given))
    finally:
        if given.data is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
