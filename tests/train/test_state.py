"""The state of a run: what counts, what is saved, and that a damaged state changes nothing."""

import math

import pytest
import torch
from toys import data

from descend.runtime import Communicator
from descend.runtime.rows import RowList
from descend.train import Mode
from descend.train.objective import Ratio, Totals
from descend.train.state import AlgorithmState, Bookmark, EpochProgress, TrainState


def totals(value):
    found = Totals()
    found.add("objective", Ratio(torch.tensor(value), 2.0))
    return found


def state_after(steps):
    state = TrainState(Communicator())
    state.epoch_progress = EpochProgress(0, 0)
    for batch in list(data(batch_size=4).epoch(0))[:steps]:
        state.advance(batch, totals(3.0))
    return state


def test_updates_and_samples_are_counted_and_the_last_mini_batch_completes_the_epoch():
    state = state_after(2)
    assert (state.step, state.training.samples, state.epochs_done) == (2, 8, 0)
    state = state_after(3)
    assert (state.step, state.training.samples, state.epochs_done) == (3, 10, 1)
    assert state.epoch_progress.totals.values() == {"objective": 1.5}


def test_samples_whose_gradient_is_kept_count_until_the_update():
    state, batch = state_after(0), next(iter(data(batch_size=4).epoch(0)))
    state.samples_kept += batch.size
    state.pass_over(batch, totals(1.0))
    assert (state.step, state.samples_kept, state.training.position) == (0, 4, 1)
    state.advance(batch, totals(1.0))
    assert (state.step, state.samples_kept) == (1, 0)


def test_what_is_saved_comes_back_without_rows_of_the_epoch_under_way_and_without_times():
    state = state_after(2)
    state.history.append({"mode": "train", "epoch": 0, "step": 1, "samples": 4, "seconds": 3.0})
    state.history.append({"mode": "train", "late": 1})
    state.epoch_progress.rows_before, state.seconds = 1, 9.0
    again, kept = TrainState(Communicator()), state.state_dict()
    assert kept["history"] == RowList(state.history).position(1)
    rows = [{name: value for name, value in state.history[0].items() if name != "seconds"}]
    again.load_state_dict({**kept, "history": rows})
    again.load_times({"seconds": 9.0, "epoch": 4.0}, {})
    assert again.step == 2
    assert again.epoch_progress.totals.values() == {"objective": 1.5}
    assert [row["step"] for row in again.history] == [1]
    assert math.isnan(again.history[0]["seconds"])
    assert (again.seconds, again.epoch_progress.seconds) == (9.0, 4.0)


WRONG_ROWS = (
    {"mode": ["train"]},
    {"mode": 3},
    {"epoch": "0"},
    {"step": {}},
    {"objective": [1.0]},
    {"objective": "low"},
)
PROGRESS = EpochProgress(0, 0).state_dict(Communicator())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("contexts", {}),
        ("history", [3]),
        ("history", {}),
        ("history", {"rows": "1", "sha256": ""}),
        ("history", {"rows": -1, "sha256": ""}),
        ("history", {"rows": 1, "sha256": "00"}),
        ("history", {"rows": 10**30, "sha256": "00"}),
        *(("history", [{"mode": "train", "epoch": 0, "step": 1, "samples": 4} | wrong]) for wrong in WRONG_ROWS),
        ("history", [{"mode": "train", "samples": 4}]),
        ("values", {"a": "x"}),
        ("skipped_in_a_row", None),
        ("epoch_progress", {}),
        ("epoch_progress", {**PROGRESS, "rows_before": []}),
        ("epoch_progress", {**PROGRESS, "skipped": None}),
    ],
)
def test_a_damaged_state_changes_nothing(name, value):
    state = state_after(2)
    damaged = {**state_after(1).state_dict(), name: value}
    with pytest.raises((KeyError, TypeError, ValueError)):
        state.load_state_dict(damaged)
    assert state.step == 2
    assert state.contexts[Mode.TRAIN].samples == 8


def test_algorithms_keep_their_own_part():
    state = TrainState(Communicator())
    part = AlgorithmState(state)
    part.load_state_dict({"kfac": {"a": 1}})
    assert state.algorithm == part.state_dict() == {"kfac": {"a": 1}}
    assert part.resets_with_optimizer
    assert not TrainState.resets_with_optimizer


