import errno
import os
import re

import pytest

from descend.errors import ConfigurationError, StorageError
from descend.runtime import RunDirectory, read_rows, run_directory, stored_seed, write_beside


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
    with pytest.raises(ConfigurationError, match="is not empty: name one that is new or empty"):
        RunDirectory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_directory_with_another_run_is_left_alone_and_the_error_says_how_to_continue_it(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match="another run already: continue that with resume=True") as caught:
        RunDirectory(tmp_path)
    assert caught.value.__suppress_context__  # no traceback of mkdir before ours


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


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 300, "cannot be made: File name too long"),
        ("file/below", "cannot be made: Not a directory"),
        ("a\0b", "run_dir must be a str or a Path"),
        (b"bytes", "run_dir must be a str or a Path"),
        ("", "run_dir must be a str or a Path"),
        (3, "run_dir must be a str or a Path"),
        ("to_nothing", "is a link to nowhere, and nothing is there"),
    ],
)
def test_names_that_no_directory_can_have(tmp_path, monkeypatch, name, words, resume):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "to_nothing").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match=words):
        RunDirectory(name, resume=resume)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "to_nothing"]


def test_lines_that_are_no_rows_are_passed_over(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.append_row({"mode": "train", "epoch": 1, "step": 4, "seconds": 2.0})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff{}\n[1]\n{"mode": "restart"}\n{"mode": 1, "epoch": 1, "step": null}\n{"mode": "tr')
    assert directory.seconds_of_rows() == {("train", 1, 4): 2.0}
    directory.replace_rows([{"mode": "train", "epoch": 1, "step": 4}])
    assert (tmp_path / "metrics.jsonl").read_text() == '{"mode": "train", "epoch": 1, "step": 4}\n'


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"random_seed": null}'])
def test_a_damaged_description_of_a_run_says_what_to_do(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(StorageError, match=r"run\.json is damaged .* put back a copy"):
        stored_seed(tmp_path)


def test_the_directory_of_a_second_run_within_a_second_goes_too_where_it_cannot_be_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("DESCEND_EXPERIMENT_DIR", str(tmp_path))
    monkeypatch.setattr(run_directory, "_default_path", lambda name: tmp_path / name)
    first = RunDirectory(None, "x")

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        RunDirectory(None, "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    first.close()


def test_restarts_keep_their_place_among_rows_whose_order_is_kept(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    for step in (1, 3):
        directory.append_row({"mode": "restart", "epoch": 0, "step": step})
    rows = [{"mode": "train", "epoch": 0, "step": step} for step in (1, 4, 2, 5)]  # a callback looked back
    directory.replace_rows(rows, 3)
    found = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row for row in found if row["mode"] != "restart"] == rows
    assert [(row["mode"], row["step"]) for row in found[:4]] == [
        ("train", 1),
        ("restart", 1),
        ("restart", 3),
        ("train", 4),
    ]
    directory.close()


def test_rows_and_lines_are_not_written_through_a_link(tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text("")
    files = RunDirectory(tmp_path / "run")
    for name in ("metrics.jsonl", "log.txt"):
        (files.path / name).symlink_to(other)
    with pytest.warns(UserWarning, match="it is a link, and may lead to a file of others; training continues"):
        files.append_row({"mode": "train", "epoch": 1, "step": 1})
    with pytest.warns(UserWarning, match="it is a link"):
        files.log("said")
    assert other.read_text() == ""
    (files.path / "metrics.jsonl").unlink()
    files.flush_rows()
    assert [row["step"] for row in read_rows(files.path / "metrics.jsonl")] == [1]
    files.close()


@pytest.mark.parametrize("damage", [os.unlink, lambda path: path.write_text("{")])
def test_the_end_is_noted_though_the_description_was_damaged_under_the_run(tmp_path, damage):
    files = RunDirectory(tmp_path / "run")
    files.write_json("run.json", {"random_seed": 7, "restarts": []})
    damage(files.path / "run.json")
    files.note_end({"exit_code": 0})
    assert files.facts()["end"]["exit_code"] == 0
    assert stored_seed(files.path) == 7
    files.close()


def test_a_text_that_cannot_be_read_is_kept_as_one_that_differs(tmp_path):
    files = RunDirectory(tmp_path / "run")
    (files.path / "experiment.prototext").write_bytes(b"\xff")
    files.keep_text("experiment.prototext", "new")
    assert (files.path / "experiment.prototext").read_text() == "new"
    assert (files.path / "earlier-1-experiment.prototext").read_bytes() == b"\xff"
    files.close()


def test_rows_of_a_gigantic_file_are_read_line_by_line(tmp_path):
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.write(b'{"mode": "train", "epoch": 1, "step": 4}\n')
        file.truncate(2 * 10**9)
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [4]
