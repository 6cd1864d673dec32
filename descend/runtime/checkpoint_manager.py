"""Checkpoint manager: writes the checkpoints of a run, retries failed saves, and removes old ones by retention rules.

`checkpoints.json` beside the folder (the ledger) lists the checkpoints that this run has written, the purposes that
each is kept for, its score, and the training time until then. No checkpoint that is not listed is ever removed. Times
are in the ledger and not in the checkpoints, so that equal runs write equal checkpoints.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch

from descend.errors import DAMAGED_FILE, DirectoryLost, StorageError, warn
from descend.files import bounded_text, has_file, has_folder
from descend.machine import join_threads_at_exit
from descend.runtime.checkpoint import (
    StagedShards,
    newest_checkpoint,
    remove,
    remove_leftovers,
    save_checkpoint,
    verify,
)
from descend.runtime.directory_lock import ENDS_HERE, HeldFolder
from descend.runtime.run_directory import write_beside
from descend.runtime.save_request import STOPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from descend.runtime.save_request import SaveRequest

__all__ = ["CheckpointManager", "Snapshot", "first_not_finite"]

RETRY_SECONDS = (0.1, 0.4, 1.6)  # pauses before the second, third and fourth attempt
_FAILURES_IN_A_ROW = 5


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint, and of its entry in the ledger.

    Attributes:
        step: Updates applied.
        weights: Parameters and buffers by name.
        optimizer: Tensors of the optimizer's state by name.
        state: Everything else, as plain JSON values without times.
        times: Durations in seconds, by name; for the ledger.
        trained: Names of the trained parameters, which must be finite.
        shards: What all ranks have written of sharded tensors, which are not among the others; None without any.
    """

    step: int
    weights: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    times: Mapping[str, float] = field(default_factory=dict[str, float])
    trained: frozenset[str] = frozenset()
    shards: StagedShards | None = None

    def detached(self) -> Snapshot:
        """A copy on the CPU, which later steps do not change."""
        weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.weights.items()}
        optimizer = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.optimizer.items()}
        return replace(self, weights=weights, optimizer=optimizer)

    def not_finite(self) -> str | None:
        """Name of the first trained parameter with a NaN or an infinity; None if all are finite."""
        found = first_not_finite({name: self.weights[name] for name in self.trained if name in self.weights})
        return found or (self.shards.not_finite if self.shards else None)


