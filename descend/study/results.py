"""What the records of a study say: a row for each search of each arm, what may be ranked, what it cost.

A pure function of the description and the records, so that anybody can recompute it, and in the order of the study, so
that it does not depend on who ran what when.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from descend.errors import Refused
from descend.study.analysis import (
    Cost,
    CriticalBatchSize,
    Interval,
    Pair,
    Ranking,
    Spent,
    Tuning,
    cost,
    critical_batch_size_interval,
    fit_critical_batch_size,
    median,
    median_interval,
    rank,
    success_interval,
    train_beside_validation,
)
from descend.study.analysis.ranking import LEVEL, compare_searches
from descend.study.design.lint import Remark, counted, lint, lint_edges
from descend.study.lineage import TuningRound, lint_rounds
from descend.study.running.plan import Cell, cells, confirmed, natural, needed, pending, planned, score, winner
from descend.study.running.trial import RETRIED, Record
from descend.terminal import TextTable, aligned
from descend.terminal.display import printable
from descend.train.metric_direction import range_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from descend.study.design.study import Study

__all__ = ["Comparison", "Group", "ResultRow", "Scaling", "compare_records"]

_PAIRS_SAID = 3  # the verdict has a sentence for each of so many pairs; of more only for those that are ranked


@dataclass(frozen=True)
class ResultRow:
    """One search of one arm, after its winner was run again with fresh seeds.

    Attributes:
        cell: Which search.
        winner: The configuration that won it.
        best_of_search: The best single trial of the search, which overstates what it repeats to.
        values: Of the re-runs: the metric, or steps to the target where these are compared; a failure is infinite.
        train: The metric of the re-runs on training samples; NaN where one failed.
        successes: Re-runs that met the target; None without one.
        search_values: Of all trials of the search.
        searched: Records of these trials.
        test: The metric of the re-runs on test samples, which nothing was chosen by; empty where the task has none.
    """

    cell: Cell
    winner: dict[str, Any]
    best_of_search: float
    values: tuple[float, ...]
    train: tuple[float, ...]
    successes: int | None
    search_values: tuple[float, ...]
    searched: tuple[Record, ...] = ()
    test: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Over the re-runs."""
        return median(self.values)

    @property
    def interval(self) -> Interval | None:
        """Of the median; None below 6 seeds."""
        return median_interval(self.values)

    @property
    def success(self) -> Interval | None:
        """Of the probability to meet the target."""
        return None if self.successes is None else success_interval(self.successes, len(self.values))

    @property
    def train_median(self) -> float:
        """Over the re-runs that did not fail; NaN if all did."""
        finite = [value for value in self.train if math.isfinite(value)]
        return median(finite) if finite else math.nan


@dataclass(frozen=True)
class Group:
    """All arms at one batch size and budget.

    Attributes:
        batch_size: Samples of an update.
        steps: Updates.
        rows: In the order of arms and searches.
        ranking: What may be said; None for a single arm or an unfinished study.
        causes: For each pair, whether the difference is one of training, of validation, or of both.
    """

    batch_size: int
    steps: int
    rows: tuple[ResultRow, ...]
    ranking: Ranking | None
    causes: tuple[str, ...]

    def of(self, arm: str) -> list[ResultRow]:
        """The rows of an arm."""
        return [row for row in self.rows if row.cell.arm == arm]


