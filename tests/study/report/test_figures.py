"""Figures: which points are drawn, counted against the records."""

import math
import re

import pytest

from descend.study.analysis import best_against_budget
from descend.study.report import figures


def circles(text):
    return text.count("<circle")


def series(text):
    return re.findall(r"data-legend.*?<text [^>]*>([^<]+)</text>", text)


def test_every_re_run_is_a_point(by_value):
    text = figures.reruns(by_value, by_value.groups[0])
    assert circles(text) == 2 * 2 * 6
    assert series(text) == ["a", "b"]


def test_training_beside_validation_has_a_point_a_search(by_value):
    assert circles(figures.splits(by_value, by_value.groups[0])) == 4


def test_winners_of_one_schedule_share_a_line(by_value):
    assert series(figures.schedules(by_value.groups[0])) == ["a 1, a 2", "b 1, b 2"]


def test_curves_are_medians_over_the_re_runs(by_value):
    text = figures.curves(by_value, by_value.groups[0], "validation")
    assert circles(text) == 2 * 11  # ten looks, and one before the first update
    last = [float(value) for value in re.findall(r"updates 20, accuracy, validation samples ([\d.]+)", text)]
    finals = [v for row in by_value.groups[0].of("a") for v in row.values]
    assert last[0] == pytest.approx(sorted(finals)[6], abs=1e-4)


def test_rates_have_a_cross_for_each_failure(by_value):
    text = figures.rates(by_value, by_value.groups[0])
    values = [v for row in by_value.groups[0].rows for v in row.search_values]
    failed = sum(math.isinf(value) for value in values)
    assert failed > 0
    assert text.count(", failed</title>") == failed
    assert circles(text) == len(values) - failed
    assert series(text) == ["a", "b", "target"]


def test_the_budget_is_drawn_as_far_as_it_can_be_trusted(by_value):
    text = figures.budget(by_value, by_value.groups[0])
    searched = [[v for row in by_value.groups[0].of(arm) for v in row.search_values] for arm in "ab"]
    drawn = [value for values in searched for value in best_against_budget(values).median[: len(values) // 2]]
    assert circles(text) == sum(math.isfinite(value) for value in drawn)
    assert "<polygon" in text


def test_fractions_fall_with_the_target(by_value):
    text = figures.fractions(by_value, by_value.groups[0])
    lines = re.findall(r'<polyline points="([^"]+)"', text)
    assert len(lines) == 2
    for line in lines:
        down = [float(point.partition(",")[2]) for point in line.split()]
        assert down == sorted(down)  # downwards on the page


def test_a_landscape_takes_rate_and_decay(by_value, result):
    text = figures.landscape(by_value, by_value.groups[0], "a")
    finite = [v for row in by_value.groups[0].of("a") for v in row.search_values if math.isfinite(v)]
    assert circles(text) == len(finite)
    assert figures.landscape(result, result.groups[0], "sgd") == ""


def test_scaling_has_a_guide_from_the_smallest_batch(result):
    assert series(figures.scaling(result)) == ["sgd", "wild", "perfect scaling"]
