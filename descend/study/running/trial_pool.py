"""Trials on many machines: a pool takes trials one by one, and gives back their records in the order of their ends.

One process, the driver, claims trials, hands them to the pool and stores their records. A straggler holds up only what
depends on it. A trial whose worker or machine is lost is submitted again; it continues from its checkpoint, where the
study keeps them. If the driver is killed, the trials under way are lost and nothing else.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from descend.errors import Stopped, warn
from descend.runtime import SignalHandler
from descend.study.running.plan import pending
from descend.study.running.trial import Record, Trial

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from descend.study.design.study import Study
    from descend.study.running.record_keeper import RecordKeeper
    from descend.study.running.trial_store import Ledger

__all__ = ["Ended", "TrialPool", "conduct_in_pool"]

_POLL_SECONDS = 0.5  # for which an end is waited for, between two checks for a request to stop
_MOST_CRASHES = 3  # of the worker of one trial, after which the trial is held to be the cause


@dataclass(frozen=True)
class Ended:
    """The end of a trial in a pool.

    Attributes:
        trial: What was run.
        record: What came of it; None if it was lost with its worker.
        lost: What happened to the worker, a phrase.
        machine_lost: Whether its machine was lost, which says nothing about the trial.
    """

    trial: Trial
    record: Record | None
    lost: str = ""
    machine_lost: bool = False


class TrialPool(Protocol):
    """Workers that run trials. As a context it is up."""

    def __enter__(self) -> Self:
        """Connect to the workers, or start them."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the trials under way."""
        ...

    def room(self) -> int:
        """How many more trials are worth handing in now; at least 1 where none is under way."""
        ...

    def submit(self, trial: Trial) -> None:
        """Hand a trial in."""
        ...

    def ended(self, seconds: float) -> list[Ended]:
        """Trials that ended, as soon as there is one, and after so many seconds at the latest."""
        ...


def conduct_in_pool(study: Study, ledger: Ledger, pool: TrialPool, keeper: RecordKeeper) -> dict[str, Record]:
    """Run what is left of a study in a pool. Other processes may work on the same study.

    Returns:
        All records, by the id of the trial.

    Raises:
        DescendError: a trial ended in an error that repeating did not mend, or what a worker raised.
        Stopped: a signal asked it to stop; trials under way run again.
    """
    under_way: dict[str, Trial] = {}
    again: list[Trial] = []  # lost with their workers, and still claimed
    crashes: Counter[str] = Counter()
    with pool, SignalHandler() as stop:
        while True:
            settled = keeper.settled()
            left = pending(study, settled)
            if not left:
                return settled
            if name := stop.requested():
                raise Stopped(f"{name} stopped it with {len(left)} or more trials left; run again to continue")
            for trial in _next(ledger, left, under_way, again, pool.room()):
                under_way[trial.id] = trial
                pool.submit(trial)
            if not under_way:  # others hold all of them
                time.sleep(_POLL_SECONDS)
            for ended in pool.ended(_POLL_SECONDS) if under_way else ():
                del under_way[ended.trial.id]
                crashes[ended.trial.id] += ended.record is None and not ended.machine_lost
                if ended.record is not None:
                    keeper.keep([ended.record])
                elif crashes[ended.trial.id] >= _MOST_CRASHES:
                    crashes[ended.trial.id] = 0
                    message = f"its worker was lost {_MOST_CRASHES} times: {ended.lost}"
                    keeper.keep([Record(ended.trial, "error", message=message)])
                else:
                    warn(f"{ended.trial.id}: {ended.lost}; it runs again")
                    again.append(ended.trial)


def _next(
    ledger: Ledger, left: Sequence[Trial], under_way: dict[str, Trial], again: list[Trial], room: int
) -> list[Trial]:
    """The trials to submit: those that were lost, and newly claimed ones."""
    first = again[:room]
    del again[:room]
    waiting = {trial.id for trial in again} | {trial.id for trial in first}
    new = [trial for trial in left if trial.id not in under_way and trial.id not in waiting]
    return [*first, *ledger.claim(new, room - len(first))]
