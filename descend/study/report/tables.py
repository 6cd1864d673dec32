"""The tables of a report, as text in cells: HTML, Markdown and CSV show the same ones.

Nothing here depends on when or where a study ran.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.errors import Refused
from descend.pages.parts import Table
from descend.study.analysis import (
    best_rate_by_decay,
    detectable_difference,
    differences,
    expected_best,
    fraction_reaching,
    median_interval,
    probability_best,
    seeds_needed,
    stable_width,
    success_interval,
)
from descend.study.analysis.intervals import median
from descend.study.analysis.ranking import LEVEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.study.design.space import Dimension
    from descend.study.results import Comparison, Group, ResultRow

__all__ = [
    "Table",
    "arms",
    "bill",
    "lineage",
    "needed",
    "noise",
    "pairs",
    "power",
    "published",
    "results",
    "scaling",
    "sharpness",
    "short",
    "stated",
    "swaps",
    "test",
    "trials",
    "tunability",
    "where",
    "winners",
]


def short(value: Any) -> str:
    """A number in five digits."""
    if isinstance(value, float):
        return "failed" if math.isinf(value) else "-" if math.isnan(value) else f"{value:.5g}"
    return str(value)


def _between(interval: Any) -> str:
    return "too few seeds" if interval is None else f"[{short(interval.low)}, {short(interval.high)}]"


def where(group: Group) -> str:
    """The batch size and budget of a group."""
    return f"batch {group.batch_size:,}, {group.steps:,} steps"


def arms(comparison: Comparison) -> Table:
    """What is compared."""
    rows = [
        (
            name,
            arm.title,
            arm.schedule,
            "; ".join(f"{_searched(k, d)} ({d.size})" for k, d in arm.space.items()),
            "; ".join(f"{key} = {value}" for key, value in arm.fixed.items()),
        )
        for name, arm in comparison.study.arms.items()
    ]
    return Table("arms", ("arm", "optimizer", "schedule", "searched over", "fixed"), tuple(rows))


def _searched(name: str, one: Dimension) -> str:
    """What is drawn, and from where: "lr: log 0.01 to 10", "1 - momentum: log 0.005 to 0.3", "eps: 1e-8 or 1e-6"."""
    if one.kind == "choice":
        return f"{name}: {' or '.join(map(str, one.options))}"
    drawn, kind = (f"1 - {name}", "log") if one.kind == "one_minus_log" else (name, one.kind)
    return f"{drawn}: {kind} {' to '.join(map(str, one.options))}"


def bill(comparison: Comparison) -> Table:
    """What each arm was given and used."""
    rows = [
        (
            name,
            f"{one.trials:,}",
            f"{one.steps:,}",
            f"{one.samples:,}",
            f"{len(comparison.study.arms[name].space)}",
            ", ".join(f"{count} {status}" for status, count in one.statuses.items()),
        )
        for name, one in comparison.costs.items()
    ]
    heads = ("arm", "trials", "steps", "samples", "hyperparameters tuned", "how they ended")
    note = "All phases; a trial that failed is charged in full. `descend study status DIRECTORY` has the seconds."
    return Table("cost", heads, tuple(rows), note)


def lineage(comparison: Comparison) -> Table | None:
    """The rounds of tuning that led to the study, and what all of them cost."""
    if not comparison.rounds:
        return None
    rows: list[tuple[str, ...]] = []
    for name, own in comparison.costs.items():
        counts = [own.trials, own.steps, own.samples]
        for one in comparison.rounds:
            if name not in one.arms:
                rows.append((name, one.directory, "not among its arms", "", "", "", ""))
                continue
            arm = one.arms[name]
            searched = "; ".join(f"{key}: {value}" for key, value in arm.space.items())
            found = "" if arm.median is None else f"{short(arm.median)} ({one.unit})"
            rows.append((name, one.directory, searched, f"{arm.trials:,}", f"{arm.steps:,}", f"{arm.samples:,}", found))
            counts = [a + b for a, b in zip(counts, (arm.trials, arm.steps, arm.samples), strict=True)]
        rows.append((name, "this study", "see above", f"{own.trials:,}", f"{own.steps:,}", f"{own.samples:,}", ""))
        rows.append((name, "all rounds", "", *(f"{count:,}" for count in counts), ""))
    heads = ("arm", "round", "searched over", "trials", "steps", "samples", "median of all re-runs")
    return Table("lineage", heads, tuple(rows), "Earlier studies that this one names in `rounds`, in their order.")


def results(comparison: Comparison) -> Table:
    """A row for each search of each arm."""
    heads, *rows = comparison.rows
    note = (
        '"Best of search" is the trial that a search chose by; it overstates what the setting repeats to, and is never '
        "compared. Records: phases search and confirmation."
    )
    return Table("results", tuple(heads), tuple(map(tuple, rows)), note)


def pairs(group: Group) -> Table | None:
    """What may be said of each two arms, and why."""
    if group.ranking is None:
        return None
    margin = group.ranking.margin
    rows = [
        (
            pair.better,
            pair.worse,
            short(pair.difference),
            "" if pair.interval is None else _between(pair.interval),
            short(pair.probability),
            short(pair.p),
            "better" if pair.ranked else "cannot rank",
            *([] if margin is None else ["yes" if pair.equivalent else "not shown"]),
            pair.reason,
            cause.partition(": ")[2],
        )
        for pair, cause in zip(group.ranking.pairs, group.causes, strict=True)
    ]
    note = (
        "By one number a search. Intervals hold for all pairs of the table together (Bonferroni), which is a little "
        "stricter than Holm's test."
    )
    heads = (
        "ahead",
        "behind",
        "by",
        f"{100 * (1 - LEVEL):g} % interval",
        "P(ahead is better)",
        "p after Holm",
        "verdict",
        *([] if margin is None else [f"equivalent within {margin:g}"]),
        "because",
        "training beside validation",
    )
    return Table(f"pairs, {where(group)}", heads, tuple(rows), note)


def published(comparison: Comparison) -> Table | None:
    """What others found, beside the median over all re-runs."""
    rows: list[tuple[str, ...]] = []
    for title, said in comparison.study.reference.items():
        here = [
            f"{short(median([v for row in group.of(title) for v in row.values]))} ({where(group)})"
            for group in comparison.groups
            if group.of(title)
        ]
        rows.append((title, short(said), "; ".join(here)))
    return Table("published", ("", "published", "here, median of all re-runs"), tuple(rows)) if rows else None


def test(comparison: Comparison) -> Table | None:
    """The test samples, apart from everything that anything was chosen by."""
    rows = [
        (
            f"{group.batch_size}",
            f"{group.steps}",
            row.cell.arm,
            f"{row.cell.search + 1}",
            short(median(row.test)),
            _between(median_interval(row.test)),
        )
        for group in comparison.groups
        for row in group.rows
        if row.test
    ]
    heads = ("batch", "steps", "arm", "search", "median on test samples", "95 % interval")
    note = "Looked at once, after the re-runs of confirmed winners; nothing was chosen by it. Records: confirmation."
    return Table("test", heads, tuple(rows), note) if rows else None


def winners(comparison: Comparison, group: Group) -> Table | None:
    """The winners of all searches side by side; settings on which all agree are left out."""
    if len(group.rows) < 2:
        return None
    first = group.rows[0].winner
    names = list(dict.fromkeys(k for row in group.rows for k in (*differences(first, row.winner),)))
    rows = [(name, *(short(row.winner.get(name, "")) for row in group.rows)) for name in names]
    heads = ("setting", *(f"{row.cell.arm} {row.cell.search + 1}" for row in group.rows))
    return Table(
        f"winners, {where(group)}", heads, tuple(rows), "Arm and number of the search; equal settings are left out."
    )


def _sd(rows: Sequence[ResultRow]) -> float | None:
    """From seed to seed, pooled over searches; None where a re-run failed or there is one seed."""
    squares, freedom = 0.0, 0
    for row in rows:
        values = np.asarray(row.values)
        if not np.isfinite(values).all():
            return None
        squares += float(((values - values.mean()) ** 2).sum())
        freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None


def power(comparison: Comparison, group: Group) -> Table:
    """What the re-runs could have shown."""
    rows: list[tuple[str, ...]] = []
    middles = {
        name: float(np.mean([row.median for row in own])) for name in comparison.study.arms if (own := group.of(name))
    }
    leader = min(middles.values()) if comparison.lower else max(middles.values())
    for name in comparison.study.arms:
        own = group.of(name)
        if not own:
            continue
        sd = _sd(own)
        medians = [row.median for row in own]
        spread = f"{short(min(medians))} to {short(max(medians))}"
        if sd is None:
            rows.append((name, spread, "-", "-", "-"))
            continue
        seen = detectable_difference(sd, len(own[0].values), of_medians=True)
        behind = abs(middles[name] - leader)
        seeds = f"{seeds_needed(behind, sd, of_medians=True)}" if behind > 0 and math.isfinite(behind) else ""
        rows.append((name, spread, short(sd), short(seen), seeds))
    heads = (
        "arm",
        "medians of its searches",
        "sd from seed to seed",
        "minimum detectable difference",
        "seeds to see that to the leader",
    )
    note = (
        "A difference of medians of re-runs, found with probability 0.8 at 5 % between two settings. One between arms "
        "must also exceed the spread between searches; the verdict says which one that would have been."
    )
    return Table(f"power, {where(group)}", heads, tuple(rows), note)


def stated(comparison: Comparison, group: Group) -> tuple[float, str]:
    """The value that tunability is measured against, and why this one."""
    study = comparison.study
    finite = [v for row in group.rows for v in row.search_values if math.isfinite(v)]
    if study.select == "steps":
        return (max(finite) if finite else math.inf), "the target, within the budget"
    if study.target is not None:
        return study.target.value, f"the target {study.target.value:g}"
    middle = median(finite) if finite else math.nan
    return middle, f"{short(middle)}, the median of all trials, as there is no target"


def tunability(comparison: Comparison, group: Group) -> Table:
    """How hard each arm is to tune, from its searches alone."""
    target, why = stated(comparison, group)
    searched = {name: [v for row in group.of(name) for v in row.search_values] for name in comparison.study.arms}
    known = {name: values for name, values in searched.items() if values}
    few = max(1, min((len(values) for values in known.values()), default=2) // 2)
    best = probability_best(known, few, lower_is_better=comparison.lower) if known else {}
    rows = [
        (
            name,
            _fraction(values, target, comparison.lower),
            _width(comparison, group, name, target),
            _first_failure(group, name),
            short(expected_best(values, few, lower_is_better=comparison.lower)),
            f"{best[name]:.2f}",
            _slope(comparison, group, name),
        )
        for name, values in known.items()
    ]
    heads = (
        "arm",
        "fraction reaching the target",
        "learning-rate tolerance",
        "lowest learning rate that failed",
        f"expected best of {few}",
        f"probability of the best of {few}",
        "slope of best learning rate over weight decay",
    )
    note = (
        f"Reached is {why}. Tolerance: largest learning rate that reaches it over the best one; 1 is a cliff, ≥ where "
        "the largest one tried still reaches it. Failed: diverged, or a training loss that did not fall. Slope: of log "
        "rate over log decay, −1 for an inverse relation, 0 for none. All searches together. Records: phase search."
    )
    return Table(f"tunability, {where(group)}", heads, tuple(rows), note)


def _fraction(values: Sequence[float], target: float, lower: bool) -> str:
    part = fraction_reaching(values, target, lower_is_better=lower)
    interval = success_interval(round(part * len(values)), len(values))
    return f"{part:.0%} [{interval.low:.0%}, {interval.high:.0%}]"


def _width(comparison: Comparison, group: Group, name: str, target: float) -> str:
    if "lr" not in comparison.study.arms[name].space:
        return "rate not searched"
    rates = [float(r.trial.configuration["lr"]) for row in group.of(name) for r in row.searched]
    values = [v for row in group.of(name) for v in row.search_values]
    try:
        width = stable_width(rates, values, target, lower_is_better=comparison.lower)
    except Refused:
        return "none reaches it"
    score = np.array(values) * (-1 if comparison.lower else 1)
    best = rates[int(np.argmax(np.where(np.isfinite(score), score, -np.inf)))]
    open_end = width * best >= max(rates) * (1 - 1e-12)
    return f"{'≥ ' if open_end else ''}{width:.3g} ({best:.3g} to {width * best:.3g})"


def _first_failure(group: Group, name: str) -> str:
    """The lowest rate of a trial that diverged or collapsed."""
    failed = [
        float(record.trial.configuration["lr"])
        for row in group.of(name)
        for record in row.searched
        if record.status in ("diverged", "collapsed")
    ]
    return f"{min(failed):.3g} ({len(failed)} trials)" if failed else "none"


def _slope(comparison: Comparison, group: Group, name: str) -> str:
    found = ridge(comparison, group, name)
    return "" if found is None else "too few points" if found.slope is None else f"{found.slope:.2f}"


def ridge(comparison: Comparison, group: Group, name: str) -> Any:
    """The best rate for each decay of an arm, None where it does not search over both."""
    if not {"lr", "weight_decay"} <= comparison.study.arms[name].space.keys() or not group.of(name):
        return None
    records = [r for row in group.of(name) for r in row.searched]
    values = [v for row in group.of(name) for v in row.search_values]
    grid = comparison.study.sampler == "grid"
    return best_rate_by_decay(
        [float(r.trial.configuration["lr"]) for r in records],
        [float(r.trial.configuration["weight_decay"]) for r in records],
        values,
        bins=None if grid else max(3, round(math.sqrt(len(values)))),
        lower_is_better=comparison.lower,
    )


def scaling(comparison: Comparison) -> Table | None:
    """Steps to the target at each batch size, and the fit or its refusal."""
    if not comparison.scaling:
        return None
    sizes = comparison.study.batch_sizes
    rows: list[tuple[str, ...]] = []
    for one in comparison.scaling:
        steps = dict(zip(one.batch_sizes, one.steps, strict=True))
        shown = [
            "-" if size not in steps else "missed" if math.isinf(steps[size]) else short(steps[size]) for size in sizes
        ]
        fit = f"refused: {'; '.join(one.refused)}"
        if one.fit is not None:
            interval = "" if one.interval is None else f" [{one.interval.low:,.0f}, {one.interval.high:,.0f}]"
            missing = f"; no interval: {'; '.join(one.refused)}" if one.interval is None else ""
            fit = (
                f"{one.fit.critical_batch_size:,.0f}{interval}{missing}; at least {one.fit.minimum_steps:.3g} steps "
                f"and {one.fit.minimum_examples:.3g} samples; rms error of log samples {one.fit.rms_log_error:.2g}"
            )
        rows.append((one.arm, *shown, fit))
    heads = ("arm", *(f"steps at {size:,}" for size in sizes), "critical batch size")
    return Table("batch size", heads, tuple(rows), "Medians over all re-runs. Records: phase confirmation.")


def swaps(found: dict[str, Any]) -> Table:
    """Each winner with the value of every other, table 2 of the source."""
    rows = [
        (
            c["arm"],
            c["giver"],
            short(c["median"]),
            "too few seeds" if c["interval"] is None else _ends(c["interval"]),
            short(c["change"]),
        )
        for c in found["cells"]
    ]
    heads = ("winner of", f"{found['setting']} of", "median", "95 % interval", "gain over its own value")
    note = f"{found['seeds']} fresh seeds each, nothing re-tuned. `{found['command']}`"
    return Table(f"swap of {found['setting']}", heads, tuple(rows), note)


def needed(found: dict[str, Any]) -> Table:
    """The smallest set of changes, table 1 of the source."""
    rows = [(name, short(theirs), short(ours), "yes") for name, (theirs, ours) in found["needed"].items()]
    rows += [(name, short(theirs), short(ours), "no") for name, (theirs, ours) in found["taken_back"].items()]
    heads = ("setting", found["reference"], found["arm"], "needed")
    tried = f"{found['tried']} configurations were tried"
    note = f"{found['rule']}, with {found['seeds']} fresh seeds; {tried}. `{found['command']}`"
    return Table(f"difference of {found['arm']} to {found['reference']}", heads, tuple(rows), note)


def noise(found: dict[str, Any]) -> Table:
    """The gradient noise scale along a run."""
    rows = [
        (
            f"{one['step']}",
            "refused" if one["scale"] is None else short(one["scale"]),
            "" if one["interval"] is None else _ends(one["interval"]),
            one["said"] or "",
        )
        for one in found["points"]
    ]
    heads = ("update", "noise scale, samples", "95 % interval", "")
    note = (
        f"tr(Σ)/‖G‖² of the winner of {found['arm']}, from {found['repeats']} batches of {found['parts']} parts of "
        f"{found['part_size']} samples at the weights after so many steps: an indicator. "
        f"`{found['command']}`"
    )
    return Table(f"noise scale of {found['arm']}", heads, tuple(rows), note)


def sharpness(found: dict[str, Any]) -> Table:
    """The largest Hessian eigenvalue along a run, and how stable its steps are."""
    columns = ("sharpness", "sharpness_error", "hessian_smallest", "preconditioned_sharpness", "stability")
    rows = [
        (f"{one['step']}", *("" if one.get(name) is None else short(float(one[name])) for name in columns))
        for one in found["points"]
    ]
    heads = ("update", "largest eigenvalue", "its error", "smallest eigenvalue", "preconditioned", "stability")
    note = (
        "Of the Hessian of the objective on the first mini-batch, by Lanczos' method. Stability is learning rate times "
        "curvature over the limit of the rule: above 1 a step along the sharpest direction overshoots; empty where "
        f"no limit is known of a rule. `{found['command']}`"
    )
    return Table(f"sharpness of {found['arm']}", heads, tuple(rows), note)


def _ends(pair: Sequence[float]) -> str:
    return f"[{short(float(pair[0]))}, {short(float(pair[1]))}]"


def trials(comparison: Comparison) -> Table:
    """Every trial: its name, settings, end and scores."""
    study = comparison.study
    tested = any("test" in record.scores for record in comparison.records.values())
    rows = [
        (
            name,
            record.status if record.failed_at is None else f"{record.status} at update {record.failed_at}",
            f"{record.trial.seed}",
            *(short(record.final(split, study.metric)) for split in study.compared_splits),
            *((short(record.final("test", study.metric)) if "test" in record.scores else "",) if tested else ()),
            ", ".join(
                f"{key}={short(record.trial.configuration[key])}"
                for key in (study.arms[record.trial.arm].space if record.trial.arm in study.arms else ())
            ),
        )
        for name, record in comparison.records.items()
    ]
    heads = ("trial", "status", "seed", "train", "validation", *(("test",) if tested else ()), "settings")
    return Table("trials", heads, tuple(rows))
