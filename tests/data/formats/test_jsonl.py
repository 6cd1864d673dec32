"""JSON lines, written by Python's json module."""

import gzip
import json

import numpy as np
from data.files import refusal, same

from descend.data import read, text_tables

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
    path.write_text('[{"x":1}]')
    assert "an object a line" in refusal(path)
    path.write_text('{"x":[[1],[2,3]]}\n')
    assert "lists within the lists of 'x' have different lengths" in refusal(path)
    monkeypatch.setattr("descend.data.formats.jsonl.BLOCK_BYTES", 64)
    path.write_text('{"x":"' + "a" * 200 + '"}\n')
    assert str(path) in refusal(path)
    assert text_tables.BLOCK_BYTES == 2**24
