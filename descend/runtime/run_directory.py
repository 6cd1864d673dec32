"""The directory of one run: its description, its rows, its checkpoints. One process owns it.

YYYYmmdd_HHMMSS_NAME/
    experiment.prototext     the run as a text that starts it again
    run.json                 versions, seed, command, restarts, and how it ended
    metrics.jsonl            one row for each pass over samples, and one for each restart
    log.txt                  everything that was printed, with restarts and errors
    checkpoints/step-N/      weights and state, see checkpoint.py
    checkpoints.json         which of them this run wrote, for whom, and how long it had trained by then
    owner.json               who is at work here, while somebody is; see lease.py
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import warnings
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, StorageError
from descend.runtime.directory_lock import OWNER, DirectoryLock

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


def _named(path: Any) -> Path:
    """The place that a user names, whatever becomes of the current folder later.

    Raises:
        ConfigurationError: nothing can have that name.
    """
    place = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(place, str) or not place or "\0" in place:
        raise ConfigurationError(f"run_dir is {path!r} and is to be the name of a directory, a text or a Path")
    wanted = Path(place).absolute()
    try:
        wanted.lstat()
    except FileNotFoundError:
        return wanted
    except OSError as error:
        raise _not_made(wanted, error) from error
    if wanted.is_symlink() and not wanted.exists():
        raise ConfigurationError(f"run directory {wanted} is a link to {wanted.readlink()}, and nothing is there")
    return wanted


def _not_made(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"run directory {path} cannot be made: {error.strerror or error}; name a writable place with --run-dir, "
        "run_dir= or the variable DESCEND_EXPERIMENT_DIR"
    )


def _create(wanted: Path, given: bool) -> Path:
    """Make the directory; `mkdir` is the claim, so two processes never share one."""
    for number in range(1, 10_000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            path.mkdir(parents=True, exist_ok=given and (_owned(path) or not _taken(path)))
        except FileExistsError as error:
            if given:
                what = _held(path) if path.is_dir() else "is a file"
                raise ConfigurationError(f"run directory {path} {what}: name one that is new or empty") from error
            continue
        except OSError as error:
            raise _not_made(path, error) from error
        return path
    raise ConfigurationError(f"no free name for a run directory beside {wanted}")


def _taken(path: Path) -> bool:
    return path.is_dir() and any(file.name != OWNER for file in path.iterdir())


def _held(path: Path) -> str:
    """What is in a directory that is taken."""
    run = any((path / name).exists() for name in _OF_A_RUN)
    return "holds another run already" if run else "is not empty"


def _owned(path: Path) -> bool:
    return (path / OWNER).is_file()


RESTART = "restart"  # the mode of a row that marks one

_OF_A_RUN = ("experiment.prototext", "run.json", "metrics.jsonl", "log.txt", "checkpoints", "checkpoints.json")


class _Lines:
    """A text file that lines are added to. Whole lines only; those that cannot be written wait for the next attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[str] = []
        self._told = False

    def add(self, line: str) -> None:
        self._waiting.append(line)
        try:
            self._write("".join(f"{line}\n" for line in self._waiting).encode())
        except OSError as error:
            told, self._told = self._told, True
            if not told:
                warnings.warn(f"cannot write {self._path}: {error.strerror or error}; training goes on", stacklevel=3)
        else:
            self._waiting.clear()
            self._told = False

    def _write(self, data: bytes) -> None:
        """Add all of it or nothing."""
        with self._path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                if (written := file.write(data)) != len(data):
                    raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were written")
            except OSError:
                file.truncate(size)
                raise

    def replace(self, lines: Sequence[str]) -> None:
        self._waiting.clear()
        write_beside(self._path, "".join(f"{line}\n" for line in lines))


