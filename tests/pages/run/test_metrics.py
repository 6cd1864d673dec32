"""Rows become series, sums and last values, in memory that does not grow with their number."""

import json
import math
import random

import pytest

from descend.pages.run.metrics import MAX_POINTS, RunMetrics, ThinnedSeries, thinned

ROW = {"mode": "train", "epoch": 1, "step": 4, "objective": 1.0, "samples": 40, "seconds": 0.5}


def series(values, steps=None):
    made = ThinnedSeries()
    for place, value in enumerate(values):
        made.add(float(place if steps is None else steps[place]), value)
    return made


@pytest.mark.parametrize("count", [1, 299, 300, 301, 600, 601, 5_000, 100_000])
@pytest.mark.parametrize("seed", [0, 1])
def test_thinning_keeps_extremes_the_ends_and_the_order(count, seed):
    draw = random.Random(seed)
    values = [draw.gauss(0, 1) for _ in range(count)]
    made = series(values)
    points = made.points()
    assert len(points) <= MAX_POINTS + 2
    assert points[0] == (0.0, values[0])
    assert points[-1] == (count - 1, values[-1])
    assert {min(values), max(values)} <= {value for _, value in points}
    assert points == sorted(points)
    assert all(values[int(step)] == value for step, value in points)
    assert (made.count, made.last) == (count, values[-1])
    few = made.points(20)
    assert len(few) <= 20 or count <= 20
    assert {min(values), max(values), values[-1]} <= {value for _, value in few}


def test_a_lone_spike_is_seen_wherever_it_is():
    for place in (1, 777, 49_998):
        values = [1.0] * 50_000
        values[place] = -5.0
        assert (float(place), -5.0) in series(values).points()


def test_few_points_stay_as_they_are():
    values = [float(place % 7) for place in range(MAX_POINTS)]
    assert series(values).points() == list(enumerate(values))


def test_steps_that_stand_still_or_go_back_are_bounded_too():
    assert len(series([float(i) for i in range(10_000)], steps=[5] * 10_000).points()) <= MAX_POINTS
    back = series([1.0, 2.0, 3.0], steps=[10, 20, 15])
    assert back.points() == [(10.0, 1.0), (20.0, 2.0), (15.0, 3.0)]


def test_values_without_a_place_are_counted_and_the_last_one_is_kept():
    made = series([1.0, math.nan, 1e308, -math.inf, 2.0, math.nan])
    assert made.points() == [(0.0, 1.0), (4.0, 2.0)]
    assert made.undrawn == 4
    assert math.isnan(made.last)


def test_thinned_places_are_of_the_points_that_were_given():
    assert thinned([], []) == []
    assert thinned([0.0, 1.0], [3.0, 4.0], most=2) == [0, 1]


def line(**more):
    return json.dumps({**ROW, **more}).encode()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"{", "line 2: it is no JSON"),
        (b"\xff\xfe", "line 2: it is no JSON"),
        (b"[" * 100_000, "line 2: it is too deep"),
        (b"[1]", "a row must be an object with the mode"),
        (b"null", "a row must be an object"),
        (b'{"mode": "train", "epoch": 1}', "a row must be an object"),
        (line(step=-1), "epoch and step as integers >= 0"),
        (line(step=2.0), "epoch and step as integers >= 0"),
        (line(step=True), "epoch and step as integers >= 0"),
        (line(step=10**30), "epoch and step as integers >= 0"),
        (line(epoch=None), "epoch and step as integers >= 0"),
        (line(mode=3), "a row must be an object"),
        (line()[:-1] + b', "step": 5}', "'step' stands twice in one object"),
        (b'{"mode": "train", "epoch": 1, "step": ' + b"9" * 5000 + b"}", "line 2: it is no JSON"),
    ],
)
def test_a_line_that_is_no_row_is_left_out_and_said(bad, said):
    made = RunMetrics()
    for one in (line(), bad, line(step=8, objective=0.5)):
        made.add_line(one)
    (problem,) = made.problems
    assert problem.startswith("1 of 3 lines are left out; the first is line 2: ")
    assert said in problem
    assert made.series["train", "objective"].points() == [(4.0, 1.0), (8.0, 0.5)]


@pytest.mark.parametrize("value", ["x", None, True, [1], {"a": 1}, 10**400])
@pytest.mark.parametrize("name", ["objective", "accuracy", "a<b>"])
def test_a_value_that_is_no_number_is_left_out_of_its_row(name, value):
    made = RunMetrics.of([{**ROW, name: value, "loss": 3.0}])
    (problem,) = made.problems
    assert f"line 1: {name!r} must be a number, got " in problem
    assert ("train", name) not in made.series
    assert made.series["train", "loss"].last == 3.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", "x"),
        ("seconds", -1),
        ("seconds", math.nan),
        ("samples", 1.5),
        ("samples", -1),
        ("skipped_steps", []),
    ],
)
def test_sums_have_counts_and_durations_alone(name, value):
    made = RunMetrics.of([ROW, {**ROW, name: value}])
    assert f"line 2: {name} must be" in made.problems[0]
    assert made.passes["train"].count == (2 if name == "skipped_steps" else 1)
    assert made.seconds <= 1.0


def test_a_file_of_a_million_names_does_not_fill_the_memory():
    made = RunMetrics.of({**ROW, "mode": f"m{number}", f"q{number}": 1.0} for number in range(5_000))
    assert len(made.series) <= 1_000
    assert len(made.modes) <= 1_000
    assert len(made.quantities) <= 1_000
    assert "is one of more than 1,000 series" in made.problems[0]
    assert "is too long" in RunMetrics.of([{**ROW, "q" * 501: 1.0}]).problems[0]


def test_lists_have_their_last_entries_and_their_number():
    rows = [{**ROW, "step": step, "skipped_steps": 1} for step in range(1_000)]
    rows += [{"mode": "restart", "epoch": 0, "step": step} for step in range(1_000)]
    made = RunMetrics.of(rows)
    assert (len(made.skipped), made.skipped[-1], made.skipped_rows) == (200, (999, 1), 1_000)
    assert (len(made.restarts), made.restarts[-1], made.restart_rows) == (200, 999, 1_000)
