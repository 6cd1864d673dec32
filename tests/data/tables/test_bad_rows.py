"""Tables with rows that cannot be parsed, through `read` and `fit`."""

import gzip
import json

import numpy as np
import pytest
from data.files import refusal

from descend.data import Loading, open_data, read
from descend.data.tables import bad_rows
from descend.data.tables import text as text_tables
from descend.data.tables.bad_rows import looks_numeric
from descend.errors import ConfigurationError, DataError

GOOD = [f"{i},{i / 4},t{i}" for i in range(20)]
FAULTS = {
    "too few": "7,1.75",
    "too many": "7,1.75,t7,8",
    "no number": "seven,1.75,t7",
    "not UTF-8": "7,1.75,t\xe97",
}


def write(path, rows, head="a,b,c"):
    content = "\n".join([head, *rows] if head else rows).encode("latin-1") + b"\n"
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def check_others(reader, bad=7):
    others = np.delete(np.arange(20), bad)
    found = reader.read(others)
    np.testing.assert_array_equal(found["a"], others)
    np.testing.assert_array_equal(found["b"], others / 4)
    assert found["a"].dtype == np.int64
    assert found["c"].tolist() == [f"t{i}" for i in others]
    with pytest.raises(DataError, match=f"sample {bad} of reader .*row {bad}.*cannot be parsed"):
        reader.read(np.array([3, bad]))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("name", "head"), [("a.csv", "a,b,c"), ("a.csv.gz", "a,b,c")])
def test_rows_of_a_table_keep_their_numbers(tmp_path, fault, name, head):
    rows = [FAULTS[fault] if i == 7 else row for i, row in enumerate(GOOD)]
    path = write(tmp_path / name, rows, head)
    reader = read(path, skip_bad=1)
    assert len(reader) == 20
    check_others(reader)
    if fault.startswith("too"):
        assert "row" in refusal(path)


@pytest.mark.parametrize(
    "fault", ["{", "[1]", '{"a": "seven", "b": 1.75, "c": "t7"}', '{"a": 7, "b": 1.75, "c": {"d": 1}}']
)
def test_lines_of_json_keep_their_numbers(tmp_path, fault):
    lines = [json.dumps({"a": i, "b": i / 4, "c": f"t{i}"}) for i in range(20)]
    lines[7] = fault
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n")
    check_others(read(path, skip_bad=1))
    assert "a.jsonl" in refusal(path)


def test_the_first_row_and_large_files(tmp_path, monkeypatch):
    monkeypatch.setattr(text_tables, "IN_MEMORY_BYTES", 64)
    path = write(tmp_path / "a.csv", ["1", *GOOD[1:]])
    check_others(read(path, skip_bad=1), bad=0)
    more = write(tmp_path / "b.csv", GOOD)
    assert read([more, path], skip_bad=1).read(np.array([21]))["a"] == 1
    with pytest.raises(DataError, match="sample 20 of"):
        read([more, path], skip_bad=1).read(np.array([20]))


def test_no_more_rows_than_allowed(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", ["1", "2", *GOOD])
    assert "more than skip_bad=1 rows cannot be read" in (text := refusal(path, skip_bad=1))
    assert "row 1: it has 1 cells, and the first row has 3" in text
    with pytest.raises(ConfigurationError, match="skip_bad must be an integer >= 0"):
        read(path, skip_bad=-1)
    (tmp_path / "a.jsonl").write_text("{\n[]\n")
    assert "no row that can be read" in refusal(tmp_path / "a.jsonl", skip_bad=5)
    monkeypatch.setattr(bad_rows, "MAX_ROW_CHARACTERS", 50)
    long = write(tmp_path / "b.csv", [*GOOD, "1," + "x" * 100])
    with pytest.raises(DataError, match=r"row 20\).*more than 50 characters"):
        read(long, skip_bad=1).read(np.array([20]))


def test_text_stays_text():
    assert looks_numeric(["1", "2", "x", "4", None, ""], 1)
    assert not looks_numeric(["1", "x", "y", "4"], 1)
    assert not looks_numeric(["1", "2", "3"], 1)
    assert not looks_numeric(["a", "b"], 5)


def test_fit_replaces_them_by_the_next_row(tmp_path):
    path = write(tmp_path / "a.csv", [row.rpartition(",")[0] for row in GOOD], "a,b")
    path.write_text(path.read_text().replace("7,1.75", "7"))
    feed = open_data(path, Loading(batch_size=20, shuffle=False, skip_bad=1))
    with pytest.warns(UserWarning, match="sample 7 .* is replaced by the next one"):
        [batch] = feed.epoch(0)
    assert batch.fields["a"].tolist() == [*range(7), 8, *range(8, 20)]
