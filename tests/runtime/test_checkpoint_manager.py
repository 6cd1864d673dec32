"""Which checkpoints are written, kept and removed, and what happens where none can be written."""

import json
import threading
import time
import warnings
from types import SimpleNamespace

import pytest
import torch

from descend.errors import DirectoryLost, StorageError
from descend.runtime import CheckpointManager, SaveRequest, Snapshot, verify
from descend.runtime import checkpoint_manager as module


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def manager(folder):
    return CheckpointManager(folder)


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts, in which no time passes."""
    seen = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=seen.append, monotonic=time.monotonic))
    return seen


def snapshot(step, value=1.0, **more):
    weights = {"w": torch.full((2,), value), "count": torch.tensor(step)}
    return Snapshot(step, weights, {"m": torch.zeros(2)}, {"settings": {}}, trained=frozenset({"w", "count"}), **more)


def saved(manager, *steps, scores=(), **request):
    for step, score in zip(steps, scores or [None] * len(steps), strict=True):
        manager.save(snapshot(step), SaveRequest(score=score, **request))
    return left(manager)


def left(manager):
    return sorted(int(path.name.removeprefix("step-")) for path in manager.folder.glob("step-*"))


def ledger(manager):
    return json.loads((manager.folder.parent / "checkpoints.json").read_text())


# ---- one save


def test_a_checkpoint_is_whole_and_listed_with_its_purpose_and_times(manager):
    path = manager.save(snapshot(3, times={"training": 1.5}), SaveRequest(who="me", score=0.25))
    assert path == manager.folder / "step-3"
    verify(path)
    assert ledger(manager) == {"step-3": {"for": ["me"], "not_finite": None, "score": 0.25, "times": {"training": 1.5}}}
    assert manager.times(path) == {"training": 1.5}
    assert manager.times(manager.folder / "step-4") == {}
    assert manager.failures == 0


def test_the_folder_of_a_complete_checkpoint_is_given_on(manager):
    given = []

    def then(checkpoint):
        verify(checkpoint)
        given.append(checkpoint)

    path = manager.save(snapshot(1), SaveRequest(then=then))
    assert given == [path]


def test_a_step_that_is_saved_for_two_purposes_is_one_checkpoint_that_keeps_its_score(manager):
    saved(manager, 1, who="a", scores=[0.5])
    saved(manager, 1, who="b")
    assert ledger(manager)["step-1"] == {"for": ["a", "b"], "not_finite": None, "score": 0.5, "times": {}}


def test_a_checkpoint_made_at_a_signal_becomes_that_of_another_purpose(manager):
    saved(manager, 1, who="stopped")
    saved(manager, 1, who="a")
    assert ledger(manager)["step-1"]["for"] == ["a"]
    saved(manager, 1, who="stopped")
    assert ledger(manager)["step-1"]["for"] == ["a", "stopped"]


def test_the_longest_save_is_remembered(manager, monkeypatch):
    clock = iter([0.0, 3.0, 10.0, 12.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    saved(manager, 1)
    assert manager.longest_seconds == 3.0
    saved(manager, 2)
    assert manager.longest_seconds == 3.0


# ---- which are kept


def test_all_are_kept_without_a_number_and_the_newest_with_one(manager):
    assert saved(manager, 1, 2, 3) == [1, 2, 3]
    assert saved(manager, 4, 5, 6, who="two", keep=2) == [1, 2, 3, 5, 6]


def test_a_purpose_removes_nothing_that_another_keeps(manager):
    for step in range(1, 7):
        saved(manager, step, who="one", keep=1)
        if step in (2, 4):
            saved(manager, step, who="two", keep=2)
    assert left(manager) == [2, 4, 6]
    assert ledger(manager)["step-2"]["for"] == ["two"]


@pytest.mark.parametrize(
    ("best", "scores", "expected"),
    [
        ("lowest", [3.0, 1.0, 2.0, 4.0], [2, 4]),
        ("highest", [3.0, 1.0, 2.0, 2.0], [1, 4]),
        ("lowest", [1.0, 1.0, 2.0, 2.0], [1, 4]),  # of equal ones the oldest
        ("lowest", [float("nan"), 2.0, float("nan"), float("nan")], [2, 4]),
        ("lowest", [None, None, None, None], [4]),
    ],
)
def test_the_best_stays_beside_the_newest(manager, best, scores, expected):
    assert saved(manager, 1, 2, 3, 4, scores=scores, best=best, keep=1) == expected


def test_the_oldest_of_equal_ones_is_so_by_its_number(manager):
    assert saved(manager, 9, 10, 11, scores=[1.0, 1.0, 2.0], keep=1) == [9, 11]


def test_one_made_at_a_signal_goes_with_the_next(manager):
    saved(manager, 1, who="stopped")
    assert saved(manager, 2, keep=1) == [2]


def test_what_is_newer_than_the_newest_of_a_purpose_stays_from_all_purposes(manager):
    saved(manager, 5, who="b")
    saved(manager, 9, who="stopped")
    assert saved(manager, 2, 4, keep=1) == [4, 5, 9]


def test_a_checkpoint_that_is_not_listed_is_never_removed(manager, folder):
    saved(manager, 1)
    saved(CheckpointManager(folder), 2, 3, keep=1)
    assert left(manager) == [1, 3]


def test_a_listed_folder_that_is_gone_is_forgotten(manager):
    saved(manager, 1, 2)
    for file in sorted((manager.folder / "step-1").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (manager.folder / "step-1").rmdir()
    saved(manager, 3, keep=3)
    assert set(ledger(manager)) == {"step-2", "step-3"}


def test_a_folder_with_files_of_others_is_kept_with_a_warning(manager):
    saved(manager, 1)
    (manager.folder / "step-1" / "notes.txt").write_text("mine")
    with pytest.warns(UserWarning, match="step-1 is kept: it holds files that this run has not written"):
        assert saved(manager, 2, keep=1) == [1, 2]
    assert set(ledger(manager)) == {"step-2"}


# ---- weights that are not finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_kept_apart_and_replace_nothing(manager, value):
    given = []
    saved(manager, 1, keep=1)
    with pytest.warns(UserWarning, match=r"step-2 holds weights that are not finite \('w'\); no run will continue"):
        manager.save(snapshot(2, value), SaveRequest(keep=1, then=given.append))
    assert given == []
    assert left(manager) == [1, 2]
    assert ledger(manager)["step-2"]["not_finite"] == "w"
    assert manager.open() == manager.folder / "step-1"
    assert saved(manager, 3, keep=1) == [3]


def test_weights_that_are_not_trained_may_be_anything():
    one = snapshot(1, float("nan"))
    assert one.not_finite() == "w"
    assert Snapshot(1, one.weights, {}, {}, trained=frozenset({"count"})).not_finite() is None


# ---- in the background


def test_a_save_in_the_background_has_the_values_of_its_moment(manager, monkeypatch):
    go, plain = threading.Event(), module.save_checkpoint
    monkeypatch.setattr(module, "save_checkpoint", lambda *args: go.wait(5) and plain(*args))
    weights = {"w": torch.ones(2)}
    state = {"m": torch.ones(2)}
    path = manager.save(Snapshot(1, weights, state, {}), SaveRequest(asynchronous=True))
    assert path == manager.folder / "step-1"
    assert left(manager) == []
    weights["w"].zero_()
    state["m"].zero_()
    go.set()
    manager.wait()
    from safetensors.torch import load_file

    assert load_file(path / "weights.safetensors")["w"].tolist() == [1.0, 1.0]
    assert load_file(path / "training" / "optimizer.safetensors")["m"].tolist() == [1.0, 1.0]
    manager.wait()  # there is none


def test_the_next_save_and_the_end_wait_for_the_one_under_way(manager, monkeypatch):
    order, plain = [], module.save_checkpoint

    def slow(folder, step, *args):
        result = plain(folder, step, *args)
        order.append(step)
        return result

    monkeypatch.setattr(module, "save_checkpoint", slow)
    with manager:
        manager.save(snapshot(1), SaveRequest(asynchronous=True))
        manager.save(snapshot(2), SaveRequest(asynchronous=True))
    assert order == [1, 2]


def test_the_final_save_is_made_at_once(manager):
    manager.save(snapshot(1), SaveRequest(asynchronous=True), final=True)
    assert left(manager) == [1]


def test_a_second_ctrl_c_does_not_wait(manager, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(module, "save_checkpoint", lambda *args: go.wait(5))
    manager.save(snapshot(1), SaveRequest(asynchronous=True))
    manager.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not go.is_set()
    go.set()
    manager._pending.join()
    manager._pending = None


# ---- failures


@pytest.fixture
def broken(monkeypatch):
    """Saves fail as long as this list has entries; each takes one."""
    failures, plain = [], module.save_checkpoint

    def save(*args):
        if failures:
            raise StorageError(failures.pop())
        return plain(*args)

    monkeypatch.setattr(module, "save_checkpoint", save)
    return failures


def test_a_save_that_fails_is_made_again_after_longer_pauses(manager, broken, pauses):
    broken += ["no space"] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert manager.save(snapshot(1), SaveRequest()) == manager.folder / "step-1"
    assert pauses == [0.1, 0.4, 1.6]
    assert manager.failures == 0


def test_a_save_that_fails_four_times_is_left_out_with_a_warning(manager, broken, pauses):
    broken += ["no space"] * 4
    with pytest.warns(UserWarning, match=r"NO CHECKPOINT of step 1: no space.*1 saves have failed so far, and 5 in"):
        assert manager.save(snapshot(1), SaveRequest()) is None
    assert pauses == [0.1, 0.4, 1.6]
    assert manager.failures == 1
    assert manager.save(snapshot(2), SaveRequest()) is not None


def test_five_failures_in_a_row_are_an_error_and_a_success_between_restarts_the_count(manager, broken, pauses):
    def failed(step):
        broken.extend(["no space"] * 4)
        with pytest.warns(UserWarning, match=f"NO CHECKPOINT of step {step}"):
            manager.save(snapshot(step), SaveRequest())

    for step in range(4):
        failed(step)
    manager.save(snapshot(4), SaveRequest())
    for step in range(5, 9):
        failed(step)
    broken += ["no space"] * 4
    with pytest.raises(StorageError, match=r"step 9: 5 in a row have failed; older ones are as they were"):
        manager.save(snapshot(9), SaveRequest())
    assert manager.failures == 9


def test_the_last_one_of_a_run_must_not_fail(manager, broken, pauses):
    broken += ["no space"] * 4
    with pytest.raises(StorageError, match="no checkpoint of step 1,234: the last one of the run"):
        manager.save(snapshot(1234), SaveRequest(), final=True)


def test_an_error_in_the_background_is_raised_by_the_wait(manager, broken, pauses):
    manager._failures_in_a_row = 4
    broken += ["no space"] * 4
    manager.save(snapshot(1), SaveRequest(asynchronous=True))
    with pytest.raises(StorageError, match="5 in a row"):
        manager.wait()


def test_a_folder_that_cannot_be_made_is_an_error_of_storage(tmp_path, pauses):
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot make .*checkpoints: File exists"):
        CheckpointManager(tmp_path / "checkpoints").save(snapshot(1), SaveRequest(), final=True)


# ---- opening


def test_leftovers_are_removed_and_named_and_the_newest_is_found(folder):
    saved(CheckpointManager(folder), 9, 10)
    (folder / ".step-11.4711.part").mkdir()
    said = []
    manager = CheckpointManager(folder, said.append)
    assert manager.open() == folder / "step-10"
    assert said == ["removed .step-11.4711.part, which a killed process has left half written"]
    assert manager.times(folder / "step-9") == {}


def test_there_is_nothing_to_open(manager):
    assert manager.open() is None
    assert manager._ledger == {}


def test_another_process_goes_on_with_the_ledger(manager, folder):
    saved(manager, 1, 2, who="a", keep=2)
    other = CheckpointManager(folder)
    other.open()
    assert saved(other, 3, who="a", keep=2) == [2, 3]


ENTRY = {"for": ["a"], "score": 1, "times": {"t": 2}, "not_finite": None}


def test_entries_that_no_folder_has_are_passed_over(manager):
    manager.folder.mkdir()
    entries = {"step-1": ENTRY, "../../x": ENTRY, "step-1/../../x": ENTRY, "step-": ENTRY, "step-1x": ENTRY}
    (manager.folder.parent / "checkpoints.json").write_text(json.dumps(entries))
    manager.open()
    assert manager._ledger == {"step-1": {"for": ["a"], "score": 1.0, "times": {"t": 2.0}, "not_finite": None}}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "\xff",
        "[" * 100_000,
        *(
            json.dumps({"step-1": {**ENTRY, **change}})
            for change in (
                {"score": "1"},
                {"score": True},
                {"not_finite": 3},
                {"for": "a"},
                {"for": [1]},
                {"times": {"t": "x"}},
                {"times": {"t": float("inf")}},
                {"times": {"t": float("nan")}},
                {"times": []},
            )
        ),
        '{"step-1": {"for": []}}',
        '{"step-1": 3}',
    ],
)
def test_a_damaged_ledger_is_an_empty_one_with_a_warning(manager, text):
    manager.folder.mkdir()
    (manager.folder.parent / "checkpoints.json").write_text(text, encoding="latin-1")
    with pytest.warns(UserWarning, match=r"checkpoints\.json is damaged .*older checkpoints are kept"):
        manager.open()
    assert manager._ledger == {}


# ---- another folder at its place


def test_a_folder_that_was_exchanged_is_not_written_to(manager, folder, tmp_path):
    saved(manager, 1)
    other = tmp_path / "other"
    saved(CheckpointManager(other), 2)
    before = (other / "step-2" / "manifest.json").read_bytes()
    folder.rename(tmp_path / "away")
    folder.symlink_to(other)
    with pytest.raises(DirectoryLost, match=r"another directory is at .*checkpoints"):
        manager.save(snapshot(2, 5.0), SaveRequest())
    assert (other / "step-2" / "manifest.json").read_bytes() == before
    folder.unlink()
    assert saved(manager, 3) == [3]  # one that was removed is made again


def test_a_link_is_followed_that_was_there_before_the_run_and_no_later_one(folder, tmp_path):
    (tmp_path / "large_disk").mkdir()
    late = CheckpointManager(folder)
    folder.symlink_to(tmp_path / "large_disk")
    assert saved(CheckpointManager(folder), 1) == [1]
    with pytest.raises(DirectoryLost, match=r"has become a link to .*large_disk"):
        late.save(snapshot(1, 5.0), SaveRequest())


def test_the_folder_is_held_until_the_end(folder):
    with CheckpointManager(folder) as manager:
        saved(manager, 1)
        assert manager._held is not None
    assert manager._held is None
