"""The study directory: crash-safe, shared, and true to its description."""

import dataclasses
import errno
import json
import os
import re
import time
from pathlib import Path

import pytest

from descend.errors import ConfigurationError, StorageError
from descend.study.design import Arm, Study, log
from descend.study.progress import status_of
from descend.study.running import trial_store as ledger
from descend.study.running.plan import pending
from descend.study.running.trial import Record
from descend.study.running.trial_store import Memory, StudyDirectory, read_frozen


def study(**fields):
    given = {"arms": {"a": Arm("SGD", {"lr": log(1e-3, 1.0)})}, "trials": 8, "shortlist": 2, **fields}
    return Study(workload="t.py:t", batch_sizes=(32,), steps=(100,), **given)


TRIALS = pending(study(), {})


def record(trial, value=0.5, status="done"):
    return Record(trial, status, (0, 100), {"validation": {"accuracy": [0.1, value]}}, seconds=1.5)


def test_records_come_back_from_another_process_of_the_study(tmp_path):
    with StudyDirectory(tmp_path, study()) as first:
        assert first.claim(TRIALS, 2) == TRIALS[:2]
        first.record(record(TRIALS[0]))
        first.record(record(TRIALS[1], float("nan"), "diverged"))
    read = StudyDirectory(tmp_path).records()
    assert read[TRIALS[0].id] == record(TRIALS[0])
    assert read[TRIALS[1].id].status == "diverged"
    assert read_frozen(tmp_path) == study()


def test_a_line_that_was_cut_off_is_no_record_and_a_damaged_one_is_an_error(tmp_path):
    with StudyDirectory(tmp_path, study()) as directory:
        directory.claim(TRIALS, 2)
        directory.record(record(TRIALS[0]))
        directory.record(record(TRIALS[1]))
    (file,) = (tmp_path / "records").iterdir()
    whole = file.read_bytes()
    for cut in (1, 40):
        file.write_bytes(whole[:-cut])
        assert list(StudyDirectory(tmp_path).records()) == [TRIALS[0].id]
    for damaged in (b"{broken}\n", b"\xff\xfe\n", b"{}\n", b"[]\n"):
        lines = whole.splitlines(keepends=True)
        file.write_bytes(lines[0] + b"\n" + damaged + lines[1])
        with pytest.raises(StorageError, match=r"jsonl:3: .* remove it and its trial runs again"):
            StudyDirectory(tmp_path).records()
    file.write_bytes(lines[0] + lines[1])
    assert len(StudyDirectory(tmp_path).records()) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"study": {}}', "\xff"])
def test_a_damaged_description_is_said(tmp_path, text):
    StudyDirectory(tmp_path, study())
    (tmp_path / "study.json").write_text(text, encoding="latin-1")
    for again in (None, study()):
        with pytest.raises(StorageError, match=r"study\.json is damaged"):
            StudyDirectory(tmp_path, again).description()


def test_each_trial_is_claimed_once(tmp_path):
    StudyDirectory(tmp_path, study())
    one, other = StudyDirectory(tmp_path), StudyDirectory(tmp_path)
    assert one.claim(TRIALS, 3) == TRIALS[:3]
    assert other.claim(TRIALS, 3) == TRIALS[3:6]
    one.record(record(TRIALS[0]))
    assert other.claim(TRIALS, 16) == TRIALS[6:]  # the first is recorded, the next two are held


def test_a_claim_without_a_heartbeat_is_void(tmp_path):
    StudyDirectory(tmp_path, study())
    dead, living = StudyDirectory(tmp_path), StudyDirectory(tmp_path)
    dead.claim(TRIALS, 1)
    assert living.claim(TRIALS[:1], 1) == []
    old = time.time() - ledger.LEASE_SECONDS - 5
    for lease in (tmp_path / "leases").iterdir():
        os.utime(lease, (old, old))
    assert living.claim(TRIALS[:1], 1) == TRIALS[:1]
    dead.beat()  # what was lost stays lost
    assert dead.claim(TRIALS[:1], 1) == []


