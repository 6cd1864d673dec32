"""The figures of a report, from the records of a study."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from descend.pages.chart import Axis, Chart, Line
from descend.study.analysis import best_against_budget, fraction_reaching
from descend.study.design.schedules import make_schedule
from descend.study.report.tables import ridge, short, stated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.study.results import Comparison, Group

__all__ = [
    "budget",
    "curves",
    "fractions",
    "landscape",
    "learning_rates",
    "rates",
    "reruns",
    "scaling",
    "schedules",
    "splits",
]


def _searched(group: Group, arm: str) -> list[float]:
    return [value for row in group.of(arm) for value in row.search_values]


def _records(group: Group, arm: str) -> list[tuple[dict[str, object], float, str]]:
    """Setting, compared number and name of every trial of the searches of an arm."""
    return [
        (record.trial.configuration, value, record.trial.id)
        for row in group.of(arm)
        for record, value in zip(row.searched, row.search_values, strict=True)
    ]


def _better_part(values: Sequence[float], *, lower: bool) -> tuple[float, float] | None:
    """Limits of an axis that show the better three quarters, where the others would squeeze these; else None."""
    found = sorted((value for value in values if math.isfinite(value)), reverse=not lower)  # the best first
    if len(found) < 8:
        return None
    best, quarter, worst = found[0], found[len(found) * 3 // 4], found[-1]
    if best == quarter or abs(worst - best) < 2.5 * abs(quarter - best):
        return None
    edge = quarter + (quarter - best) * 0.15
    return (best, edge) if lower else (edge, best)


def reruns(comparison: Comparison, group: Group) -> Chart:
    """Every re-run of every winner, one column a search, with median and interval."""
    arms = [*comparison.study.arms]
    lines: list[Line] = []
    for number, arm in enumerate(arms):
        points: list[tuple[float, float]] = []
        bars: list[tuple[float, float, float, float]] = []
        for row in group.of(arm):
            across = number + (row.cell.search - (comparison.study.searches - 1) / 2) * 0.6 / comparison.study.searches
            points += [(across, value) for value in row.values]
            if row.interval is not None and math.isfinite(row.interval.low) and math.isfinite(row.interval.high):
                bars.append((across, row.interval.low, row.median, row.interval.high))
        lines.append(Line(arm, tuple(points), joined=False, bars=tuple(bars)))
    return Chart(tuple(lines), Axis("", names=tuple(arms)), Axis(comparison.unit))


def splits(comparison: Comparison, group: Group) -> Chart:
    """Training beside validation: a point for each search."""
    study = comparison.study
    lines: list[Line] = []
    for arm in study.arms:
        rows = group.of(arm)
        points = tuple((row.train_median, row.median) for row in rows)
        notes = tuple(f"search {row.cell.search + 1}" for row in rows)
        lines.append(Line(arm, points, joined=False, notes=notes))
    return Chart(tuple(lines), Axis(f"{study.metric} on training samples"), Axis(comparison.unit))


def schedules(group: Group) -> Chart:
    """The rate of each winner over its run, as a part of its peak; winners of one shape share a line."""
    shapes: dict[tuple[float, ...], list[str]] = {}
    for row in group.rows:
        options = {k.partition(".")[2]: v for k, v in row.winner.items() if k.startswith("schedule.")}
        made = make_schedule(row.winner["schedule"], options, 1.0, group.steps)
        shape = tuple(rate for _, rate in made.curve(group.steps))
        shapes.setdefault(shape, []).append(f"{row.cell.arm} {row.cell.search + 1}")
    lines = [
        Line(
            ", ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more",
            _numbered(shape),
            marked=False,
        )
        for shape, names in shapes.items()
    ]
    return Chart(tuple(lines), Axis("steps"), Axis("learning rate / peak"))


def learning_rates(group: Group) -> Chart:
    """The learning rate of each winner over its run, at its true height."""
    lines: list[Line] = []
    for row in group.rows:
        options = {k.partition(".")[2]: v for k, v in row.winner.items() if k.startswith("schedule.")}
        made = make_schedule(row.winner["schedule"], options, float(str(row.winner["lr"])), group.steps)
        points = _numbered([rate for _, rate in made.curve(group.steps)])
        kept = tuple(point for point in points if point[1] > 0)  # of a logarithmic axis
        lines.append(Line(f"{row.cell.arm} {row.cell.search + 1}", kept, marked=False))
    return Chart(tuple(lines), Axis("steps"), Axis("learning rate", log=True))


def _numbered(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    return tuple((float(number), value) for number, value in enumerate(values))


def curves(comparison: Comparison, group: Group, split: str) -> Chart:
    """The metric over the run, median over all re-runs of each arm, with the range of the middle half."""
    study = comparison.study
    metric = "loss" if study.split == "finetuned" else study.metric  # of the run itself, not of what follows it
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
            table = np.array([record.scores[split][metric] for record in runs])
            low, middle, high = np.quantile(table, (0.25, 0.5, 0.75), axis=0).tolist()
            at = [float(step) for step in runs[0].steps]
            points, band = tuple(zip(at, middle, strict=True)), tuple(zip(at, low, high, strict=True))
            lines.append(Line(arm, points, band))
    samples = "training" if split == "train" else split
    return Chart(tuple(lines), Axis("steps"), Axis(f"{metric}, {samples} samples"))


def budget(comparison: Comparison, group: Group) -> Chart:
    """The median of the best of n trials against n, up to half of the trials, and its exact band where it has one."""
    lower = comparison.lower
    lines: list[Line] = []
    for arm in comparison.study.arms:
        values = _searched(group, arm)
        if not values:
            continue
        found = best_against_budget(values, lower_is_better=lower)
        half, upto = max(1, len(values) // 2), found.reliable_to
        points = tuple(zip(map(float, found.budgets[:half]), found.median[:half], strict=True))
        band = tuple(zip(map(float, found.budgets[:upto]), found.low[:upto], found.high[:upto], strict=True))
        lines.append(Line(arm, points, band, marked=len(points) < 12))
    shown = [value for line in lines for _, value in line.points[2:]]
    shown += [end for line in lines for _, *ends in line.band[2:] for end in ends]
    shown = [value for value in shown if math.isfinite(value)]
    limits = (min(shown), max(shown)) if shown and min(shown) < max(shown) else None
    return Chart(tuple(lines), Axis("trials"), Axis(f"best {comparison.unit}", limits=limits))


def fractions(comparison: Comparison, group: Group) -> Chart:
    """The part of all trials of the search that reaches a target, failures among them, against the target."""
    lower = comparison.lower
    everything = [value for arm in comparison.study.arms for value in _searched(group, arm) if math.isfinite(value)]
    targets = np.unique(np.quantile(everything, np.linspace(0.2, 1, 40))).tolist() if everything else []
    lines = [
        Line(arm, tuple((t, fraction_reaching(values, t, lower_is_better=lower)) for t in targets), marked=False)
        for arm in comparison.study.arms
        if (values := _searched(group, arm))
    ]
    return Chart(tuple(lines), Axis(f"target: {comparison.unit}"), Axis("fraction of trials reaching it"))


def rates(comparison: Comparison, group: Group) -> Chart:
    """Every trial of the search over its learning rate; a cross for one without a value."""
    lines: list[Line] = []
    for arm, described in comparison.study.arms.items():
        if "lr" not in described.space:
            continue
        trials = [(float(str(settings["lr"])), value, name) for settings, value, name in _records(group, arm)]
        kept = [one for one in trials if math.isfinite(one[1])]
        lines.append(
            Line(
                arm,
                tuple((rate, value) for rate, value, _ in kept),
                joined=False,
                notes=tuple(name for *_, name in kept),
                failed=tuple(rate for rate, value, _ in trials if not math.isfinite(value)),
                failed_on_top=comparison.lower,
            )
        )
    target, _ = stated(comparison, group)
    ends = [rate for line in lines for rate, _ in line.points]
    limits = _better_part([value for line in lines for _, value in line.points], lower=comparison.lower)
    if comparison.study.target is not None and comparison.study.select == "value" and ends:
        guide = ((min(ends), target), (max(ends), target))
        lines.append(Line("target", guide, marked=False, dashed=True, colour=-1))
        limits = limits and (min(limits[0], target), max(limits[1], target))
    return Chart(tuple(lines), Axis("learning rate", log=True), Axis(comparison.unit, limits=limits))


def landscape(comparison: Comparison, group: Group, arm: str) -> Chart | None:
    """Every trial over decay and rate, the fuller the better, with the best rate for each decay."""
    found = ridge(comparison, group, arm)
    if found is None:
        return None
    trials = [
        (float(str(settings["weight_decay"])), float(str(settings["lr"])), value, name)
        for settings, value, name in _records(group, arm)
    ]
    kept = [one for one in trials if math.isfinite(one[2])]
    order = np.argsort(np.argsort([one[2] if not comparison.lower else -one[2] for one in kept]))
    shades = tuple(float(place) / max(1, len(kept) - 1) for place in order)
    notes = tuple(f"{comparison.study.metric} {short(value)}, {name}" for _, _, value, name in kept)
    points = tuple((decay, rate) for decay, rate, *_ in kept)
    number = [*comparison.study.arms].index(arm)
    best = tuple((point.decay, point.rate) for point in found.points)
    lines = [
        Line(arm, points, joined=False, shades=shades, notes=notes, colour=number),
        Line("best rate for each decay", best, marked=False, dashed=True, colour=7),
    ]
    return Chart(tuple(lines), Axis("weight decay", log=True), Axis("learning rate", log=True))


def scaling(comparison: Comparison) -> Chart:
    """Steps to the target against the batch size, with the line of perfect scaling and the fits."""
    lines: list[Line] = []
    for number, one in enumerate(comparison.scaling):
        sizes: Sequence[float] = [float(size) for size in one.batch_sizes]
        band = [(s, i.low, i.high) for s, i in zip(sizes, one.intervals, strict=True) if i is not None]
        lines.append(Line(one.arm, tuple(zip(sizes, one.steps, strict=True)), tuple(band), colour=number))
        if one.fit is not None:
            fitted = tuple((s, one.fit.steps(s)) for s in np.geomspace(sizes[0], sizes[-1], 25).tolist())
            lines.append(Line(f"{one.arm}, fit", fitted, marked=False, dashed=True, colour=number))
    starts = [(size, step) for one in comparison.scaling for size, step in zip(one.batch_sizes, one.steps, strict=True)]
    finite = [(size, step) for size, step in starts if math.isfinite(step)]
    if finite:
        first, best = min(finite)
        sizes = sorted({float(size) for size, _ in starts})
        guide = tuple((s, best * first / s) for s in sizes)
        lines.append(Line("perfect scaling", guide, marked=False, dashed=True, colour=-1))
    return Chart(tuple(lines), Axis("samples a batch", log=True), Axis("steps to the target", log=True))
