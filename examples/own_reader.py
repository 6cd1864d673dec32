"""A file format of one's own: fixed records of a class and 16 numbers. python examples/own_reader.py"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import descend
from descend.data import Field, FileFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORD = np.dtype([("kind", "<i4"), ("values", "<f4", 16)])


class Records:
    """The samples of `.rec` files: read from the disk one by one, so any order costs the same."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._files = [np.memmap(path, RECORD, "r") for path in paths]
        self._ends = np.cumsum([len(file) for file in self._files])
        self.fields = {"values": Field((16,), np.dtype(np.float32)), "kind": Field((), np.dtype(np.int64))}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _find(self, sample: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._ends, sample, side="right"))
        return file, sample - int(self._ends[file] - len(self._files[file]))

    def read(self, samples: np.ndarray) -> dict[str, np.ndarray]:
        rows = [self._files[file][row] for file, row in map(self._find, samples.tolist())]
        return {
            "values": np.array([row["values"] for row in rows], np.float32).reshape(-1, 16),
            "kind": np.array([row["kind"] for row in rows], np.int64),
        }

    def place(self, sample: int) -> str:
        file, row = self._find(sample)
        return f"{self._paths[file]}, record {row}"


descend.data.register(FileFormat("records", (".rec",), lambda paths, options: Records(paths)))


def main(epochs: int = 5) -> float:
    draws = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            values = draws.normal(size=(300, 16)).astype(np.float32)
            records = np.empty(300, RECORD)
            records["values"], records["kind"] = values, values[:, :4].sum(1) > 0
            records.tofile(Path(folder, f"part{number}.rec"))
        data = descend.data.read(f"{folder}/*.rec", target="kind")
        result = descend.fit(
            torch.nn.Linear(16, 2),
            "cross_entropy",
            descend.data.split(data, {"train": 0.8, "validate": 0.2}),
            optimizer=functools.partial(descend.optim.AdamW, lr=3e-2),
            batch_size=50,
            stop=descend.Epochs(epochs),
            metrics=["accuracy"],
        )
    return result.history[-1]["accuracy"]


if __name__ == "__main__":
    descend.main(main)
