"""The checkpoints of one run: written again when that fails, in the background if wanted, kept and removed by rules.

`checkpoints.json` beside the folder lists what this run has written, for whom, and how long it had trained by then.
Nothing that is not in it is ever removed; and times are there, and not in the checkpoints, so that equal runs give
equal checkpoints.
"""

from __future__ import annotations

import json
import re
import threading
import time
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch

from descend.errors import StorageError
from descend.runtime.checkpoint import newest_checkpoint, remove, remove_leftovers, save_checkpoint, verify
from descend.runtime.run_directory import write_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

__all__ = ["CheckpointManager", "SaveRequest", "Snapshot"]

STOPPED = "stopped"  # written because of a signal: superseded by the next one that is kept by a rule

_PAUSES_SECONDS = (0.1, 0.4, 1.6)  # before the second, third and fourth attempt
_FAILURES_IN_A_ROW = 5


@dataclass(frozen=True)
class Snapshot:
    """All that a checkpoint holds, and what is noted beside it.

    Attributes:
        step: Updates applied.
        weights: Weights and buffers by name.
        optimizer: Tensors of the optimizer's state by name.
        state: Everything else, as plain JSON values without times.
        times: Durations in seconds, by name.
        trained: Names of the weights that have to be finite.
    """

    step: int
    weights: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    times: Mapping[str, float] = field(default_factory=dict[str, float])
    trained: frozenset[str] = frozenset()

    def detached(self) -> Snapshot:
        """The same with tensors of its own, which later steps do not change."""
        weights = {name: tensor.detach().cpu().clone() for name, tensor in self.weights.items()}
        optimizer = {name: tensor.detach().cpu().clone() for name, tensor in self.optimizer.items()}
        return replace(self, weights=weights, optimizer=optimizer)

    def not_finite(self) -> str | None:
        """The first trained weights with a NaN or an infinity."""
        for name in sorted(self.trained):
            tensor = self.weights[name]
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return name
        return None


@dataclass(frozen=True)
class SaveRequest:
    """What somebody wants of a checkpoint.

    Attributes:
        who: For whom it is written; each has rules of its own, and a checkpoint stays while anybody keeps it.
        keep: Keep the newest so many that were written for `who`; 0 keeps all.
        score: What is measured of this moment, to keep the best; None where nothing is.
        best: Whether the lowest or the highest score is best.
        asynchronous: Write while training goes on.
        then: Called with the checkpoint's folder once it is there.
    """

    who: str = "user"
    keep: int = 0
    score: float | None = None
    best: Literal["lowest", "highest"] = "lowest"
    asynchronous: bool = False
    then: Callable[[Path], None] = lambda checkpoint: None


