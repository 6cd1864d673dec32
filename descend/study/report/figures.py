"""The figures of a report, from the records of a study."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from descend.study.analysis import best_against_budget, expected_best, fraction_reaching
from descend.study.report.svg import Axis, Line, plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.study.results import Comparison, Group

__all__ = ["budget", "curves", "fractions", "rates", "scaling"]


def _searched(group: Group, arm: str) -> list[float]:
    return [value for row in group.of(arm) for value in row.search_values]


def _lower(comparison: Comparison) -> bool:
    return comparison.study.lower or comparison.study.select == "steps"


def curves(comparison: Comparison, group: Group, split: str) -> str:
    """The metric over the run, median over all re-runs of each arm, with the range of the middle half."""
    study = comparison.study
    lines: list[Line] = []
    for arm in study.arms:
        runs = [
            record
            for record in comparison.records.values()
            if record.trial.phase == "confirmation"
            and (record.trial.arm, record.trial.batch_size, record.trial.steps) == (arm, group.batch_size, group.steps)
            and record.status in ("done", "collapsed")
        ]
        if runs:
            table = np.array([record.scores[split][study.metric] for record in runs])
            low, middle, high = np.quantile(table, (0.25, 0.5, 0.75), axis=0).tolist()
            at = [float(step) for step in runs[0].steps]
            points, band = tuple(zip(at, middle, strict=True)), tuple(zip(at, low, high, strict=True))
            lines.append(Line(arm, points, band, marked=False))
    return plot(lines, Axis("updates"), Axis(f"{study.metric}, {split} samples"))


def budget(comparison: Comparison, group: Group) -> str:
    """Expected best against the number of trials: the U-statistic, with a bootstrap band, up to half of the trials."""
    lower = _lower(comparison)
    lines: list[Line] = []
    for arm in comparison.study.arms:
        values = _searched(group, arm)
        if not values:
            continue
        found = best_against_budget(values, lower_is_better=lower, repeats=200)
        upto = found.reliable_to
        points = tuple((float(n), expected_best(values, n, lower_is_better=lower)) for n in range(1, upto + 1))
        band = tuple(zip(map(float, found.budgets[:upto]), found.low[:upto], found.high[:upto], strict=True))
        lines.append(Line(arm, points, band, marked=False))
    return plot(lines, Axis("trials"), Axis(f"expected best {comparison.unit}"))


def fractions(comparison: Comparison, group: Group) -> str:
    """The part of all trials of the search that reaches a target, failures among them, against the target."""
    lower = _lower(comparison)
    everything = [value for arm in comparison.study.arms for value in _searched(group, arm) if math.isfinite(value)]
    targets = np.quantile(everything, np.linspace(0.02, 1, 40)).tolist() if everything else []
    lines = [
        Line(arm, tuple((t, fraction_reaching(values, t, lower_is_better=lower)) for t in targets), marked=False)
        for arm in comparison.study.arms
        if (values := _searched(group, arm))
    ]
    return plot(lines, Axis(f"target: {comparison.unit}"), Axis("part of the trials that reach it"))


def rates(comparison: Comparison, group: Group) -> str:
    """Every trial of the search over its learning rate, with its end."""
    lines: list[Line] = []
    for arm, described in comparison.study.arms.items():
        if "lr" not in described.space:
            continue
        trials = [
            record
            for record in comparison.records.values()
            if record.trial.phase == "search"
            and (record.trial.arm, record.trial.batch_size, record.trial.steps) == (arm, group.batch_size, group.steps)
        ]
        values = [record.final(comparison.study.split, comparison.study.metric) for record in trials]
        points = zip((float(record.trial.configuration["lr"]) for record in trials), values, strict=True)
        lines.append(Line(arm, tuple(points), joined=False))
    return plot(lines, Axis("learning rate", log=True), Axis(f"{comparison.study.metric}, {comparison.study.split}"))


def scaling(comparison: Comparison) -> str:
    """Steps to the target against the batch size, with the line of perfect scaling and the fits."""
    lines: list[Line] = []
    for one in comparison.scaling:
        sizes: Sequence[float] = [float(size) for size in one.batch_sizes]
        band = [(s, i.low, i.high) for s, i in zip(sizes, one.intervals, strict=True) if i is not None]
        lines.append(Line(one.arm, tuple(zip(sizes, one.steps, strict=True)), tuple(band)))
        if one.fit is not None:
            lines.append(
                Line(f"{one.arm}, fit", tuple((s, one.fit.steps(s)) for s in sizes), marked=False, dashed=True)
            )
    starts = [(size, step) for one in comparison.scaling for size, step in zip(one.batch_sizes, one.steps, strict=True)]
    finite = [(size, step) for size, step in starts if math.isfinite(step)]
    if finite:
        first, best = min(finite)
        sizes = sorted({float(size) for size, _ in starts})
        lines.append(Line("perfect scaling", tuple((s, best * first / s) for s in sizes), marked=False, dashed=True))
    return plot(lines, Axis("samples a batch", log=True), Axis("updates to the target", log=True))
