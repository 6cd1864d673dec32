"""The directory of one run: its description, metrics, log and checkpoints. One process owns it at a time.

YYYYmmdd_HHMMSS_NAME/
    experiment.prototext     the run as a text that starts it again
    run.json                 versions, seed, command, restarts, and how it ended
    metrics.jsonl            one row for each epoch and evaluation, and one for each restart
    log.txt                  everything that was printed, with restarts and errors
    checkpoints/step-N/      weights and state, see checkpoint.py
    checkpoints.json         which of them this run wrote, for which purpose, and the training time until then
    report.html              everything of it that can be shown, see experiment/run_page
    owner.json               the process that owns the directory, while it runs; see directory_lock.py
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.arguments import check_path, require
from descend.errors import DAMAGED_FILE, ConfigurationError, StorageError, warn
from descend.files import bounded_text, has_file
from descend.runtime.directory_lock import OWNER, DirectoryLock, HeldFolder, is_stale_lock
from descend.runtime.rows import RESTART, are_readable, read_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["RunDirectory", "stored_seed", "write_beside"]


def write_beside(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: at every instant its name refers to the whole old or the whole new content.

    Raises:
        StorageError: the file cannot be written; the old content is unchanged.
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
        with contextlib.suppress(OSError):  # of a disk that turned read-only
            beside.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror or error}; is the disk full or read-only?") from error


def _default_path(name: str) -> Path:
    """The default directory of a new run, dated as LBANN dates it; `_create` appends a number if it exists."""
    base = Path(os.environ.get("DESCEND_EXPERIMENT_DIR") or os.environ.get("LBANN_EXPERIMENT_DIR") or Path.cwd())
    safe = re.sub(r"[^\w.-]+", "_", name) or "run"
    stem = f"{datetime.now().astimezone():%Y%m%d_%H%M%S}_{safe}"
    return base / stem


def _given_path(path: Any) -> Path:
    """The absolute path that a user gave.

    Raises:
        ConfigurationError: it is not a valid name of a directory, or a dangling link.
    """
    require(check_path("run_dir", path, remedy="name a directory"))
    wanted = Path(path).absolute()
    try:
        wanted.lstat()
    except FileNotFoundError:
        return wanted
    except OSError as error:
        raise _cannot_make(wanted, error) from error
    if wanted.is_symlink() and not wanted.exists():
        raise ConfigurationError(f"run directory {wanted} is a link to {wanted.readlink()}, and nothing is there")
    return wanted


def _in_utf8(path: Path) -> Path:
    """The path; an error where it is no text, which files of tensors and JSON need it to be."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        place = os.fsencode(path).decode(errors="backslashreplace")
        raise ConfigurationError(
            f"run_dir must be a path in UTF-8, got {place}: name another directory, or rename those on the way"
        ) from None
    return path


def _cannot_make(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"run directory {path} cannot be made: {error.strerror or error}; name a writable place with --run-dir, "
        "run_dir= or the variable DESCEND_EXPERIMENT_DIR"
    )


