"""The paragraph on methods: what was done, as a paper says it, and the commands that repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.study.analysis.power import PAIRED_FROM, PAIRED_SHARE
from descend.study.analysis.ranking import LEVEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from descend.study.results import Comparison

__all__ = ["COMMAND", "methods"]

COMMAND = "descend study report DIRECTORY"
_POINTS = {"sobol": "scrambled Sobol points", "random": "random points", "grid": "the points of a grid"}


def methods(comparison: Comparison) -> Iterator[str]:
    """Sentences without anything that depends on when or where a study ran."""
    study = comparison.study
    arms = [f"{name} ({arm.title})" if arm.title != name else name for name, arm in study.arms.items()]
    sizes = _listed([f"{size:,}" for size in study.batch_sizes])
    budgets = _listed([f"{steps:,}" for steps in sorted({group.steps for group in comparison.groups})])
    compared = f"{study.metric} after the last update"
    if study.select == "steps":
        compared = "steps until the target was met"
    better = "less" if comparison.lower else "more"
    searches = "one search" if study.searches == 1 else f"{study.searches} independent searches"
    chosen = "The best trial of a search won."
    if study.shortlist > 1:
        chosen = (
            f"The best {study.shortlist} trials of a search were repeated with {study.shortlist_seeds} seeds each, and "
            "the best median among them won."
        )
    target = ""
    if study.target is not None:
        target = f" The target, {study.metric} {study.target.value:g}, was set before the first trial."
    tests = f"by Welch's t-test at the level of {LEVEL:.0%}"
    if study.common_random_numbers and study.searches >= PAIRED_FROM:
        tests = (
            f"at the level of {LEVEL:.0%} by the more certain of Welch's t-test and a t-test in pairs of searches with "
            f"common seeds, each at {PAIRED_SHARE:g} of the level"
        )
    yield (
        f"We compared {_listed(arms)} on the workload `{study.workload}` at batch size {sizes} with {budgets} steps "
        f"a run, by {compared} on {study.split} samples, where {better} is better.{target} "
        f"Each arm was tuned in {searches} of {study.trials} trials, {_POINTS[study.sampler]} in the ranges of the "
        f"table of arms; trials that diverged count as failures and are charged in full. {chosen} The winner of each "
        f"search was then trained with {study.confirmation_seeds} fresh seeds, which had no part in the tuning; all "
        "results are of these runs, given as medians with exact intervals of 95 % from order statistics. Two arms are "
        f"ranked {tests}, over one number for each search, the median of its re-runs, with Holm's correction for the "
        "number of pairs."
    )
    yield (
        "The trials: `descend study run study.toml DIRECTORY`, with the description below as `study.toml`. Every "
        f"table and figure, as CSV, LaTeX, Vega-Lite and SVG in `report.parts`: `{COMMAND}`. What they cost in "
        "seconds: `descend study status DIRECTORY`. Post-hoc analyses name their commands."
    )


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
