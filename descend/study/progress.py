"""How far a study is, and how long it will take from here."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from descend.study.running.plan import check_records, planned, total_trials
from descend.study.running.trial import RETRIED
from descend.study.running.trial_store import StudyDirectory

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from descend.study.design.study import Study
    from descend.study.running.trial import Record

__all__ = ["StudyProgress", "status_of"]

_REDRAW_SECONDS = 0.5


class StudyProgress:
    """A line on the terminal after each trial; nothing where there is none.

    Args:
        study: What runs.
    """

    def __init__(self, study: Study) -> None:
        self._total = total_trials(study)
        self._began = time.monotonic()
        self._ended = 0
        self._drawn = 0.0

    def __call__(self, records: Mapping[str, Record], record: Record) -> None:
        """One more trial ended."""
        self._ended += 1
        now = time.monotonic()
        done = len(records) + 1
        if not sys.stderr.isatty() or (now - self._drawn < _REDRAW_SECONDS and done < self._total):
            return
        self._drawn = now
        left = (now - self._began) / self._ended * max(self._total - done, 0)
        sys.stderr.write(f"\r{done:,} of {self._total:,} trials, {duration(left)} left; {record.trial.id}\033[K")
        if done >= self._total:
            sys.stderr.write("\n")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """`2 h 5 min`, `3 min 20 s`, `12 s`."""
    if not math.isfinite(seconds):  # of a damaged record
        return "an unknown time"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def status_of(directory: str | os.PathLike[str]) -> str:
    """Trials by phase and by end, and the seconds they took, of the study in a directory."""
    ledger = StudyDirectory(directory)
    study, found = ledger.study(), ledger.records()
    check_records(study, found)
    asked = planned(study, {name: one for name, one in found.items() if one.status not in RETRIED})
    records = [record for name, record in found.items() if name in asked]
    total = total_trials(study)
    phases = Counter(record.trial.phase for record in records)
    ends = Counter(record.status for record in records)
    seconds = sum(record.seconds for record in records)
    left = seconds / len(records) * (total - len(records)) if records else 0.0
    return "\n".join(
        [
            f"{study.name}: {len(records):,} of {total:,} trials",
            f"phases: {', '.join(f'{count} {phase}' for phase, count in sorted(phases.items())) or 'none yet'}",
            f"ended: {', '.join(f'{count} {end}' for end, count in sorted(ends.items())) or 'none yet'}",
            f"took {duration(seconds)} of one process; about {duration(left)} left",
            *_skipped(ledger, len(found) - len(records)),
        ]
    )


def _skipped(ledger: StudyDirectory, others: int) -> list[str]:
    """What is in the directory and does not count."""
    lines = [f"{others:,} more records are of trials that the study does not ask for"] if others else []
    return lines + [
        f"{file}: the last line has no end and is no record; it is being written, or was cut off and its trial runs "
        "again"
        for file in ledger.cut_off()
    ]
