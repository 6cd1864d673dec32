"""The study directory: crash-safe, shared, and true to its description."""

import errno
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from descend.errors import ConfigurationError, DirectoryLost, StorageError
from descend.study.design import Arm, Study, log
from descend.study.running.plan import pending
from descend.study.running.trial import Record
from descend.study.running.trial_store import Memory, StudyDirectory, read_frozen


def study(**fields):
    given = {"arms": {"a": Arm("SGD", {"lr": log(1e-3, 1.0)})}, "trials": 8, "searches": 2, "shortlist": 2, **fields}
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


def test_each_trial_is_claimed_once(tmp_path):
    StudyDirectory(tmp_path, study())
    one, other = StudyDirectory(tmp_path), StudyDirectory(tmp_path)
    assert one.claim(TRIALS, 3) == TRIALS[:3]
    assert other.claim(TRIALS, 3) == TRIALS[3:6]
    one.record(record(TRIALS[0]))
    assert other.claim(TRIALS, 16) == TRIALS[6:]  # the first is recorded, the next two are held


def test_an_error_is_replaced_by_a_later_result(tmp_path):
    with StudyDirectory(tmp_path, study()) as directory:
        directory.record(record(TRIALS[0], status="error"))
        assert directory.claim(TRIALS, 1) == TRIALS[:1]
        directory.record(record(TRIALS[0]))
        assert directory.records()[TRIALS[0].id].status == "done"


def test_memory_keeps_records_of_one_process():
    memory = Memory()
    assert memory.claim(TRIALS, 2) == TRIALS[:2]
    memory.record(record(TRIALS[0]))
    assert list(memory.records()) == [TRIALS[0].id]


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


def test_the_folders_of_a_study_may_be_there_already_and_its_description_is_kept(tmp_path):
    (tmp_path / "leases").mkdir()
    StudyDirectory(tmp_path, study(), {"code": "abc"})
    again = StudyDirectory(tmp_path, study(), {"code": "abc"})
    assert again.description()["study"] == study().plain()
    assert again.study() == study()


def leases(directory):
    return {path.name for path in (directory / "leases").iterdir()}


def test_a_lease_ends_with_the_record_of_its_trial_and_all_end_with_the_process(tmp_path):
    with StudyDirectory(tmp_path, study()) as directory:
        assert directory.claim(TRIALS, 3) == TRIALS[:3]
        assert len(leases(tmp_path)) == 3
        directory.record(record(TRIALS[0]))
        assert len(leases(tmp_path)) == 2
        assert any(thread.name == "descend-claims" for thread in threading.enumerate())
    assert leases(tmp_path) == set()
    assert not any(thread.name == "descend-claims" for thread in threading.enumerate())


def test_a_trial_that_ended_before_it_was_claimed_is_given_back(tmp_path):
    StudyDirectory(tmp_path, study())
    one, other = StudyDirectory(tmp_path), StudyDirectory(tmp_path)
    with one:
        one.record(record(TRIALS[0]))  # which `other` has not read yet
        assert other.claim(TRIALS, 2) == [TRIALS[1]]
        assert len(leases(tmp_path)) == 1


def test_a_heartbeat_renews_what_is_claimed(tmp_path):
    directory = StudyDirectory(tmp_path, study())
    directory.claim(TRIALS, 1)
    (lease,) = (tmp_path / "leases").iterdir()
    os.utime(lease, (0, 0))
    directory.beat()
    assert lease.stat().st_mtime > 0


def test_a_record_that_was_cut_off_is_named_by_its_file(tmp_path):
    with StudyDirectory(tmp_path, study()) as directory:
        directory.record(record(TRIALS[0]))
    (file,) = (tmp_path / "records").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    directory = StudyDirectory(tmp_path)
    assert directory.records() == {}
    assert directory.cut_off() == [file]


def test_records_are_on_the_disk_when_the_process_is_done(tmp_path, monkeypatch):
    synced = []
    with StudyDirectory(tmp_path, study()) as directory:
        directory.record(record(TRIALS[0]))
        fsync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), fsync(file)))
    assert len(synced) == 1


@pytest.mark.parametrize("what", ["renamed", "deleted", "exchanged"])
def test_a_directory_that_is_moved_or_exchanged_is_an_error_and_what_is_there_now_is_left_alone(tmp_path, what):
    place, away = tmp_path / "study", tmp_path / "away"
    with StudyDirectory(tmp_path / "other", study()) as other:
        other.record(record(TRIALS[5]))
    directory = StudyDirectory(place, study())
    with directory:
        assert directory.claim(TRIALS, 2) == TRIALS[:2]
        directory.record(record(TRIALS[0]))
        if what == "deleted":
            shutil.rmtree(place)
        else:
            place.rename(away)
        if what == "exchanged":
            shutil.copytree(tmp_path / "other", place)
        before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for act in (
            lambda: directory.record(record(TRIALS[1])),
            lambda: directory.claim(TRIALS[2:], 1),
            lambda: directory.decide("kind", "one"),
        ):
            with pytest.raises(StorageError, match=re.escape(str(place))):
                act()
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert place.exists() == (what == "exchanged")
    if what != "deleted":  # the record that could not be refused any more
        assert set(StudyDirectory(away).records()) == {TRIALS[0].id, TRIALS[1].id}


@pytest.mark.parametrize("name", ["records", "leases"])
@pytest.mark.parametrize("what", ["deleted", "exchanged"])
def test_a_folder_of_the_directory_that_is_removed_or_exchanged_is_an_error(tmp_path, name, what):
    """Without its records a study would run the same trials for ever."""
    with StudyDirectory(tmp_path / "other", study()), StudyDirectory(tmp_path / "study", study()) as directory:
        directory.record(record(TRIALS[0]))
        (tmp_path / "study" / name).rename(tmp_path / "away")
        if what == "exchanged":
            (tmp_path / "study" / name).symlink_to(tmp_path / "other" / name)
        for act in (lambda: directory.record(record(TRIALS[1])), lambda: directory.claim(TRIALS[2:], 1)):
            with pytest.raises(StorageError, match=f"{name} (is gone )?.the one in use was renamed"):
                act()
    assert not [*(tmp_path / "other" / name).iterdir()]


def test_a_study_whose_description_is_removed_ends_with_what_it_has_recorded(tmp_path):
    with StudyDirectory(tmp_path, study()) as directory:
        directory.record(record(TRIALS[0]))
        (tmp_path / "study.json").unlink()
        acts = (
            lambda: directory.record(record(TRIALS[1])),
            lambda: directory.claim(TRIALS[2:], 1),
            lambda: directory.decide("kind", "one"),
            directory.study,
            lambda: read_frozen(tmp_path),  # of a process that has just been started to help
        )
        for act in acts:
            with pytest.raises(DirectoryLost, match=r"study\.json is gone, which describes the study that is running"):
                act()
    assert set(StudyDirectory(tmp_path).records()) == {TRIALS[0].id, TRIALS[1].id}
    again = StudyDirectory(tmp_path, study())
    assert again.study() == study()