class RunDirectory:
    """The files of one run.

    Args:
        path: Where to put them, new or empty; None makes a dated one under DESCEND_EXPERIMENT_DIR, LBANN_EXPERIMENT_DIR
            or the current folder.
        name: What the dated folder is called after its date.
        resume: The directory may hold a run, which is to be continued.

    Raises:
        ConfigurationError: the directory cannot be made, cannot be written, holds another run, or another process is at
            work in it.
    """

    def __init__(self, path: str | os.PathLike[str] | None, name: str = "descend", resume: bool = False) -> None:
        if resume and path is None:
            raise ConfigurationError("resume needs the directory of the run to continue: give run_dir=")
        wanted = _named(path) if path is not None else _place(name)
        self._new = _first_missing(wanted)
        self.path = wanted if resume and wanted.is_dir() else _create(wanted, given=path is not None)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"run directory {self.path} cannot be written: change its permissions or name another"
            )
        self._lease = DirectoryLock(self.path)
        self._rows = _Lines(self.path / "metrics.jsonl")
        self._log = _Lines(self.path / "log.txt")
        if not resume and _taken(self.path):
            self.close()
            raise ConfigurationError(
                f"run directory {self.path} holds another run already: name one that is new or empty"
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

    def keep_text(self, name: str, text: str) -> None:
        """Write a text file of a run that is continued; what stood there and is different stays beside it."""
        path = self.path / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        if path.is_file():
            stem = f"earlier-{{}}-{name}"
            path.rename(next(p for n in range(1, 10_000) if not (p := self.path / stem.format(n)).exists()))
        self.write_text(name, text)

    def require_ownership(self) -> None:
        """Raise StorageError if another process has taken the directory over."""
        self._lease.require()

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Add one row to metrics.jsonl. NaN and infinities are written as the words Python's json reads back.

        A row that cannot be written now is written with the next one; training does not stop for it.
        """
        self._rows.add(json.dumps(row))

    def replace_rows(self, rows: Sequence[Mapping[str, Any]], step: int = 0) -> None:
        """Let metrics.jsonl hold these rows, and no others but the marks of restarts up to `step`."""
        marks = [row for row in self._read_rows() if row.get("mode") == RESTART and row["step"] <= step]
        merged = sorted([*rows, *marks], key=lambda row: int(row.get("step", 0)))
        self._rows.replace([json.dumps(row) for row in merged])

    def seconds_of_rows(self) -> dict[tuple[str, int, int], float]:
        """How long the passes took that metrics.jsonl has rows of, by mode, epoch and step."""
        rows = [row for row in self._read_rows() if "seconds" in row]
        return {(row["mode"], row["epoch"], row["step"]): row["seconds"] for row in rows}

    def _read_rows(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        rows: list[Any] = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:  # the end of a line that a killed process was writing, or what somebody did to it
                continue
        return [row for row in rows if _is_row(row)]

    def log(self, text: str) -> None:
        """Add lines to log.txt; what cannot be written does not stop a run."""
        self._log.add(text)

    def facts(self) -> dict[str, Any]:
        """What `run.json` holds.

        Raises:
            StorageError: it cannot be read, or is not that of a run.
        """
        try:
            facts = json.loads((self.path / "run.json").read_text())
            return {**facts, "restarts": [*facts["restarts"]]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{self.path / 'run.json'} is damaged ({error}), so the run cannot be continued: put back a copy of "
                "it, or begin a run in another directory"
            ) from error

    def note_restart(self, step: int, epoch: int, changes: Sequence[str]) -> None:
        """Say in run.json, metrics.jsonl and log.txt that the run was continued at `step`, and with which changes."""
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        facts = self.facts()
        restarts = [*facts["restarts"], {"step": step, "time": when, "changes": list(changes)}]
        self.write_json("run.json", {**facts, "restarts": restarts, "end": None})
        self.append_row({"mode": RESTART, "epoch": epoch, "step": step, "time": when})
        self.log(f"continued after step {step:,} at {when}")

    def note_end(self, end: Mapping[str, Any]) -> None:
        """Say in run.json how the run ended; what cannot be written does not matter any more."""
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        try:
            facts = json.loads((self.path / "run.json").read_text())
            self.write_json("run.json", {**facts, "end": {**end, "time": when}})
        except (OSError, ValueError, TypeError) as error:
            self.log(f"run.json could not be written: {error}")

    def set_aside(self) -> Path | None:
        """Move a run that is not to be continued to `earlier-N` beside its successor; None if there is none."""
        files = [path for path in self.path.iterdir() if path.name in _OF_A_RUN]
        if not files:
            return None
        place = next(p for n in range(1, 10_000) if not (p := self.path / f"earlier-{n}").exists())
        place.mkdir()
        for path in files:
            path.rename(place / path.name)
        return place

    def close(self) -> None:
        """Give the directory back to whoever wants it next."""
        self._lease.release()

    def discard(self) -> None:
        """Take back a directory in which nothing was started: what this object made, and nothing else."""
        self.close()
        if self._new is not None and self._new.is_dir():
            shutil.rmtree(self._new)


def _is_row(row: Any) -> bool:
    """Whether it is a row as a run writes it."""
    return isinstance(row, dict) and _ROW.items() <= {key: type(value) for key, value in row.items()}.items()


_ROW = {"mode": str, "epoch": int, "step": int}


def stored_seed(path: str | os.PathLike[str] | None) -> int | None:
    """The seed that the run in a directory began with; None where no run is there."""
    facts = None if path is None else Path(path) / "run.json"
    if facts is None or not facts.is_file():
        return None
    try:
        return int(json.loads(facts.read_text())["random_seed"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{facts} is damaged ({error}), so the run there cannot be continued: put back a copy of it, or begin a "
            "run in another directory"
        ) from error


def _first_missing(path: Path) -> Path | None:
    """The topmost folder of `path` that does not exist yet; None when all do."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    return missing[-1] if missing else None
