"""Predicts the cost of a study from a few measured steps of each arm (`descend study plan`)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from descend.launch import cores
from descend.study.analysis.power import detectable_by_searches, level_of_a_pair, searches_needed
from descend.study.analysis.ranking import LEVEL
from descend.study.comparing import opened
from descend.study.design.needs import Needs
from descend.study.progress import duration
from descend.study.running.executor_choice import choose
from descend.study.running.plan import cells, pending, total_trials
from descend.study.running.sequential import run_sequentially
from descend.study.running.trial import RETRIED, trials_on_this_machine
from descend.study.running.vmapped import run_vmapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.study.design.study import Study
    from descend.study.running.trial import Trial
    from descend.study.task import StudyTask

__all__ = ["plan_study"]

_LARGE = 3.0  # standard deviations between searches
_STEPS = 12  # of the shorter one of two runs that are timed
_MOST_STACKED = 64


def plan_study(study: Study) -> str:
    """Trials, updates and time of each arm, and of all.

    Raises:
        ConfigurationError: the workload cannot be opened, or an arm does not fit it.
    """
    task, _ = opened(study)
    task = task if study.needs.device is None else task.on_device(study.needs.device)
    processors = cores()
    at_once = trials_on_this_machine(study.needs, processors)
    kinds = {name: arm.optimizer for name, arm in study.arms.items() if not isinstance(arm.optimizer, str)}
    first = pending(study, {})
    lines = [f"{total_trials(study):,} trials: {_trials(study)}"]
    total: float | None = 0.0
    for arm in study.arms:
        seconds: float | None = 0.0
        updates, executor_name = 0, ""
        for cell in [cell for cell in cells(study) if cell.arm == arm and cell.search == 0]:
            alike = [t for t in first if (t.arm, t.batch_size, t.steps) == (arm, cell.batch_size, cell.steps)]
            executor = choose(task, alike, study.evaluations, "auto", kinds)
            shortlist = study.shortlist * study.shortlist_seeds if study.shortlist > 1 else 0
            trials = study.searches * (study.trials_of(arm) + shortlist + study.confirmation_seeds)
            updates += trials * cell.steps
            step_seconds = seconds_a_step(executor.name, task, alike, kinds)
            if seconds is not None:
                seconds = None if step_seconds is None else seconds + trials * cell.steps * step_seconds
            executor_name = executor.name
        total = None if total is None or seconds is None else total + seconds
        about = "time unknown, since its trials fail" if seconds is None else f"about {duration(seconds)}"
        lines.append(f"{arm}: {updates:,} updates, {about} ({executor_name})")
    if total is not None:
        lines.append(f"about {duration(total)} in one process")
    if study.needs != Needs():
        room = f"{at_once} trial{'' if at_once == 1 else 's'} at once, of {study.needs} each"
        lines.append(f"this machine has room for {room} ({processors} processors)")
        if study.needs.all_cores > processors:
            lines.append(f"a trial asks for {study.needs.all_cores} processors, and runs here with {processors}")
        if total is not None and at_once > 1:
            lines.append(f"about {duration(total / at_once)} with --processes {at_once}")
    if study.checkpoint_every is not None:
        lines.append(f"each trial is saved every {study.checkpoint_every:,} updates, which is not in the times")
    return "\n".join([*lines, *_power(study)])


def seconds_a_step(name: str, task: StudyTask, trials: Sequence[Trial], kinds: dict[str, Any]) -> float | None:
    """Seconds of one step of one trial among as many as an executor runs at once.

    Returns:
        None where a trial ends as an error.
    """
    stacked = name in ("together", "stacks")
    run, some = (run_vmapped, trials[:_MOST_STACKED]) if stacked else (run_sequentially, trials[:1])
    few = task.with_fewer(_STEPS * trials[0].batch_size, trials[0].batch_size)  # scores are not timed
    seconds: list[float] = []
    for steps in (_STEPS, _STEPS, 3 * _STEPS):  # the first run makes what a process makes once
        began = time.perf_counter()
        records = list(run(few, [replace(trial, steps=steps) for trial in some], 1, kinds))
        seconds.append(time.perf_counter() - began)
        if any(record.status in RETRIED for record in records):
            return None
    at_once = len(some) * (cores() if name in ("stacks", "processes") else 1)
    return max(0.0, seconds[2] - seconds[1]) / (2 * _STEPS) / at_once


def _trials(study: Study) -> str:
    """How the number of trials comes about."""
    shortlist = study.shortlist * study.shortlist_seeds if study.shortlist > 1 else 0
    counts = {study.trials_of(arm) for arm in study.arms}
    trials = " or ".join(f"{count:,}" for count in sorted(counts))
    each = f"{trials} of a search + {shortlist} of its shortlist + {study.confirmation_seeds} seeds of its winner"
    groups = len({(cell.batch_size, cell.steps) for cell in cells(study)})
    return f"{len(study.arms)} arms x {groups} batch sizes and budgets x {study.searches} searches x ({each})"


def _power(study: Study) -> list[str]:
    """What the ranking can find, said before anything runs."""
    arms = len(study.arms)
    if arms < 2:
        return []
    if study.searches < 2:
        return ["one search an arm cannot rank: set searches = 3 or more"]
    paired = study.common_random_numbers
    spreads = detectable_by_searches(study.searches, level_of_a_pair(arms, LEVEL), paired=paired, arms=arms)
    lines = [
        f"with {study.searches} searches an arm two of the {arms} arms are ranked with probability 0.8 if they differ "
        f"by {spreads:.2g} times the standard deviation between searches of one arm"
    ]
    if spreads > _LARGE:
        enough = searches_needed(_LARGE, 1.0, arms=arms, paired=paired)
        lines.append(f"that is a large difference: {enough} searches find one of {_LARGE:g} times this deviation")
    if study.confirmation_seeds < 6:
        lines.append("fewer than 6 confirmation_seeds give no 95 % interval of a median in the table")
    return lines
