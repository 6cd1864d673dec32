"""Records in files: what a kill cuts off, what a disk damages, and what others append."""

import dataclasses
import json
import os
import re

import pytest

from descend.errors import StorageError
from descend.study.running.record_files import RecordFiles
from descend.study.running.trial import Record, Trial

TRIALS = [Trial("a", 32, 100, 0, "search", index, 0, index, {"optimizer": "SGD", "lr": 0.1}) for index in range(3)]


def record(trial, value=0.5, status="done"):
    return Record(trial, status, (0, 100), {"validation": {"accuracy": [0.1, value]}}, seconds=1.5)


def written(folder, *records):
    files = RecordFiles(folder)
    files.append(*records)
    files.close()
    (file,) = folder.iterdir()
    return file


def test_records_of_several_writers_are_read_and_only_new_lines(tmp_path):
    one, other = RecordFiles(tmp_path), RecordFiles(tmp_path)
    one.append(record(TRIALS[0]))
    assert other.records() == {TRIALS[0].id: record(TRIALS[0])}
    other.append(record(TRIALS[1]), record(TRIALS[2]))
    assert len(list(tmp_path.iterdir())) == 2
    assert set(other.records()) == set(one.records()) == {trial.id for trial in TRIALS}
    for file in tmp_path.iterdir():  # what was read is not read again
        file.write_bytes(b"x" * file.stat().st_size)
    assert len(one.records()) == 3
    one.close()
    other.close()


def test_the_first_result_counts_and_an_error_is_replaced(tmp_path):
    written(tmp_path, record(TRIALS[0], 0.5), record(TRIALS[0], 0.9), record(TRIALS[1], status="error"))
    found = RecordFiles(tmp_path).records()
    assert found[TRIALS[0].id] == record(TRIALS[0], 0.5)
    assert found[TRIALS[1].id].status == "error"
    again = RecordFiles(tmp_path)
    again.append(record(TRIALS[1]))
    again.close()
    assert RecordFiles(tmp_path).records()[TRIALS[1].id].status == "done"


def test_a_line_that_was_cut_off_is_no_record_and_a_damaged_one_is_an_error(tmp_path):
    file = written(tmp_path, record(TRIALS[0]), record(TRIALS[1]))
    whole = file.read_bytes()
    assert RecordFiles(tmp_path).cut_off() == []
    for cut in (1, 40):
        file.write_bytes(whole[:-cut])
        files = RecordFiles(tmp_path)
        assert list(files.records()) == [TRIALS[0].id]
        assert files.cut_off() == [file]
    for damaged in (b"{broken}\n", b"\xff\xfe\n", b"{}\n", b"[]\n"):
        lines = whole.splitlines(keepends=True)
        file.write_bytes(lines[0] + b"\n" + damaged + lines[1])
        with pytest.raises(StorageError, match=r"jsonl:3: .* remove it and its trial runs again"):
            RecordFiles(tmp_path).records()
    file.write_bytes(lines[0] + lines[1])
    assert len(RecordFiles(tmp_path).records()) == 2


def test_a_disk_that_takes_a_part_at_a_time_gets_all_of_it(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, text: write(file, text[:100]))
    written(tmp_path, *(record(one) for one in TRIALS))
    assert list(RecordFiles(tmp_path).records()) == [one.id for one in TRIALS]


def test_a_line_is_known_by_its_checksum(tmp_path):
    """A digit that changed on the disk is still JSON, and still a number."""
    file = written(tmp_path, record(TRIALS[0]))
    text = file.read_text()
    file.write_text(text.replace("0.5]", "0.9]"))
    with pytest.raises(StorageError, match=r"jsonl:1: .*checksum .* remove it and its trial runs again"):
        RecordFiles(tmp_path).records()
    file.write_text(re.sub(r',"crc32":"\w+"', "", text).replace("\n", "\r\n"))  # by an editor, say
    assert RecordFiles(tmp_path).records() == {TRIALS[0].id: record(TRIALS[0])}


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"steps": [0, "x"]},
        {"steps": [0]},
        {"scores": {"validation": {"accuracy": [0.1]}}},
        {"scores": {"validation": {"accuracy": [0.1, "0.5"]}}},
        {"scores": {"test": {"accuracy": []}}},
        {"seconds": {}},
        {"more": 1},
        {"trial": {}},
        {"trial": {**dataclasses.asdict(TRIALS[0]), "search": True}},
        {"trial": {**dataclasses.asdict(TRIALS[0]), "more": 1}},
    ],
)
def test_what_is_no_record_is_named_with_its_line(tmp_path, change):
    plain = json.loads(re.sub(r',"crc32":"\w+"', "", record(TRIALS[0]).line()))
    (tmp_path / "a.jsonl").write_text(f"{record(TRIALS[1]).line()}\n{json.dumps(plain | change)}\n")
    with pytest.raises(StorageError, match=r"a\.jsonl:2: not a record of a trial: .*; the line is damaged"):
        RecordFiles(tmp_path).records()
