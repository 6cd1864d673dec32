"""Records of the trials that this process runs: stored, counted, and their checkpoints removed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from descend.errors import DescendError
from descend.study.running.trial import RETRIED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from descend.study.running.trial import Record
    from descend.study.running.trial_setup import TrialSetup
    from descend.study.running.trial_store import Ledger

__all__ = ["RecordKeeper"]

_ATTEMPTS = 2  # at a trial that ends in an error
_SHOWN = 5  # trials that an error names


class RecordKeeper:
    """Stores records in a ledger, and says when a trial failed too often.

    Args:
        ledger: Where records are stored.
        setup: Of the trials.
        said: Called with all records and the new one after each trial.
    """

    def __init__(self, ledger: Ledger, setup: TrialSetup, said: Callable[[dict[str, Record], Record], None]) -> None:
        self._ledger, self._setup, self._said = ledger, setup, said
        self._tried: Counter[str] = Counter()
        self._known: dict[str, Record] = {}

    def settled(self) -> dict[str, Record]:
        """All records but those of trials that run again.

        Raises:
            DescendError: a trial ended in an error that repeating did not mend.
        """
        self._known = self._ledger.records()
        again = {name: one for name, one in self._known.items() if one.status in RETRIED}
        if broken := [one for name, one in again.items() if self._tried[name] >= _ATTEMPTS]:
            raise DescendError([f"{one.trial.id}: {one.status}: {one.message}" for one in broken[:_SHOWN]])
        return {name: one for name, one in self._known.items() if name not in again}

    def keep(self, records: Sequence[Record]) -> None:
        """Store records of trials that this process claimed: all of them or, if it is killed, none."""
        self._ledger.record(*records)
        for record in records:
            self._tried[record.trial.id] += 1
            if self._setup.checkpoints is not None and record.status not in RETRIED:
                self._setup.checkpoints.discard(record.trial)
            self._said(self._known, record)
            self._known[record.trial.id] = record
