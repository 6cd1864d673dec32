"""Small files that promise far more than they hold are refused before the work is done; exit code 3, and what to do."""

import gzip
import io
import json
import tarfile
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data.files import refusal

from descend.data import expansion, read
from descend.data.formats import arrow, hdf5, npy, parquet, tar_members
from descend.data.tables import arrow_columns
from descend.errors import DataError


@pytest.mark.parametrize(
    "rows",
    [
        "".join(f'{{"k{i}": {i}}}\n' for i in range(10_000)),
        json.dumps({f"k{i}": i for i in range(1000)}) + "\n" + "{}\n" * 10_000,
        '{"a": 1}\n' * 10_000 + "".join(f'{{"k{i}": {i}}}\n' for i in range(2000)),
        json.dumps({"a": [{f"k{i}": i} for i in range(10_000)]}) + "\n",
        '{"a": {"b": {}}}\n' * 10_000 + json.dumps({"a": {"b": {f"k{i}": i for i in range(1000)}}}) + "\n",
    ],
    ids=["new keys", "none of them", "late", "in a list", "nested"],
)
def test_rows_whose_keys_all_differ(tmp_path, rows):
    (tmp_path / "a.jsonl").write_text(rows)
    text = refusal(tmp_path / "a.jsonl")
    assert "reader 'jsonl'" in text
    assert "different keys that they make a table of" in text
    assert 'write what differs as values: {"name": ..., "value": ...}' in text


def test_rows_with_many_keys_that_are_always_the_same_are_read(tmp_path):
    row = {"frames": {f"{i:04}": {"x": i, "y": 0.5} for i in range(500)}}
    (tmp_path / "a.jsonl").write_text((json.dumps(row) + "\n\n") * 30)
    reader = read(tmp_path / "a.jsonl")
    assert len(reader) == 30
    assert len(reader.fields) == 1000
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"a": 2, "b": 3}\n')  # an optional one
    assert np.isnan(read(tmp_path / "b.jsonl").read(np.array([0]))["b"]).all()


def test_a_later_row_with_more_keys_than_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n' + json.dumps({f"k{i}": i for i in range(33_000)}) + "\n")
    assert "row 2 has more than 32,768 keys" in refusal(tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.txt.gz"])
def test_compressed_text_that_expands_too_much(tmp_path, name):
    unit = {"a.csv.gz": b"1,2,3\n", "a.jsonl.gz": b'{"a":1}\n', "a.txt.gz": b"again\n"}[name]
    (tmp_path / name).write_bytes(gzip.compress(unit * 2**20) * 30)
    text = refusal(tmp_path / name)
    assert f"{name} expands more than 200 times" in text
    assert "gunzip" in text


def test_parquet_that_would_become_far_larger(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [[0.0] * 2**16] * 10}), path, compression="zstd")
    with monkeypatch.context() as patch:
        patch.setattr(expansion, "FREE_BYTES", 2**20)
        assert "row group 0 has" in refusal(path)
        assert "write it with smaller row groups" in refusal(path)
    texts = pa.DictionaryArray.from_arrays(np.zeros(1000, np.int32), pa.array(["x" * 10**6]))
    for store_schema in (True, False):
        pq.write_table(pa.table({"a": texts}), path, compression="zstd", store_schema=store_schema)
        assert "the dictionary of 'a' has" in refusal(path)
    pq.write_table(pa.table({f"c{i}": [1] for i in range(40)}), path)
    monkeypatch.setattr(parquet, "MAX_COLUMNS", 30)
    assert "40 columns; at most 30" in refusal(path)
    monkeypatch.setattr(parquet, "MAX_FOOTER_BYTES", 100)
    assert "at most 100 are read" in refusal(path)


def test_arrow_that_would_become_far_larger(tmp_path, monkeypatch):
    path = tmp_path / "a.arrow"
    texts = pa.DictionaryArray.from_arrays(np.zeros(1000, np.int32), pa.array(["x" * 10**6]))

    def write(table, make=pa.ipc.new_file):
        with pa.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)

    write(pa.table({"a": texts}))
    assert "the dictionary of 'a' has" in refusal(path)
    monkeypatch.setattr(arrow, "MAX_BATCHES", 3)
    monkeypatch.setattr(arrow, "MAX_COLUMNS", 3)
    for make in (pa.ipc.new_file, pa.ipc.new_stream):
        write(pa.table({"a": np.zeros(4000)}), make)
        assert "4 batches of rows; at most 3" in refusal(path)
        write(pa.table({f"c{i}": [1] for i in range(4)}), make)
        assert "4 columns; at most 3" in refusal(path)


