"""Figures: which points are drawn, counted against the records."""

import math

import pytest

from descend.study.analysis import best_against_budget
from descend.study.report import figures


def shown(chart):
    """Points that have a place."""
    return [pair for line in chart.lines for pair in line.points if chart.x.shows(pair[0]) and chart.y.shows(pair[1])]


def series(chart):
    return [line.name for line in chart.lines]


def test_every_re_run_is_a_point(by_value):
    chart = figures.reruns(by_value, by_value.groups[0])
    assert len(shown(chart)) == 2 * 2 * 6
    assert series(chart) == ["a", "b"]


def test_training_beside_validation_has_a_point_a_search(by_value):
    assert len(shown(figures.splits(by_value, by_value.groups[0]))) == 4


def test_winners_of_one_schedule_share_a_line(by_value):
    assert series(figures.schedules(by_value.groups[0])) == ["a 1, a 2", "b 1, b 2"]
    assert series(figures.learning_rates(by_value.groups[0])) == ["a 1", "a 2", "b 1", "b 2"]
    first, *_, last = figures.learning_rates(by_value.groups[0]).lines
    row = by_value.groups[0].rows[0]
    assert {rate for _, rate in first.points} == {row.winner["lr"]}  # constant, and at its own height
    assert last.points[0][1] > last.points[-1][1] > 0  # cosine


def test_curves_are_medians_over_the_re_runs(by_value):
    chart = figures.curves(by_value, by_value.groups[0], "validation")
    assert len(shown(chart)) == 2 * 11  # ten looks, and one before the first update
    last = [value for step, value in shown(chart) if step == 20]
    finals = [v for row in by_value.groups[0].of("a") for v in row.values]
    assert last[0] == pytest.approx(sorted(finals)[6], abs=1e-4)


def test_rates_have_a_cross_for_each_failure(by_value):
    chart = figures.rates(by_value, by_value.groups[0])
    values = [v for row in by_value.groups[0].rows for v in row.search_values]
    failed = sum(math.isinf(value) for value in values)
    assert failed > 0
    assert sum(len(line.failed) for line in chart.lines) == failed
    assert len(shown(chart)) == len(values) - failed + 2  # and the ends of the line of the target
    assert series(chart) == ["a", "b", "target"]


def test_the_budget_is_drawn_as_far_as_it_can_be_trusted(by_value):
    chart = figures.budget(by_value, by_value.groups[0])
    searched = [[v for row in by_value.groups[0].of(arm) for v in row.search_values] for arm in "ab"]
    drawn = [value for values in searched for value in best_against_budget(values).median[: len(values) // 2]]
    assert len(shown(chart)) == sum(math.isfinite(value) for value in drawn)
    assert any(line.band for line in chart.lines)


def test_fractions_fall_with_the_target(by_value):
    chart = figures.fractions(by_value, by_value.groups[0])
    assert len(chart.lines) == 2
    for line in chart.lines:
        parts = [part for _, part in line.points]
        assert parts == sorted(parts, reverse=True)
        assert parts[0] > parts[-1]


def test_a_landscape_takes_rate_and_decay(by_value, result):
    chart = figures.landscape(by_value, by_value.groups[0], "a")
    finite = [v for row in by_value.groups[0].of("a") for v in row.search_values if math.isfinite(v)]
    assert len(chart.lines[0].points) == len(finite)
    assert figures.landscape(result, result.groups[0], "sgd") is None


def test_scaling_has_a_guide_from_the_smallest_batch(result):
    assert series(figures.scaling(result)) == ["sgd", "wild", "perfect scaling"]


def test_an_axis_shows_the_better_part_at_full_height():
    """One trial far off would squeeze all others into a line; it is drawn at the edge."""
    values = [0.80 + 0.005 * number for number in range(12)]
    assert figures._better_part(values, lower=False) is None
    low, high = figures._better_part([*values, 0.1], lower=False)
    assert (high, low) == (max(values), pytest.approx(values[2] - 0.15 * (values[-1] - values[2])))
    low, high = figures._better_part([-value for value in values] + [-0.1], lower=True)
    assert (low, high) == (-max(values), pytest.approx(-values[2] + 0.15 * (values[-1] - values[2])))
