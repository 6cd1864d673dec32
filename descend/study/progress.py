"""How far a study is, and how long it will take from here."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.study.running.plan import check_records, planned, total_trials
from descend.study.running.trial import RETRIED
from descend.study.running.trial_store import StudyDirectory
from descend.terminal import Bar, TextTable, emit, is_tty

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from descend.study.design.study import Study
    from descend.study.running.trial import Record

__all__ = ["StudyProgress", "StudyStatus", "duration", "status_of"]

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
        if not is_tty(sys.stderr) or (now - self._drawn < _REDRAW_SECONDS and done < self._total):
            return
        self._drawn = now
        left = (now - self._began) / self._ended * max(self._total - done, 0)
        end = "\n" if done >= self._total else ""
        emit(f"\r{done:,} of {self._total:,} trials, {duration(left)} left; {record.trial.id}\033[K{end}", sys.stderr)


def duration(seconds: float) -> str:
    """`2 h 5 min`, `3 min 20 s`, `12 s`."""
    if not math.isfinite(seconds):  # of a damaged record
        return "an unknown time"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True)
class StudyStatus:
    """How far a study is.

    Attributes:
        name: Of the study.
        total: Trials that it asks for, as far as that is known.
        counts: Trials by phase and by how they ended.
        seconds: What they took, of one process.
        seconds_left: What the others are likely to take.
        remarks: What is in the directory and does not count.
    """

    name: str
    total: int
    counts: Mapping[tuple[str, str], int]
    seconds: float
    seconds_left: float
    remarks: tuple[str, ...] = ()

    @property
    def done(self) -> int:
        """Trials that ended."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        said = [f"{label}: {_counted(self.counts, place) or 'none yet'}" for label, place in _LABELS]
        return "\n".join([self._head(), *said, *self._foot()])

    def _head(self) -> str:
        return f"{self.name}: {self.done:,} of {self.total:,} trials"

    def _foot(self) -> list[str]:
        left = f"; about {duration(self.seconds_left)} left" if self.done < self.total else ""
        return [f"took {duration(self.seconds)} of one process{left}", *self.remarks]

    @property
    def parts(self) -> list[str | Bar | TextTable]:
        """The same for a terminal, with a row for each phase and a column for each way to end."""
        phases, ends = (sorted({key[place] for key in self.counts}) for place in (0, 1))
        rows = [[phase, *(f"{self.counts.get((phase, end), 0):,}" for end in ends)] for phase in phases]
        table = [TextTable([["phase", *ends], *rows], tuple(ends))] if rows else ["no trial has ended yet"]
        return [self._head(), Bar(self.done, self.total), *table, *self._foot()]


_LABELS = (("phases", 0), ("ended", 1))


def _counted(counts: Mapping[tuple[str, str], int], place: int) -> str:
    sums: Counter[str] = Counter()
    for key, count in counts.items():
        sums[key[place]] += count
    return ", ".join(f"{count} {name}" for name, count in sorted(sums.items()))


def status_of(directory: str | os.PathLike[str]) -> StudyStatus:
    """Trials by phase and by end, and the seconds they took, of the study in a directory."""
    ledger = StudyDirectory(directory)
    study, found = ledger.study(), ledger.records()
    check_records(study, found)
    asked = planned(study, {name: one for name, one in found.items() if one.status not in RETRIED})
    records = [record for name, record in found.items() if name in asked]
    total = total_trials(study)
    counts = Counter((record.trial.phase, record.status) for record in records)
    seconds = sum(record.seconds for record in records)
    left = seconds / len(records) * (total - len(records)) if records else 0.0
    return StudyStatus(study.name, total, counts, seconds, left, (*_skipped(ledger, len(found) - len(records)),))


def _skipped(ledger: StudyDirectory, others: int) -> list[str]:
    """What is in the directory and does not count."""
    lines = [f"{others:,} more records are of trials that the study does not ask for"] if others else []
    return lines + [
        f"{file}: the last line has no end and is no record; it is being written, or was cut off and its trial runs "
        "again"
        for file in ledger.cut_off()
    ]
