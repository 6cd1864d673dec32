"""Which executor runs a kind of trials, in a directory of a file each: the first process that chooses decides."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from typing import TYPE_CHECKING

from descend.errors import DAMAGED_FILE, StorageError
from descend.files import bounded_text
from descend.study.running.storage import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

    from descend.runtime.directory_lock import HeldFolder

__all__ = ["ExecutorFiles"]


class ExecutorFiles:
    """Choices of executors that all processes of a study share.

    Args:
        folder: Where they are kept; made with the first choice.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, kind: str) -> Path:
        return self.folder / hashlib.sha256(kind.encode()).hexdigest()[:24]

    def way(self, kind: str) -> str | None:
        """The executor of a kind of trials; None if none was chosen yet.

        Raises:
            StorageError: the file is damaged.
        """
        file = self._file(kind)
        try:
            return str(json.loads(bounded_text(file))["executor"])
        except FileNotFoundError:
            return None
        except DAMAGED_FILE as error:
            raise StorageError(f"{file} is damaged: {error!r}; remove it, and executors are measured again") from error

    def decide(self, kind: str, way: str, directory: HeldFolder | None = None) -> str:
        """Choose an executor unless there is a choice; returns the one that holds.

        Args:
            kind: Of trials.
            way: The executor.
            directory: Of the study, so that no other one is written to; None where its path is enough.
        """
        folder = self.folder if directory is None else directory.place / self.folder.name
        file = folder / self._file(kind).name
        own = file.with_name(f".{file.name}.{socket.gethostname()}.{os.getpid()}")
        with storage_errors(self.folder):
            folder.mkdir(exist_ok=True)
            own.write_text(json.dumps({"kind": kind, "executor": way}), encoding="utf-8")
            try:
                os.link(own, file)  # unlike a renaming it does not replace the choice of another process
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                own.replace(file)
            own.unlink(missing_ok=True)
        return self.way(kind) or way
