"""Two configurations side by side: what differs, what of it matters, and what each would do with the other's setting.

A configuration is a flat mapping from dotted names to values: `{"lr": 7.05, "schedule.warmup_power": 2}`.

Source: Nado et al. 2021, table 1 (configuration A is reduced to B) and table 2 (swap of the warm-up power).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, Refused, nearest
from descend.study.analysis.intervals import Interval, median, median_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["MinimalDifference", "Swapped", "differences", "minimal_difference", "swap", "swap_table"]

_ABSENT = "(absent)"


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each name on which two configurations differ, with both values; what one lacks is "(absent)"."""
    names = [*a, *(name for name in b if name not in a)]
    pairs = {name: (a.get(name, _ABSENT), b.get(name, _ABSENT)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@dataclass(frozen=True)
class MinimalDifference:
    """The changes to a reference that are needed.

    Attributes:
        needed: Name to (value of the reference, value that is needed). Taking back any single one of them fails.
        taken_back: Names that could be set to the reference's value, in the order in which that was found.
        given_up: The same names to (value of the reference, value that was not needed).
        configuration: The reference with what is needed.
        tried: Each configuration that was tried, as the names that differed from the reference, and whether it passed.
    """

    needed: dict[str, tuple[Any, Any]]
    taken_back: tuple[str, ...]
    given_up: dict[str, tuple[Any, Any]]
    configuration: dict[str, Any]
    tried: tuple[tuple[tuple[str, ...], bool], ...]


def minimal_difference(
    configuration: Mapping[str, Any],
    reference: Mapping[str, Any],
    passes: Callable[[Mapping[str, Any]], bool],
    *,
    fixed: Sequence[str] = (),
) -> MinimalDifference:
    """Set each value back to the reference's, one by one, and keep the smallest set of changes that still passes.

    Args:
        configuration: The one that passes.
        reference: The one to get close to.
        passes: The rule, for example "the median of 20 fresh seeds reaches the target".
        fixed: Names that are never set back, such as the optimizer itself.

    Returns:
        A set from which no single change can be taken back. It is the smallest one of all if a configuration that
        fails also fails with more values taken back.

    Raises:
        Refused: `configuration` itself does not pass.
    """
    for name in fixed:
        known = [*configuration, *reference]
        if name not in known:
            raise ConfigurationError(f"fixed: there is no setting '{name}'{nearest(name, known)}")
    tried: dict[tuple[str, ...], bool] = {}

    def works(names: Sequence[str]) -> bool:
        key = tuple(names)
        if key not in tried:
            tried[key] = bool(passes(_with(configuration, reference, key)))
        return tried[key]

    needed = [*differences(configuration, reference)]
    if not works(needed):
        raise Refused("the configuration itself does not pass the rule, so there is nothing to take back")
    taken_back: list[str] = []
    while name := next((n for n in needed if n not in fixed and works([m for m in needed if m != n])), None):
        needed.remove(name)
        taken_back.append(name)
    pairs = differences(reference, _with(configuration, reference, needed))
    every = differences(reference, configuration)
    given_up = {name: every[name] for name in taken_back}
    reduced = _with(configuration, reference, needed)
    return MinimalDifference(pairs, tuple(taken_back), given_up, reduced, tuple(tried.items()))


def _with(configuration: Mapping[str, Any], reference: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The reference, with the configuration's values (or absences) under `names`."""
    kept = {name: value for name, value in reference.items() if name not in names}
    return kept | {name: configuration[name] for name in names if name in configuration}


def swap(configurations: Mapping[str, Mapping[str, Any]], name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Each configuration with its own value of a setting and with that of every other, nothing else changed.

    Returns:
        (whose configuration, whose value) to the configuration.

    Raises:
        ConfigurationError: an arm has no such setting.
    """
    for arm, configuration in configurations.items():
        if name not in configuration:
            shared = [key for key in configuration if all(key in other for other in configurations.values())]
            close = nearest(name, shared)
            raise ConfigurationError(f"{arm} has no setting '{name}'{close or ';'} all arms have {', '.join(shared)}")
    return {
        (arm, giver): {**configuration, name: values[name]}
        for arm, configuration in configurations.items()
        for giver, values in configurations.items()
    }


@dataclass(frozen=True)
class Swapped:
    """One cell of a swap table.

    Attributes:
        arm: Whose configuration.
        giver: Whose value of the setting.
        median: Over seeds.
        interval: Of the median; None below 6 seeds.
        change: Median minus that of the arm with its own value, positive where the other's value is better.
    """

    arm: str
    giver: str
    median: float
    interval: Interval | None
    change: float


def swap_table(
    values: Mapping[tuple[str, str], Sequence[float]], *, lower_is_better: bool = False
) -> tuple[Swapped, ...]:
    """Medians of a swap test: table 2 of the source.

    Args:
        values: (whose configuration, whose value) to the results of its seeds, as `swap` names them.
        lower_is_better: Whether the best is the least.
    """
    sign = -1.0 if lower_is_better else 1.0
    cells: list[Swapped] = []
    for (arm, giver), runs in values.items():
        middle = median(runs)
        own = median(values[arm, arm])
        change = 0.0 if middle == own else sign * (middle - own)
        cells.append(Swapped(arm, giver, middle, median_interval(runs), change))
    return tuple(cells)