def test_an_error_is_replaced_by_a_later_result(tmp_path):
    with StudyDirectory(tmp_path, study()) as directory:
        directory.record(record(TRIALS[0], status="error"))
        assert directory.claim(TRIALS, 1) == TRIALS[:1]
        directory.record(record(TRIALS[0]))
        assert directory.records()[TRIALS[0].id].status == "done"


def test_extending_is_an_amendment_and_another_study_is_refused(tmp_path):
    StudyDirectory(tmp_path, study(), {"data": "1"})
    StudyDirectory(tmp_path, study(trials=16), {"data": "1"})
    assert StudyDirectory(tmp_path).description()["amendments"] == [{"trials": [8, 16]}]
    with pytest.raises(ConfigurationError, match=r"whose seed is 0, and now it is 3"):
        StudyDirectory(tmp_path, study(trials=16, seed=3), {"data": "1"})
    with pytest.raises(ConfigurationError, match=r"hashes\.data"):
        StudyDirectory(tmp_path, study(trials=16), {"data": "2"})
    more = {"a": study().arms["a"], "b": Arm("SGD", {}, {"lr": 0.1})}
    StudyDirectory(tmp_path, study(trials=16, arms=more), {"data": "1"})
    with pytest.raises(ConfigurationError, match=r"arms\.a"):
        StudyDirectory(tmp_path, study(trials=16, arms={"a": Arm("SGD", {}, {"lr": 0.1})}), {"data": "1"})


def test_memory_keeps_records_of_one_process():
    memory = Memory()
    assert memory.claim(TRIALS, 2) == TRIALS[:2]
    memory.record(record(TRIALS[0]))
    assert list(memory.records()) == [TRIALS[0].id]


