"""The study directory: crash-safe, shared, and true to its description."""

import dataclasses
import errno
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from descend.errors import ConfigurationError, DirectoryLost, StorageError
from descend.study.design import Arm, Study, log
from descend.study.running import trial_store
from descend.study.running.plan import pending
from descend.study.running.trial import Record, Trial
from descend.study.running.trial_store import Memory, RecordFiles, StudyDirectory, TrialLeases, read_frozen


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
    with pytest.raises(StorageError, match=r"No space left on device; is the disk full"):
        StudyDirectory(tmp_path / "other", study())


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
            directory.study,
            lambda: read_frozen(tmp_path),  # of a process that has just been started to help
        )
        for act in acts:
            with pytest.raises(DirectoryLost, match=r"study\.json is gone, which describes the study that is running"):
                act()
    assert set(StudyDirectory(tmp_path).records()) == {TRIALS[0].id, TRIALS[1].id}
    again = StudyDirectory(tmp_path, study())
    assert again.study() == study()


THREE = [Trial("a", 32, 100, 0, "search", index, 0, index, {"optimizer": "SGD", "lr": 0.1}) for index in range(3)]


def ended_with(trial, value=0.5, status="done"):
    return Record(trial, status, (0, 100), {"validation": {"accuracy": [0.1, value]}}, seconds=1.5)


def written(folder, *records):
    files = RecordFiles(folder)
    files.append(*records)
    files.close()
    (file,) = folder.iterdir()
    return file


def test_records_of_several_writers_are_read_and_only_new_lines(tmp_path):
    one, other = RecordFiles(tmp_path), RecordFiles(tmp_path)
    one.append(ended_with(THREE[0]))
    assert other.records() == {THREE[0].id: ended_with(THREE[0])}
    other.append(ended_with(THREE[1]), ended_with(THREE[2]))
    assert len(list(tmp_path.iterdir())) == 2
    assert set(other.records()) == set(one.records()) == {trial.id for trial in THREE}
    for file in tmp_path.iterdir():  # what was read is not read again
        file.write_bytes(b"x" * file.stat().st_size)
    assert len(one.records()) == 3
    one.close()
    other.close()


def test_the_first_result_counts_and_an_error_is_replaced(tmp_path):
    written(
        tmp_path,
        ended_with(THREE[0], 0.5),
        ended_with(THREE[0], 0.9),
        ended_with(THREE[1], status="error"),
    )
    found = RecordFiles(tmp_path).records()
    assert found[THREE[0].id] == ended_with(THREE[0], 0.5)
    assert found[THREE[1].id].status == "error"
    again = RecordFiles(tmp_path)
    again.append(ended_with(THREE[1]))
    again.close()
    assert RecordFiles(tmp_path).records()[THREE[1].id].status == "done"


def test_a_line_that_was_cut_off_is_no_record_and_a_damaged_one_is_an_error(tmp_path):
    file = written(tmp_path, ended_with(THREE[0]), ended_with(THREE[1]))
    whole = file.read_bytes()
    assert RecordFiles(tmp_path).cut_off() == []
    for cut in (1, 40):
        file.write_bytes(whole[:-cut])
        files = RecordFiles(tmp_path)
        assert list(files.records()) == [THREE[0].id]
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
    written(tmp_path, *(ended_with(one) for one in THREE))
    assert list(RecordFiles(tmp_path).records()) == [one.id for one in THREE]


def test_a_line_is_known_by_its_checksum(tmp_path):
    """A digit that changed on the disk is still JSON, and still a number."""
    file = written(tmp_path, ended_with(THREE[0]))
    text = file.read_text()
    file.write_text(text.replace("0.5]", "0.9]"))
    with pytest.raises(StorageError, match=r"jsonl:1: .*checksum .* remove it and its trial runs again"):
        RecordFiles(tmp_path).records()
    file.write_text(re.sub(r',"crc32":"\w+"', "", text).replace("\n", "\r\n"))  # by an editor, say
    assert RecordFiles(tmp_path).records() == {THREE[0].id: ended_with(THREE[0])}


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
        {"trial": {**dataclasses.asdict(THREE[0]), "search": True}},
        {"trial": {**dataclasses.asdict(THREE[0]), "more": 1}},
    ],
)
def test_what_is_no_record_is_named_with_its_line(tmp_path, change):
    plain = json.loads(re.sub(r',"crc32":"\w+"', "", ended_with(THREE[0]).line()))
    (tmp_path / "a.jsonl").write_text(f"{ended_with(THREE[1]).line()}\n{json.dumps(plain | change)}\n")
    with pytest.raises(StorageError, match=r"a\.jsonl:2: not a record of a trial: .*; the line is damaged"):
        RecordFiles(tmp_path).records()


@pytest.fixture
def synced(monkeypatch):
    """Files that were flushed to the disk, of a clock that the test sets."""
    calls, clock = [], [100.0]
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(os.fstat(file).st_size), fsync(file)))
    monkeypatch.setattr("descend.study.running.trial_store.time.monotonic", lambda: clock[0])
    return calls, clock