def _create(wanted: Path, given: bool) -> Path:
    """Make the directory; `mkdir` is atomic, so two processes never make the same one."""
    for number in range(1, 10_000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            path.mkdir(parents=True, exist_ok=given and (_has_owner(path) or not _is_taken(path)))
        except FileExistsError:
            if given:
                what = _describe_content(path) if path.is_dir() else "is a file: name one that is new or empty"
                raise ConfigurationError(f"run directory {path} {what}") from None
            continue
        except OSError as error:
            raise _cannot_make(path, error) from error
        return path
    raise ConfigurationError(f"no free name for a run directory beside {wanted}")


def _is_taken(path: Path) -> bool:
    return path.is_dir() and any(file.name != OWNER for file in path.iterdir())


def _describe_content(path: Path) -> str:
    """What a directory that is not empty holds, and what to do."""
    if any((path / name).exists() for name in _OF_A_RUN):
        return (
            "holds another run already: continue that with resume=True (on the command line --resume), or name one "
            "that is new or empty"
        )
    return "is not empty: name one that is new or empty"


def _has_owner(path: Path) -> bool:
    return (path / OWNER).is_file()


_OF_A_RUN = (
    "experiment.prototext",
    "run.json",
    "metrics.jsonl",
    "log.txt",
    "checkpoints",
    "checkpoints.json",
    "report.html",
)
_WRITTEN = {*_OF_A_RUN, "tournament.jsonl"}  # by `write_beside`
_PART = re.compile(r"\.(.+)\.(\d+)\.part")
_OF_A_LOCK = re.compile(rf"\.{re.escape(OWNER)}\.[0-9a-f]{{16}}\.(part|gone)|\.clock-[0-9a-f]{{16}}")


class _Lines:
    """A text file to append whole lines to; lines that cannot be written are kept for the next attempt."""

    def __init__(self, folder: HeldFolder, name: str) -> None:
        self._folder, self.name = folder, name
        self._pending: list[str] = []
        self._warned = False

    @property
    def path(self) -> Path:
        return self._folder.place / self.name

    def add(self, line: str, at_once: bool = True) -> None:
        self._pending.append(line)
        if at_once:
            self.flush()

    def flush(self, to_disk: bool = False) -> None:
        """Write the lines that could not be written before."""
        try:
            self._write("".join(f"{line}\n" for line in self._pending).encode(), to_disk)
        except OSError as error:
            warned, self._warned = self._warned, True
            if not warned:
                why = "it is a link, and may lead to a file of others" if error.errno == errno.ELOOP else error.strerror
                warn(f"cannot write {self._folder.path / self.name}: {why or error}; training continues")
        else:
            self._pending.clear()
            self._warned = False

    def _write(self, data: bytes, to_disk: bool) -> None:
        """Append all of it or nothing."""
        with open(self.path, "ab", buffering=0, opener=_at_once) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                if (written := file.write(data)) != len(data):
                    raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were written")
            except OSError:
                file.truncate(size)
                raise
            if to_disk:
                os.fsync(file.fileno())

    def replace(self, lines: Sequence[str]) -> None:
        self._pending.clear()
        with self._folder.writing():
            write_beside(self.path, "".join(f"{line}\n" for line in lines))


def _at_once(path: str, flags: int) -> int:
    """Open a file. An OSError is a named pipe in its place, whose reader would be waited for, and a link, which may
    lead to a file of another run.
    """
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0), 0o666)


