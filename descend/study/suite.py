"""Several workloads in one file, a study of each, and what can be said over all of them.

    name = "small-suite"
    trials = 8
    arms.adamw = { optimizer = "AdamW", space = { lr = { log = [1e-4, 1e-1] } } }
    arms.nesterov = ...

    [workloads.digits]
    workload = "zoo:MLP"
    batch_sizes = [64]
    steps = [200]
    target = { value = 0.9 }

    [workloads.text]
    ...

What stands outside of `workloads` holds for all. Each is a study of its own in DIRECTORY/NAME, with its records and its
report; arms draw the same points and seeds on all of them, as the external ruleset of AlgoPerf has it.
"""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from descend.errors import ConfigurationError, Refused
from descend.files import has_file, regular_file
from descend.runtime.run_directory import write_beside
from descend.study.analysis.intervals import median
from descend.study.analysis.profiles import LIMIT, PerformanceProfile, performance_profiles, time_of_searches
from descend.study.design.study import Study, make_study, table_of
from descend.study.report import wall_clock
from descend.study.running.plan import confirmed

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from descend.study.results import Comparison, Group
    from descend.study.running.trial import Record

__all__ = ["Axis", "SuiteScore", "is_suite", "read_suite", "score_suite", "studies_in", "write_score"]

Axis = Literal["steps", "seconds"]
_SHOWN_RATIOS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)


