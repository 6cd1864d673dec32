"""Rows of data sets that h5py wrote, of each way in which it stores them."""

import pickle

import h5py
import numpy as np
import pytest

from descend.data.formats import hdf5_blocks
from descend.data.formats.hdf5_blocks import StoredRows

X = np.random.default_rng(0).integers(0, 1000, (50, 3, 4)).astype(np.int32)
WAYS = {
    "contiguous": {},
    "chunks": {"chunks": (7, 3, 2)},
    "one row a chunk": {"chunks": (1, 3, 4)},
    "gzip": {"chunks": (8, 3, 4), "compression": "gzip", "shuffle": True},
    "one chunk": {"chunks": (50, 3, 4), "compression": "lzf"},
}


@pytest.mark.parametrize("dtype", [np.int32, ">f8", bool])
@pytest.mark.parametrize("way", WAYS)
def test_rows(tmp_path, way, dtype):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("group/x", data=X.astype(dtype), **WAYS[way])
    rows = StoredRows()
    with h5py.File(tmp_path / "a.h5") as file:
        for some in ([0], [49], [3, 4, 20, 48], range(50), [], [7, 8]):
            ids = np.array(some, np.int64)
            found = rows.read(tmp_path / "a.h5", file["group/x"], ids)
            np.testing.assert_array_equal(found, X.astype(dtype)[ids])
        copy = pickle.loads(pickle.dumps(rows))
        np.testing.assert_array_equal(copy.read(tmp_path / "a.h5", file["group/x"], ids), X.astype(dtype)[ids])


def test_a_chunk_is_decoded_once_whatever_fits_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5_blocks, "HELD_BYTES", 2 * 8 * 48)  # of seven chunks two
    decoded = []

    class Counting:
        def __init__(self, stored):
            self.stored = stored

        def __getattr__(self, name):
            return getattr(self.stored, name)

        def __getitem__(self, at):
            decoded.append(at.start)
            return self.stored[at]

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=X, **WAYS["gzip"])
    rows = StoredRows()
    with h5py.File(tmp_path / "a.h5") as file:
        for _ in range(4):
            np.testing.assert_array_equal(rows.read(tmp_path / "a.h5", Counting(file["x"]), np.arange(50)), X)
    assert decoded == [0, 8, 16, 24, 32, 40, 48]


def test_what_was_never_written(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (5, 2), np.float32, fillvalue=3)
    with h5py.File(tmp_path / "a.h5") as file:
        assert (StoredRows().read(tmp_path / "a.h5", file["x"], np.array([1, 4])) == 3).all()
