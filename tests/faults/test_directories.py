"""A run directory that is deleted, renamed, exchanged or made read-only under its run, or keeps nothing of its rows."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from faults.doors import fault, files_of, fit, in_a_process
from system_needs import needs

import descend
from descend.errors import StorageError
from descend.runtime.directory_lock import OWNER, DirectoryLock, HeldFolder
from descend.runtime.run_directory import RunDirectory


class At(descend.Callback):
    """Does something after a step."""

    def __init__(self, step, act):
        self.at, self.act = step, act

    def after_step(self, step):
        if step.step == self.at:
            self.act()


def go(run_dir, *callbacks, steps=40, keep=2, every=3, asynchronous=False, **settings):
    saves = descend.Checkpoint(every_steps=every, keep=keep, asynchronous=asynchronous)
    return fit(run_dir=run_dir, stop=descend.Steps(steps), callbacks=[saves, *callbacks], verbose=False, **settings)


def rows(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def without_times(history):
    return [{name: value for name, value in row.items() if name not in ("seconds", "time")} for row in history]


# ---- deleted, renamed, exchanged


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", ["the directory", "its lock", "everything in it", "a folder above it"])
def test_a_directory_that_is_deleted_ends_the_run_and_is_not_made_again(tmp_path, what, asynchronous):
    run_dir = tmp_path / "above" / "run"

    def delete():
        for thread in threading.enumerate():
            if thread.name == "descend-save":  # `rmtree` fails where files are written meanwhile
                thread.join()
        if what == "its lock":
            (run_dir / OWNER).unlink()
        elif what == "everything in it":
            for path in run_dir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            shutil.rmtree(run_dir if what == "the directory" else tmp_path / "above")

    before = {}
    acts = At(10, lambda: (delete(), before.update(files_of(tmp_path))))
    words = (
        "has lost its owner.json"
        if what in ("its lock", "everything in it")
        else "is gone (the one in use was deleted)"
    )
    fault(lambda: go(run_dir, acts, asynchronous=asynchronous), 5, str(run_dir), words, "nothing could be saved")
    if what != "its lock":
        assert files_of(tmp_path) == before == {}


def test_a_directory_that_is_renamed_gets_the_state_and_the_message_says_how_to_go_on(tmp_path):
    run_dir, away = tmp_path / "run", tmp_path / "else where"
    said = fault(lambda: go(run_dir, At(10, lambda: run_dir.rename(away))), 5, f"was renamed to {away}", "run_dir=")
    assert f" updates is saved in {away / 'checkpoints' / 'step-1'}" in said
    assert not run_dir.exists()
    assert not (away / OWNER).exists()
    end = json.loads((away / "run.json").read_text())["end"]
    assert end["exit_code"] == 5
    whole = go(tmp_path / "whole")
    resumed = go(away, resume=True)
    assert all(torch.equal(resumed.weights[name], whole.weights[name]) for name in whole.weights)
    assert without_times(resumed.history) == without_times(whole.history)


@pytest.mark.parametrize("copied", ["another run", "the same run", "an empty folder", "a file"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_takes_the_place_of_a_directory_is_left_as_it_is(tmp_path, copied, asynchronous):
    run_dir, other, away = tmp_path / "run", tmp_path / "other", tmp_path / "away"
    go(other, steps=30)
    found = {}

    def exchange():
        run_dir.rename(away)
        if copied == "a file":
            run_dir.write_text("mine")
        elif copied == "an empty folder":
            run_dir.mkdir()
        else:
            shutil.copytree(other if copied == "another run" else away, run_dir)
        found.update(contents(run_dir))

    def contents(place):
        return {path.name: path.read_bytes() for path in [place, *place.rglob("*")] if path.is_file()}

    fault(lambda: go(run_dir, At(10, exchange), asynchronous=asynchronous), 5, str(run_dir), str(away))
    assert contents(run_dir) == found
    assert go(away, resume=True).steps == 40


class _Instants:
    """Calls `act` at the n-th access to a file of the run since `begin`, in the thread that is about to make it."""

    events = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir", "os.truncate", "os.utime"})

    def __init__(self):
        self.left, self.act = 0, None
        sys.addaudithook(self._heard)

    def begin(self, number, act):
        self.left, self.act = number, act

    def _heard(self, event, arguments):
        if self.left <= 0 or event not in self.events or not isinstance(arguments[0], (str, os.PathLike)):
            return
        if "run" in os.fspath(arguments[0]) or "/proc/self/fd" in os.fspath(arguments[0]):
            self.left -= 1
            if self.left == 0:
                self.act()


@pytest.fixture(scope="module")
def instants():
    return _Instants()  # an audit hook cannot be removed


@needs("a path that leads to an open folder", pathlib.Path("/proc/self/fd").is_dir())
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_directory_that_is_exchanged_in_any_instant_of_a_write_is_left_as_it_is(tmp_path, instants, asynchronous):
    other = tmp_path / "other"
    go(other, steps=12)
    found = {path.relative_to(other): path.read_bytes() for path in other.rglob("*") if path.is_file()}
    exchanged = 0
    for number in range(1, 190, 13):
        run_dir, away = tmp_path / f"run{number}", tmp_path / f"away{number}"

        def exchange(run_dir=run_dir, away=away):
            run_dir.rename(away)
            shutil.copytree(other, run_dir)

        begin = At(4, lambda number=number, exchange=exchange: instants.begin(number, exchange))
        with contextlib.suppress(StorageError):
            go(run_dir, begin, steps=12, asynchronous=asynchronous)
        instants.begin(0, None)
        if away.exists():
            exchanged += 1
            left = {path.relative_to(run_dir): path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
            assert left == found, number
    assert exchanged > 8


def test_a_directory_that_is_lost_is_noticed_without_a_write(tmp_path):
    """By the heartbeat, so that a run does not train on for hours."""
    run_dir, slow = tmp_path / "run", At(None, None)
    slow.after_step = lambda step: (time.sleep(0.02), shutil.rmtree(run_dir, ignore_errors=True))
    began = time.monotonic()
    fault(lambda: go(run_dir, slow, steps=10_000, every=10_000), 5, "is gone")
    assert time.monotonic() - began < 30


def test_files_of_callbacks_are_not_written_into_the_directory_of_another(tmp_path):
    run_dir, away, written = tmp_path / "run", tmp_path / "away", []

    class Writes(descend.Callback):
        def after_step(self, step):
            if step.step == 5:
                run_dir.rename(away)
                run_dir.mkdir()
                written.append(step.run.control.files.path("mine/file.txt"))

    fault(lambda: go(run_dir, Writes()), 5, "another directory is at")
    assert not written
    assert list(run_dir.iterdir()) == []


def test_a_run_that_is_discarded_leaves_what_others_have_put_beside_it(tmp_path):
    directory = RunDirectory(tmp_path / "deep" / "run")
    (tmp_path / "deep" / "of another").mkdir()
    directory.discard()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["of another"]
    directory = RunDirectory(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "away")
    shutil.copytree(tmp_path / "deep", tmp_path / "one")
    directory.discard()
    assert (tmp_path / "one" / "of another").is_dir()


def test_a_folder_is_followed_wherever_it_goes(tmp_path):
    (tmp_path / "a").mkdir()
    held = HeldFolder(tmp_path / "a")
    assert held.change() is None
    assert held.moved_to() == tmp_path / "a"
    (tmp_path / "a").rename(tmp_path / "b")
    assert held.moved_to() == tmp_path / "b"
    assert f"(the one in use was renamed to {tmp_path / 'b'})" in held.change()
    (tmp_path / "a").touch()
    assert held.change().startswith(f"another directory is at {tmp_path / 'a'}")
    (tmp_path / "a").unlink()
    (tmp_path / "b").rename(tmp_path / "a")
    held.require()
    held.close()


# ---- read-only, out of reach


FAILURES = [errno.EROFS, errno.ESTALE, errno.EIO, errno.EACCES]


@pytest.mark.parametrize("code", FAILURES)
@pytest.mark.parametrize("call", ["unlink", "read_text", "stat"])
def test_a_disk_that_fails_when_the_lock_is_given_up_hides_nothing(tmp_path, monkeypatch, code, call):
    real = getattr(pathlib.Path, call)
    failing = []

    def fails(path, *given, **options):
        if failing and (path.name == OWNER or path == tmp_path / "run"):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *given, **options)

    lock = RunDirectory(tmp_path / "run")
    monkeypatch.setattr(pathlib.Path, call, fails)
    failing.append(1)
    lock.close()
    failing.clear()
    DirectoryLock(tmp_path / "run").release()  # nothing has to be deleted by hand


@pytest.mark.parametrize("code", FAILURES)
def test_a_directory_that_turns_read_only_ends_the_run_with_its_exit_code(tmp_path, monkeypatch, code):
    from descend.runtime import checkpoint_manager

    monkeypatch.setattr(checkpoint_manager, "RETRY_SECONDS", ())
    failing, replace, unlink = [], pathlib.Path.replace, pathlib.Path.unlink

    def fail(real):
        def call(path, *given, **options):
            if failing and path.parent.resolve().is_relative_to(tmp_path / "run"):
                raise OSError(code, os.strerror(code), str(path))
            return real(path, *given, **options)

        return call

    monkeypatch.setattr(pathlib.Path, "replace", fail(replace))
    monkeypatch.setattr(pathlib.Path, "unlink", fail(unlink))
    with pytest.warns(UserWarning, match="NO CHECKPOINT"):
        fault(lambda: go(tmp_path / "run", At(10, lambda: failing.append(1))), 5, "5 in a row have failed")
    failing.clear()
    assert go(tmp_path / "run", resume=True).steps == 40


# ---- the beginning


def test_names_that_are_no_text_are_refused_before_anything_is_made(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff"
    fault(lambda: go(os.fsdecode(name)), 2, "run_dir must be a path in UTF-8", "\\xff")
    assert list(tmp_path.iterdir()) == []


def test_so_is_a_folder_of_experiments_that_has_such_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("DESCEND_EXPERIMENT_DIR", os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    fault(lambda: RunDirectory(None), 2, "must be a path in UTF-8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["new", "deep/new", "there"])
def test_a_disk_that_is_full_at_the_beginning_leaves_no_directory(tmp_path, monkeypatch, given):
    (tmp_path / "there").mkdir()
    before = sorted(tmp_path.rglob("*"))

    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    fault(lambda: go(tmp_path / given), 5, "No space left on device")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_is_full_for_the_first_files_leaves_no_directory_either(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    fault(lambda: go(tmp_path / "run"), 5, "No space left on device")
    assert list(tmp_path.iterdir()) == []


# ---- what killed processes leave


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_files_that_a_killed_process_left_half_written_are_removed_and_no_others(tmp_path):
    run_dir, dead = tmp_path / "run", dead_process()
    go(run_dir)
    left = [f".{name}.{dead}.part" for name in ("run.json", "checkpoints.json", "metrics.jsonl", "report.html")]
    left += [f".{OWNER}.{'0' * 16}.part", f".{OWNER}.{'1' * 16}.gone"]
    kept = [
        f".run.json.{os.getppid()}.part",
        f".mine.{dead}.part",
        f".run.json.{dead}.bak",
        ".owner.json.x.part",
        "a.part",
    ]
    old = time.time() - 100
    for name in (*left, *kept):
        (run_dir / name).write_text("")
        os.utime(run_dir / name, (old, old))
    elsewhere = run_dir / f".{OWNER}.{'2' * 16}.part"
    elsewhere.write_text(json.dumps({"host": "elsewhere", "boot": "b", "pid": dead, "token": "2" * 16}))
    (run_dir / f".log.txt.{dead}.part").symlink_to(run_dir / "log.txt")
    go(run_dir, resume=True, steps=42)
    found = {path.name for path in run_dir.iterdir()}
    assert not found & set(left)
    assert {*kept, elsewhere.name, f".log.txt.{dead}.part"} <= found
    assert (run_dir / "log.txt").is_file()


@pytest.mark.slow(seconds=20)
def test_nothing_is_left_of_a_process_that_was_killed_while_it_took_the_directory(tmp_path):
    text = """
