"""What is often a mistake in the design of a study, or shows in its winners.

unequal freedom      an arm may tune, or sets apart, what others may not; or has more trials or a wider range
schedule             jumps, a first step of rate 0, a length that does not fit; seen at the middle of each space
variants             rules of one family that differ in a switch that is not compared
search-space edge    a winner within a tenth of an end of its range
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.rule_index import rules
from descend.study.design.arm import ENGINE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from descend.study.design.arm import Arm
    from descend.study.design.space import Dimension
    from descend.study.design.study import Study

__all__ = ["Remark", "counted", "lint", "lint_edges"]

# One of a kind and several, as `counted` says them.
_KINDS = {
    "budget": ("arm with a smaller budget", "arms with a smaller budget"),
    "data": ("difference in the data", "differences in the data"),
    "edge": ("best value near an end of its range", "best values near an end of their range"),
    "freedom": ("difference in what is tuned", "differences in what is tuned"),
    "schedule": ("doubtful schedule", "doubtful schedules"),
    "variant": ("difference between variants of a rule", "differences between variants of a rule"),
}

_SWITCHES = ("bias_correction", "eps_at", "rate_inside", "decay", "eps", "ratio_of", "one_at_zero_gradient")


@dataclass(frozen=True)
class Remark:
    """One finding.

    Attributes:
        kind: "freedom", "budget", "schedule", "variant", "edge" or "data".
        arm: Whom it is about.
        text: A sentence with the numbers and what to do.
    """

    kind: str
    arm: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.arm}: {self.text}"


def counted(remarks: Iterable[Remark]) -> str:
    """How many remarks there are of each kind, in words; empty without any."""
    kinds = Counter(remark.kind for remark in remarks)
    return ", ".join(f"{count} {_KINDS[kind][count > 1]}" for kind, count in sorted(kinds.items()))


def lint(study: Study) -> list[Remark]:
    """Look at a design before anything runs. Imports torch for the schedules."""
    return [*_budgets(study), *_freedom(study.arms), *_ranges(study.arms), *_variants(study.arms), *_schedules(study)]


def _budgets(study: Study) -> Iterable[Remark]:
    trials = {name: study.trials_of(name) for name in study.arms}
    most = max(trials.values())
    for name, count in trials.items():
        if count < most:
            yield Remark("budget", name, f"has {count} trials a search and another arm {most}; nothing will be ranked")


def _is_freedom(name: str) -> bool:
    """Settings whose range helps an optimizer whatever it is: of roles, schedule and workload, and the decay."""
    return name.startswith(("roles.", "schedule.", "workload.")) or name == "weight_decay"


def _freedom(arms: Mapping[str, Arm]) -> Iterable[Remark]:
    """What one arm tunes or sets that another leaves as it is. A rule of its own for some roles is the comparison."""
    names = {
        name
        for arm in arms.values()
        for name in (*arm.space, *arm.fixed)
        if _is_freedom(name) and not name.endswith(".optimizer") and not _of_another_rule(name, arm)
    }
    for name in sorted(names):
        tuned = [title for title, arm in arms.items() if name in arm.space]
        set_apart = [title for title, arm in arms.items() if name in arm.fixed]
        if not tuned and len({repr(_held(arm, name)) for arm in arms.values()}) == 1:
            continue
        for title, arm in arms.items():
            if name in arm.space:
                continue
            if tuned:
                yield Remark(
                    "freedom",
                    title,
                    f"'{name}' is tuned for {', '.join(tuned)} and not here: tune it for all or for none",
                )
            elif name not in arm.fixed:
                yield Remark(
                    "freedom",
                    title,
                    f"'{name}' is set for {', '.join(set_apart)} and not here: give it to all, or take it away",
                )
    sizes = {title: len(arm.space) for title, arm in arms.items()}
    for title, size in sizes.items():
        if size < max(sizes.values()):
            yield Remark("freedom", title, f"{size} numbers are tuned here and {max(sizes.values())} elsewhere")


def _of_another_rule(name: str, arm: Arm) -> bool:
    """Whether a fixed setting is an option of the rule that an arm gives to some roles, such as that rule's eps."""
    head, _, option = name.rpartition(".")
    return name in arm.fixed and f"{head}.optimizer" in arm.fixed and option not in ENGINE_OPTIONS


