import os
import re

import pytest

from descend.errors import ConfigurationError, StorageError
from descend.runtime import RunDirectory, write_beside


def test_a_dated_directory_is_made_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("LBANN_EXPERIMENT_DIR", str(tmp_path / "lbann"))
    monkeypatch.delenv("DESCEND_EXPERIMENT_DIR", raising=False)
    first, second = RunDirectory(None, "lenet"), RunDirectory(None, "lenet")
    assert first.path.parent == tmp_path / "lbann"
    assert re.fullmatch(r"\d{8}_\d{6}_lenet(_2)?", second.path.name)
    assert first.path != second.path
    monkeypatch.setenv("DESCEND_EXPERIMENT_DIR", str(tmp_path / "ours"))
    assert RunDirectory(None, "lenet").path.parent == tmp_path / "ours"


def test_a_directory_with_files_in_it_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="holds another run"):
        RunDirectory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_directory_is_taken(tmp_path):
    assert RunDirectory(tmp_path).path == tmp_path


def test_a_directory_that_cannot_be_made_is_named_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="run_dir"):
        RunDirectory(tmp_path / "file" / "run")


def test_discard_takes_back_what_was_made_and_nothing_else(tmp_path):
    (tmp_path / "kept").mkdir()
    directory = RunDirectory(tmp_path / "kept" / "new" / "run")
    directory.write_text("a.txt", "x")
    directory.discard()
    assert (tmp_path / "kept").is_dir()
    assert not (tmp_path / "kept" / "new").exists()
    given = RunDirectory(tmp_path / "kept")
    given.discard()
    assert (tmp_path / "kept").is_dir()


def test_write_beside_keeps_the_old_file_when_the_new_one_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_beside(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_beside(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_rows_are_plain_json_lines(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.append_row({"mode": "train", "objective": 0.5})
    directory.append_row({"mode": "test", "objective": 0.25})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines == ['{"mode": "train", "objective": 0.5}', '{"mode": "test", "objective": 0.25}']
