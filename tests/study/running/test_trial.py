"""Records of trials: scores at their end, steps to a target, and lines that come back."""

import math
from dataclasses import replace

import pytest

from descend.errors import StorageError
from descend.study.running.trial import Record, Trial, evaluation_steps

TRIAL = Trial("a", 32, 100, 1, "search", 7, 0, 5, {"optimizer": "SGD", "lr": 0.1})
RECORD = Record(TRIAL, "done", (0, 50, 100), {"validation": {"accuracy": [0.1, 0.5, 0.7]}}, seconds=1.5)


def test_a_name_says_which_trial_it_is():
    assert TRIAL.id == "a/b32/s100/search1/search/007"
    assert replace(TRIAL, phase="confirmation", repeat=3).id == "a/b32/s100/search1/confirmation/007-03"


def test_the_final_score_is_the_last_and_nan_for_a_failure():
    assert RECORD.final("validation", "accuracy") == 0.7
    for status in ("diverged", "error", "out of memory"):
        assert math.isnan(replace(RECORD, status=status).final("validation", "accuracy"))
    assert replace(RECORD, status="collapsed").final("validation", "accuracy") == 0.7
    with pytest.raises(StorageError, match="has no 'loss' on validation samples"):
        RECORD.final("validation", "loss")


@pytest.mark.parametrize(
    ("target", "consecutive", "steps"),
    [(0.5, 1, 50), (0.7, 1, 100), (0.5, 2, 50), (0.7, 2, math.inf), (0.8, 1, math.inf)],
)
def test_steps_to_a_target(target, consecutive, steps):
    assert RECORD.steps_to("validation", "accuracy", target, lower=False, consecutive=consecutive) == steps


def test_a_trial_without_a_look_never_met_its_target():
    assert Record(TRIAL, "diverged", failed_at=1).steps_to("validation", "accuracy", 0.5, lower=False) == math.inf


def test_a_line_comes_back():
    for record in (RECORD, Record(TRIAL, "diverged", (0,), {"train": {"loss": [2.3]}}, failed_at=3, message="ü")):
        assert Record.read(record.line()) == record


def test_what_is_not_finite_comes_back_as_nan():
    read = Record.read(replace(RECORD, scores={"train": {"loss": [1.0, math.inf, math.nan]}}).line())
    assert read.scores["train"]["loss"][0] == 1.0
    assert all(math.isnan(value) for value in read.scores["train"]["loss"][1:])


def test_a_changed_line_is_refused_by_its_checksum():
    line = RECORD.line()
    with pytest.raises(StorageError, match="checksum"):
        Record.read(line.replace("0.7", "0.9"))
    with pytest.raises(StorageError, match="not a record of a trial"):
        Record.read(line[:-30])


@pytest.mark.parametrize(
    ("steps", "evaluations", "at"),
    [(10, 5, (0, 2, 4, 6, 8, 10)), (7, 3, (0, 3, 5, 7)), (2, 10, (0, 1, 2)), (1, 1, (0, 1))],
)
def test_evaluations_are_spread_and_end_with_the_run(steps, evaluations, at):
    assert evaluation_steps(steps, evaluations) == at