@dataclass(frozen=True)
class Scaling:
    """Steps to the target of one arm against the batch size.

    Attributes:
        arm: Its name.
        batch_sizes: In rising order.
        steps: Median over all re-runs at each; inf where the target was missed.
        intervals: Around each, from the lowest to the highest end of the 95 % intervals of its searches, so that the
            accident of a search is within; None below 6 seeds.
        fit: The hyperbola; None where it is refused.
        interval: Of the critical batch size; None where it is refused.
        refused: Why there is no fit, or no interval.
    """

    arm: str
    batch_sizes: tuple[int, ...]
    steps: tuple[float, ...]
    intervals: tuple[Interval | None, ...]
    fit: CriticalBatchSize | None
    interval: Interval | None
    refused: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """A study and what came of it.

    Attributes:
        study: The description.
        records: All trials that ended, by their id, in the order of the ids.
        groups: One for each batch size and budget.
        unfinished: Trials that can be named and have not run.
        amendments: Changes of the description after the first trial.
        hashes: Of code and data.
        follow_ups: What was asked of the finished study: results of swaps, minimal differences and noise scales.
        rounds: Earlier studies that led to this one, what they searched and spent.
    """

    study: Study
    records: Mapping[str, Record]
    groups: tuple[Group, ...]
    unfinished: int
    amendments: tuple[dict[str, Any], ...] = ()
    hashes: tuple[tuple[str, str], ...] = ()
    follow_ups: tuple[dict[str, Any], ...] = ()
    rounds: tuple[TuningRound, ...] = ()

    def __str__(self) -> str:
        return f"{self.verdict}\n\n{self.table}"

    @property
    def lower(self) -> bool:
        """Whether the least of the compared numbers is the best."""
        return self.study.lower or self.study.select == "steps"

    @property
    def ranked(self) -> bool:
        """Whether any arm may be called better than another."""
        return any(group.ranking is not None and group.ranking.ranked for group in self.groups)

    @property
    def unit(self) -> str:
        """What is compared."""
        if self.study.select == "steps" and self.study.target is not None:
            return f"steps to {self.study.metric} {self.study.target.value:g} on {self.study.split} samples"
        study = self.study
        if study.split == "finetuned":
            return f"{study.metric} after fine tuning, on {'test' if study.judge == 'test' else 'validation'} samples"
        return f"{study.metric} on {'test' if study.judge == 'test' else study.split} samples"

    @cached_property
    def verdict(self) -> str:
        """What may be said, in sentences."""
        lines: list[str] = []
        if self.unfinished:
            lines.append(f"unfinished: {self.unfinished} trials that can be named by now have not run")
        for group in self.groups:
            lines += self._said(group)
        if len(self.study.arms) == 1:
            lines.insert(0, f"cannot rank: {next(iter(self.study.arms))} is the one arm, and there is no other")
        elif not self.ranked:
            lines.insert(0, f"cannot rank: {self._why_not()}")
        if self.remarks:
            lines.append(f"read the warnings before you rely on this: {counted(self.remarks)}")
        return printable("\n".join(lines), keep="\n")

    def _why_not(self) -> str:
        """Why no arm is ranked: what holds for all groups, or what the tests say."""
        reasons = {reason for group in self.groups if group.ranking for reason in group.ranking.reasons}
        tested = any(group.ranking is not None and not group.ranking.reasons for group in self.groups)
        if tested or not reasons:
            return "no difference between arms exceeds what repeating the searches gives"
        return "; ".join(sorted(reasons))

    def _said(self, group: Group) -> list[str]:
        where = f"batch {group.batch_size:,}, {group.steps:,} steps"
        if group.ranking is None:
            return []
        said = [
            (pair.ranked, f"{where}: {_sentence(pair, self.unit)}{f'; {cause}' if cause else ''}")
            for pair, cause in zip(group.ranking.pairs, group.causes, strict=True)
        ]
        lines = [line for _, line in said]
        if len(said) > _PAIRS_SAID:
            lines = [line for ranked, line in said if ranked]
            left = len(said) - len(lines)
            lines += [f"{where}: cannot rank {left} {'other ' if lines else ''}pairs of arms"] if left else []
            lines.append(f"{where}: by their medians alone, which rank no arm: {', '.join(group.ranking.order)}")
        lines += [f"{where}: {sentence}" for sentence in self._equivalent(group.ranking)]
        if group.ranking.detectable is not None:
            lines.append(f"{where}: {self._detectable(group.ranking)}")
        return lines + [f"{where}: {sentence}" for sentence in self._met(group)]

    def _equivalent(self, ranking: Ranking) -> list[str]:
        """Which arms do not differ by more than the margin of the study."""
        margin = self.study.margin
        if margin is None:
            return []
        within = f"within {margin:g} ({self.unit}, two one-sided t tests over searches"
        found = [
            f"{pair.better} and {pair.worse} are equivalent {within}, p = {pair.p_equivalent:.2g} after Holm)"
            for pair in ranking.pairs
            if pair.equivalent
        ]
        left = len(ranking.pairs) - len(found)
        return (
            [*found, f"{left} of {len(ranking.pairs)} pairs are not shown to be equivalent {within})"]
            if left
            else found
        )

    def _detectable(self, ranking: Ranking) -> str:
        """What a study like this one finds with probability 0.8, unless the metric cannot differ by so much."""
        assert ranking.detectable is not None
        assert ranking.detectable_interval is not None
        searches, width = self.study.searches, self._range
        if width is not None and ranking.detectable >= width:
            return (
                f"{searches} searches an arm are too few: no difference that {self.study.metric} can have would be "
                "found with probability 0.8; add searches to the study"
            )
        low, high = ranking.detectable_interval
        high = high if width is None else min(high, width)
        return (
            f"a difference of {_figure(ranking.detectable)} would be found with probability 0.8 by a study like this "
            f"one (90 % interval {_figure(low)} to {_figure(high)}, {searches} searches an arm)"
        )

    @cached_property
    def _range(self) -> float | None:
        """The largest difference that the compared number can have; None where unknown, as with percentages."""
        values = [value for group in self.groups for row in group.rows for value in row.values if math.isfinite(value)]
        is_share = self.study.select != "steps" and all(0 <= value <= 1 for value in values)
        return range_of(self.study.metric) if is_share else None

    def _met(self, group: Group) -> list[str]:
        """Arms whose median over re-runs meets the target in every search: the matching rule; it does not rank."""
        target = self.study.target
        if target is None or self.study.select == "steps" or group.ranking is None:
            return []
        meets = {name: [self._meets(row.median, target.value) for row in group.of(name)] for name in self.study.arms}
        shown = ", ".join(f"{name} in {sum(met)} of {len(met)} searches" for name, met in meets.items())
        lines = [f"the target {target.value:g} is met by the median of re-runs: {shown}"]
        matched = [name for name, met in meets.items() if all(met)]
        if any(remark.kind in ("budget", "freedom") for remark in self.remarks):
            lines.append("nothing is called matched, as budgets or freedom differ: see the warnings")
        elif len(matched) > 1 and not any({p.better, p.worse} <= {*matched} for p in group.ranking.pairs if p.ranked):
            lines.append(
                f"matched: {', '.join(matched)} all meet the target, with equal budgets and equal freedom; this does "
                "not show that they are equal"
            )
        return lines

    def _meets(self, value: float, target: float) -> bool:
        return value <= target if self.study.lower else value >= target

    @cached_property
    def table(self) -> str:
        """Every search of every arm, as text."""
        return "\n".join(aligned(TextTable([[printable(text) for text in row] for row in self.rows])))

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table, its heads first."""
        return [self._heads(), *(self._cells(row) for group in self.groups for row in group.rows)]

    def _heads(self) -> list[str]:
        heads = ["batch", "steps", "arm", "search", "best of search", "median of re-runs", "95 % interval", "train"]
        return [*heads, "reached", "failed", "winner"]

    def _cells(self, row: ResultRow) -> list[str]:
        interval = row.interval
        reached = "" if row.successes is None else f"{row.successes}/{len(row.values)}"
        failed = sum(not math.isfinite(value) for value in row.search_values)
        winner = ", ".join(f"{k}={_number(row.winner[k])}" for k in self.study.arms[row.cell.arm].space)
        return [
            f"{row.cell.batch_size}",
            f"{row.cell.steps}",
            row.cell.arm,
            f"{row.cell.search + 1}",
            _number(row.best_of_search),
            _number(row.median),
            "too few seeds" if interval is None else f"[{_number(interval.low)}, {_number(interval.high)}]",
            _number(row.train_median),
            reached,
            f"{failed}/{len(row.search_values)}",
            winner,
        ]

    @cached_property
    def unasked(self) -> list[str]:
        """Names of records of trials that the study does not ask for: of what it was before a change, or of another."""
        asked = planned(self.study, self.records)
        return [name for name in self.records if name not in asked]

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """The bill of each arm."""
        spent: dict[str, list[Spent]] = {name: [] for name in self.study.arms}
        for record in self.records.values():
            trial = record.trial
            if trial.arm in spent:
                samples = trial.steps * trial.batch_size if record.samples is None else record.samples
                spent[trial.arm].append(Spent(trial.steps, samples, record.status, record.seconds))
        return {name: cost(listed) for name, listed in spent.items()}

    @cached_property
    def remarks(self) -> list[Remark]:
        """What the design and the winners give away."""
        winners: dict[str, list[dict[str, Any]]] = {}
        for group in self.groups:
            for row in group.rows:
                winners.setdefault(row.cell.arm, []).append(row.winner)
        edges = lint_edges(winners, {name: arm.space for name, arm in self.study.arms.items()})
        earlier = lint_rounds(self.rounds, list(self.study.arms), dict(self.hashes).get("data", ""))
        return [*lint(self.study), *earlier, *edges]

    @cached_property
    def scaling(self) -> list[Scaling]:
        """Steps against batch size, where steps to a target were compared at several batch sizes."""
        if self.study.select != "steps" or len(self.study.batch_sizes) < 2:
            return []
        return [_scaling(self.study, arm, self.groups) for arm in self.study.arms]

    def report(self, path: str | os.PathLike[str], *, seconds: bool = False) -> Path:
        """Write the report as one HTML file, and the tables as Markdown and CSV beside it.

        Args:
            path: Of the HTML file, or of a directory for `report.html`.
            seconds: Whether seconds of training stand beside updates, for trials that ran sequentially on one machine.

        Returns:
            The HTML file.

        Raises:
            Refused: seconds are asked for and were not recorded, or on several machines.
        """
        from descend.study.report import write

        return write(self, path, seconds=seconds)


def compare_records(
    study: Study,
    records: Mapping[str, Record],
    amendments: Sequence[dict[str, Any]] = (),
    hashes: Mapping[str, str] | None = None,
    follow_ups: Sequence[dict[str, Any]] = (),
    rounds: Sequence[TuningRound] = (),
) -> Comparison:
    """What the records of a study say.

    Args:
        study: The description.
        records: All that there are; errors among them are as if they had not run.
        amendments: Changes of the description since the first trial.
        hashes: Of code and data.
        follow_ups, rounds: See `Comparison`.
    """
    known = {name: records[name] for name in sorted(records) if records[name].status not in RETRIED}
    groups = [_group(study, size, steps, known) for size in study.batch_sizes for steps in study.budgets(size)]
    left = len(pending(study, known))
    facts = tuple(sorted((hashes or {}).items()))
    return Comparison(study, known, tuple(groups), left, tuple(amendments), facts, tuple(follow_ups), tuple(rounds))


def _group(study: Study, batch_size: int, steps: int, records: Mapping[str, Record]) -> Group:
    own = [cell for cell in cells(study) if (cell.batch_size, cell.steps) == (batch_size, steps)]
    rows = [row for cell in own if (row := _row(study, cell, records)) is not None]
    if len(rows) < len(own) or len(study.arms) < 2:
        return Group(batch_size, steps, tuple(rows), None, ())
    reruns = {name: [row.values for row in rows if row.cell.arm == name] for name in study.arms}
    tunings = {
        name: Tuning(study.trials_of(name), steps, study.searches, len(arm.space)) for name, arm in study.arms.items()
    }
    lower = study.lower or study.select == "steps"
    alike = study.common_random_numbers
    ranking = rank(reruns, lower_is_better=lower, tunings=tunings, margin=study.margin, paired=alike)
    causes = tuple(_cause(study, pair, rows, records) for pair in ranking.pairs)
    return Group(batch_size, steps, tuple(rows), ranking, causes)


def _chosen_by(study: Study, record: Record) -> float:
    """The number by which a record is chosen, in its own units; a failure is the worst infinity."""
    value = score(study, record)
    return -value if study.lower or study.select == "steps" else value


def _row(study: Study, cell: Cell, records: Mapping[str, Record]) -> ResultRow | None:
    again = confirmed(study, cell, records)
    best = winner(study, cell, records)
    if not again or best is None:
        return None
    trials = [records[trial.id] for trial in needed(study, cell, records) if trial.phase == "search"]
    values = tuple(natural(study, record) for record in again)
    searched = tuple(_chosen_by(study, record) for record in trials)
    lower = study.lower or study.select == "steps"
    train = tuple(record.final(study.compared_splits[0], study.metric) for record in again)
    reached = None
    if study.target is not None:
        reached = sum(_reaches(study, record) for record in again)
    found = min(searched) if lower else max(searched)
    test = _tested(study, again)
    return ResultRow(cell, best.configuration, found, values, train, reached, searched, tuple(trials), test)


def _tested(study: Study, again: Sequence[Record]) -> tuple[float, ...]:
    """Scores on test samples of the re-runs; a failure is the worst infinity. Empty where no arm has one."""
    if not any("test" in record.scores for record in again):
        return ()
    worst = math.inf if study.lower else -math.inf
    return tuple(record.final("test", study.metric) if "test" in record.scores else worst for record in again)


def _reaches(study: Study, record: Record) -> bool:
    assert study.target is not None
    if study.select == "steps":
        return math.isfinite(score(study, record))
    value = natural(study, record)
    return value <= study.target.value if study.lower else value >= study.target.value


def _cause(study: Study, pair: Pair, rows: Sequence[ResultRow], records: Mapping[str, Record]) -> str:
    """Training beside validation, by the medians of the searches; empty where they cannot be compared."""
    sign = -1.0 if study.lower else 1.0
    intervals: list[Interval] = []
    for split in study.compared_splits:
        medians = [
            [
                sign
                * median(
                    [_worst(record.final(split, study.metric), sign) for record in confirmed(study, row.cell, records)]
                )
                for row in rows
                if row.cell.arm == name
            ]
            for name in (pair.better, pair.worse)
        ]
        interval = compare_searches(medians[0], medians[1], LEVEL, paired=study.common_random_numbers)[1]
        if interval is None:
            return ""
        intervals.append(interval)
    return f"training beside validation: {train_beside_validation(*intervals)}"


def _worst(value: float, sign: float) -> float:
    return -sign * math.inf if math.isnan(value) else value


def _sentence(pair: Pair, unit: str) -> str:
    between = (
        ""
        if pair.interval is None
        else f", {1 - LEVEL:.0%} interval {pair.interval.low:.4g} to {pair.interval.high:.4g}"
    )
    if pair.interval is not None:
        between += f", probability that it is better {_share(pair.probability)}"
    if pair.ranked:
        by = "" if math.isnan(pair.difference) else f" by {pair.difference:.4g}"
        return f"{pair.better} is better than {pair.worse}{by} ({unit}{between}): {pair.reason}"
    ahead = "" if math.isnan(pair.difference) else f" ({pair.better} is ahead by {pair.difference:.4g}{between})"
    return f"cannot rank {pair.better} and {pair.worse}{ahead}: {pair.reason}"


def _figure(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def _share(probability: float) -> str:
    return f"{probability:.2f}" if probability < 0.995 else f"{min(probability, 0.9999):.4f}"


def _scaling(study: Study, arm: str, groups: Sequence[Group]) -> Scaling:
    examples: dict[float, list[list[float]]] = {}
    every: list[float] = []
    intervals: list[Interval | None] = []
    for group in sorted(groups, key=lambda group: group.batch_size):
        values = [[value * group.batch_size for value in row.values] for row in group.of(arm)]
        if values:
            examples[group.batch_size] = values
            intervals.append(_hull([row.interval for row in group.of(arm)]))
            every.append(group.steps / min(group.steps, study.evaluations) * group.batch_size)
    sizes = [*examples]
    if not sizes:
        return Scaling(arm, (), (), (), None, None, ("no batch size has finished re-runs",))
    medians = [median(itertools.chain.from_iterable(examples[size])) for size in sizes]
    steps = tuple(value / size for size, value in zip(sizes, medians, strict=True))
    batch_sizes = tuple(int(size) for size in sizes)
    try:
        fit = fit_critical_batch_size(sizes, medians, evaluated_every=every)
    except Refused as refused:
        return Scaling(arm, batch_sizes, steps, tuple(intervals), None, None, tuple(refused.problems))
    try:
        interval = critical_batch_size_interval(examples)
    except Refused as refused:
        return Scaling(arm, batch_sizes, steps, tuple(intervals), fit, None, tuple(refused.problems))
    return Scaling(arm, batch_sizes, steps, tuple(intervals), fit, interval, ())


def _hull(intervals: Sequence[Interval | None]) -> Interval | None:
    """From the lowest to the highest end of all; None where one is missing."""
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return None
    return Interval(min(low for low, _ in known), max(high for _, high in known))


def _number(value: Any) -> str:
    if isinstance(value, float):
        return "failed" if math.isinf(value) else "-" if math.isnan(value) else f"{value:.4g}"
    return str(value)
