"""Reads data sets of other libraries by `descend.data.read`, and compares every sample with what was written.

    python -m venv sources
    echo "torch==2.13.0" > only-this-torch.txt
    sources/bin/pip install --constraint only-this-torch.txt torch==2.13.0 numpy pillow pyarrow grain webdataset
    datasets sources/bin/pip install --no-deps mosaicml-streaming
    PYTHONPATH=. sources/bin/python tests/frameworks/data_sources.py [NAME ...]

It needs an environment of its own, so pytest does not collect it. `streaming` asks for torchvision, which would replace
torch: it is installed alone, and what its import misses by hand. The exit status is 1 if a row fails.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import descend.data

COUNT = 23
RNG = np.random.default_rng(0)
X = RNG.normal(size=(COUNT, 3)).astype(np.float32)
Y = np.arange(COUNT) % 5


def compared(source: Any, **options: Any) -> str:
    """The samples of a source in an order of their own."""
    reader = descend.data.read(source, **options)
    assert len(reader) == COUNT, f"{len(reader)} samples"
    ids = RNG.permutation(COUNT)
    found = reader.read(ids)
    np.testing.assert_array_equal(found["x"], X[ids])
    np.testing.assert_array_equal(found["y"], Y[ids])
    return f"{COUNT} samples, {', '.join(reader.fields)}"


class Rows:
    """A data source of grain."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": X[index], "y": int(Y[index])}


def grain_source(folder: Path) -> str:
    """A random-access source, before torch is imported."""
    import grain

    assert isinstance(Rows(), grain.sources.RandomAccessDataSource)
    return compared(Rows())


def grain_map_dataset(folder: Path) -> str:
    """A MapDataset with a transform."""
    import grain

    halves = [{"x": X[i] / 2, "y": int(Y[i])} for i in range(COUNT)]
    return compared(grain.MapDataset.source(halves).map(lambda one: {**one, "x": one["x"] * 2}))


def streaming_dataset(folder: Path) -> str:
    """Shards of MDS."""
    from streaming import MDSWriter, StreamingDataset

    with MDSWriter(out=str(folder / "mds"), columns={"x": "ndarray:float32:3", "y": "int"}, size_limit=400) as writer:
        for i in range(COUNT):
            writer.write({"x": X[i], "y": int(Y[i])})
    return compared(StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=4))


def webdataset_shards(folder: Path) -> str:
    """Shards of webdataset, named by braces."""
    import webdataset

    for shard in range(3):
        with webdataset.TarWriter(str(folder / f"s-{shard:03}.tar")) as writer:
            for i in range(COUNT)[shard * 8 : shard * 8 + 8]:
                writer.write({"__key__": f"{i:04}", "npy": X[i], "cls": int(Y[i])})
    return compared(f"{folder}/s-{{000..002}}.tar", fields={"x": "npy", "y": "cls"})


def hugging_face(folder: Path) -> str:
    """A data set of Hugging Face."""
    import datasets

    features = datasets.Features({"x": datasets.Sequence(datasets.Value("float32"), 3), "y": datasets.Value("int64")})
    return compared(datasets.Dataset.from_dict({"x": X, "y": Y}, features=features))


CASES = (grain_source, grain_map_dataset, streaming_dataset, webdataset_shards, hugging_face)


def main(names: list[str]) -> int:
    """Run the cases with these names, or all; the exit status."""
    failed = False
    for case in CASES:
        if names and case.__name__ not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = case(Path(folder))
            except Exception as error:
                failed = True
                result = f"FAILED: {type(error).__name__}: {error}"
                traceback.print_exc()
        sys.stdout.write(f"{case.__name__:<20} {result}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
