"""JSON lines, written by Python's json module."""

import gzip
import json

import numpy as np
import pytest
from data.files import refusal, same

from descend.data import read
from descend.data.formats import jsonl
from descend.data.tables import text as text_tables
from descend.errors import DataError

LINES = [
    {"x": i / 7, "tokens": list(range(i % 4)), "of": {"a": i, "b": f"t{i}"}, "v": [[1, 2], [3, i]]} for i in range(20)
]
PADDED = np.array([[j + 0 if j < i % 4 else 0 for j in range(3)] for i in range(20)])
TRUTH = {
    "x": [line["x"] for line in LINES],
    "tokens": PADDED,
    "tokens_length": [i % 4 for i in range(20)],
    "of.a": range(20),
    "of.b": [f"t{i}" for i in range(20)],
    "v": [line["v"] for line in LINES],
}


def test_lines(tmp_path):
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c").write_text(text)  # known by content
    for name in ("a.jsonl", "b.jsonl.gz", "c"):
        same(read(tmp_path / name), TRUTH)


def test_lists_are_cut_and_padded_to_a_length(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"t":[1,2,3]}\n{"t":[]}\n{"t":[4]}\n{"t":null}\n')
    found = read(tmp_path / "a.jsonl", length=2).read(np.arange(4))
    assert found["t"].tolist() == [[1, 2], [0, 0], [4, 0], [0, 0]]
    assert found["t_length"].tolist() == [2, 0, 1, 0]
    assert read(tmp_path / "a.jsonl", length=5).fields["t"].shape == (5,)


def test_missing_keys(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x":1}\n{"y":2}\n')
    np.testing.assert_array_equal(read(tmp_path / "a.jsonl").read(np.arange(2))["x"], [1, np.nan])


def test_damaged_files(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x":1}\n{"x":\n')
    assert "row 1" in refusal(path)
    path.write_text('{"x":1}\n{"x":"two"}\n')
    assert "changed from number to string in row 1" in refusal(path)
    path.write_text('{"x":[[1],[2,3]]}\n')
    assert "lists within the lists of 'x' have different lengths" in refusal(path)
    monkeypatch.setattr("descend.data.formats.jsonl.BLOCK_BYTES", 64)
    path.write_text('{"x":"' + "a" * 200 + '"}\n')
    assert str(path) in refusal(path)
    assert text_tables.BLOCK_BYTES == 2**24


def test_rows_that_are_nested_too_deeply(tmp_path):
    """Arrow's parser calls itself for each level, and a short file would end the process."""
    path = tmp_path / "a.jsonl"
    for deep in ('{"a":' * 50_000 + "1" + "}" * 50_000, '{"a":' + "[" * 50_000 + "]" * 50_000 + "}"):
        path.write_text('{"b": 1}\n' + deep + "\n")
        assert f"{path}: row 1 is nested more than 100 deep" in refusal(path)
    path.write_text('{"a": "' + "{[" * 500 + '", "b": [[1, 2], [3, 4]]}\n{"a": "\\"{", "b": [[5, 6], [7, 8]]}\n')
    same(read(path), {"a": ["{[" * 500, '"{'], "b": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]})
    path.write_text('{"a": ' + json.dumps([[i] for i in range(300)]) + "}\n")  # many lists, and none is deep
    assert read(path).read(np.array([0]))["a"].shape == (1, 300, 1)


def test_rows_across_the_blocks_that_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 1300)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"a": {i}}}\n' for i in range(300)) + '{"a":' * 200 + "\n")
    with pytest.raises(DataError, match=r"row 300 is nested"):
        jsonl._check(path)
    path.write_text("".join(f'{{"a": {i}}}\n' for i in range(30)))
    jsonl._check(path)


def test_too_many_keys_are_refused_before_they_are_parsed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({f"c{i}": i for i in range(70_000)}) + "\n")
    assert "row 0 has more than 32,768 keys" in refusal(path)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_objects(tmp_path, indent):
    """As `json.dump` and pandas' `to_json(orient="records")` write them."""
    rows = [{"a": i, "text": 'a ], [{"b": 1}, ü', "list": [i, 2]} for i in range(5)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
    truth = {"a": np.arange(5), "text": [row["text"] for row in rows], "list": [row["list"] for row in rows]}
    same(read(tmp_path / "a.json"), truth)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"a": 1}, {"a": 2}', "its list ends behind row 1"),
        ('[{"a": 1} {"a": 2}]', "its list ends behind row 0, or lacks a comma there"),
        ('[{"a": 1}, 2]', "row 1 of its list is 2, and an object is needed"),
        ('[{"a": 1}, {"a"]', "row 1 of its list is no JSON"),
        ("[]", "cannot be read"),
    ],
)
def test_lists_that_cannot_be_read(tmp_path, text, words):
    (tmp_path / "a.json").write_text(text)
    assert words in refusal(tmp_path / "a.json")


def test_a_list_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "_LIST_BYTES", 20)
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a": 2}, {"a": 3}]')
    assert "write an object a line, without the list" in refusal(tmp_path / "a.json")


def test_a_mark_of_utf_8_before_a_list(tmp_path):
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a": 2}]', encoding="utf-8-sig")
    same(read(tmp_path / "a.json"), {"a": [1, 2]})


@pytest.mark.parametrize(
    "table",
    [
        {"a": {"0": 1, "1": 2}, "b": {"0": 3, "1": 4}},
        {"columns": ["a"], "index": [0, 1], "data": [[1], [2]]},
        {"schema": {"fields": []}, "data": [{"a": 1}]},
    ],
)
def test_a_table_by_columns_is_not_one_sample(tmp_path, table):
    """The forms that pandas' `to_json` has besides records."""
    (tmp_path / "a.json").write_text(json.dumps(table))
    assert "to_json(orient='records', lines=True)" in refusal(tmp_path / "a.json")


@pytest.mark.parametrize(
    "rows", ['{"a": 1.5}\n{"a": 1e-400}\n', '[{"a": 1.5}, {"a": -2e-999}]', '{"a": 1}\n{"a": [1e400]}']
)
def test_numbers_that_float64_does_not_have_are_refused(tmp_path, rows):
    (tmp_path / "a.json").write_text(rows)
    with pytest.raises(DataError, match=r"a.json.*(row 1: a number must be in the range of float64, got '|row 1)"):
        read(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"a": 0e-400, "b": "1e-400"}\n{"a": 5e-324, "b": ""}\n')
    assert read(tmp_path / "a.json").read(np.arange(2))["a"].tolist() == [0, 5e-324]
