"""What a study cost, failures included: a trial that diverged was paid for like any other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cost", "Spent", "cost"]


@dataclass(frozen=True)
class Spent:
    """What one trial used.

    Attributes:
        steps: Updates of its budget; one that stopped early is charged for all of them.
        samples: Samples of its budget.
        status: "done", "diverged", "collapsed", "error" or "out of memory".
        seconds: Of one core, as measured; 0 where they were not measured.
    """

    steps: int
    samples: int
    status: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Cost:
    """The bill.

    Attributes:
        trials: How many.
        steps: Updates charged.
        samples: Samples charged.
        statuses: Trials by how they ended.
        seconds: Measured.
    """

    trials: int
    steps: int
    samples: int
    statuses: dict[str, int]
    seconds: float


def cost(trials: Iterable[Spent]) -> Cost:
    """Add up."""
    listed = list(trials)
    return Cost(
        trials=len(listed),
        steps=sum(spent.steps for spent in listed),
        samples=sum(spent.samples for spent in listed),
        statuses=dict(sorted(Counter(spent.status for spent in listed).items())),
        seconds=sum(spent.seconds for spent in listed),
    )
