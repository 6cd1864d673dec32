"""The directory of one run: its description, its rows, its checkpoints. One process owns it.

YYYYmmdd_HHMMSS_NAME/
    experiment.prototext     the run as a text that starts it again
    run.json                 versions, seed, command, reason for the end
    metrics.jsonl            one row for each pass over samples
    checkpoints/step-N/      weights and state, see checkpoint.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["RunDirectory", "stored_seed", "write_beside"]


def write_beside(path: Path, content: str | bytes) -> None:
    """Write a file so that at every instant either the old or the new content stands under its name.

    Raises:
        StorageError: the file cannot be written; what stood there before still does.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    data = content.encode() if isinstance(content, str) else content
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror or error}; is the disk full or read-only?") from error


def _place(name: str) -> Path:
    """The folder that a new run gets, dated as LBANN dates it; a number is appended when it is taken."""
    base = Path(os.environ.get("DESCEND_EXPERIMENT_DIR") or os.environ.get("LBANN_EXPERIMENT_DIR") or Path.cwd())
    safe = re.sub(r"[^\w.-]+", "_", name) or "run"
    stem = f"{datetime.now().astimezone():%Y%m%d_%H%M%S}_{safe}"
    return base / stem


def _create(wanted: Path, given: bool) -> Path:
    """Make the directory; `mkdir` is the claim, so two processes never share one."""
    for number in range(1, 10_000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            path.mkdir(parents=True, exist_ok=given and not _taken(path))
        except FileExistsError as error:
            if given:
                what = "holds another run already" if path.is_dir() else "is a file"
                raise ConfigurationError(f"run directory {path} {what}: name one that is new or empty") from error
            continue
        except OSError as error:
            raise ConfigurationError(
                f"run directory {path} cannot be made: {error.strerror or error}; "
                "name a writable place with --run-dir, run_dir= or the variable DESCEND_EXPERIMENT_DIR"
            ) from error
        return path
    raise ConfigurationError(f"no free name for a run directory beside {wanted}")


def _taken(path: Path) -> bool:
    return path.is_dir() and any(path.iterdir())


class RunDirectory:
    """The files of one run.

    Args:
        path: Where to put them, new or empty; None makes a dated one under DESCEND_EXPERIMENT_DIR, LBANN_EXPERIMENT_DIR
            or the current folder.
        name: What the dated folder is called after its date.
        resume: The directory may hold a run, which is to be continued.

    Raises:
        ConfigurationError: the directory cannot be made, cannot be written, or holds another run.
    """

    def __init__(self, path: str | os.PathLike[str] | None, name: str = "descend", resume: bool = False) -> None:
        if resume and path is None:
            raise ConfigurationError("resume needs the directory of the run to continue: give run_dir=")
        wanted = Path(path).absolute() if path is not None else _place(name)
        self._new = _first_missing(wanted)
        self.path = wanted if resume and wanted.is_dir() else _create(wanted, given=path is not None)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"run directory {self.path} cannot be written: change its permissions or name another"
            )

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write one JSON file of the run."""
        write_beside(self.path / name, json.dumps(value, indent=2, sort_keys=True) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write one text file of the run."""
        write_beside(self.path / name, text)

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Add one row to metrics.jsonl. NaN and infinities are written as the words Python's json reads back."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def replace_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Let metrics.jsonl hold these rows and no others."""
        write_beside(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def note_restart(self, step: int) -> None:
        """Add to run.json that the run was continued at `step`, and when."""
        facts = json.loads((self.path / "run.json").read_text())
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        self.write_json("run.json", {**facts, "restarts": [*facts["restarts"], {"step": step, "time": when}]})

    def discard(self) -> None:
        """Take back a directory in which nothing was started: what this object made, and nothing else."""
        if self._new is not None and self._new.is_dir():
            shutil.rmtree(self._new)


def stored_seed(path: str | os.PathLike[str] | None) -> int | None:
    """The seed that the run in a directory began with; None where no run is there."""
    facts = None if path is None else Path(path) / "run.json"
    if facts is None or not facts.is_file():
        return None
    try:
        return int(json.loads(facts.read_text())["random_seed"])
    except (ValueError, KeyError) as error:
        raise StorageError(f"{facts} is damaged ({error}), so the run there cannot be continued") from error


def _first_missing(path: Path) -> Path | None:
    """The topmost folder of `path` that does not exist yet; None when all do."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    return missing[-1] if missing else None
