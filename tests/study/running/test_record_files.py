"""Records in files: what a kill cuts off, what a disk damages, and what others append."""

import dataclasses
import json
import os
import re
from pathlib import Path

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


@pytest.fixture
def synced(monkeypatch):
    """Files that were flushed to the disk, of a clock that the test sets."""
    calls, clock = [], [100.0]
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(os.fstat(file).st_size), fsync(file)))
    monkeypatch.setattr("descend.study.running.record_files.time.monotonic", lambda: clock[0])
    return calls, clock


def test_records_reach_the_disk_after_a_second_and_at_the_end(tmp_path, synced):
    calls, clock = synced
    files = RecordFiles(tmp_path)
    for now, count in ((100.0, 0), (101.0, 0), (101.25, 1), (102.0, 1), (102.5, 2)):
        clock[0] = now
        files.append(record(TRIALS[0]))
        assert len(calls) == count
    files.close()
    (file,) = tmp_path.iterdir()
    assert calls[-1] == file.stat().st_size
    assert len(calls) == 3
    files.close()  # once is enough
    assert len(calls) == 3


def test_a_closed_file_is_closed_and_a_later_record_is_appended_to_it(tmp_path):
    files = RecordFiles(tmp_path)
    before = len([*Path("/proc/self/fd").iterdir()])
    files.append(record(TRIALS[0]))
    files.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    files.append(record(TRIALS[1]))
    files.close()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644 & ~_umask()
    assert set(RecordFiles(tmp_path).records()) == {TRIALS[0].id, TRIALS[1].id}


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_lines_are_read_from_where_the_last_look_ended(tmp_path):
    """A line that was cut off is read whole once the rest of it has come."""
    file = written(tmp_path, record(TRIALS[0]), record(TRIALS[1]), record(TRIALS[2]))
    text = file.read_bytes()
    first = text.index(b"\n") + 1
    file.write_bytes(text[: first + 20])
    files = RecordFiles(tmp_path)
    assert list(files.records()) == [TRIALS[0].id]
    file.write_bytes(b"x" * first + text[first:])  # what was read before is not looked at again
    assert list(files.records()) == [one.id for one in TRIALS]
    assert files.cut_off() == []


def test_a_line_longer_than_any_record_is_an_error_and_fills_no_memory(tmp_path):
    file = written(tmp_path, record(TRIALS[0]))
    with file.open("r+b") as open_file:
        open_file.truncate(2 * 10**9)
    with pytest.raises(StorageError, match="a line has 16,000,000 bytes or more"):
        RecordFiles(tmp_path).records()
