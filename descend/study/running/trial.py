"""One run of one setting, and what came of it. A trial is a pure function of its fields, the code and the data."""

from __future__ import annotations

import json
import math
import platform
import re
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from descend.errors import StorageError
from descend.study.analysis import steps_to_target

__all__ = ["FAILED", "LOOKED_AT_ONCE", "RETRIED", "Record", "Trial", "evaluation_steps", "machine_id"]

FAILED = ("diverged",)  # counts as the worst result there is
RETRIED = ("error", "out of memory")  # says nothing about the optimizer, so it is run again
LOOKED_AT_ONCE = ("test", "finetuned", "finetuned train")  # splits with one score, from the end of a trial


@dataclass(frozen=True)
class Trial:
    """One training run of a study.

    Attributes:
        arm: Name of the arm.
        batch_size: Samples of an update.
        steps: Updates.
        search: Number of the search.
        phase: "search", "shortlist" or "confirmation".
        index: Number of the point in its search.
        repeat: Number of the repeat; 0 in a search.
        seed: Of the weights and the order of samples.
        configuration: All settings of the optimizer, the schedule and the workload.
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

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # of a line that is read

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
        train_seconds: Of training alone until each of `steps`; empty where several trials ran in a stack.
        machine: Of which `train_seconds` are, see `machine_id`.
        samples: That all updates used, where phases have batch sizes of their own; None is steps × batch size.
    """

    trial: Trial
    status: str
    steps: tuple[int, ...] = ()
    scores: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    failed_at: int | None = None
    message: str = ""
    seconds: float = 0.0
    train_seconds: tuple[float, ...] = ()
    machine: str = ""
    samples: int | None = None

    def final(self, split: str, metric: str) -> float:
        """The last score, NaN where the trial did not come to its end."""
        if self.status in FAILED or self.status in RETRIED:
            return math.nan
        return self._scores(split, metric)[-1]

    def _scores(self, split: str, metric: str) -> list[float]:
        try:
            return self.scores[split][metric]
        except KeyError:
            raise StorageError(
                f"the record of {self.trial.id} has no '{metric}' on {split} samples: it is of another study; remove it"
            ) from None

    def steps_to(self, split: str, metric: str, target: float, lower: bool, consecutive: int = 1) -> float:
        """Updates until the target was met; inf if it was not."""
        if not self.steps:
            return math.inf
        values = self._scores(split, metric)
        return steps_to_target(
            self.steps[: len(values)], values, target, lower_is_better=lower, consecutive=consecutive
        )

    def seconds_to(self, split: str, metric: str, target: float, lower: bool, consecutive: int = 1) -> float:
        """Seconds of training until the target was met; inf if it was not, NaN where they were not recorded."""
        if len(self.train_seconds) < len(self.steps):
            return math.nan
        steps = self.steps_to(split, metric, target, lower, consecutive)
        return math.inf if math.isinf(steps) else self.train_seconds[self.steps.index(int(steps))]

    def line(self) -> str:
        """As a line of JSON with a checksum at its end. What is not finite stands as null."""
        plain = asdict(self)
        for name in _LATER:
            if plain[name] in ((), "", None):
                del plain[name]
        plain["scores"] = {
            split: {name: [x if math.isfinite(x) else None for x in values] for name, values in metrics.items()}
            for split, metrics in self.scores.items()
        }
        text = json.dumps(plain, separators=(",", ":"))
        return f'{text[:-1]},"crc32":"{_checksum(text)}"}}'

    @classmethod
    def read(cls, line: str) -> Record:
        """The record of a line. One without a checksum, as hands and earlier versions write it, is taken as it is.

        Raises:
            StorageError: the line is none, or its checksum is that of another text.
        """
        text = line.strip()
        if (found := _CHECKSUM.search(text)) is not None:
            text = text[: found.start()] + "}"
            if found[1] != _checksum(text):
                raise StorageError("not a record of a trial as it was written: its checksum is that of another text")
        try:
            plain = dict(_Line.model_validate_json(text, strict=True))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise StorageError(f"not a record of a trial: {f'{place}: ' if place else ''}{first['msg']}") from error
        scores = {
            split: {name: [math.nan if x is None else x for x in values] for name, values in metrics.items()}
            for split, metrics in plain.pop("scores").items()
        }
        record = cls(scores=scores, **plain)
        if record.status in ("done", "collapsed") and (wrong := record._uneven()):
            raise StorageError(f"not a record of a trial: {wrong}")
        return record

    def _uneven(self) -> str:
        """What has not one score for each look; "" where all have. Test samples are looked at once, at the end."""
        return ", ".join(
            f"{len(values)} values of {split} {name} at {len(self.steps)} looks"
            for split, metrics in self.scores.items()
            for name, values in metrics.items()
            if len(values) != (1 if split in LOOKED_AT_ONCE else len(self.steps))
        )


class _Line(BaseModel):
    """What a line says, before what is null becomes NaN."""

    model_config = ConfigDict(extra="forbid")

    trial: Trial
    status: Literal["done", "diverged", "collapsed", "error", "out of memory"]
    steps: tuple[int, ...]
    scores: dict[str, dict[str, list[float | None]]]
    failed_at: int | None
    message: str
    seconds: float
    train_seconds: tuple[float, ...] = ()
    machine: str = ""
    samples: int | None = None


_LATER = ("train_seconds", "machine", "samples")  # left out of a line where there is nothing to say

_CHECKSUM = re.compile(r',"crc32":"([0-9a-f]{8})"\}$')


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def machine_id() -> str:
    """Eight digits that stand for this machine, by its name, so that times of different machines are not compared."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def evaluation_steps(steps: int, evaluations: int) -> tuple[int, ...]:
    """Where scores are taken: before the first update and after parts of equal length, the last update among them."""
    count = min(steps, evaluations)
    return (0, *sorted({-(-steps * part // count) for part in range(1, count + 1)}))
