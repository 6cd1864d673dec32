"""One run of one setting, and what came of it. A trial is a pure function of its fields, the code and the data."""

from __future__ import annotations

import json
import math
import platform
import re
import shutil
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from descend.errors import ConfigurationError, StorageError
from descend.files import escape
from descend.machine import memory_bytes
from descend.study.analysis import steps_to_target
from descend.study.design.needs import Needs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from descend.study.design.study import Study

__all__ = [
    "FAILED",
    "LOOKED_AT_ONCE",
    "RETRIED",
    "Record",
    "Trial",
    "TrialCheckpoints",
    "TrialSetup",
    "evaluation_steps",
    "machine_id",
    "require_names",
    "trials_on_this_machine",
]

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


@dataclass(frozen=True)
class TrialCheckpoints:
    """Where trials under way are saved, a run directory each.

    Attributes:
        folder: Of all of them; on several machines one that they share.
        every_steps: Updates from one checkpoint to the next.
    """

    folder: Path
    every_steps: int

    def run_dir(self, trial: Trial) -> Path:
        """The run directory of a trial."""
        return self.folder / escape(trial.id)

    def discard(self, trial: Trial) -> None:
        """Remove the run directory of a trial that is recorded."""
        shutil.rmtree(self.run_dir(trial), ignore_errors=True)


@dataclass(frozen=True)
class TrialSetup:
    """What executors know of a study's trials.

    Attributes:
        needs: Of each trial.
        checkpoints: Where trials are saved; None saves none.
        study: The description of the study as plain values, from which other processes open its workload.
    """

    needs: Needs = field(default_factory=Needs)
    checkpoints: TrialCheckpoints | None = None
    study: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, study: Study, directory: Path | None) -> TrialSetup:
        """That of a study.

        Args:
            study: The study.
            directory: Where it is kept; None keeps nothing.

        Raises:
            ConfigurationError: it saves trials and there is no directory; or trials have several ranks, and the
                workload is a Python object, which the processes of the ranks cannot open.
        """
        checkpoints = None
        if study.checkpoint_every is not None:
            if directory is None:
                raise ConfigurationError("checkpoint_every saves trials in the directory of the study: give one")
            checkpoints = TrialCheckpoints(directory.absolute() / "trials", study.checkpoint_every)
        if study.needs.ranks > 1:
            require_names(study, f"trials on {study.needs.ranks} ranks")
        return cls(study.needs, checkpoints, study.plain())


def require_names(study: Study, what: str) -> None:
    """Refuse Python objects in a description that other processes are to read.

    Raises:
        ConfigurationError: the workload, or the optimizer of an arm, has no name.
    """
    problems: list[str] = []
    if not isinstance(study.workload, str):
        problems.append(
            f"{what} open the workload in processes of their own, and it is a Python object: write it as "
            "'file.py:function' or 'module:function'"
        )
    problems += [
        f"arms.{name}: {what} make the optimizer in processes of their own, and it is a Python object: write it as "
        "'module:Class'"
        for name, arm in study.arms.items()
        if not isinstance(arm.optimizer, str)
    ]
    if problems:
        raise ConfigurationError(problems)


def trials_on_this_machine(needs: Needs, processors: int) -> int:
    """How many trials this machine runs at once; one also where it has fewer processors than a trial asks for.

    Args:
        needs: Of each trial.
        processors: Of this machine.

    Raises:
        ConfigurationError: it has too little memory or too few GPUs for one.
    """
    memory, gpus = memory_bytes(), _gpus() if needs.gpus else 0
    problems: list[str] = []
    if needs.all_gpus > gpus:
        has = f"has {gpus}" if gpus else "has none that torch can use"
        problems.append(
            f"a trial needs {needs.all_gpus} GPUs and this machine {has}: run the study where there are as many "
            "(--executor ray, or descend study submit), or lower gpus and ranks in [needs]"
        )
    if needs.memory_bytes is not None and needs.memory_bytes > memory:
        problems.append(
            f"a trial needs {needs.memory_bytes / 2**30:.3g} GiB of memory and this machine has "
            f"{memory / 2**30:.3g} GiB: lower memory_gib in [needs], or run the study on a larger machine"
        )
    if problems:
        raise ConfigurationError(problems)
    return max(1, needs.trials_on(processors, memory, gpus))


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
