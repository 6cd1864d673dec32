"""Footers of Parquet files, against what pyarrow says of them."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from descend.data import read
from descend.data.tables.parquet_footer import column_chunks
from descend.errors import DataError

TABLE = pa.table(
    {
        "n": pa.array([3, None, -(2**62), 5], pa.int64()),
        "u": pa.array([0, 1, 2**64 - 1, 2], pa.uint64()),
        "f": [0.5, 1.5, float("nan"), -2.0],
        "t": ["a", "a", None, "b"],
        "d": pa.array([datetime.date(2020, 1, 1)] * 4),
        "l": [[1, 2], [], None, [3]],
        "s": [{"a": 1, "b": {"c": "x"}}] * 4,
        "x": pa.array([b"abc"] * 4, pa.binary(3)),
    }
)


@pytest.mark.parametrize("options", [{}, {"row_group_size": 2}, {"use_dictionary": False}, {"write_statistics": False}])
def test_what_pyarrow_says(tmp_path, options):
    pq.write_table(TABLE, tmp_path / "a.parquet", **options)
    metadata = pq.ParquetFile(tmp_path / "a.parquet").metadata
    found = column_chunks(tmp_path / "a.parquet")
    assert len(found) == metadata.num_row_groups
    for number, group in enumerate(found):
        assert len(group) == metadata.num_columns
        for place, one in enumerate(group):
            theirs = metadata.row_group(number).column(place)
            assert (one.path, one.type, one.values) == (theirs.path_in_schema, theirs.physical_type, theirs.num_values)
            assert (one.stored_bytes, one.plain_bytes) == (theirs.total_compressed_size, theirs.total_uncompressed_size)
            assert one.has_dictionary == theirs.has_dictionary_page
            assert one.nulls == (None if theirs.statistics is None else theirs.statistics.null_count)


def test_statistics_are_the_least_and_the_largest_value(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    n = column_chunks(tmp_path / "a.parquet")[0][0]
    assert int.from_bytes(n.low, "little", signed=True) == -(2**62)
    assert int.from_bytes(n.high, "little", signed=True) == 5


def test_a_footer_that_contradicts_its_schema_is_an_error(tmp_path):
    """pyarrow's own description of such a column ends the process."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": np.arange(20.0)}), path, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    damaged = 0
    for place in range(len(content) - 8 - length, len(content) - 8):
        kept = content[place]
        if kept != 0x0A:  # DOUBLE as an integer of Thrift
            continue
        content[place] = 0x04
        path.write_bytes(content)
        content[place] = kept
        try:
            read(path).read(np.arange(20))
        except DataError:
            damaged += 1
    assert damaged
