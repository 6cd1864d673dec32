"""The state of a run: what counts, what is saved, and that a damaged state changes nothing."""

import math

import pytest
import torch
from toys import data

from descend.runtime import Communicator
from descend.train import Mode
from descend.train.objective import Ratio, Totals
from descend.train.state import AlgorithmState, EpochProgress, TrainState


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
    state.history = [
        {"mode": "train", "epoch": 0, "step": 1, "samples": 4, "seconds": 3.0},
        {"mode": "train", "late": 1},
    ]
    state.epoch_progress.rows_before, state.seconds = 1, 9.0
    again = TrainState(Communicator())
    again.load_state_dict(state.state_dict())
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