def first_not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Name of the first tensor with a NaN or an infinity; None if all are finite."""
    for name in sorted(tensors):
        if tensors[name].is_floating_point() and not bool(torch.isfinite(tensors[name]).all()):
            return name
    return None


class _Background:
    """A function in a daemon thread; `result` raises its error."""

    def __init__(self, work: Callable[[], None]) -> None:
        join_threads_at_exit()
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._do, name="descend-save", daemon=True)
        self._thread.start()

    def _do(self) -> None:
        try:
            self._work()
        except BaseException as error:  # raised again by `result`
            self._error = error

    def join(self) -> None:
        self._thread.join()

    def result(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


class CheckpointManager:
    """The checkpoints folder of the run of this process.

    Args:
        folder: The folder; made at the first save.
        say: Prints a line for the user.
        require: Called before each write; raises DirectoryLost where the folder is no longer that of this run.
        beside: The directory that the folder is in, which its owner holds; None to hold it here.

    Attributes:
        failures: Number of saves that failed after all attempts.
        longest_seconds: Duration of the longest save.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None] = lambda text: None,
        require: Callable[[], object] = lambda: None,
        beside: HeldFolder | None = None,
    ) -> None:
        self._name = folder.name
        self._run, self._closes = beside or HeldFolder(folder.parent), beside is None
        self._require = require
        self.failures = 0
        self.longest_seconds = 0.0
        self._say = say
        self._failures_in_a_row = 0
        self._ledger: dict[str, dict[str, Any]] = {}
        self._pending: _Background | None = None
        self._held: HeldFolder | None = None
        self._was_there = os.path.lexists(folder)

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""
        return self._run.path / self._name

    def open(self) -> Path | None:
        """Remove what a killed process has left half written; return the newest valid checkpoint, or None without any.

        Warns:
            UserWarning: for each newer checkpoint that is damaged, and for a damaged ledger.

        Raises:
            StorageError: there are checkpoints and all are damaged.
        """
        self._require()
        if has_folder(self._run.place / self._name):
            for name in remove_leftovers(self._hold().place):
                self._say(f"removed {name}, which a killed process has left half written")
        self._ledger = self._read_ledger()
        return newest_checkpoint(self.folder)

    def _hold(self) -> HeldFolder:
        before, self._held = self._held, HeldFolder(self.folder, self._run)
        if before is not None:
            before.close()
        return self._held

    def _made_folder(self) -> HeldFolder:
        """The folder, made where there is none.

        Raises:
            DirectoryLost: it was exchanged, and may be that of another run.
            StorageError: it cannot be made.
        """
        self._require()
        try:
            if self._held is not None and os.path.lexists(self.folder):
                self._held.path = self.folder  # which moves with the directory of the run
                self._held.require()
                return self._held
            if not self._was_there and self.folder.is_symlink():
                raise DirectoryLost(f"{self.folder} has become a link to {self.folder.readlink()}: {ENDS_HERE}")
            (self._run.place / self._name).mkdir(exist_ok=True)
            return self._hold()
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"cannot make {self.folder}: {error.strerror or error}") from error

    def times(self, checkpoint: Path) -> dict[str, float]:
        """The durations in the ledger for a checkpoint; empty if it has none."""
        return dict(self._ledger.get(checkpoint.name, {}).get("times", {}))

    def _read_ledger(self) -> dict[str, dict[str, Any]]:
        path = self._run.place / f"{self._name}.json"
        if not has_file(path):
            return {}
        try:
            ledger = cast("dict[str, dict[str, Any]]", json.loads(bounded_text(path)))
            return {name: _checked_entry(entry) for name, entry in ledger.items() if re.fullmatch(r"step-\d+", name)}
        except DAMAGED_FILE as error:
            there = f"{self.folder}.json is damaged ({error})"
            warn(f"{there}: older checkpoints are kept, and training time counts from 0")
            return {}

    def save(self, snapshot: Snapshot, request: SaveRequest, final: bool = False) -> Path | None:
        """Write a checkpoint, with up to three more attempts.

        Args:
            snapshot: The content.
            request: Its purpose and retention rule.
            final: It is the last one of the run, so that a failure is an error.

        Returns:
            Its folder, which an asynchronous save has not written yet; None if it could not be written.

        Warns:
            UserWarning: it could not be written, and training continues.

        Raises:
            DirectoryLost: the folder is no longer that of this run.
            StorageError: it could not be written and is the final one, or the fifth failure in a row.
        """
        self.wait()
        target = self.folder / f"step-{snapshot.step}"
        if request.asynchronous and not final:
            snapshot = snapshot.detached()
            self._pending = _Background(partial(self._write, snapshot, request, final))
            return target
        failures = self.failures
        self._write(snapshot, request, final)
        return target if self.failures == failures else None

    def wait(self) -> None:
        """Wait for the asynchronous save in progress, if there is one.

        Raises:
            StorageError: it was the fifth failure in a row.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the save in progress, unless a second Ctrl-C interrupts the run."""
        if self._pending is not None and kind is not KeyboardInterrupt:
            self._pending.join()
        held, self._held = self._held, None
        if held is not None:
            held.close()
        if self._closes:
            self._run.close()

    def _write(self, snapshot: Snapshot, request: SaveRequest, final: bool) -> None:
        try:
            self._try_to_write(snapshot, request, final)
        finally:
            if snapshot.shards:
                snapshot.shards.remove()

    def _try_to_write(self, snapshot: Snapshot, request: SaveRequest, final: bool) -> None:
        began = time.monotonic()
        hopeless = snapshot.shards is not None and snapshot.shards.problems  # ranks have made their attempts
        for pause in (*(() if hopeless else RETRY_SECONDS), None):
            try:
                self._attempt(snapshot, request)
            except DirectoryLost:
                raise
            except StorageError as error:
                if pause is None:
                    self._failed(snapshot.step, error, final)
                    return
                time.sleep(pause)
            else:
                self._failures_in_a_row = 0
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
                return

    def _failed(self, step: int, error: StorageError, final: bool) -> None:
        self.failures += 1
        self._failures_in_a_row += 1
        if final or self._failures_in_a_row >= _FAILURES_IN_A_ROW:
            what = "the last one of the run" if final else f"{self._failures_in_a_row} in a row have failed"
            raise StorageError(
                [*error.problems, f"no checkpoint of step {step:,}: {what}; older ones are as they were"]
            )
        warn(
            f"NO CHECKPOINT of step {step:,}: {error.problems[0]}. Training continues; {self.failures} saves have "
            f"failed so far, and {_FAILURES_IN_A_ROW} in a row end the run"
        )

    def _attempt(self, snapshot: Snapshot, request: SaveRequest) -> None:
        name, bad = f"step-{snapshot.step}", snapshot.not_finite()
        known = self._ledger.get(name, {"for": [], "score": None})
        score = known["score"] if request.score is None else request.score
        who = sorted({*known["for"], request.who} - ({STOPPED} if request.who != STOPPED else set()))
        if snapshot.shards and snapshot.shards.problems:
            raise StorageError(snapshot.shards.problems)
        self._made_folder()
        # Listed before it is written: a checkpoint that is not listed would never be removed.
        self._ledger[name] = {"for": who, "score": score, "times": dict(snapshot.times), "not_finite": bad}
        self._write_ledger()
        shards = snapshot.shards
        tensors = (snapshot.weights, snapshot.optimizer)
        with self._made_folder().writing() as place:
            path = save_checkpoint(place, snapshot.step, *tensors, snapshot.state, bad, shards)
            if not bad:
                verify(path, but=shards.files if shards else ())
        if bad:
            warn(f"{self.folder / name} holds weights that are not finite ('{bad}'); no run will continue from it")
        else:
            request.then(self.folder / name)
        if request.keep:
            self._retain(request)

    def _write_ledger(self) -> None:
        self._require()
        with self._run.writing() as place:
            write_beside(place / f"{self._name}.json", json.dumps(self._ledger, indent=2, sort_keys=True) + "\n")

    def _retain(self, request: SaveRequest) -> None:
        """Remove the checkpoints that no purpose keeps; the newest valid one has just been verified."""
        place = self._made_folder().place
        ledger = {name: entry for name, entry in self._ledger.items() if (place / name).is_dir()}
        mine = sorted((name for name, entry in ledger.items() if request.who in entry["for"]), key=_step, reverse=True)
        good = [name for name in mine if not ledger[name].get("not_finite")]
        kept = {*good[: request.keep], *_best(ledger, good, request.best)}
        newest = _step(good[0]) if good else -1
        for name in mine:
            if name not in kept and _step(name) < newest:
                ledger[name]["for"] = [who for who in ledger[name]["for"] if who != request.who]
        for name, entry in ledger.items():
            if entry["for"] == [STOPPED] and _step(name) < newest:
                entry["for"] = []
        for name in [name for name, entry in ledger.items() if not entry["for"]]:
            self._made_folder()
            if problem := remove(place / name):
                warn(f"the old checkpoint {self.folder / name} is kept: {problem}")
            del ledger[name]
        self._ledger = ledger
        self._write_ledger()


