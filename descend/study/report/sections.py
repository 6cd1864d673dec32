"""The report as a list of sections, in the order in which a reader asks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.study.report import figures, tables
from descend.study.report.tables import Table, where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.study.results import Comparison, Group

__all__ = ["Figure", "Section", "sections"]

COMMAND = "descend study report DIRECTORY"


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes:
        svg: The plot.
        caption: What it shows, and the records it came from.
    """

    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        title: Its head.
        parts: Sentences, tables and figures.
        kind: "verdict" and "text" are shown in their own ways.
    """

    title: str
    parts: tuple[str | Table | Figure, ...]
    kind: str = ""


def sections(comparison: Comparison) -> list[Section]:
    """All sections of a report."""
    study = comparison.study
    found = [
        Section("Verdict", tuple(comparison.verdict.splitlines()), "verdict"),
        Section("What was compared", tuple(_compared(comparison))),
        Section("Cost", tuple(filter(None, (tables.bill(comparison), tables.lineage(comparison))))),
        Section("Results of the arms", tuple(_results(comparison))),
    ]
    for group in comparison.groups:
        if group.rows:
            found.append(Section(f"Curves: {where(group)}", tuple(_curves(comparison, group))))
    for group in comparison.groups:
        if group.rows:
            found.append(Section(f"Tunability: {where(group)}", tuple(_tunability(comparison, group))))
    if (table := tables.scaling(comparison)) is not None:
        caption = f"Median updates to the target over all re-runs. Records: phase confirmation, by `{COMMAND}`."
        found.append(Section("Batch size", (Figure(figures.scaling(comparison), caption), table)))
    if comparison.follow_ups:
        found.append(Section("Questions asked afterwards", tuple(_followed(comparison))))
    lints = tuple(map(str, comparison.remarks)) or ("None: equal budgets, equal freedom, no winner at an edge.",)
    found.append(Section("Lints", lints))
    found.append(Section("All trials", (_written(comparison), tables.trials(comparison))))
    found.append(Section("Description", (json.dumps(study.plain(), indent=2),), "text"))
    return found


def _written(comparison: Comparison) -> str:
    return f"Written by `{COMMAND}` from the {len(comparison.records)} records in DIRECTORY/records."


def _compared(comparison: Comparison) -> Iterator[str | Table]:
    study = comparison.study
    repeated = (
        f"the best {study.shortlist} repeated with {study.shortlist_seeds} seeds, " if study.shortlist > 1 else ""
    )
    yield (
        f"{comparison.unit}. Each arm: {study.searches} independent {'search' if study.searches == 1 else 'searches'} "
        f"of {study.trials} trials ({study.sampler} points), {repeated}the winner of each run again with "
        f"{study.confirmation_seeds} fresh seeds. Only these last runs are compared."
    )
    if study.target is not None:
        yield f"Target, written down before the first trial: {study.target.value:g}, by the {study.target.rule}."
    yield tables.arms(comparison)
    if comparison.hashes:
        yield f"Hashes: {', '.join(f'{name} {digest}' for name, digest in comparison.hashes)}."
    for amendment in comparison.amendments:
        shown = "; ".join(f"{name} from {pair[0]} to {pair[1]}" for name, pair in amendment.items())
        yield f"Changed after the first trial: {shown}."
    if count := len(comparison.unasked):
        yield (
            f"{count:,} records are of trials that the study does not ask for, such as "
            f"{comparison.unasked[0]}: they are in the cost and among all trials, and in nothing else."
        )


def _results(comparison: Comparison) -> Iterator[str | Table | Figure]:
    yield tables.results(comparison)
    for table in (tables.published(comparison), tables.test(comparison)):
        if table is not None:
            yield table
    for group in comparison.groups:
        if not group.rows:
            continue
        if (table := tables.pairs(group)) is not None:
            yield table
        records = f"Records: phase confirmation, {where(group)}, by `{COMMAND}`."
        shown = "Every re-run of every winner; a column a search, with median and 95 % interval."
        yield Figure(figures.reruns(comparison, group), f"{shown} {records}")
        if comparison.study.select == "value":
            shown = "Training beside validation: a point a search. Right and up trains and validates better"
            direction = " (left and down for a loss)." if comparison.lower else "."
            yield Figure(figures.splits(comparison, group), f"{shown}{direction} {records}")
        if (table := tables.winners(comparison, group)) is not None:
            yield table
        if any(arm.schedule != "constant" for arm in comparison.study.arms.values()):
            shown = "The schedules of the winners, each over its own peak."
            yield Figure(figures.schedules(group), f"{shown} {records}")
        yield tables.power(comparison, group)


def _curves(comparison: Comparison, group: Group) -> Iterator[Figure]:
    for split in ("validation", "train"):
        shown = "Median over the re-runs of all searches; the band holds the middle half."
        yield Figure(
            figures.curves(comparison, group, split),
            f"{shown} Records: phase confirmation, {where(group)}, by `{COMMAND}`.",
        )


def _tunability(comparison: Comparison, group: Group) -> Iterator[Table | Figure]:
    records = f"Records: phase search, {where(group)}, by `{COMMAND}`."
    yield tables.tunability(comparison, group)
    shown = "Every trial over its learning rate; a cross is one without a value: it diverged or missed the target."
    yield Figure(figures.rates(comparison, group), f"{shown} {records}")
    shown = "Median of the best of so many trials, up to half of them, with its exact 95 % interval where it has one."
    yield Figure(figures.budget(comparison, group), f"{shown} {records}")
    shown = "Part of all trials that reach a target; failures are trials that do not."
    yield Figure(figures.fractions(comparison, group), f"{shown} {records}")
    for arm in comparison.study.arms:
        if drawn := figures.landscape(comparison, group, arm):
            shown = f"{arm}: every trial over decay and rate, the fuller the better."
            yield Figure(drawn, f"{shown} {records}")


def _followed(comparison: Comparison) -> Iterator[Table]:
    kinds = {"swap": tables.swaps, "minimize": tables.needed, "noise": tables.noise}
    kinds["sharpness"] = tables.sharpness
    for found in comparison.follow_ups:
        yield kinds[found["kind"]](found)