def test_hdf5_that_would_become_far_larger(tmp_path, monkeypatch):
    with h5py.File(path := tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (2**28,), h5py.vlen_dtype(np.int32))
        file.create_dataset("b", (2**28,), h5py.string_dtype(), chunks=(2**20,))
        file.create_dataset("c", (2**28,), np.float64, chunks=(2**28,), compression="gzip")
    text = refusal(path)
    assert "'a', with 268,435,456 entries, has 0 bytes" in text
    assert "'b', with 268,435,456 entries, has 0 bytes" in text
    assert "'c' has 0 bytes, which would become 2,147,483,648" in text
    with h5py.File(path := tmp_path / "b.h5", "w") as file:
        group = file
        for _ in range(40):  # 2^40 ways from the top to the end
            inner = group.create_group("a")
            group["b"] = inner
            group = inner
        group["x"] = np.arange(3.0)
    assert list(read(path).fields) == [".".join(["a"] * 40) + ".x"]
    monkeypatch.setattr(hdf5, "_MAX_LINKS", 70)
    assert "more than 70 groups, data sets and links" in refusal(path)
    with h5py.File(path := tmp_path / "c.h5", "w") as file:
        file["t"] = np.zeros(3, [(f"f{i}", "f4") for i in range(40)])
    monkeypatch.setattr(hdf5, "MAX_FIELDS", 30)
    assert "more than 30 data sets and parts of these" in refusal(path)


def test_npz_with_too_much_in_it(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(2**21))
    assert len(read(path)) == 2**21
    monkeypatch.setattr(expansion, "FREE_BYTES", 2**20)
    assert "which would become 16,777,344, more than 500 times as many: save it with numpy.savez" in refusal(path)
    np.savez(path, **{f"a{i}": np.zeros(2) for i in range(40)})
    assert len(read(path).fields) == 40
    monkeypatch.setattr(npy, "MAX_ARRAYS", 30)
    assert "has 40 arrays; at most 30" in refusal(path)
    assert list(read(path, key=["a1", "a2"]).fields) == ["a1", "a2"]
    monkeypatch.setattr(npy, "_MAX_DIRECTORY_BYTES", 100)
    assert "has a directory of" in refusal(path)
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as outer:
        outer.write(path, "a.npz")
    assert "'a.npz' in it" in refusal(tmp_path / "b.npz")


def test_the_directory_of_a_zip_file_with_long_numbers(tmp_path):
    """As beyond 4 GiB: the old record says 2^32 - 1, and the place of the new one is before it."""
    record = b"PK\6\6" + bytes(36) + (12_345).to_bytes(8, "little") + bytes(8)
    place = b"PK\6\7" + bytes(4) + (0).to_bytes(8, "little") + bytes(4)
    (tmp_path / "a").write_bytes(record + place + b"PK\5\6" + bytes(8) + b"\xff" * 8 + bytes(2))
    assert npy._directory_bytes(tmp_path / "a") == 12_345


def test_tar_of_links(tmp_path, monkeypatch):
    for target, kind in (
        ("/etc/passwd", tarfile.SYMTYPE),
        ("../../etc/passwd", tarfile.LNKTYPE),
        ("a.cls", tarfile.SYMTYPE),
    ):
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for i in range(40):
                link = tarfile.TarInfo(f"{i}.cls")
                link.type, link.linkname = kind, target
                tar.addfile(link)
            member = tarfile.TarInfo("a.cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"7"))
        if target != "a.cls":
            assert f"'0.cls' is a {'symbolic' if kind == tarfile.SYMTYPE else 'hard'} link to" in (
                text := refusal(tmp_path / "a.tar")
            )
            assert "leads out of the file" in text
    assert set(read(tmp_path / "a.tar").read(np.arange(41))["cls"].tolist()) == {7}
    monkeypatch.setattr(tar_members, "MAX_PASSED_OVER", 30)
    assert "more than 30 links, folders and devices" in refusal(tmp_path / "a.tar")


def test_samples_without_a_byte(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 0), }".ljust(117) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    assert "promises 1,000,000,000,000 samples without a byte" in refusal(tmp_path / "a.npy")


def test_a_text_that_is_far_longer_than_the_others(tmp_path, monkeypatch):
    """An array of text has room for the longest in each entry."""
    monkeypatch.setattr(arrow_columns, "_TEXT_CHARACTERS", 5000)
    (tmp_path / "a.jsonl").write_text('{"a": "x"}\n' * 9 + json.dumps({"a": "y" * 1000}) + "\n")
    reader = read(tmp_path / "a.jsonl")
    assert reader.read(np.array([9, 0]))["a"].tolist() == ["y" * 1000, "x"]
    with pytest.raises(DataError, match="a text of 1,000 characters, and an array of 10 texts has room"):
        reader.read(np.arange(10))


def test_a_damaged_row_group_is_decoded_once(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": np.arange(1000)}), tmp_path / "a.parquet")
    reader, loaded = read(tmp_path / "a.parquet"), []

    def load(self, chunk, columns):
        loaded.append(chunk)
        raise OSError("it is damaged")

    monkeypatch.setattr(parquet.ParquetFiles, "load", load)
    for sample in range(3):
        with pytest.raises(DataError, match="it is damaged"):
            reader.read(np.array([sample]))
    assert len(loaded) == 1


@pytest.mark.parametrize("how", [{}, {"chunks": (1000,)}], ids=["contiguous", "in chunks"])
def test_hdf5_of_which_nothing_was_written(tmp_path, how):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape=(10**12,), dtype="f4", **how)
    assert "'x', of which nothing was written, has 0 bytes, which would become 4,000," in refusal(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", shape=(2000,), dtype="f4", fillvalue=2.5, **how)
    assert read(tmp_path / "b.h5").read(np.array([1999, 0]))["x"].tolist() == [2.5, 2.5]
