"""Tables of several files whose columns differ in order, type and number."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from data.files import refusal, same

from descend.data import read

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
