"""What the files of a run directory say, as one value. Nothing here changes a file.

A run may be under way, or may have been killed: whatever is missing or damaged is left out, and the rest is shown.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.errors import DAMAGED_FILE, ConfigurationError
from descend.filenames import regular_file
from descend.runtime.directory_lock import OWNER
from descend.runtime.rows import read_rows
from descend.runtime.run_directory import RESTART

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["RunRecord", "is_run_directory", "read_run", "stamp"]

_FILES = ("run.json", "metrics.jsonl")
_HEADER_BYTES = 50_000_000  # the longest header of a file of weights that is read
_LEASE_SECONDS = 60.0  # the clocks of two machines may differ
_LOG_BYTES = 4_000_000  # from the end of log.txt, where warnings are looked for
_ABOUT = ("mode", "epoch", "step", "samples", "seconds", "skipped_steps", "trainer", "time")


@dataclass(frozen=True)
class RunRecord:
    """A run directory as it was read.

    Attributes:
        folder: The directory.
        facts: The content of `run.json`.
        rows: Those of `metrics.jsonl`, without restarts; of several trainers those of all, with `trainer`.
        restarts: Steps at which the run was continued.
        warnings: Lines of `log.txt` that begin with "warning:" and how often each occurs.
        checkpoints: Names of checkpoints.
        trainers: How many trainers the run has.
        is_active: Whether a process owns the directory.
    """

    folder: Path
    facts: Mapping[str, Any]
    rows: tuple[dict[str, Any], ...]
    restarts: tuple[int, ...]
    warnings: Mapping[str, int]
    checkpoints: tuple[str, ...]
    trainers: int
    is_active: bool

    @property
    def end(self) -> Mapping[str, Any]:
        """How it ended; empty while it continues and after a kill."""
        end = self.facts.get("end")
        return end if isinstance(end, dict) else {}

    @property
    def status(self) -> str:
        """In a word or two."""
        if self.is_active:
            return "under way"
        code = self.end.get("exit_code")
        if code is None:
            return "ended without saying how, as after a kill"
        return {0: "finished", 75: "stopped on request", 130: "interrupted"}.get(code, f"ended with exit code {code}")

    @property
    def step(self) -> int:
        """Updates made, as far as they were recorded."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def quantities(self) -> list[str]:
        """Names of what was recorded, in the order of the file, those of whole passes over samples first."""
        names: dict[str, None] = {}
        for row in sorted(self.rows, key=lambda row: "objective" not in row):
            names |= {name: None for name, value in row.items() if name not in _ABOUT and _is_number(value)}
        return list(names)

    def series(self, quantity: str, mode: str | None = None, trainer: int | None = None) -> list[tuple[float, float]]:
        """(step, value) of a quantity, in the order of the file."""
        return [
            (float(row["step"]), float(row[quantity]))
            for row in self.rows
            if _is_number(row.get(quantity))
            and (mode is None or row["mode"] == mode)
            and (trainer is None or row.get("trainer", 0) == trainer)
        ]

    @property
    def modes(self) -> list[str]:
        """Modes of rows with an objective, training first."""
        found = dict.fromkeys(row["mode"] for row in self.rows if "objective" in row)
        return sorted(found, key=lambda mode: (mode != "train", mode != "validation"))

    @property
    def weights(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each tensor of the newest checkpoint; none where that cannot be read."""
        place = self.folder if self.trainers == 1 else self.folder / "trainer0"
        names = self.checkpoints or tuple(_checkpoints(place))
        if not names:
            return []
        try:
            with regular_file(place / "checkpoints" / names[-1] / "weights.safetensors").open("rb") as file:
                header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), _HEADER_BYTES)))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            return [(str(name), tuple(map(int, one["shape"])), str(one["dtype"])) for name, one in entries.items()]
        except (*DAMAGED_FILE, AttributeError):
            return []


def is_run_directory(folder: Path) -> bool:
    """Whether a directory has the files of a run."""
    return any((folder / name).is_file() for name in _FILES)


def stamp(folder: Path) -> str:
    """Changes whenever the run has written something."""
    places = [folder, *sorted(folder.glob("trainer*"))]
    files = [place / name for place in places for name in (*_FILES, "log.txt", "tournament.jsonl")]
    return "-".join(f"{stat.st_size:x}.{stat.st_mtime_ns:x}" for file in files if (stat := _stat(file)) is not None)


def _stat(file: Path) -> Any:
    try:
        return file.stat()
    except OSError:
        return None


def read_run(folder: Path) -> RunRecord:
    """Read a run directory.

    Raises:
        ConfigurationError: it has none of the files of a run.
    """
    if not is_run_directory(folder):
        what = "has no run.json and no metrics.jsonl" if folder.is_dir() else "is not a directory"
        raise ConfigurationError(f"{folder} {what}: name the directory of a run, which the run printed")
    facts = _json(folder / "run.json")
    trainers = facts.get("trainers", 1)
    trainers = trainers if type(trainers) is int and trainers > 1 else 1
    rows = list(_rows(folder, trainers))
    return RunRecord(
        folder,
        facts,
        tuple(row for row in rows if row["mode"] != RESTART),
        tuple(row["step"] for row in rows if row["mode"] == RESTART),
        _warnings(folder / "log.txt"),
        tuple(_checkpoints(folder)),
        trainers,
        facts.get("end") is None and _is_owned(folder / OWNER),
    )


def _is_owned(owner: Path) -> bool:
    """Whether a process has touched the file lately, which it does every second."""
    found = _stat(owner)
    return found is not None and time.time() - found.st_mtime < _LEASE_SECONDS


def _checkpoints(folder: Path) -> list[str]:
    """Names of checkpoints that are there, the newest last."""
    found = [path.name for path in (folder / "checkpoints").glob("step-*") if path.is_dir()]
    return sorted(found, key=lambda name: int(re.sub(r"\D", "", name) or 0))


def _rows(folder: Path, trainers: int) -> Iterator[dict[str, Any]]:
    if trainers == 1:
        yield from read_rows(folder / "metrics.jsonl")
        return
    for number in range(trainers):
        yield from ({**row, "trainer": number} for row in read_rows(folder / f"trainer{number}" / "metrics.jsonl"))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(regular_file(path).read_text(encoding="utf-8"))
    except DAMAGED_FILE:
        return {}
    return found if isinstance(found, dict) else {}


def _warnings(path: Path) -> dict[str, int]:
    try:
        with regular_file(path).open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return {}
    counts: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("warning: "):
            said = line.removeprefix("warning: ")[:1000]
            counts[said] = counts.get(said, 0) + 1
    return counts


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
