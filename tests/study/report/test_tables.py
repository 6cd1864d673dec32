"""Tables: their cells, from records that were made up, and from what was asked afterwards."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from descend.study.analysis import best_rate_by_decay
from descend.study.design import Arm, choice, log, one_minus_log
from descend.study.report import tables
from descend.study.report.tables import short

SWAP = {"arm": "sgd", "giver": "wild", "median": 0.5, "interval": [0.4, 0.6], "change": -0.25}
KEPT = (
    {"kind": "swap", "command": "descend study swap", "setting": "lr", "seeds": 6, "cells": [SWAP]},
    {
        "kind": "minimize",
        "command": "descend study minimize",
        "arm": "sgd",
        "reference": "wild",
        "rule": "the median is at least 1",
        "seeds": 6,
        "tried": 3,
        "needed": {"lr": [0.1, 0.2]},
        "taken_back": {"momentum": [0.0, 0.5]},
    },
    {
        "kind": "noise",
        "command": "descend study noise",
        "arm": "sgd",
        "parts": 4,
        "part_size": 8,
        "repeats": 5,
        "points": [
            {"step": 0, "scale": 61.0, "interval": [50.0, 70.0], "said": ""},
            {"step": 9, "scale": None, "interval": None, "said": "measure more steps"},
        ],
    },
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456789, "0.12346"), (12.0, "12"), (float("inf"), "failed"), (float("nan"), "-"), (3, "3"), ("a", "a")],
)
def test_a_number_has_five_digits(value, text):
    assert short(value) == text


def column(table, head):
    return [row[table.heads.index(head)] for row in table.rows]


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (log(0.01, 10), "lr: log 0.01 to 10"),
        (one_minus_log(5e-3, 0.3), "1 - momentum: log 0.005 to 0.3"),
        (choice(1, 2), "lr: 1 or 2"),
    ],
)
def test_the_table_of_arms_says_what_is_drawn(one, text):
    name = "momentum" if one.kind == "one_minus_log" else "lr"
    table = tables.arms(SimpleNamespace(study=SimpleNamespace(arms={"a": Arm("SGD", {name: one})})))
    assert column(table, "searched over") == [f"{text} ({one.size})"]


def test_the_cost_charges_what_failed(result):
    cost = tables.bill(result)
    runs = 2 * 2 * (4 + 6)  # batch sizes, searches, trials and re-runs
    assert column(cost, "trials") == [f"{runs}"] * 2
    assert column(cost, "steps") == [f"{runs * 20}"] * 2
    assert column(cost, "samples") == [f"{runs // 2 * 20 * (32 + 128):,}"] * 2
    assert "diverged" in cost.rows[1][-1]
    assert "diverged" not in cost.rows[0][-1]


def test_pairs_say_why(by_value):
    (row,) = tables.pairs(by_value.groups[0]).rows
    (pair,) = by_value.groups[0].ranking.pairs
    assert row[:2] == (pair.better, pair.worse)
    assert pair.reason in row
    assert tables.pairs(replace(by_value.groups[0], ranking=None)) is None


def test_published_numbers_stand_beside_ours(by_value, result):
    ((title, published, here),) = tables.published(by_value).rows
    assert (title, published) == ("a", "75.97 % on ImageNet")
    assert here.startswith("0.900")
    assert tables.published(result) is None


def test_tunability_counts_failures_and_finds_the_slope(by_value):
    table = tables.tunability(by_value, by_value.groups[0])
    values = [v for row in by_value.groups[0].of("a") for v in row.search_values]
    part = sum(value >= 0.7 for value in values) / len(values)
    assert column(table, "fraction reaching the target")[0].startswith(f"{part:.0%} [")
    failed = sum(value == float("-inf") for value in values)
    assert column(table, "lowest learning rate that failed")[0].endswith(f"({failed} trials)")
    ridge = tables.ridge(by_value, by_value.groups[0], "a")
    records = [r for row in by_value.groups[0].of("a") for r in row.searched]
    settings = [r.trial.configuration for r in records]
    known = best_rate_by_decay(
        [one["lr"] for one in settings], [one["weight_decay"] for one in settings], values, bins=6
    )
    assert ridge.slope == known.slope


def test_winners_leave_out_what_all_agree_on(by_value):
    table = tables.winners(by_value, by_value.groups[0])
    names = column(table, "setting")
    assert {"lr", "weight_decay"} <= set(names)
    assert "optimizer" not in names


def test_batch_sizes_have_a_fit_or_its_refusal(result, by_value):
    table = tables.scaling(result)
    assert "refused: 2 batch sizes cannot show" in table.rows[0][-1]
    assert table.rows[1][-1].startswith("refused: ")
    assert tables.scaling(by_value) is None


def test_test_samples_have_a_table_where_there_are_some(by_value):
    assert tables.test(by_value) is None
    group = by_value.groups[0]
    rows = tuple(replace(row, test=(0.5,) * 6) for row in group.rows)
    (first, *_) = tables.test(replace(by_value, groups=(replace(group, rows=rows),))).rows
    assert first == ("32", "20", "a", "1", "0.5", "[0.5, 0.5]")


def test_every_trial_has_a_row(result):
    table = tables.trials(result)
    assert column(table, "trial") == list(result.records)
    assert sum(status.startswith("diverged at update") for status in column(table, "status")) > 0


def test_answers_to_questions_are_tables():
    swap, minimize, noise = KEPT
    assert tables.swaps(swap).rows == (("sgd", "wild", "0.5", "[0.4, 0.6]", "-0.25"),)
    assert tables.needed(minimize).rows == (("lr", "0.1", "0.2", "yes"), ("momentum", "0", "0.5", "no"))
    assert tables.noise(noise).rows == (("0", "61", "[50, 70]", ""), ("9", "refused", "", "measure more steps"))
    assert tables.swaps({**swap, "cells": [{**swap["cells"][0], "interval": None}]}).rows[0][3] == "too few seeds"
