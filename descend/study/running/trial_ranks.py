"""Trials that are data parallel: each on several ranks of this machine, started by torchrun.

    python -m descend.study.running.trial_ranks DESCRIPTION RECORD     what each rank runs

The ranks share the mini-batches of the trial, and rank zero writes its record to a file.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from descend.errors import ConfigurationError, DataError, DescendError, Stopped, main
from descend.launch import detect, local
from descend.runtime import SignalHandler
from descend.runtime.run_directory import write_beside
from descend.study.design.study import make_study
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Record, Trial, TrialCheckpoints, TrialSetup
from descend.study.task import StudyTask, task_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from descend.study.design.study import Study

__all__ = ["DescribedTrial", "run_on_ranks", "work_as_rank"]

_POLL_SECONDS = 0.2
_SHOWN = 5  # last lines of an error


def run_on_ranks(
    task: StudyTask,
    trials: Iterable[Trial],
    evaluations: int,
    kinds: dict[str, Any] | None = None,
    *,
    setup: TrialSetup,
) -> Iterator[Record]:
    """Records of the trials as they end, one after the other. Each rank opens the workload by its name.

    Args:
        task: Not used.
        trials: What is run.
        evaluations: Not used; they are those of the study.
        kinds: Not used; such optimizers have no name.
        setup: Of the trials.

    Raises:
        Stopped: a signal asked it to stop; the trial under way is not recorded and runs again.
    """
    for trial in trials:
        with tempfile.TemporaryDirectory(prefix="descend-trial-") as folder:
            yield _run(trial, setup, Path(folder))


def _run(trial: Trial, setup: TrialSetup, folder: Path) -> Record:
    described, found, said = folder / "trial.json", folder / "record.json", folder / "error"
    described.write_text(DescribedTrial.of(setup, trial).text(), encoding="utf-8")
    program = ["-m", "descend.study.running.trial_ranks", str(described), str(found)]
    ranks = setup.needs.ranks
    environment = {**local.surroundings(ranks), "OMP_NUM_THREADS": str(setup.needs.cores)}
    with said.open("wb") as errors, SignalHandler() as stop:
        process = subprocess.Popen(
            local.command(ranks, program), env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            while (code := _waited(process)) is None:
                if name := stop.requested():
                    process.terminate()  # which asks, as the signal did
                    process.wait()
                    raise Stopped(f"{name} stopped it; the trial under way is abandoned")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if found.is_file():
        return Record.read(found.read_text(encoding="utf-8"))
    if code == Stopped.exit_code:
        raise Stopped("the ranks of a trial were asked to stop; it is abandoned")
    last = "; ".join(said.read_text(errors="replace").strip().splitlines()[-_SHOWN:])
    return Record(trial, "error", message=f"its {ranks} ranks ended with exit code {code}: {last}")


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def work_as_rank(described: Path, found: Path) -> None:
    """What each rank does: run the trial; rank zero writes its record."""
    import torch

    asked, here = DescribedTrial.read(described.read_text(encoding="utf-8")), detect()
    study = asked.study()
    torch.set_num_threads(study.needs.cores)
    if study.needs.device == "cuda":
        torch.cuda.set_device(here.local_rank)
    record = run_trial(asked.task(), asked.trial, study.evaluations, checkpoints=asked.checkpoints)
    if here.rank == 0:
        write_beside(found, record.line())
    elif record.message:
        raise DescendError(f"rank {here.rank}: {record.message}")


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


if __name__ == "__main__":
    main(lambda: work_as_rank(*(Path(word) for word in sys.argv[1:])))