import os, signal, sys
from descend.runtime.run_directory import RunDirectory
real = os.link
os.link = lambda *given: (real(*given), os.kill(os.getpid(), signal.SIGKILL))
RunDirectory(sys.argv[1])
"""
    assert in_a_process(text, tmp_path, str(tmp_path / "run")).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "run").iterdir())) == 2
    directory = RunDirectory(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [OWNER]
    directory.close()


# ---- rows


def test_checkpoints_do_not_grow_with_the_history(tmp_path):
    """Nor does a run that was interrupted have other rows or other checkpoints."""
    whole = fit(run_dir=tmp_path / "whole", stop=descend.Epochs(30), callbacks=[descend.Checkpoint(every_epochs=1)])
    sizes = [
        (tmp_path / "whole" / "checkpoints" / f"step-{4 * n}" / "training" / "state.json").stat().st_size
        for n in (10, 29)
    ]
    assert abs(sizes[1] - sizes[0]) < 50
    for epochs in (7, 30):
        saves = descend.Checkpoint(every_epochs=1)
        result = fit(run_dir=tmp_path / "parts", stop=descend.Epochs(epochs), resume=True, callbacks=[saves])
    assert without_times(result.history) == without_times(whole.history) == without_times(rows(tmp_path / "whole"))
    state = "checkpoints/step-120/training/state.json"
    assert (tmp_path / "parts" / state).read_bytes() == (tmp_path / "whole" / state).read_bytes()


def test_rows_after_the_checkpoint_are_cut_off(tmp_path):
    go(tmp_path / "run", steps=8)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"mode": "train", "epoch": 3, "step": 12, "samples": 40, "objective": 1.0}) + "\n")
        file.write('{"mode": "train", "epoch": 4, "st')  # killed while it wrote
    result = go(tmp_path / "run", steps=16, resume=True)
    whole = go(tmp_path / "whole", steps=16)
    assert without_times(result.history) == without_times(whole.history)
    assert [row["step"] for row in rows(tmp_path / "run") if row["mode"] == "train"] == [4, 8, 12, 16]
    assert not list((tmp_path / "run").glob("earlier-*"))


@pytest.mark.parametrize("damage", ["deleted", "emptied", "a row is missing", "a number differs", "a line is damaged"])
def test_a_run_without_its_rows_resumes_and_one_line_says_so(tmp_path, damage):
    go(tmp_path / "run", steps=12)
    file = tmp_path / "run" / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    if damage == "deleted":
        file.unlink()
    else:
        changed = {"emptied": [], "a row is missing": lines[1:], "a line is damaged": ["x" + lines[0], *lines[1:]]}
        changed["a number differs"] = [lines[0].replace('"epoch": 1', '"epoch": 9'), *lines[1:]]
        file.write_text("".join(changed[damage]))
    damaged = file.read_text() if file.exists() else None
    with pytest.warns(UserWarning, match="no longer holds the 3 rows that belong to step-12"):
        result = go(tmp_path / "run", steps=16, resume=True)
    whole = go(tmp_path / "whole", steps=16)
    assert all(torch.equal(result.weights[name], whole.weights[name]) for name in whole.weights)
    assert without_times(result.history)[-1] == without_times(whole.history)[-1]
    kept = [path.read_text() for path in (tmp_path / "run").glob("earlier-*-metrics.jsonl")]
    assert kept == ([damaged] if damage == "a line is damaged" else [])


def test_rows_that_a_full_disk_kept_back_are_there_before_a_checkpoint_counts_them(tmp_path):
    class Blocked(descend.Callback):
        def after_epoch(self, epoch):
            path = tmp_path / "run" / "metrics.jsonl"
            if epoch.epoch == 0:
                path.rename(tmp_path / "away")
                path.mkdir()
            if epoch.epoch == 1:
                path.rmdir()
                (tmp_path / "away").rename(path)

    with pytest.warns(UserWarning, match="training continues"):
        fit(run_dir=tmp_path / "run", stop=descend.Epochs(2), callbacks=[Blocked()])
    assert len(fit(run_dir=tmp_path / "run", stop=descend.Epochs(3), resume=True).history) == 3


def test_a_copy_of_a_checkpoint_has_the_history_with_it(tmp_path):
    first = fit(
        run_dir=tmp_path / "run",
        stop=descend.Epochs(2),
        callbacks=[descend.Checkpoint(every_epochs=1, checkpoint_dir=str(tmp_path / "copies"))],
    )
    restart = descend.Checkpoint(restart_dir=str(tmp_path / "copies"))
    again = fit(run_dir=tmp_path / "new", stop=descend.Epochs(3), callbacks=[restart])
    assert without_times(again.history)[:2] == without_times(first.history)
