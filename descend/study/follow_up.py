"""Questions to a finished study: what would each winner do with the other's setting, and what of a winner matters?

Both run new trials with fresh seeds, one module at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, Refused, nearest
from descend.study.analysis import MinimalDifference, Swapped, median, minimal_difference, swap, swap_table
from descend.study.design.sampling import seed_of
from descend.study.running.plan import score
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Trial
from descend.study.task import task_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.study.results import Comparison, ResultRow

__all__ = ["best_row", "minimize_difference", "rule_of", "swap_setting"]


@dataclass(frozen=True)
class _Reruns:
    """Runs settings of a study again, with seeds that no phase of it has."""

    comparison: Comparison
    batch_size: int
    steps: int
    seeds: int

    def values(self, arm: str, configuration: Mapping[str, Any]) -> list[float]:
        """The compared number of each seed, larger is better."""
        study = self.comparison.study
        task = task_of(study, configuration)
        kind = study.arms[arm].optimizer
        found: list[float] = []
        for number in range(self.seeds):
            seed = seed_of(study.seed, "follow-up", number)
            trial = Trial(arm, self.batch_size, self.steps, 0, "follow-up", 0, number, seed, dict(configuration))
            record = run_trial(task, trial, study.evaluations, kind=None if isinstance(kind, str) else kind)
            if record.status == "error":
                raise ConfigurationError(f"{arm} cannot run with these settings: {record.message}")
            found.append(score(study, record))
        return found


def best_row(comparison: Comparison, arm: str) -> ResultRow:
    """The best search of an arm at the first batch size and budget."""
    if arm not in comparison.study.arms:
        raise ConfigurationError(f"the study has no arm '{arm}'{nearest(arm, comparison.study.arms)}")
    rows = comparison.groups[0].of(arm)
    if not rows:
        raise Refused(f"{arm} has no winner yet: run the study to its end first")
    lower = comparison.study.lower or comparison.study.select == "steps"
    return min(rows, key=lambda row: row.median if lower else -row.median)


def swap_setting(comparison: Comparison, setting: str, seeds: int = 10) -> tuple[Swapped, ...]:
    """Give each arm's winner the others' value of a setting, change nothing else, and run all of them.

    Args:
        comparison: A finished study.
        setting: A dotted name that all winners have, such as "schedule.warmup_power".
        seeds: Fresh ones for each cell.

    Returns:
        A cell for each pair of arms; `change` is positive where the other's value is better.

    Raises:
        ConfigurationError: an arm has no such setting.
    """
    group = comparison.groups[0]
    runs = _Reruns(comparison, group.batch_size, group.steps, seeds)
    winners = {arm: best_row(comparison, arm).winner for arm in comparison.study.arms}
    lower = comparison.study.lower or comparison.study.select == "steps"
    sign = -1.0 if lower else 1.0
    values = {
        (arm, giver): [sign * value for value in runs.values(arm, configuration)]
        for (arm, giver), configuration in swap(winners, setting).items()
    }
    return swap_table(values, lower_is_better=lower)


def minimize_difference(comparison: Comparison, arm: str, reference: str, seeds: int = 10) -> MinimalDifference:
    """Set each value of an arm's winner back to that of another arm's, one by one, as long as the rule is still met.

    The rule is the target, or without one the lower end of the interval of the winner's own re-runs. Only settings that
    both arms have are set back; the optimizer is not.

    Raises:
        ConfigurationError: there is no such arm, or both are the same.
        Refused: the winner itself does not meet the rule with these seeds, or has too few for an interval.
    """
    if arm == reference:
        raise ConfigurationError(f"{arm} differs in nothing from itself: name another arm to bring it back to")
    group = comparison.groups[0]
    runs = _Reruns(comparison, group.batch_size, group.steps, seeds)
    row, other = best_row(comparison, arm), best_row(comparison, reference)
    least = _least(comparison, row)
    shared = {name: value for name, value in other.winner.items() if name in row.winner and name != "optimizer"}
    back = {**row.winner, **shared}

    def passes(configuration: Mapping[str, Any]) -> bool:
        return median(runs.values(arm, configuration)) >= least

    return minimal_difference(row.winner, back, passes)


def rule_of(comparison: Comparison, arm: str) -> str:
    """The rule of a minimal difference, a phrase."""
    least = _least(comparison, best_row(comparison, arm))
    study = comparison.study
    side, value = ("at most", -least) if study.lower or study.select == "steps" else ("at least", least)
    return f"the median of {comparison.unit} is {side} {value:.5g}"


def _least(comparison: Comparison, row: ResultRow) -> float:
    """What the rule asks for, larger is better."""
    study = comparison.study
    lower = study.lower or study.select == "steps"
    if study.target is not None and study.select == "value":
        return -study.target.value if lower else study.target.value
    interval = row.interval
    if interval is None:
        raise Refused(
            f"{row.cell.arm} has {len(row.values)} re-runs and 6 are needed to say what still counts as equal"
        )
    return -interval.high if lower else interval.low
