"""Tables of text files, in memory or mapped from a temporary file: against pyarrow's own tables of the same columns."""

import gc
import gzip
import time

import pyarrow as pa
import pytest

from descend.data import read
from descend.data.tables import table_files
from descend.data.tables import text as text_tables
from descend.data.tables.text import TextTables, decompressed
from descend.errors import DataError

FIRST = {"a": [1, 2, 3], "b": ["x", None, "z"]}
SECOND = {"a": [1.5, 2.5], "b": ["u", "v"]}


def batches(columns, size=1):
    return pa.table(columns).to_batches(max_chunksize=size)


def opened(tmp_path, *tables):
    paths = [tmp_path / f"{i}.txt" for i in range(len(tables))]
    parts = dict(zip(paths, tables, strict=True))
    return TextTables(paths, lambda path: batches(parts[path]))


def rows(tables, columns=("a", "b")):
    return [row for chunk in tables.chunks for row in tables.load(chunk, columns).to_pylist()]


def test_files_become_one_table_with_types_that_hold_all_values(tmp_path):
    tables = opened(tmp_path, FIRST, SECOND)
    assert tables.schema.field("a").type == pa.float64()
    assert [row["a"] for row in rows(tables)] == [1.0, 2.0, 3.0, 1.5, 2.5]
    assert [row["b"] for row in rows(tables)] == ["x", None, "z", "u", "v"]
    assert tables.load(tables.chunks[0], ["a"]).schema == pa.schema([("a", pa.float64())])


def test_parts_may_be_tables_and_the_order_of_columns_is_that_asked_for(tmp_path):
    tables = TextTables([tmp_path / "0"], lambda path: [pa.table(FIRST)])
    assert tables.load(tables.chunks[0], ["b", "a"]).column_names == ["b", "a"]


def test_missing_values_in_any_file_are_known(tmp_path):
    tables = opened(tmp_path, SECOND, FIRST)
    assert tables.without_nulls("a")
    assert not tables.without_nulls("b")


def test_chunks_are_consecutive_rows_of_each_file(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_ROWS_AT_ONCE", 2)
    tables = opened(tmp_path, FIRST, SECOND)
    found = [(chunk.path.name, chunk.index, chunk.first, chunk.rows) for chunk in tables.chunks]
    assert found == [("0.txt", 0, 0, 2), ("0.txt", 1, 2, 1), ("1.txt", 0, 0, 2)]
    assert [row["a"] for row in rows(tables)] == [1.0, 2.0, 3.0, 1.5, 2.5]


def test_large_files_are_mapped_from_a_folder_that_goes_with_the_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(text_tables, "IN_MEMORY_BYTES", 10)
    folder = tmp_path / "spilled"
    monkeypatch.setattr(text_tables.tempfile, "mkdtemp", lambda prefix: folder.mkdir() or str(folder))
    tables = opened(tmp_path, FIRST, SECOND)
    assert sorted(file.name for file in folder.iterdir()) == ["0.arrow", "1.arrow"]
    assert [row["a"] for row in rows(tables)] == [1.0, 2.0, 3.0, 1.5, 2.5]
    del tables
    gc.collect()
    assert not folder.exists()


def test_no_more_parts_are_held_than_the_limit_asks_for(tmp_path, monkeypatch):
    part, given = pa.table({"a": [1.0] * 100}), []
    monkeypatch.setattr(text_tables, "IN_MEMORY_BYTES", 2 * part.nbytes)
    spill = TextTables._spilled

    def spilled(self, held, rest):
        given.append(len(held))
        return spill(self, held, rest)

    monkeypatch.setattr(TextTables, "_spilled", spilled)
    tables = TextTables([tmp_path / "0"], lambda path: iter([part] * 10))
    assert given == [3]
    assert len(rows(tables, ["a"])) == 1000


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"a": [1], "c": [2]}, r"1\.txt has other columns than .*0\.txt \(b, c\); files of one reader must have"),
        ({"a": ["text"], "b": ["x"]}, r"columns of .*0\.txt and the files after it differ in type"),
    ],
)
def test_files_that_are_no_one_table_are_refused(tmp_path, second, message):
    with pytest.raises(DataError, match=message):
        opened(tmp_path, FIRST, second)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("torn\nand more"), r"a\.txt cannot be read: torn$"),
        (ValueError(), r"a\.txt cannot be read: ValueError$"),
        (DataError("row 3 is too long"), r"a\.txt: row 3 is too long$"),
    ],
)
def test_an_error_of_the_parser_is_raised_with_the_file(tmp_path, error, message):
    def parse(path):
        yield from batches(FIRST)
        raise error

    with pytest.raises(DataError, match=message):
        TextTables([tmp_path / "a.txt"], parse)


@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
def test_files_are_decompressed_by_their_content_not_their_name(tmp_path, name):
    text = b"one\ntwo\n" * 100
    for content in (text, gzip.compress(text)):
        (tmp_path / name).write_bytes(content)
        with decompressed(tmp_path / name) as stream:
            assert stream.read(2 * len(text)) == text


def test_thousands_of_columns_take_time_for_each_alone(tmp_path):
    """It took 30 times as long when a list of all names was made for each."""
    count = 8000
    path = tmp_path / "a.csv"
    path.write_text(",".join(f"c{i}" for i in range(count)) + "\n" + ("1," * (count - 1) + "1\n") * 3)
    start = time.process_time()
    assert len(read(path).fields) == count
    assert time.process_time() - start < 10