def _checked_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the ledger as read from JSON, after a check of all its values.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError: it is not one that this class wrote.
    """
    score, bad, purposes = entry["score"], entry["not_finite"], entry["for"]
    if score is not None and type(score) not in (int, float):
        raise ValueError(f"score must be a number, got {score!r:.40}")
    if bad is not None and not isinstance(bad, str):
        raise ValueError(f"not_finite must be a name, got {bad!r:.40}")
    if not isinstance(purposes, list) or not all(isinstance(who, str) for who in cast("list[Any]", purposes)):
        raise ValueError(f"'for' must be a list of names, got {purposes!r:.40}")
    times = {str(name): float(seconds) for name, seconds in entry["times"].items()}
    if not all(math.isfinite(seconds) for seconds in times.values()):
        raise ValueError(f"times must be finite, got {times!r:.40}")
    return {"for": purposes, "score": None if score is None else float(score), "times": times, "not_finite": bad}


def _best(ledger: Mapping[str, Mapping[str, Any]], names: list[str], best: Literal["lowest", "highest"]) -> list[str]:
    """Name of the checkpoint with the best score, the oldest of equal ones, as a list; NaN is not a score."""
    scores = {name: float(s) for name in names if (s := ledger[name]["score"]) is not None and s == s}
    if not scores:
        return []
    value = min(scores.values()) if best == "lowest" else max(scores.values())
    return [min((name for name in scores if scores[name] == value), key=_step)]


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))
