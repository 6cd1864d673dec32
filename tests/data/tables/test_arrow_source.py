"""Samples of Arrow tables: against the rows that pyarrow gives, and chunks that are loaded only where read."""

import io
import pickle  # as readers are sent to worker processes
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from descend.data.file_format import ReadOptions
from descend.data.tables import arrow_source
from descend.data.tables.arrow_source import ArrowSource
from descend.data.tables.table_files import Chunk, TableFiles
from descend.errors import ConfigurationError, DataError

COLUMNS = {
    "a": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "b": [10, 11, 12, 13, 14, 15, 16],
    "c": ["cat", "dog", "cat", "owl", "dog", "cat", "owl"],
    "d": [[1], [2, 3], [], [4, 5, 6], [7], [8], [9]],
}


class Tables(TableFiles):
    """A table in chunks of three rows, and which columns of which were loaded."""

    def __init__(self, columns, path="data.arrow"):
        self.table = pa.table(columns)
        self.schema = self.table.schema
        count = self.table.num_rows
        self.chunks = [Chunk(Path(path), i, 3 * i, min(3, count - 3 * i)) for i in range(-(-count // 3))]
        self.loaded = []

    def load(self, chunk, columns):
        self.loaded.append((chunk.index, *columns))
        return self.table.slice(chunk.first, chunk.rows).select(list(columns))

    def without_nulls(self, column):
        return self.table.column(column).null_count == 0


def source(table=COLUMNS, **options):
    return ArrowSource(Tables(table), ReadOptions(**options))


def test_rows_come_in_the_order_asked_for_and_as_often():
    made = source(columns=["a", "b"])
    ids = np.array([6, 0, 3, 3, 5])
    found = made.read(ids)
    assert len(made) == 7
    assert list(found) == list(made.fields) == ["a", "b"]
    np.testing.assert_array_equal(found["a"], ids)
    np.testing.assert_array_equal(found["b"], ids + 10)


def test_classes_are_numbered_and_given_classes_keep_their_order():
    made = source(columns=["c"], label="c", target=("c",))
    assert made.classes == {"c": ["cat", "dog", "owl"]}
    assert made.read(np.arange(7))["c"].tolist() == [0, 1, 0, 2, 1, 0, 2]
    made = source(columns=["c"], label="c", target=("c",), classes=["owl", "dog", "cat"])
    assert made.read(np.arange(7))["c"].tolist() == [2, 1, 2, 0, 1, 2, 0]


def test_lists_are_padded_and_have_a_field_of_lengths():
    made = source(columns=["d"], length=2)
    (name, values), (length, counts) = made.read(np.arange(4)).items()
    assert (name, values.tolist(), counts.tolist()) == ("d", [[1, 0], [2, 3], [0, 0], [4, 5]], [1, 2, 0, 2])
    assert made.fields[name].shape == (2,)
    assert length in made.fields


def test_columns_are_renamed_and_joined():
    made = source(columns={"x": ["b", "a"], "y": "a"})
    found = made.read(np.array([2, 0]))
    assert (made.fields["x"].shape, made.fields["x"].dtype) == ((2,), np.float64)
    assert found["x"].tolist() == [[12, 2], [10, 0]]
    assert found["y"].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (["aa"], ConfigurationError, "there is no column 'aa'.*; the columns are a, b, c, d, e"),
        ({"x": ["a", "z"]}, ConfigurationError, "there is no column 'z'"),
        ({"x": [], "y": "a"}, ConfigurationError, "no columns are joined to 'x'"),
        ({"x": ["a", "d"]}, ConfigurationError, "joined to 'x' must hold a number each"),
        (["a", "e"], DataError, r"data\.arrow: 'e' holds bytes that are no images"),
    ],
)
def test_columns_that_cannot_be_fields_are_refused_where_they_were_asked_for(columns, error, message):
    with pytest.raises(error, match=message):
        source({**COLUMNS, "e": [b"bytes"] * 7}, columns=columns)


def test_columns_that_cannot_be_fields_are_left_out_where_they_were_not_asked_for():
    made = source({"a": [1.0], "e": [b"bytes"]})
    assert list(made.fields) == ["a"]
    assert made.left_out == {"e": "'e' holds bytes that are no images"}
    with pytest.raises(DataError, match=r"data\.arrow has no column that can be read:") as caught:
        source({"e": [b"bytes"], "f": [b"more"]})
    assert len(caught.value.problems) == 3


def test_too_many_columns_are_refused(monkeypatch):
    monkeypatch.setattr(arrow_source, "MAX_COLUMNS", 3)
    with pytest.raises(DataError, match=r"data\.arrow has 4 columns; at most 3 are read"):
        source()


def test_only_chunks_and_columns_of_the_samples_are_loaded_and_once():
    made = source(columns=["a", "b"])
    files = made._files
    files.loaded.clear()
    made.read(np.array([4, 5]))
    made.read(np.array([3]))
    assert files.loaded == [(1, "a", "b")]
    made.read(np.array([0, 6, 4]))
    assert sorted(files.loaded) == [(0, "a", "b"), (1, "a", "b"), (2, "a", "b")]


def test_the_chunks_used_longest_ago_are_dropped_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(arrow_source, "CACHE_BYTES", 2 * 3 * 8)  # two chunks of one column
    made = source(columns=["a"])
    files = made._files
    files.loaded.clear()
    for sample in (0, 3, 0, 6, 0, 3):
        assert made.read(np.array([sample]))["a"].tolist() == [sample]
    assert [chunk for chunk, _ in files.loaded] == [0, 1, 2, 1]


def test_an_error_of_a_file_names_its_rows():
    made = source(columns=["a"])

    def broken(chunk, columns):
        raise OSError("torn\nand a stack")

    made._files.load = broken
    with pytest.raises(DataError, match=r"data\.arrow, rows 3 to 5 cannot be read: torn$"):
        made.read(np.array([4]))


def test_the_place_of_a_sample_is_its_file_and_row():
    assert source(columns=["a"]).place(4) == "data.arrow, row 4"


def test_what_was_loaded_does_not_travel_to_another_process():
    made = source(columns=["a"])
    made.read(np.array([1]))
    again = pickle.loads(pickle.dumps(made))
    assert not again._kept
    assert again.read(np.array([5]))["a"].tolist() == [5.0]


def png(pixels):
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


GREY, RED = np.full((4, 6), 77, np.uint8), np.full((4, 6, 3), [200, 30, 30], np.uint8)


@pytest.mark.parametrize("place", [0, 1, 5, 14])
@pytest.mark.parametrize("as_taken", [False, True])
def test_the_form_of_images_is_of_all_chunks_and_not_of_the_first_value(place, as_taken, monkeypatch):
    if as_taken:
        monkeypatch.setattr(
            Tables, "take", lambda self, rows, names: self.table.select(names).take(rows), raising=False
        )
    images = [None, *[png(GREY)] * 14]
    images[place] = png(RED)
    made = source({"x": pa.array(images, pa.binary())})
    assert made.fields["x"].shape == (3, 4, 6)
    assert made.kinds == {"x": ("rgb", 8)}
    np.testing.assert_array_equal(made.read(np.array([place]))["x"][0].transpose(1, 2, 0), RED)


def test_an_image_that_was_not_looked_at_and_does_not_fit_is_an_error(monkeypatch):
    monkeypatch.setattr(arrow_source, "LOOKED_AT", 2)
    made = source({"x": [png(GREY), png(GREY), png(RED), png(GREY), png(GREY), png(GREY)]})
    with pytest.raises(ValueError, match=r"must be grey, .*colors='rgb'"):
        made.read(np.array([2]))
    assert source({"x": [png(GREY), png(RED)]}, colors="grey").read(np.arange(2))["x"].shape == (2, 1, 4, 6)


def test_a_damaged_first_image_does_not_leave_out_a_column():
    assert source({"x": [png(RED)[:40], png(GREY), png(RED)]}).fields["x"].shape == (3, 4, 6)


def test_no_more_images_are_loaded_for_the_form_than_the_limit(monkeypatch):
    monkeypatch.setattr(arrow_source, "_LOOKED_AT_BYTES", 1)
    table = Tables({"x": [png(GREY)] * 60})
    ArrowSource(table, ReadOptions())
    assert len(table.loaded) <= 2