def test_records_reach_the_disk_after_a_second_and_at_the_end(tmp_path, synced):
    calls, clock = synced
    files = RecordFiles(tmp_path)
    for now, count in ((100.0, 0), (101.0, 0), (101.25, 1), (102.0, 1), (102.5, 2)):
        clock[0] = now
        files.append(ended_with(THREE[0]))
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
    files.append(ended_with(THREE[0]))
    files.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    files.append(ended_with(THREE[1]))
    files.close()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644 & ~_umask()
    assert set(RecordFiles(tmp_path).records()) == {THREE[0].id, THREE[1].id}


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_lines_are_read_from_where_the_last_look_ended(tmp_path):
    """A line that was cut off is read whole once the rest of it has come."""
    file = written(
        tmp_path,
        ended_with(THREE[0]),
        ended_with(THREE[1]),
        ended_with(THREE[2]),
    )
    text = file.read_bytes()
    first = text.index(b"\n") + 1
    file.write_bytes(text[: first + 20])
    files = RecordFiles(tmp_path)
    assert list(files.records()) == [THREE[0].id]
    file.write_bytes(b"x" * first + text[first:])  # what was read before is not looked at again
    assert list(files.records()) == [one.id for one in THREE]
    assert files.cut_off() == []


def test_a_line_longer_than_any_record_is_an_error_and_fills_no_memory(tmp_path):
    file = written(tmp_path, ended_with(THREE[0]))
    with file.open("r+b") as open_file:
        open_file.truncate(2 * 10**9)
    with pytest.raises(StorageError, match="a line has 16,000,000 bytes or more"):
        RecordFiles(tmp_path).records()


def test_one_process_holds_a_lease_until_it_is_released(tmp_path):
    one, other = TrialLeases(tmp_path), TrialLeases(tmp_path)
    assert one.take("a")
    assert not other.take("a")
    assert other.take("b")
    other.release("a")  # which it does not hold
    assert not other.take("a")
    one.release("a")
    assert other.take("a")
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_lease_without_a_heartbeat_is_void(tmp_path):
    dead, living = TrialLeases(tmp_path), TrialLeases(tmp_path)
    dead.take("a")
    (lease,) = tmp_path.iterdir()
    for age, taken in ((trial_store.LEASE_SECONDS - 5, False), (trial_store.LEASE_SECONDS + 5, True)):
        old = time.time() - age
        os.utime(lease, (old, old))
        assert living.take("a") == taken
    dead.renew()  # what was lost stays lost
    assert not dead.take("a")


def test_heartbeats_keep_a_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_store, "_HEARTBEAT_SECONDS", 0.01)
    leases = TrialLeases(tmp_path)
    leases.take("a")
    (lease,) = tmp_path.iterdir()
    os.utime(lease, (0, 0))
    leases.start_heartbeats()
    deadline = time.monotonic() + 10
    while lease.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.time() - lease.stat().st_mtime < 60
    leases.close()
    assert list(tmp_path.iterdir()) == []


def test_who_comes_late_to_a_void_lease_gives_back_the_new_one(tmp_path, monkeypatch):
    """Both saw the old lease; the first has taken it over before the second renames what is there."""
    dead, first, second = (TrialLeases(tmp_path) for _ in range(3))
    dead.take("a")
    (lease,) = tmp_path.iterdir()
    os.utime(lease, (0, 0))
    void = second._is_void

    def seen_before_the_first_came(lock):
        was_void = void(lock)
        if lock.path == lease:
            monkeypatch.setattr(second, "_is_void", void)
            assert first.take("a")
        return was_void

    monkeypatch.setattr(second, "_is_void", seen_before_the_first_came)
    assert not second.take("a")
    assert list(tmp_path.iterdir()) == [lease]
    assert not TrialLeases(tmp_path).take("a")


def test_the_heartbeat_is_several_times_as_fast_as_a_lease_is_void():
    assert trial_store.LEASE_SECONDS == 60.0
    assert trial_store._HEARTBEAT_SECONDS == 10.0


def test_a_lease_that_was_lost_is_not_held_any_more(tmp_path):
    """Otherwise this process would release the lease of the one that has it now."""
    dead, living = TrialLeases(tmp_path), TrialLeases(tmp_path)
    dead.take("a")
    (lease,) = tmp_path.iterdir()
    os.utime(lease, (0, 0))
    assert living.take("a")
    dead.renew()
    assert dead._held == {}
    dead.close()
    assert list(tmp_path.iterdir()) != []
    living.close()
    assert living._held == {}


def test_heartbeats_begin_again_after_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_store, "_HEARTBEAT_SECONDS", 0.01)
    leases = TrialLeases(tmp_path)
    for _ in range(2):
        leases.take("a")
        (lease,) = tmp_path.iterdir()
        os.utime(lease, (0, 0))
        leases.start_heartbeats()
        thread = leases._thread
        assert thread.daemon  # a process that fails must not wait for it
        deadline = time.monotonic() + 10
        while lease.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lease.stat().st_mtime > 0
        leases.close()
        assert not thread.is_alive()