def is_suite(file: str | os.PathLike[str]) -> bool:
    """Whether a study file has several workloads."""
    try:
        return "workloads" in tomllib.loads(regular_file(Path(file)).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return False  # reading it as a study says what is wrong


def read_suite(file: str | os.PathLike[str]) -> dict[str, Study]:
    """The studies of a file with several workloads, by their names.

    Raises:
        ConfigurationError: every problem of every study.
    """
    path, table = Path(file), table_of(file)
    own = table.pop("workloads", None)
    if not isinstance(own, dict) or not own:
        raise ConfigurationError(f"{path}: workloads must be tables, one for each: [workloads.NAME]")
    made: dict[str, Study] = {}
    problems: list[str] = []
    for name, fields in cast("dict[str, Any]", own).items():
        try:
            made[name] = _study(name, fields, table)
        except ConfigurationError as error:
            problems += [f"{path}: workloads.{name}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigurationError(problems)
    return made


def _study(name: str, fields: Any, common: dict[str, Any]) -> Study:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ConfigurationError(
            "the name of a workload, which is that of its folder, must be of letters, digits, - and _"
        )
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{fields!r} is not a table")
    if "arms" in fields:
        raise ConfigurationError("arms are the same on all workloads: give them outside of workloads")
    study = make_study({**common, **cast("dict[str, Any]", fields), "name": f"{common.get('name', 'study')}: {name}"})
    if study.target is None:
        raise ConfigurationError("a target is missing, to which time is counted: [workloads.NAME.target]")
    return study


def studies_in(directories: Sequence[str | os.PathLike[str]]) -> dict[str, Comparison]:
    """The studies in some directories, by name; a directory that is none itself may hold several.

    Raises:
        ConfigurationError: a directory holds no study, or two have one name.
    """
    from descend.study.comparing import read_directory

    found: dict[str, Comparison] = {}
    for directory in map(Path, directories):
        inside = [directory] if has_file(directory / "study.json") else sorted(directory.glob("*/study.json"))
        if not inside:
            raise ConfigurationError(f"{directory} holds no study, and no folder in it does")
        for place in [one.parent if one.name == "study.json" else one for one in inside]:
            if place.name in found:
                raise ConfigurationError(f"two studies are called {place.name}: score them apart")
            found[place.name] = read_directory(place)
    return found


@dataclass(frozen=True)
class SuiteScore:
    """What several studies say together.

    Attributes:
        axis: What is counted to the target: "steps", or "seconds" of training on one machine.
        profiles: Of each arm.
        by_search: For each arm the score that each single search would give, in the order of searches.
        unmet: Workloads whose target no arm met.
    """

    axis: Axis
    profiles: Mapping[str, PerformanceProfile]
    by_search: Mapping[str, tuple[float, ...]]
    unmet: tuple[str, ...]

    @property
    def rows(self) -> list[list[str]]:
        """A table, its heads first: score, scores of single searches, profile, times."""
        first = next(iter(self.profiles.values()))
        heads = ["arm", "score", "scores of single searches"]
        heads += [f"within {ratio:g} x" for ratio in _SHOWN_RATIOS if ratio <= first.limit]
        heads += [f"{self.axis}, {name}" for name in first.times]
        rows = [heads]
        for arm, one in self.profiles.items():
            each = self.by_search[arm]
            row = [arm, f"{one.score:.3f}", f"{min(each):.3f} to {max(each):.3f}"]
            row += [f"{one.fraction(ratio):.0%}" for ratio in _SHOWN_RATIOS if ratio <= one.limit]
            rows.append(row + ["missed" if math.isinf(time) else f"{time:.4g}" for time in one.times.values()])
        return rows

    @property
    def text(self) -> str:
        """The table as Markdown, and what to think of it."""
        heads, *rows = self.rows
        lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
        limit = next(iter(self.profiles.values())).limit
        lines += [
            "",
            f"Score: area under the performance profile from 1 to {limit:g} times the fastest, over its maximum. "
            f"{self.axis.capitalize()} to the target: median over searches of medians of re-runs. A score does not "
            "rank: its range over single searches says how much of it is chance, and it depends on the other arms.",
        ]
        if self.unmet:
            lines.append(f"No arm met the target of {', '.join(self.unmet)}, which count for no arm.")
        return "\n".join(lines) + "\n"


def score_suite(studies: Mapping[str, Comparison], axis: Axis = "steps", limit: float = LIMIT) -> SuiteScore:
    """Performance profiles over studies that have the same arms.

    Args:
        studies: Finished ones, with targets; each batch size and budget of a study is a workload.
        axis: "steps", or "seconds" of training, without evaluation.
        limit: Largest ratio that counts.

    Raises:
        Refused: every reason: a study is unfinished or has no target, arms differ, or seconds were not recorded or are
            of several machines.
    """
    problems = _problems(studies, axis)
    if problems:
        raise Refused(problems)
    searches: dict[str, dict[str, list[list[float]]]] = {}
    for name, comparison in studies.items():
        for group in comparison.groups:
            place = name if len(comparison.groups) == 1 else f"{name}, batch {group.batch_size}, {group.steps} steps"
            for arm in comparison.study.arms:
                searches.setdefault(arm, {})[place] = _times(comparison, group, arm, axis)
    times = {arm: {place: time_of_searches(own) for place, own in places.items()} for arm, places in searches.items()}
    count = min(len(own) for places in searches.values() for own in places.values())
    single = [
        performance_profiles(
            {arm: {place: median(own[one]) for place, own in places.items()} for arm, places in searches.items()}, limit
        )
        for one in range(count)
    ]
    profiles = performance_profiles(times, limit)
    unmet = [place for place in next(iter(times.values())) if all(math.isinf(own[place]) for own in times.values())]
    return SuiteScore(axis, profiles, {arm: tuple(one[arm].score for one in single) for arm in times}, tuple(unmet))


def _problems(studies: Mapping[str, Comparison], axis: Axis) -> list[str]:
    problems: list[str] = []
    arms = {name: set(one.study.arms) for name, one in studies.items()}
    if len(set(map(frozenset, arms.values()))) > 1:
        problems.append(f"the arms differ: {'; '.join(f'{name}: {sorted(own)}' for name, own in arms.items())}")
    for name, one in studies.items():
        if one.study.target is None:
            problems.append(f"{name} has no target to count {axis} to")
        if one.study.split == "finetuned":
            problems.append(f"{name} is judged after fine tuning, and {axis} are counted during a trial")
        if one.unfinished:
            problems.append(f"{name} is unfinished: {one.unfinished} trials have not run")
    if axis == "seconds":
        problems += wall_clock.problems(record for one in studies.values() for record in one.records.values())
    return problems


def _times(comparison: Comparison, group: Group, arm: str, axis: Axis) -> list[list[float]]:
    """Steps or seconds to the target of all re-runs, a list for each search."""
    return [
        [_time(comparison.study, record, axis) for record in confirmed(comparison.study, row.cell, comparison.records)]
        for row in group.of(arm)
    ]


def _time(study: Study, record: Record, axis: Axis) -> float:
    target = study.target
    assert target is not None
    count = record.seconds_to if axis == "seconds" else record.steps_to
    return count(study.split, study.metric, target.value, study.lower, target.consecutive)


def write_score(score: SuiteScore, directory: str | os.PathLike[str]) -> Path:
    """Write the table as `score-AXIS.md` and `score-AXIS.csv` into a directory; returns the first."""
    path = Path(directory) / f"score-{score.axis}.md"
    write_beside(path, score.text)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(score.rows)
    write_beside(path.with_suffix(".csv"), text.getvalue())
    return path