def test_a_directory_that_holds_no_study_is_a_mistake(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no study"):
        read_frozen(tmp_path / "none")


def test_who_decides_first_decides_for_all(tmp_path):
    StudyDirectory(tmp_path, study())
    one, other = StudyDirectory(tmp_path), StudyDirectory(tmp_path)
    for first, second in ((one, other), (Memory(), None)):
        assert first.way("a/b32") is None
        assert first.decide("a/b32", "together") == "together"
        second = second or first
        assert second.decide("a/b32", "one") == "together"
        assert second.way("a/b32") == "together"
        assert second.way("a/b64") is None


def test_several_records_are_one_piece(tmp_path, monkeypatch):
    """A disk that takes a part at a time gets all of it."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, text: write(file, text[:100]))
    with StudyDirectory(tmp_path, study()) as directory:
        assert directory.claim(TRIALS, 3) == TRIALS[:3]
        directory.record(*(record(one) for one in TRIALS[:3]))
        assert list((tmp_path / "leases").iterdir()) == []
    assert list(StudyDirectory(tmp_path).records()) == [one.id for one in TRIALS[:3]]


def test_a_line_is_known_by_its_checksum(tmp_path):
    """A digit that changed on the disk is still JSON, and still a number."""
    with StudyDirectory(tmp_path, study()) as directory:
        directory.record(record(TRIALS[0]))
    (file,) = (tmp_path / "records").iterdir()
    text = file.read_text()
    file.write_text(text.replace("0.5]", "0.9]"))
    with pytest.raises(StorageError, match=r"jsonl:1: .*checksum .* remove it and its trial runs again"):
        StudyDirectory(tmp_path).records()
    file.write_text(re.sub(r',"crc32":"\w+"', "", text).replace("\n", "\r\n"))  # by an editor, say
    assert StudyDirectory(tmp_path).records() == {TRIALS[0].id: record(TRIALS[0])}


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
    StudyDirectory(tmp_path, study())
    plain = json.loads(re.sub(r',"crc32":"\w+"', "", record(TRIALS[0]).line()))
    (tmp_path / "records" / "a.jsonl").write_text(f"{record(TRIALS[1]).line()}\n{json.dumps(plain | change)}\n")
    with pytest.raises(StorageError, match=r"a\.jsonl:2: not a record of a trial: .*; the line is damaged"):
        StudyDirectory(tmp_path).records()


def test_a_line_without_its_end_is_told(tmp_path):
    with StudyDirectory(tmp_path, study()) as directory:
        directory.record(record(TRIALS[0]))
    (file,) = (tmp_path / "records").iterdir()
    assert "no end" not in status_of(tmp_path)
    file.write_text(file.read_text() + record(TRIALS[1]).line()[:50])
    assert f"{file}: the last line has no end" in status_of(tmp_path)
    file.write_text(file.read_text().splitlines()[0] + f"\n{record(stranger()).line()}\n")
    told = status_of(tmp_path)
    assert "1 of 48 trials" in told
    assert "1 more records are of trials that the study does not ask for" in told


def stranger():
    return dataclasses.replace(TRIALS[0], arm="of another study")


@pytest.mark.parametrize("text", ['"study"', '[{"trials": 3}]', "[3]", '[{"trials": [1, 2, 3]}]'])
def test_amendments_that_are_none_are_damage(tmp_path, text):
    StudyDirectory(tmp_path, study())
    plain = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**plain, "amendments": json.loads(text)}))
    with pytest.raises(StorageError, match=r"study\.json is damaged"):
        StudyDirectory(tmp_path).description()


def test_a_study_that_this_version_does_not_know_is_told_with_its_file(tmp_path):
    StudyDirectory(tmp_path, study())
    plain = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**plain, "study": {**plain["study"], "trails": 3}}))
    with pytest.raises(ConfigurationError, match=r"study\.json: there is no 'trails'; did you mean 'trials'"):
        read_frozen(tmp_path)


def test_other_versions_and_other_code_are_amendments(tmp_path, monkeypatch):
    StudyDirectory(tmp_path, study(), {"code": "1", "data": "1"})
    monkeypatch.setattr(ledger, "__version__", "99")
    StudyDirectory(tmp_path, study(), {"code": "2", "data": "1", "code.helper": "3"})
    (changed,) = StudyDirectory(tmp_path).description()["amendments"]
    assert changed["hashes.code"] == ["1", "2"]
    assert changed["hashes.code.helper"] == [None, "3"]
    assert changed["made_with.descend"][1] == "99"
    StudyDirectory(tmp_path, study(), {"code": "2", "data": "1", "code.helper": "3"})
    assert len(StudyDirectory(tmp_path).description()["amendments"]) == 1


def test_a_place_that_cannot_be_written_is_an_error_and_a_file_a_mistake(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(ConfigurationError, match="a file has this name"):
            StudyDirectory(place, study())

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    directory = StudyDirectory(tmp_path / "study", study())
    monkeypatch.setattr(os, "open", full)
    for refused in (lambda: directory.claim(TRIALS, 1), lambda: directory.record(record(TRIALS[0]))):
        with pytest.raises(StorageError, match=r"No space left on device; is the disk full"):
            refused()
    monkeypatch.setattr(Path, "mkdir", full)
    for refused in (lambda: directory.decide("a", "one"), lambda: StudyDirectory(tmp_path / "other", study())):
        with pytest.raises(StorageError, match=r"No space left on device; is the disk full"):
            refused()


def test_who_comes_late_to_a_void_lease_gives_back_the_new_one(tmp_path, monkeypatch):
    """Both saw the old lease; the first has taken it over before the second renames what is there."""
    StudyDirectory(tmp_path, study())
    dead, first, second = (StudyDirectory(tmp_path) for _ in range(3))
    dead.claim(TRIALS, 1)
    (lease,) = (tmp_path / "leases").iterdir()
    os.utime(lease, (0, 0))
    void = second._is_void

    def seen_before_the_first_came(lock):
        was_void = void(lock)
        if lock.path == lease:
            monkeypatch.setattr(second, "_is_void", void)
            assert first.claim(TRIALS[:1], 1) == TRIALS[:1]
        return was_void

    monkeypatch.setattr(second, "_is_void", seen_before_the_first_came)
    assert second.claim(TRIALS[:1], 1) == []
    assert list((tmp_path / "leases").iterdir()) == [lease]
    assert StudyDirectory(tmp_path).claim(TRIALS[:1], 1) == []
