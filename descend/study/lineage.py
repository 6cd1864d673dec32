"""The tuning that led to a study: its earlier rounds, their spaces, and what all of them cost together.

A study that names earlier ones, `rounds = ["round1", "round2"]`, keeps what they searched and spent in its own
directory, in `lineage.json`, so that this can be read after they are gone. Rounds of rounds are among them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from descend.errors import DAMAGED_FILE, ConfigurationError, StorageError
from descend.files import bounded_text, has_file
from descend.runtime.run_directory import write_beside
from descend.study.analysis import median
from descend.study.design.lint import Remark

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from descend.study.analysis import Cost
    from descend.study.design.study import Study
    from descend.study.results import Comparison

__all__ = ["ArmOfRound", "TuningRound", "keep_rounds", "lint_rounds", "read_rounds", "round_of", "total_trials"]

_FILE = "lineage.json"


@dataclass(frozen=True)
class ArmOfRound:
    """What an arm searched and spent in a round.

    Attributes:
        space: Its dimensions as in a study file, by setting.
        trials: Of all phases.
        steps: Updates of them; a trial that stopped early is charged for all of its own.
        samples: Samples of them.
        median: Over all re-runs of its winners; None where a round has none, or they failed.
    """

    space: dict[str, Any]
    trials: int
    steps: int
    samples: int
    median: float | None


@dataclass(frozen=True)
class TuningRound:
    """An earlier study.

    Attributes:
        directory: As the later study names it.
        name: Of the earlier study.
        unit: What it compared.
        data: The hash of its data; "" where it has none.
        arms: By name.
    """

    directory: str
    name: str
    unit: str
    data: str
    arms: dict[str, ArmOfRound]


def round_of(comparison: Comparison, directory: str) -> TuningRound:
    """A study as a round of a later one."""
    rows = [row for group in comparison.groups for row in group.rows]
    return TuningRound(
        directory,
        comparison.study.name,
        comparison.unit,
        dict(comparison.hashes).get("data", ""),
        {
            name: ArmOfRound(
                {key: one.plain() for key, one in arm.space.items()},
                comparison.costs[name].trials,
                comparison.costs[name].steps,
                comparison.costs[name].samples,
                _finite(median(values))
                if (values := [value for row in rows if row.cell.arm == name for value in row.values])
                else None,
            )
            for name, arm in comparison.study.arms.items()
        },
    )


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def keep_rounds(study: Study, directory: str | os.PathLike[str], read: Callable[[str], Comparison]) -> None:
    """Write what the earlier rounds of a study searched and spent into its directory.

    Rounds that are gone stay as they were written.

    Args:
        study: The later study.
        directory: Its own.
        read: From the directory of a study to what its records say.

    Raises:
        ConfigurationError: a round is not there, and was not written before.
    """
    if not study.rounds:
        return
    known = {one.directory: one for one in read_rounds(directory)}
    made: dict[str, TuningRound] = {}
    problems: list[str] = []
    for name in study.rounds:
        if has_file(Path(name) / "study.json"):
            found = read(name)
            made |= {one.directory: one for one in found.rounds}
            made[name] = round_of(found, name)
        elif name in known:
            made[name] = known[name]
        else:
            problems.append(f"rounds: there is no study in {Path(name).absolute()}")
    if problems:
        raise ConfigurationError(problems)
    text = json.dumps([asdict(one) for one in made.values()], indent=2) + "\n"
    write_beside(Path(directory) / _FILE, text)


def read_rounds(directory: str | os.PathLike[str]) -> tuple[TuningRound, ...]:
    """The earlier rounds of the study in a directory, the first one first.

    Raises:
        StorageError: the file is damaged.
    """
    file = Path(directory) / _FILE
    if not has_file(file):
        return ()
    try:
        listed = cast("list[dict[str, Any]]", json.loads(bounded_text(file)))
        return tuple(
            TuningRound(
                str(one["directory"]),
                str(one["name"]),
                str(one["unit"]),
                str(one["data"]),
                {str(name): _arm(arm) for name, arm in one["arms"].items()},
            )
            for one in listed
        )
    except DAMAGED_FILE as error:
        raise StorageError(f"{file}: not the rounds of a study: {error}; remove it and run the study again") from error


def _arm(plain: dict[str, Any]) -> ArmOfRound:
    found = plain["median"]
    trials, steps, samples = (int(plain[name]) for name in ("trials", "steps", "samples"))
    return ArmOfRound(dict(plain["space"]), trials, steps, samples, None if found is None else float(found))


def total_trials(rounds: Sequence[TuningRound], costs: Mapping[str, Cost]) -> dict[str, int]:
    """Trials of each arm of a study in all rounds and in the study itself."""
    return {name: own.trials + sum(_trials(one, name) for one in rounds) for name, own in costs.items()}


def _trials(one: TuningRound, arm: str) -> int:
    return one.arms[arm].trials if arm in one.arms else 0


def lint_rounds(rounds: Sequence[TuningRound], arms: Sequence[str], data: str) -> list[Remark]:
    """Effort in earlier rounds that the arms of a study do not share, and rounds on other data."""
    earlier = {name: sum(_trials(one, name) for one in rounds) for name in arms}
    most = max(earlier.values(), default=0)
    found = [
        Remark("budget", name, f"had {count:,} trials in earlier rounds and another arm {most:,}")
        for name, count in earlier.items()
        if count < most
    ]
    other = [one.directory for one in rounds if one.data and data and one.data != data]
    if other and arms:
        found.append(Remark("data", arms[0], f"earlier rounds tuned on other data: {', '.join(other)}"))
    return found
