"""JSON files of ours whose content may be anything."""

import os

import pytest

from descend.errors import StorageError
from descend.runtime.json_object import CheckedFields, read_json


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is damaged"),
        (b"{", "is damaged"),
        (b"\xff\xfe{}", "is damaged: 'utf-8' codec"),
        (b'{"a": 1, "a": 2}', "'a' stands twice in one object"),
        (b'[{"b": {"c": 1, "c": 1}}]', "'c' stands twice in one object"),
        (b"[" * 100_000, "nested too deep"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 deep"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "is damaged"),
        (b'"' + b"x" * 1_000 + b'"', "it has more than 1,000 bytes"),
    ],
)
def test_what_is_damaged_is_said(tmp_path, content, said):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    most = 1_000 if b"xxx" in content else 10**7
    with pytest.raises(StorageError, match=said) as error:
        read_json(path, most)
    assert str(path) in str(error.value)


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        read_json(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="named pipe"):
        read_json(tmp_path / "pipe")


def test_whole_values_are_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": [1, NaN, "\\ud800"], "b": ' + b"[" * 98 + b"]" * 98 + b"}")
    assert read_json(path)["a"][2] == "\ud800"


def test_fields_of_another_kind_are_left_out_and_said():
    problems = []
    fields = CheckedFields({"a": 1, "b": "x", "c": None, "d": {"e": 2}, "f": 3}, "run.json", problems)
    is_number = lambda value: type(value) is int  # noqa: E731
    assert fields.take("a", is_number, "a number") == 1
    assert fields.take("b", is_number, "a number", 7) == 7
    assert fields.take("c", is_number, "a number", 8) == fields.take("missing", is_number, "a number", 8) == 8
    assert fields.inner("d").take("e", is_number, "a number") == 2
    assert fields.inner("f").take("e", is_number, "a number", 9) == 9
    assert fields.inner("c").take("e", is_number, "a number", 9) == 9
    assert problems == ["run.json: b must be a number, got 'x'", "run.json: f must be an object, got 3"]