def test_a_new_run_has_seen_nothing():
    state = TrainState(Communicator())
    assert (state.step, state.epochs_done, state.seconds, state.skipped_in_a_row, state.samples_kept) == (0,) * 5
    assert (state.signal_divisor, state.rebatch, state.seconds_of_step()) == (1.0, False, 0.0)
    assert state.times() == {"seconds": 0.0, "epoch": 0.0}
    epoch = EpochProgress(0, 0)
    assert (epoch.seconds, epoch.skipped) == (0.0, 0)
    assert (epoch.complete, epoch.reported, epoch.reporting) == (False,) * 3


def test_times_count_the_step_under_way(monkeypatch):
    state = state_after(1)
    monkeypatch.setattr(Communicator, "now", lambda self: 107.0)
    state.seconds, state.epoch_progress.seconds = 30.0, 20.0
    assert state.times() == {"seconds": 30.0, "epoch": 20.0}
    state.step_began = 100.0
    assert state.seconds_of_step() == 7.0
    assert state.times() == {"seconds": 37.0, "epoch": 27.0}
    state.epoch_progress = None
    assert state.times() == {"seconds": 37.0, "epoch": 0.0}


def test_a_checkpoint_without_times_starts_them_at_zero():
    state = state_after(1)
    state.seconds = state.epoch_progress.seconds = 5.0
    state.load_times({}, {})
    assert state.times() == {"seconds": 0.0, "epoch": 0.0}


def test_skipped_steps_are_counted_within_an_epoch():
    state = state_after(1)
    for _ in range(3):
        state.note_skipped()
    assert state.epoch_progress.skipped == 3
    state.epoch_progress = None
    state.note_skipped()


ROW = {"mode": "train", "epoch": 0, "step": 1, "samples": 4}


@pytest.mark.parametrize(("reported", "reporting", "expected"), [(0, 0, 2), (1, 0, 1), (0, 1, 1)])
def test_rows_are_fixed_unless_those_of_the_epoch_are_written_already(reported, reporting, expected):
    state = state_after(1)
    state.history, epoch = RowList([ROW, ROW]), state.epoch_progress
    epoch.rows_before, epoch.reported, epoch.reporting = 1, bool(reported), bool(reporting)
    state.fix_rows()
    assert epoch.rows_before == expected
    state.epoch_progress = None
    state.fix_rows()


@pytest.mark.parametrize(("reported", "kept"), [(False, 1), (True, 2), (None, 2)])
def test_rows_of_an_interrupted_epoch_that_were_written_are_saved(reported, kept):
    state = state_after(1)
    state.history, state.epoch_progress.rows_before = RowList([ROW, ROW]), 1
    if reported is None:
        state.epoch_progress = None
    else:
        state.epoch_progress.reported = reported
    assert state.state_dict()["history"]["rows"] == kept


def test_a_state_goes_back_to_where_it_was_saved_with_rows_of_its_own():
    state = TrainState(Communicator())
    state.history = RowList([{**ROW, "seconds": 2.0}])
    kept = state.state_dict()
    state.history.append({**ROW, "step": 2})
    state.load_state_dict(kept)
    assert state.history == [{**ROW, "seconds": 2.0}]


def test_checksums_follow_rows_that_are_dropped_and_written_again():
    state, fresh = TrainState(Communicator()), TrainState(Communicator())
    for step in (1, 2, 3):
        state.history.append({**ROW, "step": step})
        state.state_dict()
    state.history.cut(1)
    state.history.append({**ROW, "step": 7})
    fresh.history = RowList([ROW, {**ROW, "step": 7}])
    assert state.state_dict()["history"] == fresh.state_dict()["history"]


def test_a_bookmark_takes_a_run_back_to_before_a_step():
    batches = list(data(batch_size=4).epoch(0))
    state = state_after(2)
    state.skipped_in_a_row, state.samples_kept = 3, 5
    before = Bookmark.of(state)
    contexts = state.state_dict()["contexts"]
    state.advance(batches[2], totals(7.0))
    assert (state.step, state.epochs_done, state.skipped_in_a_row, state.samples_kept) == (3, 1, 0, 0)
    before.restore(state)
    assert state.state_dict()["contexts"] == contexts
    assert (state.step, state.epochs_done, state.skipped_in_a_row, state.samples_kept) == (2, 0, 3, 5)
    assert state.epoch_progress.totals.values() == {"objective": 1.5}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_bookmark_holds_where_an_epoch_begins_or_ends_beside_it(when):
    state = state_after(1)
    epoch = state.epoch_progress
    if when == "before":
        state.epoch_progress = None
    before = Bookmark.of(state)
    state.epoch_progress = None if when == "after" else epoch
    state.training.step = 9
    before.restore(state)
    assert state.step == 1
    assert epoch.totals.values() == {"objective": 1.5}