def _held(arm: Arm, name: str) -> Any:
    """The value of a setting that is not searched over: as it is fixed, or by default."""
    known = rules().get(arm.title.lower())
    default = dict(known.options).get(name) if known else None
    return arm.fixed.get(name, ast.literal_eval(default) if default else None)


def _ranges(arms: Mapping[str, Arm]) -> Iterable[Remark]:
    """Ranges of one name that differ between arms. A rate has other units in every rule, so its width counts alone."""
    for name in sorted({name for arm in arms.values() for name in arm.space}):
        sizes = {title: arm.space[name].size for title, arm in arms.items() if name in arm.space}
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{title} {size}" for title, size in sizes.items())
            yield Remark("freedom", next(iter(sizes)), f"the ranges of '{name}' are not equally wide: {shown}")


def _variants(arms: Mapping[str, Arm]) -> Iterable[Remark]:
    """Switches that change what a rule is, set for one arm of a rule and not for another of it."""
    for switch in _SWITCHES:
        by_rule: dict[str, dict[str, Any]] = {}
        for title, arm in arms.items():
            by_rule.setdefault(arm.title, {})[title] = arm.fixed.get(switch, "(default)")
        for rule, values in by_rule.items():
            if len({repr(value) for value in values.values()}) > 1:
                shown = ", ".join(f"{title} {value}" for title, value in values.items())
                yield Remark(
                    "variant",
                    next(iter(values)),
                    f"arms of {rule} differ in '{switch}': {shown}; is that what is compared?",
                )


def _middle(arm: Arm) -> dict[str, Any]:
    return arm.configuration({name: one.at(0.5) for name, one in arm.space.items()})


_STEPS_LOOKED_AT = 10_000  # lengths are fractions of the run, so a longer one has the same form


def _schedules(study: Study) -> Iterable[Remark]:
    from descend.optim.schedules import lint as look
    from descend.study.design.schedules import make_schedule

    for title, arm in study.arms.items():
        middle = _middle(arm)
        options = {name.removeprefix("schedule."): v for name, v in middle.items() if name.startswith("schedule.")}
        for steps in sorted({count for size in study.batch_sizes for count in study.budgets(size)}):
            looked = min(steps, _STEPS_LOOKED_AT)
            schedule = make_schedule(arm.schedule, options, float(middle["lr"]), looked)
            rates = [rate for _, rate in schedule.curve(looked)]
            for finding in look(schedule, looked):
                if finding.kind == "jump" and not _stands_out(rates, finding.step):
                    continue
                yield Remark("schedule", title, f"with {looked} updates, {finding}")


def _stands_out(rates: Sequence[float], step: int) -> bool:
    """Whether the change before a step is more than twice those around it; a ramp in a short run has large ones."""
    changes = [abs(after - before) for before, after in itertools.pairwise(rates)]
    around = [changes[place] for place in (step - 2, step) if 0 <= place < len(changes)]
    return changes[step - 1] > 2 * max(around, default=0.0)


def lint_edges(
    winners: Mapping[str, Iterable[Mapping[str, Any]]], spaces: Mapping[str, Mapping[str, Dimension]]
) -> list[Remark]:
    """Winners that lie at an end of their range, where a better value may lie beyond.

    Args:
        winners: The configurations that won the searches of each arm.
        spaces: What each arm was searched over.
    """
    found: list[Remark] = []
    for title, configurations in winners.items():
        for number, configuration in enumerate(configurations):
            for name, one in spaces[title].items():
                value = configuration.get(name)
                end = one.edge(value) if isinstance(value, (int, float)) else None
                if end:
                    low, high = one.bounds
                    where = f"{name} = {value:.3g}, near the {end} end of its range, {low:g} to {high:g}"
                    text = f"search {number + 1} ended at {where}: widen the range and search again"
                    found.append(Remark("edge", title, text))
    return found
