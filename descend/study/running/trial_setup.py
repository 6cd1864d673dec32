"""How every trial of a study is run, whichever executor runs it: what it needs, and where its checkpoints are."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError
from descend.files import escape
from descend.machine import memory_bytes
from descend.study.design.needs import Needs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from descend.study.design.study import Study
    from descend.study.running.trial import Trial

__all__ = ["TrialCheckpoints", "TrialSetup", "require_names", "trials_on_this_machine"]


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
