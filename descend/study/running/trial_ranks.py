"""Trials that are data parallel: each on several ranks of this machine, started by torchrun.

    python -m descend.study.running.trial_ranks DESCRIPTION RECORD     what each rank runs

The ranks share the mini-batches of the trial, and rank zero writes its record to a file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import DescendError, Stopped, main
from descend.launch import detect, local
from descend.runtime import SignalHandler
from descend.runtime.run_directory import write_beside
from descend.study.running.described_trial import DescribedTrial
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Record, Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from descend.study.running.trial_setup import TrialSetup
    from descend.study.task import StudyTask

__all__ = ["run_on_ranks", "work_as_rank"]

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


if __name__ == "__main__":
    main(lambda: work_as_rank(*(Path(word) for word in sys.argv[1:])))
