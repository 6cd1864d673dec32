"""One run of one setting, and what came of it. A trial is a pure function of its fields, the code and the data."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from descend.errors import StorageError
from descend.study.analysis import steps_to_target

__all__ = ["FAILED", "RETRIED", "Record", "Trial", "evaluation_steps"]

FAILED = ("diverged",)  # counts as the worst result there is
RETRIED = ("error", "out of memory")  # says nothing about the optimizer, so it is run again


@dataclass(frozen=True)
class Trial:
    """What is to be run.

    Attributes:
        arm: Name of the arm.
        batch_size: Samples of an update.
        steps: Updates.
        search: Number of the search.
        phase: "search", "shortlist" or "confirmation".
        index: Number of the point in its search.
        repeat: Number of the repeat; 0 in a search.
        seed: Of the weights and the order of samples.
        configuration: Everything the optimizer, the schedule and the workload are told.
    """

    arm: str
    batch_size: int
    steps: int
    search: int
    phase: str
    index: int
    repeat: int
    seed: int
    configuration: dict[str, Any]

    @property
    def id(self) -> str:
        """Its name within the study."""
        place = f"{self.arm}/b{self.batch_size}/s{self.steps}/search{self.search}/{self.phase}"
        return f"{place}/{self.index:03d}" + (f"-{self.repeat:02d}" if self.phase != "search" else "")


@dataclass(frozen=True)
class Record:
    """What came of a trial.

    Attributes:
        trial: What was run.
        status: "done", "diverged", "collapsed" (finite, and the training loss did not fall), "error", "out of memory".
        steps: At which updates scores were taken, from 0.
        scores: Lists of scores by split and metric: `scores["validation"]["accuracy"]`.
        failed_at: The update that was not finite.
        message: Of an error.
        seconds: That it took.
    """

    trial: Trial
    status: str
    steps: tuple[int, ...] = ()
    scores: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    failed_at: int | None = None
    message: str = ""
    seconds: float = 0.0

    def final(self, split: str, metric: str) -> float:
        """The last score, NaN where the trial did not come to its end."""
        if self.status in FAILED or self.status in RETRIED:
            return math.nan
        return self.scores[split][metric][-1]

    def steps_to(self, split: str, metric: str, target: float, lower: bool, consecutive: int = 1) -> float:
        """Updates until the target was met; inf if it was not."""
        if not self.steps:
            return math.inf
        values = self.scores[split][metric]
        return steps_to_target(
            self.steps[: len(values)], values, target, lower_is_better=lower, consecutive=consecutive
        )

    def line(self) -> str:
        """As a line of JSON. What is not finite stands as null."""
        plain = asdict(self)
        plain["scores"] = {
            split: {name: [x if math.isfinite(x) else None for x in values] for name, values in metrics.items()}
            for split, metrics in self.scores.items()
        }
        return json.dumps(plain, separators=(",", ":"))

    @classmethod
    def read(cls, line: str) -> Record:
        """The record of a line.

        Raises:
            StorageError: the line is none.
        """
        try:
            plain = json.loads(line)
            trial = Trial(**plain.pop("trial"))
            scores = {
                split: {name: [math.nan if x is None else x for x in values] for name, values in metrics.items()}
                for split, metrics in plain.pop("scores").items()
            }
            return cls(trial, scores=scores, steps=tuple(plain.pop("steps")), **plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"not a record of a trial: {error}") from error


def evaluation_steps(steps: int, evaluations: int) -> tuple[int, ...]:
    """Where scores are taken: before the first update and after parts of equal length, the last update among them."""
    count = min(steps, evaluations)
    return (0, *sorted({-(-steps * part // count) for part in range(1, count + 1)}))
