"""Which trials a study still needs: a pure function of its description and its records.

    search          each point once
    shortlist       the best few of a search, with seeds of their own; the best median of these wins
    confirmation    the winner, with fresh seeds; only these are compared

A cell is one search of one arm at one batch size and budget. Cells know nothing of each other, seeds of the phases are
never the same, and seed number r of a phase is the same for every arm, so that arms can be compared in pairs.
"""

from __future__ import annotations

import itertools
import json
import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError
from descend.study.analysis import median
from descend.study.design.sampling import points, seed_of
from descend.study.running.trial import RETRIED, Record, Trial

_MOST_NAMED = 5  # records of other settings that are named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from descend.study.design.study import Study

__all__ = [
    "Cell",
    "cells",
    "check_records",
    "confirmed",
    "natural",
    "needed",
    "pending",
    "planned",
    "score",
    "total_trials",
    "unknown_records",
    "winner",
]


@dataclass(frozen=True)
class Cell:
    """One search of one arm at one batch size and budget."""

    arm: str
    batch_size: int
    steps: int
    search: int


def cells(study: Study) -> list[Cell]:
    """All of them, in the order of the study."""
    return [
        Cell(arm, size, steps, search)
        for size in study.batch_sizes
        for steps in study.budgets(size)
        for arm in study.arms
        for search in range(study.searches)
    ]


def score(study: Study, record: Record) -> float:
    """How good a trial was, larger is better; −inf for one that failed or never met its target."""
    value = record.final(study.split, study.metric)
    if math.isnan(value):
        return -math.inf
    if study.select == "steps" and study.target is not None:
        target = study.target
        return -record.steps_to(study.split, study.metric, target.value, study.lower, target.consecutive)
    return -value if study.lower else value


def natural(study: Study, record: Record) -> float:
    """What of a record is compared in the end, in its own units; a failure is the worst infinity."""
    if study.judge == "test":
        value = record.final("test", study.metric)
        return (math.inf if study.lower else -math.inf) if math.isnan(value) else value
    value = score(study, record)
    return -value if study.lower or study.select == "steps" else value


def _seed_of_arm(study: Study, name: str) -> int:
    """The seed from which the points and seeds of an arm are drawn."""
    return study.seed if study.common_random_numbers else seed_of(study.seed, "arm", name)


def _trial(study: Study, cell: Cell, phase: str, index: int, repeat: int, point: Mapping[str, object]) -> Trial:
    which = index if phase == "search" else repeat
    seed = seed_of(_seed_of_arm(study, cell.arm), phase, cell.search, which)
    configuration = study.arms[cell.arm].configuration(point)
    return Trial(cell.arm, cell.batch_size, cell.steps, cell.search, phase, index, repeat, seed, configuration)


_searches: dict[int, dict[Cell, list[Trial]]] = {}  # of each study, by its `id`, as long as it is there


def _search(study: Study, cell: Cell) -> list[Trial]:
    """The trials of a search, drawn once: what is left of a study is looked for whenever a trial ends."""
    if id(study) not in _searches:
        _searches[id(study)] = {}
        weakref.finalize(study, _searches.pop, id(study), None)
    if cell not in _searches[id(study)]:
        _searches[id(study)][cell] = _draw(study, cell)
    return _searches[id(study)][cell]


def _draw(study: Study, cell: Cell) -> list[Trial]:
    space, count = study.arms[cell.arm].space, study.trials_of(cell.arm)
    seed = _seed_of_arm(study, cell.arm)
    drawn = points(space, count, seed=seed, search=cell.search, sampler=study.sampler)
    return [_trial(study, cell, "search", index, 0, point) for index, point in enumerate(drawn)]


def _repeats(study: Study, cell: Cell, phase: str, chosen: Sequence[Trial], count: int) -> list[Trial]:
    space = study.arms[cell.arm].space
    return [
        _trial(study, cell, phase, one.index, repeat, {name: one.configuration[name] for name in space})
        for one in chosen
        for repeat in range(count)
    ]


def _best_first(study: Study, trials: Sequence[Trial], records: Mapping[str, Record]) -> list[Trial]:
    """Trials by their score; equal ones in the order of the search. Those that ended in an error are left out."""
    known = [trial for trial in trials if records[trial.id].status not in RETRIED]
    return sorted(known, key=lambda trial: -score(study, records[trial.id]))


