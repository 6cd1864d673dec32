"""Predicts the cost of a study from a few measured steps of each arm (`descend study plan`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.study.comparing import opened
from descend.study.progress import duration
from descend.study.running.executor_choice import Executor, choose, seconds_a_step
from descend.study.running.plan import cells, pending, total_trials

if TYPE_CHECKING:
    from descend.study.design.study import Study

__all__ = ["plan_study"]


def plan_study(study: Study) -> str:
    """Trials, updates and time of each arm, and of all.

    Raises:
        ConfigurationError: the workload cannot be opened, or an arm does not fit it.
    """
    task, _ = opened(study)
    kinds = {name: arm.optimizer for name, arm in study.arms.items() if not isinstance(arm.optimizer, str)}
    first = pending(study, {})
    lines = [f"{total_trials(study):,} trials"]
    total: float | None = 0.0
    for arm in study.arms:
        seconds: float | None = 0.0
        updates, executor_name = 0, ""
        for cell in [cell for cell in cells(study) if cell.arm == arm and cell.search == 0]:
            alike = [t for t in first if (t.arm, t.batch_size, t.steps) == (arm, cell.batch_size, cell.steps)]
            executor: Executor = choose(task, alike, study.evaluations, "auto", kinds)
            shortlist = study.shortlist * study.shortlist_seeds if study.shortlist > 1 else 0
            trials = study.searches * (study.trials_of(arm) + shortlist + study.confirmation_seeds)
            updates += trials * cell.steps
            step_seconds = seconds_a_step(executor, task, alike, kinds)
            if seconds is not None:
                seconds = None if step_seconds is None else seconds + trials * cell.steps * step_seconds
            executor_name = executor.name
        total = None if total is None or seconds is None else total + seconds
        about = "time unknown, since its trials fail" if seconds is None else f"about {duration(seconds)}"
        lines.append(f"{arm}: {updates:,} updates, {about} ({executor_name})")
    if total is not None:
        lines.append(f"about {duration(total)} in one process")
    if study.searches < 2:
        lines.append("one search per arm cannot rank: set searches = 2 or more")
    if study.confirmation_seeds < 6:
        lines.append("fewer than 6 confirmation_seeds give no interval of a median and cannot rank")
    return "\n".join(lines)
