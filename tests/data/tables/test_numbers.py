"""Integers that float64 cannot hold: different ones stay different, or are refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data.files import refusal, same
from pyarrow import feather

from descend.data import read, split
from descend.data.tables import text as text_tables
from descend.data.tables.numbers import is_exact

A, B = 2**53, 2**53 + 1


def columns(path, ids, kind=None):
    match path.suffix:
        case ".parquet" | ".feather":
            table = pa.table({"id": pa.array(ids, kind or pa.int64()), "x": [0.5] * len(ids)})
            (pq.write_table if path.suffix == ".parquet" else feather.write_feather)(table, path)
        case ".jsonl":
            path.write_text("".join(json.dumps({"id": one, "x": 0.5}) + "\n" for one in ids))
        case _:
            path.write_text("id,x\n" + "".join(f"{'' if one is None else one},0.5\n" for one in ids))
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.feather", "a.jsonl"])
def test_beside_a_missing_value(tmp_path, name):
    path = columns(tmp_path / name, [A, B, None])
    message = refusal(path)
    assert "'id' has missing values, for which float64 is needed, and integers up to 9,007,199,254,740,993" in message
    assert "text=['id'] keeps them" in message
    assert read(path, columns=["x"]).column("x").tolist() == [0.5] * 3
    assert read(path, text=["id"]).column("id").tolist() == [str(A), str(B), ""]
    parts = split(read(path, text=["id"]), {"train": 2, "test": 1}, group="id")
    assert len(parts["train"]) == 2
    same(read(columns(path, [A, 7, None])), {"id": np.array([A, 7, np.nan]), "x": np.full(3, 0.5)})


def test_without_a_missing_value_they_are_exact(tmp_path):
    for name in ("a.csv", "a.parquet", "a.feather", "a.jsonl"):
        assert read(columns(tmp_path / name, [A, B])).column("id").tolist() == [A, B]
    big = [2**64 - 1, 2**64 - 2]
    assert read(columns(tmp_path / "a.parquet", big, pa.uint64())).column("id").tolist() == big
    assert "'id' has missing values" in refusal(columns(tmp_path / "a.parquet", [*big, None], pa.uint64()))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("others", [[2**63 + 2], [0.5], []])
def test_beyond_64_bits(tmp_path, name, others):
    ids = [3, 2**63 + 1, *others]
    message = refusal(columns(tmp_path / name, ids))
    assert "row 1" in message
    assert f"{2**63 + 1}" in message
    assert "more than 2**53 and no number of float64" in message


def test_numbers_that_float64_has_are_read(tmp_path):
    values = [1e30, 2.0**63, 123456789012345680000.0, 0.5]  # the third is written as JavaScript does
    (tmp_path / "a.csv").write_text("v\n1e30\n9223372036854775808\n123456789012345680000\n0.5\n")
    assert read(tmp_path / "a.csv").column("v").tolist() == values
    (tmp_path / "a.jsonl").write_text('{"v": [1e30, 9223372036854775808]}\n{"v": [123456789012345680000, 0.5]}\n')
    assert read(tmp_path / "a.jsonl").column("v").ravel().tolist() == values
    (tmp_path / "a.jsonl").write_text('{"v": {"w": [9223372036854775809, 0.5]}}\n')
    assert "'v.w': 9223372036854775809 is more than 2**53" in refusal(tmp_path / "a.jsonl")
    assert is_exact("9223372036854775808")
    assert not is_exact("9223372036854775809")


def test_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.data.formats.csv.IN_MEMORY_BYTES", 100)
    monkeypatch.setattr(text_tables, "IN_MEMORY_BYTES", 100)
    path = columns(tmp_path / "a.csv", [0.5, *range(100), 2**63 + 1])
    assert "row 101, column 'id'" in refusal(path)


def test_separators_of_thousands(tmp_path):
    (tmp_path / "a.csv").write_text('v\n"9,007,199,254,740,992"\n"9,007,199,254,740,993"\n')
    assert "row 1, column 'v'" in refusal(tmp_path / "a.csv")


def test_decimals(tmp_path):
    kind = pa.decimal128(20, 0)
    path = columns(tmp_path / "a.parquet", [A, A + 2], kind)
    assert read(path).column("id").tolist() == [A, A + 2]
    assert "different decimals" in refusal(columns(path, [A, B], kind))
    assert read(path, text=["id"]).column("id").tolist() == [str(A), str(B)]


def test_joined_columns(tmp_path):
    pq.write_table(pa.table({"a": [A, B], "b": [0.5, 1.5], "c": pa.array([1, 2], pa.int32())}), tmp_path / "a.parquet")
    assert "'a' has integers beyond 9,007,199,254,740,992" in refusal(tmp_path / "a.parquet", columns={"x": ["a", "b"]})
    found = read(tmp_path / "a.parquet", columns={"x": ["a", "c"]}).read(np.arange(2))["x"]
    assert found.tolist() == [[A, 1], [B, 2]]


@pytest.mark.parametrize(
    ("rows", "a", "b"),
    [
        ("1,5;1.234\n2,5;2.000\n", [1.5, 2.5], [1234, 2000]),
        ("1.234,5;1.234\n2,5;-2.000\n", [1234.5, 2.5], [1234, -2000]),
        ("1,5;0.123\n2,5;2.000\n", ["1,5", "2,5"], [0.123, 2]),  # no thousands
        ("1,234;1.5\n2,500;2.25\n", ["1,234", "2,500"], [1.5, 2.25]),
    ],
)
def test_points_beside_commas(tmp_path, rows, a, b):
    (tmp_path / "a.csv").write_text(f"a;b\n{rows}")
    reader = read(tmp_path / "a.csv")
    assert (reader.column("a").tolist(), reader.column("b").tolist()) == (a, b)
    assert bool(reader.notes) == (reader.fields["a"].dtype.kind == "U")
