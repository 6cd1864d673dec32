"""Columns that went to disk and come back."""

import pickle
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data.files import same

from descend.data import read
from descend.data.formats.parquet import ParquetFiles
from descend.data.tables import arrow_source, spilled_columns
from descend.data.tables.spilled_columns import SpilledColumns

COLUMNS = {
    "numbers": np.arange(7.0),
    "vectors": np.arange(12).reshape(3, 4),
    "texts": pa.chunked_array([["a", None], ["ccc"]]),
    "lists": pa.array([[1], [], [2, 3]]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_come_back_mapped(name, monkeypatch):
    monkeypatch.setattr(spilled_columns, "_MAPPED", 1)
    spilled, column = SpilledColumns(), COLUMNS[name]
    spilled.put(("k", name), column)
    spilled.put("another", np.zeros(2))
    assert ("k", name) in spilled
    for _ in range(2):
        assert spilled.get("another").tolist() == [0, 0]
        found = spilled.get(("k", name))
        assert (
            found.tolist() == column.tolist()
            if isinstance(column, np.ndarray)
            else found.equals(pa.chunked_array(column))
        )
    assert len(pickle.loads(pickle.dumps(spilled))) == 0
    folder = spilled._folder
    del spilled, found
    assert not folder.exists()


def test_a_full_disk_means_decoding_again(monkeypatch, tmp_path):
    monkeypatch.setattr(spilled_columns, "FREE_BYTES", 2**62)
    spilled = SpilledColumns()
    spilled.put("k", np.zeros(2))
    assert "k" not in spilled


def test_every_row_group_is_decoded_once(tmp_path, monkeypatch):
    count = 400
    columns = {
        "x": np.arange(count) / 3,
        "t": [f"t{i}" for i in range(count)],
        "v": [[i] * (i % 4) for i in range(count)],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=20)
    loads = Counter()
    load = ParquetFiles.load

    def counted(self, chunk, names):
        loads[chunk.index] += 1
        return load(self, chunk, names)

    monkeypatch.setattr(arrow_source, "CACHE_BYTES", 4096)
    reader = read(tmp_path / "a.parquet", length=3)
    monkeypatch.setattr(ParquetFiles, "load", counted)
    truth = {"x": columns["x"], "t": columns["t"], "v": [[i] * (i % 4) + [0] * (3 - i % 4) for i in range(count)]}
    truth["v_length"] = np.arange(count) % 4
    for seed in range(3):
        same(reader, truth, seed)
        for ids in np.array_split(np.random.default_rng(seed).permutation(count), 20):
            np.testing.assert_array_equal(reader.read(ids)["x"], columns["x"][ids])
    assert dict(loads) == dict.fromkeys(range(20), 1)
    assert sum(values.nbytes for values in reader.source._kept.values()) < 8192
    assert len(reader.source._spilled) > 40


@pytest.mark.parametrize("what", ["deleted", "cut off"])
def test_a_file_that_is_gone_or_damaged_is_a_column_that_was_not_written(what):
    spilled = SpilledColumns()
    spilled.put("a", np.arange(1000))
    (file,) = spilled._folder.iterdir()
    if what == "deleted":
        file.unlink()
    else:
        file.write_bytes(b"x")
    assert "a" not in spilled
    spilled.put("a", np.arange(1000))
    assert "a" in spilled
    assert spilled.get("a")[-1] == 999
