"""Parquet files written by pyarrow."""

import pickle  # as readers are sent to worker processes

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data.files import refusal, same

from descend.data import arrow_source, read
from descend.data.formats import parquet

N = 50
RNG = np.random.default_rng(0)
X = RNG.normal(size=N)
TABLE = pa.table({"x": X, "n": np.arange(N, dtype=np.int16), "text": [f"t{i % 3}" for i in range(N)]})


@pytest.fixture
def file(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=7)
    return tmp_path / "a.parquet"


def test_columns(file):
    same(read(file), {"x": X, "n": np.arange(N, dtype=np.int16), "text": np.array([f"t{i % 3}" for i in range(N)])})
    assert read(file).fields["n"].dtype == np.int16
    assert read(file).source.place(9) == f"{file}, row 9"


def test_only_the_row_group_and_the_columns_of_a_sample_are_read(file, monkeypatch):
    loaded = []
    own = parquet.ParquetFiles.load
    monkeypatch.setattr(
        parquet.ParquetFiles, "load", lambda self, c, names: loaded.append((c.index, *names)) or own(self, c, names)
    )
    reader = read(file, columns=["x"])
    assert loaded == []
    reader.read(np.array([8, 9, 48]))
    assert loaded == [(1, "x"), (6, "x")]
    reader.read(np.array([7]))
    assert len(loaded) == 2


def test_what_is_kept_is_bounded(file, monkeypatch):
    monkeypatch.setattr(arrow_source, "CACHE_BYTES", 3 * 7 * 8)
    reader = read(file, columns=["x"])
    for sample in range(N):
        reader.read(np.array([sample]))
    assert len(reader.source._kept) == 3
    assert {chunk.index for chunk, _ in reader.source._kept} == {5, 6, 7}
    same(reader, {"x": X})


def test_several_files(file):
    pq.write_table(TABLE.slice(0, 3), file.with_name("b.parquet"))
    same(read(file.parent, columns=["x"]), {"x": np.concatenate([X, X[:3]])})
    pq.write_table(TABLE.select(["x"]), file.with_name("c.parquet"))
    assert "c.parquet has other columns" in refusal(file.parent)


def test_a_reader_survives_pickling(file):
    reader = read(file, columns=["x"])
    reader.read(np.arange(N))
    same(pickle.loads(pickle.dumps(reader)), {"x": X})


def test_truncated_damaged_and_mislabelled_files(file, tmp_path):
    content = file.read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.parquet").write_text("a,b\n1,2\n")
    for name in ("cut", "text"):
        text = refusal(tmp_path / f"{name}.parquet")
        assert "is not a Parquet file, or was cut off" in text
        assert f"{name}.parquet" in text
    start = pq.ParquetFile(file).metadata.row_group(3).column(0).data_page_offset
    (tmp_path / "page.parquet").write_bytes(content[:start] + b"\xff" * 40 + content[start + 40 :])
    text = refusal(tmp_path / "page.parquet", columns=["x"])
    assert "sample 21 of reader 'parquet' for 'train'" in text
    assert "page.parquet, row 21" in text
    read(tmp_path / "page.parquet", columns=["x"]).read(np.arange(21))  # the others are read


def test_a_promise_of_very_many_rows(file, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_GROUP_ROWS", 6)
    assert "row group 0 promises 7 rows" in refusal(file)
