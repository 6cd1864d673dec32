"""A trial as text, for processes that share nothing with the one that asks: ranks of a trial, workers of a cluster.

The text is JSON: the description of the study, the trial, and where its checkpoints are. The workload is opened by its
name in the process that runs the trial, so its file and its data must be at the same place there.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from descend.errors import ConfigurationError, DataError
from descend.study.design.study import make_study
from descend.study.running.trial import Trial
from descend.study.running.trial_setup import TrialCheckpoints, TrialSetup
from descend.study.task import StudyTask, task_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.study.design.study import Study

__all__ = ["DescribedTrial"]


@dataclass(frozen=True)
class DescribedTrial:
    """A trial with all that a process needs to run it.

    Attributes:
        plain: The description of the study.
        trial: What is run.
        folder: The working directory, from which relative names of the workload and its data count.
        checkpoints: Where the trial is saved; None saves nothing.
        data: The fingerprint of the data that the asking process has; "" does not compare.
    """

    plain: Mapping[str, Any]
    trial: Trial
    folder: str
    checkpoints: TrialCheckpoints | None = None
    data: str = ""

    @classmethod
    def of(cls, setup: TrialSetup, trial: Trial, data: str = "") -> Self:
        """That of a trial in the working directory of this process."""
        return cls(setup.study, trial, str(Path.cwd()), setup.checkpoints, data)

    def text(self) -> str:
        """As a line of JSON."""
        saved = self.checkpoints and [str(self.checkpoints.folder), self.checkpoints.every_steps]
        facts = {"study": self.plain, "trial": asdict(self.trial), "folder": self.folder, "data": self.data}
        return json.dumps({**facts, "checkpoints": saved})

    @classmethod
    def read(cls, text: str) -> Self:
        """What `text` wrote."""
        facts = json.loads(text)
        saved = facts["checkpoints"] and TrialCheckpoints(Path(facts["checkpoints"][0]), facts["checkpoints"][1])
        return cls(facts["study"], Trial(**facts["trial"]), facts["folder"], saved, facts["data"])

    def study(self) -> Study:
        """The study."""
        return make_study(dict(self.plain))

    def setup(self) -> TrialSetup:
        """How the trial is run."""
        return TrialSetup(self.study().needs, self.checkpoints, self.plain)

    def task(self) -> StudyTask:
        """The workload, opened in the working directory of the process that asked; the last few are kept.

        Raises:
            ConfigurationError: there is no such directory here, or the workload cannot be opened.
            DataError: its data are not those of the process that asked.
        """
        self._enter_folder()
        study = self.study()
        workload = {name: value for name, value in self.trial.configuration.items() if name.startswith("workload.")}
        task = _opened(json.dumps(dict(self.plain)), json.dumps(workload))
        if self.data and not workload and _fingerprint(json.dumps(dict(self.plain))) != self.data:
            raise DataError(
                f"{platform.node()}: workload '{study.workload}' has other data here than where the study was "
                "started: give all nodes the same files"
            )
        return task

    def _enter_folder(self) -> None:
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise ConfigurationError(
                f"{platform.node()}: {self.folder}, where the study was started, cannot be entered: "
                f"{error.strerror}; start it in a directory of a file system that all nodes share"
            ) from error
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)  # where a workload of one's own is looked for


@functools.lru_cache(maxsize=8)
def _opened(study: str, workload: str) -> StudyTask:
    return task_of(make_study(json.loads(study)), json.loads(workload))


@functools.lru_cache(maxsize=8)
def _fingerprint(study: str) -> str:
    return _opened(study, "{}").fingerprint()