class RunDirectory:
    """The files of one run.

    Args:
        path: The directory, new or empty; None makes a dated one under DESCEND_EXPERIMENT_DIR, LBANN_EXPERIMENT_DIR or
            the current folder.
        name: Name of the dated directory, after its date.
        resume: The directory may hold a run, which will be continued.

    Raises:
        ConfigurationError: the directory cannot be made or written, holds another run, or another process owns it.
    """

    def __init__(self, path: str | os.PathLike[str] | None, name: str = "descend", resume: bool = False) -> None:
        if resume and path is None:
            raise ConfigurationError("resume needs the directory of the run to continue: give run_dir=")
        wanted = _in_utf8(_given_path(path) if path is not None else _default_path(name))
        self._new = _first_missing(wanted)
        self.path = wanted if resume and wanted.is_dir() else _create(wanted, given=path is not None)
        if self.path != wanted:  # which another run has
            self._new = self.path
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"run directory {self.path} cannot be written: change its permissions or name another"
            )
        try:
            self._lock = DirectoryLock(self.path)
        except BaseException:
            self._remove_empty()
            raise
        self._folder = self._lock.folder
        remove_stale_parts(self._folder.place)
        self._facts: Mapping[str, Any] = {}  # as they were last written to run.json
        self._rows = _Lines(self._folder, "metrics.jsonl")
        self._log = _Lines(self._folder, "log.txt")
        if not resume and _is_taken(self._folder.place):
            self.close()
            raise ConfigurationError(f"run directory {self.path} {_describe_content(self.path)}")

    @property
    def folder(self) -> HeldFolder:
        """The directory as it is on the disk, to write in wherever it is by now."""
        return self._folder

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write one JSON file of the run."""
        if name == "run.json":
            self._facts = value
        self.write_text(name, json.dumps(value, indent=2, sort_keys=True) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write one text file of the run.

        Raises:
            DirectoryLost: the directory is no longer that of this process, as for all that follows here.
        """
        self.require_ownership()
        with self._folder.writing() as place:
            write_beside(place / name, text)

    def keep_text(self, name: str, text: str) -> None:
        """Write a text file of a resumed run; different earlier content is kept as `earlier-N-NAME`."""
        path = self._folder.place / name
        with contextlib.suppress(OSError, UnicodeDecodeError):  # damaged, and kept as any other that differs
            if has_file(path) and bounded_text(path) == text:
                return
        self.keep_earlier(name)
        self.write_text(name, text)

    def keep_earlier(self, name: str) -> Path | None:
        """Rename a file to `earlier-N-NAME`; None where there is none."""
        self.require_ownership()
        place = self._folder.place
        if not has_file(place / name):
            return None
        names = (place / f"earlier-{n}-{name}" for n in range(1, 10_000))
        return (place / name).rename(next(path for path in names if not path.exists()))

    def require_ownership(self) -> None:
        """Raise StorageError if the directory is no longer that of this process; see `DirectoryLock.require`."""
        self._lock.require()

    def lost(self) -> str | None:
        """Why the directory is no longer that of this process, as the last look found; see `DirectoryLock.lost`."""
        return self._lock.lost()

    def is_ours(self) -> bool:
        """Whether the directory is still that of this process."""
        try:
            self.require_ownership()
        except StorageError:
            return False
        return True

    def follow(self) -> Path | None:
        """Write to where the directory is now, if it was renamed and is still that of this process; None if not."""
        moved = self._lock.follow()
        if moved is not None:
            self.path = moved
        return moved

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl. NaN and infinities are written as Python's json reads them.

        A row that cannot be written now is written with the next one; training continues. One for a directory that is
        no longer that of this process is kept until all ranks hear of it.
        """
        self._rows.add(json.dumps(row), at_once=self.is_ours())

    def replace_rows(self, rows: Sequence[Mapping[str, Any]], step: int = 0) -> None:
        """Rewrite metrics.jsonl with these rows and its own rows of restarts up to `step`.

        A file with lines that cannot be read is kept as `earlier-N-metrics.jsonl`.
        """
        found = read_rows(self._rows.path)
        marks = [row for row in found if row.get("mode") == RESTART and row["step"] <= step]
        merged: list[Mapping[str, Any]] = []
        for row in rows:
            while marks and marks[0]["step"] < row.get("step", 0):
                merged.append(marks.pop(0))
            merged.append(row)
        self.require_ownership()
        if not are_readable(self._rows.path):
            self.keep_earlier(self._rows.path.name)
        self._rows.replace([json.dumps(row) for row in (*merged, *marks)])

    def flush_rows(self) -> None:
        """Flush metrics.jsonl to the disk, since a checkpoint refers to its rows; a failure does not stop the run."""
        self._rows.flush(to_disk=True)

    def seconds_of_rows(self) -> dict[tuple[str, int, int], float]:
        """Durations of epochs and evaluations in metrics.jsonl, by mode, epoch and step."""
        rows = [row for row in read_rows(self._rows.path) if _is_duration(row.get("seconds"))]
        return {(row["mode"], row["epoch"], row["step"]): row["seconds"] for row in rows}

    def log(self, text: str) -> None:
        """Append lines to log.txt; a failure does not stop the run, and a directory of others is left alone."""
        if self.is_ours():
            self._log.add(text)

    def facts(self) -> dict[str, Any]:
        """The content of `run.json`.

        Raises:
            StorageError: it cannot be read, or is not that of a run.
        """
        try:
            facts = json.loads(bounded_text(self._folder.place / "run.json"))
            if not all(isinstance(restart, dict) for restart in facts["restarts"]):
                raise ValueError("restarts must be a list of objects")
            return {**facts, "restarts": [*facts["restarts"]]}
        except DAMAGED_FILE as error:
            raise StorageError(
                f"{self.path / 'run.json'} is damaged ({error}), so the run cannot be resumed: put back a copy of "
                "it, or begin a run in another directory"
            ) from error

    def note_restart(self, step: int, epoch: int, changes: Sequence[str]) -> None:
        """Record in run.json, metrics.jsonl and log.txt that the run was resumed at `step`, with these changes."""
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        facts = self.facts()
        restarts = [*facts["restarts"], {"step": step, "time": when, "changes": list(changes)}]
        self.write_json("run.json", {**facts, "restarts": restarts, "end": None})
        self.append_row({"mode": RESTART, "epoch": epoch, "step": step, "time": when})
        self.log(f"continued after step {step:,} at {when}")

    def note_end(self, end: Mapping[str, Any]) -> None:
        """Record in run.json how the run ended; a failure to write it is only logged."""
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        try:
            try:
                facts = json.loads(bounded_text(self._folder.place / "run.json"))
                self.write_json("run.json", {**facts, "end": {**end, "time": when}})
            except DAMAGED_FILE:  # removed or damaged while the run went on
                self.write_json("run.json", {**self._facts, "end": {**end, "time": when}})
        except DAMAGED_FILE as error:
            self.log(f"run.json could not be written: {error}")

    def set_aside(self) -> Path | None:
        """Move the files of a run that is not resumed to `earlier-N` in the same directory; None if there are none."""
        self.require_ownership()
        place = self._folder.place
        files = [path for path in place.iterdir() if path.name in _OF_A_RUN]
        if not files:
            return None
        aside = next(p for n in range(1, 10_000) if not (p := place / f"earlier-{n}").exists())
        aside.mkdir()
        for path in files:
            path.rename(aside / path.name)
        return self.path / aside.name

    def close(self) -> None:
        """Release the lock of the directory."""
        self._lock.release()

    def discard(self) -> None:
        """Remove a directory in which no run was started, if this object has made it."""
        is_ours = self.is_ours()
        if is_ours and self._new is not None:
            for file in [file for file in self._folder.place.iterdir() if file.name != OWNER]:
                shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()
        self.close()
        if is_ours:
            self._remove_empty()

    def _remove_empty(self) -> None:
        """Remove the directories that this object has made, as long as nothing is in them."""
        made = self._new is not None and self.path.is_relative_to(self._new)
        for folder in (self.path, *self.path.parents) if made else ():
            with contextlib.suppress(OSError):
                folder.rmdir()
            if folder.exists() or folder == self._new:
                return


def remove_stale_parts(folder: Path) -> None:
    """Remove what processes of this host that were killed have left half written beside the files of a run.

    Only for the process that owns the directory. The names are those of `write_beside`, `HeartbeatLock` and this
    package alone; a process that lives, and a lock of another host, is left alone.
    """
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if _is_stale_part(path):
                path.unlink()


def _is_stale_part(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    if _OF_A_LOCK.fullmatch(path.name):
        return is_stale_lock(path)
    found = _PART.fullmatch(path.name)
    return found is not None and found[1] in _WRITTEN and not _is_alive(int(found[2]))


def _is_alive(process: int) -> bool:
    """Whether this host has a process of this number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def stored_seed(path: str | os.PathLike[str] | None) -> int | None:
    """The random seed of the run in a directory; None if there is no run.

    Raises:
        StorageError: run.json is damaged.
    """
    facts = None if path is None else Path(path) / "run.json"
    if facts is None or not has_file(facts):
        return None
    try:
        seed = json.loads(bounded_text(facts))["random_seed"]
        if type(seed) is not int or seed < 0:
            raise ValueError(f"random_seed must be an integer >= 0, got {seed!r:.40}")
        return seed
    except DAMAGED_FILE as error:
        raise StorageError(
            f"{facts} is damaged ({error}), so the run there cannot be resumed: put back a copy of it, or begin a "
            "run in another directory"
        ) from error


def _first_missing(path: Path) -> Path | None:
    """The topmost folder of `path` that does not exist yet; None when all do."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    return missing[-1] if missing else None
