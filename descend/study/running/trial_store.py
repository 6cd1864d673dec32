"""Where trials are claimed and recorded: in memory, or in a directory that several processes and machines share.

study.json            the description                                 `StudyFile`
records/NAME.jsonl    a line per trial, a file per process            `RecordFiles`
executors/ID          the executor of a kind of trials, so that a
                      resumed study computes the same bits            `ExecutorFiles`
leases/ID             the process that runs a trial                   `TrialLeases`
trials/ID/            checkpoints of a trial under way                `TrialCheckpoints`
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from descend.arguments import check_path, require
from descend.errors import ConfigurationError, DirectoryLost, StorageError
from descend.files import has_folder
from descend.runtime.directory_lock import HeldFolder
from descend.study.running.executor_files import ExecutorFiles
from descend.study.running.record_files import RecordFiles
from descend.study.running.storage import storage_errors
from descend.study.running.study_file import StudyFile
from descend.study.running.trial import RETRIED, Record, Trial
from descend.study.running.trial_leases import TrialLeases

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from descend.study.design.study import Study

__all__ = ["Ledger", "Memory", "StudyDirectory", "read_frozen"]


class Ledger(Protocol):
    """What running a study needs of its records: the interface of `Memory` and `StudyDirectory`."""

    @property
    def path(self) -> Path | None:
        """The directory of the study; None where nothing is written."""
        ...

    def records(self) -> dict[str, Record]:
        """All finished trials by id. A trial that ended in an error can be claimed again, and its record replaced."""
        ...

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """Claim up to `at_most` of the trials; no other process gets these."""
        ...

    def record(self, *records: Record) -> None:
        """Store the records of claimed trials: all of them or, if the process is killed, none."""
        ...

    def way(self, kind: str) -> str | None:
        """The name of the executor of a kind of trials; None if none was chosen yet."""
        ...

    def decide(self, kind: str, way: str) -> str:
        """Choose the executor of a kind of trials, for later too; returns the first choice of any process."""
        ...


class Memory:
    """A ledger of one process, without files."""

    path = None

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._ways: dict[str, str] = {}

    def records(self) -> dict[str, Record]:
        """See `Ledger.records`."""
        return dict(self._records)

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """See `Ledger.claim`."""
        return list(trials[:at_most])

    def record(self, *records: Record) -> None:
        """See `Ledger.record`."""
        self._records |= {record.trial.id: record for record in records}

    def way(self, kind: str) -> str | None:
        """See `Ledger.way`."""
        return self._ways.get(kind)

    def decide(self, kind: str, way: str) -> str:
        """See `Ledger.decide`."""
        return self._ways.setdefault(kind, way)


class StudyDirectory:
    """A ledger in a directory.

    Args:
        path: The directory, new or of the same study.
        study: The study; None opens an existing directory.
        hashes: Hashes of code and data, stored with the description.
        begun: Whether study.json is known to have been there.

    Raises:
        ConfigurationError: the directory holds another study, or the path is a file.
        StorageError: it cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        study: Study | None = None,
        hashes: dict[str, str] | None = None,
        begun: bool = False,
    ) -> None:
        require(check_path("directory", path))
        self.path = Path(path)
        self._file = StudyFile(self.path)
        self._file.was_there = begun
        self._files = RecordFiles(self.path / "records")
        self._executors = ExecutorFiles(self.path / "executors")
        self._leases = TrialLeases(self.path / "leases")
        self.anchor: HeldFolder | None = None
        if study is not None:
            self._make_folders()
            self._file.write(study, hashes or {}, self._require())

    def _make_folders(self) -> None:
        try:
            with storage_errors(self.path):
                for folder in (self._leases.folder, self._files.folder):
                    folder.mkdir(parents=True, exist_ok=True)
        except StorageError as error:
            if isinstance(error.__cause__, (FileExistsError, NotADirectoryError)):
                raise ConfigurationError(f"{self.path} cannot be a directory: a file has this name") from error
            raise

    def _require(self) -> HeldFolder:
        """The directory; DirectoryLost if another, or none, is at the path since this process first wrote there.

        Called before each write. The same goes for study.json and the folders in it: without its records a study would
        never end.
        """
        if self.anchor is None:
            with storage_errors(self.path):
                self.anchor = HeldFolder(self.path)
                for part in (self._files, self._leases):
                    if has_folder(part.folder):
                        part.anchor = HeldFolder(part.folder, self.anchor)
        for folder in (self.anchor, self._files.anchor, self._leases.anchor):
            if folder is not None:
                folder.require()
        self._file.require()
        return self.anchor

    def description(self) -> dict[str, Any]:
        """See `StudyFile.read`."""
        return self._file.read()

    def study(self) -> Study:
        """See `StudyFile.study`."""
        return self._file.study()

    def records(self) -> dict[str, Record]:
        """See `Ledger.records`. Reads only new lines."""
        return self._files.records()

    def cut_off(self) -> list[Path]:
        """See `RecordFiles.cut_off`."""
        return self._files.cut_off()

    def record(self, *records: Record) -> None:
        """See `Ledger.record`. In a directory that was renamed they are kept all the same, and then it is an error."""
        try:
            self._require()
        except DirectoryLost:
            if self.anchor is not None and self.anchor.moved_to() and self._files.is_open:
                self._files.append(*records)
            raise
        self._files.append(*records)
        for record in records:
            self._leases.release(record.trial.id)

    def way(self, kind: str) -> str | None:
        """See `Ledger.way`."""
        return self._executors.way(kind)

    def decide(self, kind: str, way: str) -> str:
        """See `Ledger.decide`."""
        return self._executors.decide(kind, way, self._require())

    def claim(self, trials: Sequence[Trial], at_most: int) -> list[Trial]:
        """See `Ledger.claim`. A claim whose heartbeat stopped is taken over."""
        self._require()
        taken: list[Trial] = []
        for trial in trials:
            if len(taken) == at_most:
                break
            if self._leases.take(trial.id):
                taken.append(trial)
        ended = self.records()  # one may have ended between the reading of records and the claim
        for trial in [trial for trial in taken if trial.id in ended and ended[trial.id].status not in RETRIED]:
            self._leases.release(trial.id)
            taken.remove(trial)
        return taken

    def beat(self) -> None:
        """Send a heartbeat for all claims of this process; one that another process has taken over is given up."""
        self._leases.renew()

    def __enter__(self) -> StudyDirectory:
        """Start the thread of heartbeats."""
        self._leases.start_heartbeats()
        return self

    def __exit__(self, *error: object) -> None:
        """Release all claims, and flush the records to the disk."""
        self._leases.close()
        self._files.close()
        for part in (self, self._files, self._leases):
            if part.anchor is not None:
                part.anchor.close()
                part.anchor = None


def read_frozen(path: str | os.PathLike[str]) -> Study:
    """See `StudyDirectory.study`; of a study that another process has begun."""
    return StudyDirectory(path, begun=True).study()
