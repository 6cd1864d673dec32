"""The report as a list of sections, in the order in which a reader asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from descend.pages.parts import Figure, Section
from descend.study.report import figures, tables, wall_clock
from descend.study.report.methods import COMMAND, methods
from descend.study.report.tables import where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from descend.pages.parts import Table
    from descend.study.results import Comparison, Group

__all__ = ["sections"]


def sections(comparison: Comparison, *, seconds: bool = False) -> list[Section]:
    """All sections of a report; with `seconds` that of the wall-clock time too."""
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
    if seconds:
        found.append(wall_clock.section(comparison))
    for group in comparison.groups:
        if group.rows:
            found.append(Section(f"Tunability: {where(group)}", tuple(_tunability(comparison, group))))
    if (table := tables.scaling(comparison)) is not None:
        shown = "Medians over all re-runs; the band is the 95 % interval. Records: phase confirmation."
        figure = Figure("Updates to the target against the batch size", figures.scaling(comparison), shown)
        found.append(Section("Batch size", (figure, table)))
    if comparison.follow_ups:
        found.append(Section("Post-hoc analyses", tuple(_followed(comparison))))
    lints = tuple(map(str, comparison.remarks)) or ("None: equal budgets, equal freedom, no winner at an edge.",)
    found.append(Section("Warnings", lints))
    found.append(Section("Methods", tuple(methods(comparison))))
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
        at, records = where(group), "Records: phase confirmation."
        shown = "A point a run, a column a search; the bar is the 95 % interval of the median, the line the median."
        yield Figure(f"Re-runs of the winners, {at}", figures.reruns(comparison, group), f"{shown} {records}")
        if comparison.study.select == "value":
            shown = "A point a search. Right and up trains and validates better"
            direction = " (left and down for a loss)." if comparison.lower else "."
            title = f"Training beside validation, {at}"
            yield Figure(title, figures.splits(comparison, group), f"{shown}{direction} {records}")
        if (table := tables.winners(comparison, group)) is not None:
            yield table
        if any(arm.schedule != "constant" for arm in comparison.study.arms.values()):
            shown = "Each over its own peak; winners of one shape share a line."
            yield Figure(f"Schedules of the winners, {at}", figures.schedules(group), f"{shown} {records}")
            if all("lr" in row.winner for row in group.rows):
                shown = "At true height, on a logarithmic axis; steps at a rate of 0 are left out."
                title = f"Learning rates of the winners, {at}"
                yield Figure(title, figures.learning_rates(group), f"{shown} {records}")
        yield tables.power(comparison, group)


def _curves(comparison: Comparison, group: Group) -> Iterator[Figure]:
    for split, samples in (("validation", "validation"), ("train", "training")):
        shown = "Median over the re-runs of all searches; the band holds the middle half. Records: phase confirmation."
        metric = "loss" if comparison.study.split == "finetuned" else comparison.study.metric  # as in the figure
        title = f"{metric} of {samples} samples during training, {where(group)}"
        yield Figure(title[:1].upper() + title[1:], figures.curves(comparison, group, split), shown)


def _tunability(comparison: Comparison, group: Group) -> Iterator[Table | Figure]:
    at, records = where(group), "Records: phase search."
    yield tables.tunability(comparison, group)
    shown = (
        "Every trial of the searches. A cross has no value: it diverged or missed the target. A triangle at an edge "
        "lies beyond it; the axis shows the better three quarters at full height."
    )
    yield Figure(f"Trials against their learning rate, {at}", figures.rates(comparison, group), f"{shown} {records}")
    shown = "Median of the best of so many trials, up to half of them, with its exact 95 % interval where it has one."
    yield Figure(f"Best against the number of trials, {at}", figures.budget(comparison, group), f"{shown} {records}")
    shown = "Failures count as trials that do not reach it."
    yield Figure(f"Fraction of trials reaching a target, {at}", figures.fractions(comparison, group), shown)
    for arm in comparison.study.arms:
        if (drawn := figures.landscape(comparison, group, arm)) is not None:
            shown = f"Every trial; the fuller the better. {records}"
            yield Figure(f"{arm}: trials over weight decay and learning rate, {at}", drawn, shown)


def _followed(comparison: Comparison) -> Iterator[Table]:
    kinds = {"swap": tables.swaps, "minimize": tables.needed, "noise": tables.noise}
    kinds["sharpness"] = tables.sharpness
    for found in comparison.follow_ups:
        yield kinds[found["kind"]](found)