class _Background:
    """Work in a thread that ends with the process; its error is kept for whoever waits."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._do, name="descend-save", daemon=True)
        self._thread.start()

    def _do(self) -> None:
        try:
            self._work()
        except BaseException as error:  # whatever it is, it belongs to whoever waits
            self._error = error

    def join(self) -> None:
        self._thread.join()

    def result(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


class CheckpointManager:
    """The checkpoints folder of the run that this process carries out.

    Args:
        folder: Where they are; made when there is something to write.
        say: Tells the user something.

    Attributes:
        failures: Saves that could not be written, in all.
        longest_seconds: The longest that a save has taken.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self.failures = 0
        self.longest_seconds = 0.0
        self._say = say
        self._in_a_row = 0
        self._ledger_path = folder.with_name(f"{folder.name}.json")
        self._ledger: dict[str, dict[str, Any]] = {}
        self._under_way: _Background | None = None

    def open(self) -> Path | None:
        """Clear up after a process that was killed; return the newest good checkpoint, or None if there is none at all.

        Warns:
            UserWarning: for each newer one that is damaged.

        Raises:
            StorageError: every one is damaged.
        """
        for name in remove_leftovers(self.folder):
            self._say(f"removed {name}, which a process that was killed has left half written")
        self._ledger = self._read_ledger()
        return newest_checkpoint(self.folder)

    def times(self, checkpoint: Path) -> dict[str, float]:
        """The durations that were noted with a checkpoint; empty where they are lost."""
        return dict(self._ledger.get(checkpoint.name, {}).get("times", {}))

    def _read_ledger(self) -> dict[str, dict[str, Any]]:
        path = self._ledger_path
        if not path.is_file():
            return {}
        try:
            ledger = cast("dict[str, dict[str, Any]]", json.loads(path.read_text()))
            return {
                name: {**{key: entry[key] for key in ("score", "not_finite")}, **_lists(entry)}
                for name, entry in ledger.items()
                if re.fullmatch(r"step-\d+", name)
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            warnings.warn(
                f"{path} is damaged ({error}): older checkpoints are kept, and training time counts from 0",
                stacklevel=2,
            )
            return {}

    def save(self, moment: Snapshot, wish: SaveRequest, final: bool = False) -> Path | None:
        """Write a checkpoint, again if that fails at first.

        Args:
            moment: What it holds.
            wish: For whom, and what is to be kept.
            final: There is no later one, so that a failure is an error.

        Returns:
            Its folder, which may not be there yet if it is asynchronous; None if it could not be written.

        Warns:
            UserWarning: if it could not be written and training goes on.

        Raises:
            StorageError: it could not be written and is the final one, or the last of five in a row.
        """
        self.wait()
        target = self.folder / f"step-{moment.step}"
        if wish.asynchronous and not final:
            moment = moment.detached()
            self._under_way = _Background(partial(self._write, moment, wish, final))
            return target
        failures = self.failures
        self._write(moment, wish, final)
        return target if self.failures == failures else None

    def wait(self) -> None:
        """Until nothing is being written.

        Raises:
            StorageError: what was being written has failed for the fifth time in a row.
        """
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the save under way come to its end, unless the user wants to be gone at once."""
        if self._under_way is not None and kind is not KeyboardInterrupt:
            self._under_way.join()

    def _write(self, moment: Snapshot, wish: SaveRequest, final: bool) -> None:
        began = time.monotonic()
        for pause in (*_PAUSES_SECONDS, None):
            try:
                self._attempt(moment, wish)
            except StorageError as error:
                if pause is None:
                    self._failed(moment.step, error, final)
                    return
                time.sleep(pause)
            else:
                self._in_a_row = 0
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
                return

    def _failed(self, step: int, error: StorageError, final: bool) -> None:
        self.failures += 1
        self._in_a_row += 1
        if final or self._in_a_row >= _FAILURES_IN_A_ROW:
            what = "the last one of the run" if final else f"{self._in_a_row} in a row have failed"
            raise StorageError(
                [*error.problems, f"no checkpoint of step {step:,}: {what}; older ones are as they were"]
            )
        warnings.warn(
            f"NO CHECKPOINT of step {step:,}: {error.problems[0]}. Training goes on; {self.failures} saves have failed "
            f"so far, and {_FAILURES_IN_A_ROW} in a row end the run",
            stacklevel=4,
        )

    def _attempt(self, moment: Snapshot, wish: SaveRequest) -> None:
        name, bad = f"step-{moment.step}", moment.not_finite()
        known = self._ledger.get(name, {"for": [], "score": None})
        score = known["score"] if wish.score is None else wish.score
        who = sorted({*known["for"], wish.who} - ({STOPPED} if wish.who != STOPPED else set()))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {self.folder}: {error.strerror or error}") from error
        # Listed before it is there: what is written and not listed would stay for ever.
        self._ledger[name] = {"for": who, "score": score, "times": dict(moment.times), "not_finite": bad}
        self._write_ledger()
        path = save_checkpoint(self.folder, moment.step, moment.weights, moment.optimizer, moment.state, bad)
        if bad:
            warnings.warn(
                f"{path} holds weights that are not finite ('{bad}'); no run will continue from it", stacklevel=5
            )
        else:
            verify(path)
            wish.then(path)
        if wish.keep:
            self._retain(wish)

    def _write_ledger(self) -> None:
        write_beside(self._ledger_path, json.dumps(self._ledger, indent=2, sort_keys=True) + "\n")

    def _retain(self, wish: SaveRequest) -> None:
        """Remove what nobody keeps any longer; the newest good one has just been verified."""
        ledger = {name: entry for name, entry in self._ledger.items() if (self.folder / name).is_dir()}
        mine = sorted((name for name, entry in ledger.items() if wish.who in entry["for"]), key=_step, reverse=True)
        good = [name for name in mine if not ledger[name].get("not_finite")]
        kept = {*good[: wish.keep], *_best(ledger, good, wish.best)}
        newest = _step(good[0]) if good else -1
        for name in mine:
            if name not in kept and _step(name) < newest:
                ledger[name]["for"] = [who for who in ledger[name]["for"] if who != wish.who]
        for name, entry in ledger.items():
            if entry["for"] == [STOPPED] and _step(name) < newest:
                entry["for"] = []
        for name in [name for name, entry in ledger.items() if not entry["for"]]:
            if not remove(self.folder / name):
                warnings.warn(
                    f"{self.folder / name} is kept: it holds files that this run has not written", stacklevel=6
                )
            del ledger[name]
        self._ledger = ledger
        self._write_ledger()


def _lists(entry: Mapping[str, Any]) -> dict[str, Any]:
    times = {str(name): float(seconds) for name, seconds in entry["times"].items()}
    return {"for": [str(who) for who in entry["for"]], "times": times}


def _best(ledger: Mapping[str, Mapping[str, Any]], names: list[str], best: Literal["lowest", "highest"]) -> list[str]:
    """The checkpoint with the best score; of equal ones the oldest. NaN is no score."""
    scores = {name: float(s) for name in names if (s := ledger[name]["score"]) is not None and s == s}
    if not scores:
        return []
    value = min(scores.values()) if best == "lowest" else max(scores.values())
    return [min((name for name in scores if scores[name] == value), key=_step)]


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))
