"""Tables in folders called NAME=VALUE, written by pyarrow."""

from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from data.files import refusal, same

from descend.data import read
from descend.errors import DataError

N = 12
YEAR, KIND = np.arange(N) % 2 + 2020, np.array(["a b", "c/d", "e"])[np.arange(N) % 3]


@pytest.fixture
def folder(tmp_path):
    table = pa.table({"x": np.arange(N), "year": YEAR, "kind": KIND})
    kinds = pa.schema([("year", pa.int64()), ("kind", pa.string())])
    place = tmp_path / "set"
    pa.dataset.write_dataset(table, place, format="parquet", partitioning=pa.dataset.partitioning(kinds, flavor="hive"))
    return place


def test_names_of_folders_are_columns(folder):
    reader = read(folder)
    order = reader.read(np.arange(N))["x"]  # the files are in the order of their names
    assert sorted(order) == list(range(N))
    same(reader, {"x": order, "year": YEAR[order], "kind": KIND[order]})
    same(read(folder, columns=["year"]), {"year": YEAR[order]})
    assert read(folder, target="kind").classes["kind"] == ["a b", "c/d", "e"]


def test_a_missing_value_and_text_among_numbers(tmp_path):
    for name in ("k=1", "k=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / name / "a.parquet")
    np.testing.assert_array_equal(read(tmp_path).read(np.arange(2))["k"], [1.0, np.nan])
    (tmp_path / "k=z").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "k=z" / "a.parquet")
    assert read(tmp_path).read(np.arange(3))["k"].tolist() == ["1", "", "z"]


@pytest.mark.parametrize(
    ("folder", "stored", "wrong"),
    [
        ("k=5", pa.array([5, 5]), pa.array([5, 1])),
        ("k=05", pa.array(["05", "05"]), pa.array(["05", "50"])),
        ("k=5", pa.array([5.0, 5.0]), pa.array([5.5, 5.0])),
        ("k=cat", pa.array(["cat", "cat"]), pa.array(["cat", "category"])),
        ("k=true", pa.array([True, True]), pa.array([True, False])),
        ("k=2024-02-01", pa.array([date(2024, 2, 1)] * 2), pa.array([date(2024, 1, 2)] * 2)),
        ("k=__HIVE_DEFAULT_PARTITION__", pa.array([None, None], pa.int64()), pa.array([1, None])),
        ("k=5", pa.array([5, 5], pa.int8()), pa.array([5, None])),
    ],
)
def test_a_column_that_the_files_have_as_well_must_be_that_of_the_folder(tmp_path, folder, stored, wrong):
    for number, (name, values) in enumerate((("right", stored), ("wrong", wrong))):
        path = tmp_path / name / folder
        path.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1, 2], "k": values}), path / "a.parquet")
        if number:
            with pytest.raises(DataError, match=r"'k' must be .*, as the folder is named, got "):
                read(tmp_path / name).read(np.arange(2))
            same(read(tmp_path / name, columns=["x"]), {"x": np.array([1, 2])})
        else:
            assert list(read(tmp_path / name).read(np.arange(2))) == ["x", "k"]


def test_folders_must_agree(folder):
    pq.write_table(pa.table({"x": [1]}), folder / "part.parquet")
    assert "part.parquet none; files of one reader" in refusal(folder)


@pytest.mark.parametrize("kind", ["csv", "feather"])
def test_other_tables_in_such_folders(tmp_path, kind):
    table = pa.table({"x": np.arange(N), "year": YEAR})
    kinds = pa.dataset.partitioning(pa.schema([("year", pa.int64())]), flavor="hive")
    pa.dataset.write_dataset(table, tmp_path / "set", format=kind, partitioning=kinds)
    reader = read(tmp_path / "set")
    order = reader.read(np.arange(N))["x"]
    same(reader, {"x": order, "year": YEAR[order]})
    alone = next((tmp_path / "set" / "year=2021").iterdir())
    assert list(read(alone).fields) == ["x"]


# ---- tables of several files whose columns differ in order, type and number

FIRST = {"a": [1, 2], "b": [1.5, 2.5]}
WRITERS = {"parquet": pq.write_table, "feather": pyarrow.feather.write_feather, "csv": pyarrow.csv.write_csv}


@pytest.mark.parametrize("ending", WRITERS)
def test_columns_in_another_order_and_of_other_types(tmp_path, ending):
    second = {"b": pa.array([3, 4], pa.int8()), "a": pa.array([3, 4], pa.int16())}
    for name, columns in (("0", FIRST), ("1", second)):
        WRITERS[ending](pa.table(columns), tmp_path / f"{name}.{ending}")
    same(read(tmp_path), {"a": np.array([1, 2, 3, 4]), "b": np.array([1.5, 2.5, 3, 4])})


@pytest.mark.parametrize("ending", WRITERS)
def test_a_column_that_a_file_lacks(tmp_path, ending):
    for name, columns in (("0", FIRST), ("1", {"a": [3]})):
        WRITERS[ending](pa.table(columns), tmp_path / f"{name}.{ending}")
    assert "name those that all have with columns=" in refusal(tmp_path)
    same(read(tmp_path, columns=["a"]), {"a": np.array([1, 2, 3])})


def test_keys_that_a_file_lacks_are_missing_as_those_that_a_line_lacks(tmp_path):
    (tmp_path / "0.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "1.jsonl").write_text('{"b": "x", "a": 2}\n')
    same(read(tmp_path), {"a": np.array([1, 2]), "b": np.array(["", "x"])})


def test_a_file_without_values_and_one_without_rows(tmp_path):
    pq.write_table(pa.table(FIRST), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": pa.nulls(1), "b": pa.nulls(1)}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.float64())}), tmp_path / "2.parquet")
    same(read(tmp_path), {"a": np.array([1, 2, np.nan]), "b": np.array([1.5, 2.5, np.nan])})
