"""The seconds of training beside the steps: for trials that ran sequentially, all on one machine.

Seconds are of training alone, without evaluation. They depend on the machine and on what else it does, so they are in a
report only where they are asked for; without them the same records and design give the same bytes everywhere.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from descend.errors import Refused
from descend.pages.chart import Axis, Chart, Line
from descend.pages.parts import Figure, Section, Table
from descend.study.analysis import median, median_interval
from descend.study.report.tables import short, where
from descend.study.running.plan import confirmed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from descend.study.results import Comparison, Group, ResultRow
    from descend.study.running.trial import Record

__all__ = ["curves", "problems", "section", "table"]


def problems(records: Iterable[Record]) -> list[str]:
    """Why the seconds of some re-runs cannot be compared."""
    found = [record for record in records if record.trial.phase == "confirmation"]
    reasons: list[str] = []
    if any(len(record.train_seconds) < len(record.steps) for record in found):
        reasons.append(
            "seconds of training were not recorded, as in stacked trials: run the studies with --executor one"
        )
    if len(machines := {record.machine for record in found}) > 1:
        reasons.append(f"trials ran on {len(machines)} machines, whose seconds cannot be compared")
    return reasons


def section(comparison: Comparison) -> Section:
    """Tables and curves of all batch sizes and budgets.

    Raises:
        Refused: see `problems`.
    """
    if reasons := problems(comparison.records.values()):
        raise Refused(reasons)
    parts: list[Table | Figure] = []
    for group in comparison.groups:
        if group.rows:
            parts.append(table(comparison, group))
            shown = "Median over the re-runs of all searches, at the median time of each evaluation. "
            title = f"Progress over the seconds of training, {where(group)}"
            parts.append(Figure(title, curves(comparison, group), f"{shown}Records: phase confirmation."))
    return Section("Wall-clock time", tuple(parts))


def table(comparison: Comparison, group: Group) -> Table:
    """Steps and seconds to the target of each winner, medians over its re-runs."""
    target = comparison.study.target
    heads = ["arm", "search", "ms per step", "seconds of training"]
    if target is not None:
        heads += [f"steps to {target.value:g}", "seconds to it", "95 % interval"]
    rows = tuple(tuple(_row(comparison, row)) for row in group.rows)
    note = "Medians over the re-runs, without evaluation. A re-run that misses the target counts as infinitely long."
    return Table(f"wall-clock time, {where(group)}", tuple(heads), rows, note)


def _row(comparison: Comparison, row: ResultRow) -> list[str]:
    study, target = comparison.study, comparison.study.target
    records = confirmed(study, row.cell, comparison.records)
    ended = [record.train_seconds[-1] for record in records if record.status in ("done", "collapsed")]
    total = median(ended) if ended else math.inf
    cells = [row.cell.arm, str(row.cell.search + 1), short(1e3 * total / row.cell.steps), short(total)]
    if target is not None:
        goal = (study.split, study.metric, target.value, study.lower, target.consecutive)
        seconds = [record.seconds_to(*goal) for record in records]
        interval = median_interval(seconds) if len(seconds) >= 6 else None
        shown = "too few seeds" if interval is None else f"[{_seconds(interval.low)}, {_seconds(interval.high)}]"
        cells += [_seconds(median([record.steps_to(*goal) for record in records])), _seconds(median(seconds)), shown]
    return cells


def _seconds(value: float) -> str:
    return "not reached" if math.isinf(value) else short(float(value))


def curves(comparison: Comparison, group: Group) -> Chart:
    """The metric on validation samples over the seconds of training."""
    study = comparison.study
    split, metric = ("validation", "loss") if study.split == "finetuned" else (study.split, study.metric)
    lines: list[Line] = []
    for arm in study.arms:
        runs = [
            record
            for row in group.of(arm)
            for record in confirmed(study, row.cell, comparison.records)
            if record.status in ("done", "collapsed")
        ]
        if runs:
            values = np.median([record.scores[split][metric] for record in runs], axis=0).tolist()
            seconds = np.median([record.train_seconds for record in runs], axis=0).tolist()
            lines.append(Line(arm, tuple(zip(seconds, values, strict=True))))
    return Chart(tuple(lines), Axis("seconds of training"), Axis(f"{metric}, {split} samples"))
