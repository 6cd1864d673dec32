"""Columns of every type as fields."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from descend.data.tables.arrow_columns import ColumnFacts, column_of, facts_of, flattened
from descend.errors import DataError


def fields(values, kind=None, length=None, classes=None, is_class=False):
    array = pa.chunked_array([pa.array(values, kind)])
    facts = facts_of(array, is_class)
    column = column_of("c", array.type, facts, length, is_class, classes)
    found = column.arrays(array)
    assert {name: (one.shape[1:], one.dtype.kind) for name, one in found.items()} == {
        name: (one.shape, one.dtype.kind) for name, one in column.fields.items()
    }
    return found


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([1, 2], pa.uint8(), np.array([1, 2], np.uint8)),
        ([1, None], pa.int32(), np.array([1, np.nan])),
        ([True, False], None, np.array([True, False])),
        ([True, None], None, np.array([1, np.nan])),
        ([1.5, None], pa.float32(), np.array([1.5, np.nan], np.float32)),
        ([Decimal("1.25"), None], None, np.array([1.25, np.nan])),
        (["a", None], None, np.array(["a", ""])),
        ([None, None], None, np.array([np.nan, np.nan])),
        ([datetime.date(2000, 1, 2), None], None, np.array(["2000-01-02", "NaT"], "datetime64[D]")),
        ([datetime.datetime(9999, 12, 31)], None, np.array(["9999-12-31"], "datetime64[us]")),
        ([datetime.timedelta(seconds=2)], None, np.array([2 * 10**6], "timedelta64[us]")),
        ([datetime.time(0, 1)], None, np.array([60 * 10**6], "timedelta64[us]")),
        ([Decimal("19.19")], None, np.array([19.19])),  # Arrow's cast gives 19.190000000000001
        ([[1, 2], None], pa.list_(pa.float32(), 2), np.array([[1, 2], [np.nan, np.nan]], np.float32)),
        ([None, [1, 2]], pa.list_(pa.int8(), 2), np.array([[np.nan, np.nan], [1, 2]])),
        ([[1, 2], [3, 4]], None, np.array([[1, 2], [3, 4]])),
        ([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int8())), np.array([[[1], [2]], [[3], [4]]], np.int8)),
        ([[1, None]], None, np.array([[1, np.nan]])),
        ([[1, 2]], pa.list_(pa.float16(), 2), np.array([[1, 2]], np.float16)),
    ],
)
def test_types(values, kind, wanted):
    (found,) = fields(values, kind).values()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_lists_of_different_lengths():
    found = fields([[[1, 2]], [], [[3, 4], [5, 6]]])
    np.testing.assert_array_equal(found["c"], [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[3, 4], [5, 6]]])
    assert found["c_length"].tolist() == [1, 0, 2]
    cut = fields([[1.0, 2.0, 3.0], [4.0]], length=2)
    np.testing.assert_array_equal(cut["c"], [[1, 2], [4, 0]])
    assert cut["c_length"].tolist() == [2, 1]


def test_inner_lists_must_have_one_length():
    with pytest.raises(DataError, match="only the outer ones may"):
        fields([[[1], [2, 3]]])


def test_classes():
    assert fields(["b", "a", "b"], is_class=True)["c"].tolist() == [1, 0, 1]
    assert fields(["b", "a"], is_class=True, classes=["b", "c", "a"])["c"].tolist() == [0, 2]
    with pytest.raises(ValueError, match="'a' in 'c' is none of its classes: b"):
        fields(["a"], is_class=True, classes=["b"])


def test_a_type_without_numbers():
    with pytest.raises(DataError, match="is of the type map"):
        fields([[("a", 1)]], pa.map_(pa.string(), pa.int8()))


def test_facts_of_parts():
    first, second = ColumnFacts(True, (2,), (3,), frozenset("a")), ColumnFacts(False, (1,), (5,), frozenset("b"))
    assert first.joined(second) == ColumnFacts(True, (1,), (5,), frozenset("ab"))
    empty, some = ColumnFacts(shortest=(4, -1), longest=(4, 0)), ColumnFacts(shortest=(4, 2), longest=(4, 2))
    assert (empty.joined(some).shortest, empty.joined(some).longest) == ((4, 2), (4, 2))


def test_structures_and_dictionaries():
    table = pa.table({"s": [{"a": 1, "b": {"c": "x"}}], "d": pa.array(["k"]).dictionary_encode()})
    assert flattened(table).to_pydict() == {"s.a": [1], "s.b.c": ["x"], "d": ["k"]}
    with pytest.raises(DataError, match="two columns 'a'"):
        flattened(pa.table([[1], [2]], names=["a", "a"]))


def test_views_and_runs_are_plain_columns():
    """As pandas 3 and polars write text, and Arrow repeated values."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array([1.5, 2.5]))
    views = pa.array(["a", None, "c"], pa.string_view())
    lists = pa.array([["a"], ["b", "c"], []], pa.list_(pa.string_view()))
    table = flattened(pa.table({"runs": runs, "views": views, "lists": lists}))
    assert table.to_pydict() == {
        "runs": [1.5, 2.5, 2.5],
        "views": ["a", None, "c"],
        "lists": [["a"], ["b", "c"], []],
    }
    named = pa.list_(pa.field("element", pa.int32(), nullable=False))  # as in Parquet; nothing is converted
    assert flattened(pa.table({"a": pa.array([[1]], named)})).schema.field("a").type == named
    assert table.column("views").take([2, 0]).to_pylist() == ["c", "a"]
    with pytest.raises(DataError, match="of the type list_view"):
        fields([[1]], pa.list_view(pa.int8()))


def test_a_dictionary_of_views_of_text_as_polars_writes_it():
    values = pa.array(["b", "a", "b"]).dictionary_encode().cast(pa.dictionary(pa.uint32(), pa.string_view()))
    assert flattened(pa.table({"v": values})).column("v").to_pylist() == ["b", "a", "b"]


def test_a_class_that_is_missing_is_none_of_the_classes():
    array = pa.chunked_array([pa.array(["b", None, "a", ""])])
    column = column_of("v", array.type, facts_of(array, texts=True), None, is_class=True, classes=None)
    assert column.classes == {"a": 0, "b": 1}
    assert column.arrays(array[2:3])["v"].tolist() == [0]
    with pytest.raises(ValueError, match="'v' names a class, and is missing"):
        column.arrays(array)