def planned(study: Study, records: Mapping[str, Record]) -> dict[str, Trial]:
    """The trials that can be named by now, by their id."""
    return {trial.id: trial for cell in cells(study) for trial in needed(study, cell, records)}


def unknown_records(study: Study, records: Mapping[str, Record]) -> list[str]:
    """What ran with other settings or another seed than the study has for it now, a line each."""
    ours_by_name = planned(study, records)
    found: list[str] = []
    for name, record in records.items():
        if name not in ours_by_name:
            continue
        ours, theirs = (_settings(trial) for trial in (ours_by_name[name], record.trial))
        if changed := [key for key in ours | theirs if ours.get(key) != theirs.get(key)]:
            shown = ", ".join(f"{key} {theirs.get(key)!r} and not {ours.get(key)!r}" for key in changed)
            found.append(f"{name} ran with {shown}")
    return found


def check_records(study: Study, records: Mapping[str, Record]) -> None:
    """Raise ConfigurationError where a trial of the study ran with other settings or another seed than it has now."""
    if wrong := unknown_records(study, records):
        raise ConfigurationError(
            [f"{line}: give the changed study a directory of its own" for line in wrong[:_MOST_NAMED]]
        )


def _settings(trial: Trial) -> dict[str, Any]:
    """As a record has them once it is read from a file."""
    return json.loads(json.dumps({**trial.configuration, "seed": trial.seed}, default=str))


def winner(study: Study, cell: Cell, records: Mapping[str, Record]) -> Trial | None:
    """The trial of a search that is confirmed; None as long as search and shortlist are not finished."""
    search = _search(study, cell)
    if any(trial.id not in records for trial in search):
        return None
    return _best_of(study, cell, records, _best_first(study, search, records))


def _best_of(study: Study, cell: Cell, records: Mapping[str, Record], ranked: Sequence[Trial]) -> Trial | None:
    """The winner of a finished search, whose trials are ranked; None as long as the shortlist is not finished."""
    if not ranked:
        return None
    if study.shortlist == 1 or not study.shortlist_seeds:
        return ranked[0]
    best = ranked[: study.shortlist]
    repeats = _repeats(study, cell, "shortlist", best, study.shortlist_seeds)
    if any(trial.id not in records for trial in repeats):
        return None
    medians = {
        one.index: median([score(study, records[trial.id]) for trial in repeats if trial.index == one.index])
        for one in best
    }
    return max(best, key=lambda one: medians[one.index])


def needed(study: Study, cell: Cell, records: Mapping[str, Record]) -> Iterator[Trial]:
    """The trials of a cell that can be named by now, whether they ran or not."""
    search = _search(study, cell)
    yield from search
    if any(trial.id not in records for trial in search):
        return
    ranked = _best_first(study, search, records)
    if ranked and study.shortlist > 1 and study.shortlist_seeds:
        yield from _repeats(study, cell, "shortlist", ranked[: study.shortlist], study.shortlist_seeds)
    if (best := _best_of(study, cell, records, ranked)) is not None:
        yield from _repeats(study, cell, "confirmation", [best], study.confirmation_seeds)


def pending(study: Study, records: Mapping[str, Record]) -> list[Trial]:
    """The trials to run next, in the order of the study; empty when it is finished."""
    named = itertools.chain.from_iterable(needed(study, cell, records) for cell in cells(study))
    return [trial for trial in named if trial.id not in records]


def confirmed(study: Study, cell: Cell, records: Mapping[str, Record]) -> list[Record]:
    """The re-runs of a cell's winner, in the order of their seeds; empty as long as they are not finished."""
    best = winner(study, cell, records)
    if best is None:
        return []
    repeats = _repeats(study, cell, "confirmation", [best], study.confirmation_seeds)
    return [records[trial.id] for trial in repeats] if all(trial.id in records for trial in repeats) else []


def total_trials(study: Study) -> int:
    """Trials of the whole study."""
    extra = study.shortlist * study.shortlist_seeds if study.shortlist > 1 else 0
    return sum(study.trials_of(cell.arm) + extra + study.confirmation_seeds for cell in cells(study))
