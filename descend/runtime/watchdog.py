"""The ranks of a run watch over each other, so that none is left waiting for one that will not come.

Each rank has a thread that tells the others every so often that it is alive, and whether it waits for them.

    a rank raises      it says why before it leaves; the others end with that
    a rank is gone     whoever waits for it is told so by torch, and says which one it was
    a rank hangs       whoever has waited for it too long says so, and all have ended by DESCEND_TIMEOUT_SECONDS; the
                       rank that hangs ends itself, and is killed where it cannot
    torchrun is gone   all end, since nobody else would end them

The first cause is written down once and is what all of them print. A rank that is writing a checkpoint is waited for
as long as it is alive, and one of another trainer as long as it makes steps. A thread in native code cannot be
interrupted, so a rank that waits ends its process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from descend.errors import DescendError, LostPeer

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType

    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]  # its home is a private module

    from descend.runtime.communicator import Communicator

__all__ = ["Watchdog"]

_CAUSE = "first cause"
_DONE = "ranks at the end"
_RAISED = "ranks that raised"
_FIRST_ERROR = "error of the first rank"
_WATCHED = 8  # ranks that each one watches, those that follow it; more would be too much to ask at thousands of ranks
_ENDING_SECONDS = 5.0  # from when a rank is found to hang until all have ended
_LEAST = 0.8  # of a short timeout; less would take a busy rank for one that hangs
_LAST_SECONDS = 0.3  # for the lines of ranks that have just ended
_BROKEN = ("gloo/transport", "ncclRemoteError")  # what torch says where a connection to another rank is gone


class Watchdog:
    """Watches over the ranks of a run while it is entered.

    Args:
        store: Where ranks write what the others are to know.
        process: This rank.
        timeout_seconds: After how long all ranks are to have ended where one hangs; it is waited for for most of that.
        keeper: The rank that has the store; None where its launcher has it.
    """

    def __init__(self, store: Store, process: Communicator, timeout_seconds: float, keeper: int | None = None) -> None:
        self._store, self._process = store, process
        self._timeout = max(timeout_seconds - _ENDING_SECONDS, _LEAST * timeout_seconds)
        self._interval = min(0.5, timeout_seconds / 10)
        self._grace = min(2.0, timeout_seconds / 4)  # for a rank to do by itself what it can
        self._beats: dict[int, tuple[str, float]] = {}  # of other ranks: the newest, and when it was new
        self._keeper = keeper
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._progress: dict[int, tuple[int, float]] = {}  # of other ranks: steps, and since when these are all
        self._begun: dict[int, tuple[int, float]] = {}  # of other ranks: exchanges, and since when these are all
        self._cause: dict[str, Any] | None = None
        self._left = threading.Event()
        self._leaving, self._ending = threading.Lock(), False  # one of the two ends the process, not both
        self._silent = False  # whether the store no longer answers
        self._answered = time.monotonic()
        self._threads = [
            threading.Thread(target=work, name="descend-vigil", daemon=True) for work in (self._watch, self._guard)
        ]

    def __enter__(self) -> Self:
        self._beat(0)
        self._store.wait([f"beat {rank}" for rank in self._watched], timedelta(seconds=self._timeout))
        for rank in self._watched:
            self._beat_of(rank, time.monotonic())
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            missed = self._wait_for_the_end() if error is None else None
        finally:
            with self._leaving:
                self._left.set()
            for thread in self._threads:
                thread.join(None if self._ending else self._grace)
        if error is not None:
            self._compare(error)
        if error is None or isinstance(error, LostPeer) or _broken(error):
            cause = self._cause_of(error) if error else missed
            self._say_ended()
            if cause is None or self._process.rank == self._keeper:  # it takes the store, and the cause, with it
                self._wait_for_others()
            if cause:
                raise LostPeer(cause) from error
            return
        with self._undisturbed() as asked:
            self._note(f"rank {self._process.rank} failed: {_text(error)}", self._process.rank)
            _tell_launcher(error)
            self._raised(1)
            self._say_ended()
            self._wait_for_others()
            if self._launcher and self._raised() < self._process.world_size:
                asked.wait(_ENDING_SECONDS)  # torchrun asks it to end as soon as another one has
            time.sleep(_LAST_SECONDS)

    @property
    def _watched(self) -> list[int]:
        """Ranks that follow this one among all, and among those that wait for each other in every step; and those that
        it alone waits for.
        """
        doing = self._process.status
        following = [self._after(some) for some in (range(self._process.world_size), sorted(doing.peers or ()))]
        return [*dict.fromkeys(rank for some in (*following, doing.served) for rank in some)]

    def _after(self, ranks: Sequence[int]) -> list[int]:
        if not ranks:
            return []
        at = ranks.index(self._process.rank)
        return [ranks[(at + i) % len(ranks)] for i in range(1, min(_WATCHED + 1, len(ranks)))]

    def _compare(self, error: BaseException) -> None:
        """Leave it to the first rank to say what all of them have found out."""
        own = f"{type(error).__name__} {_text(error)}"
        if self._silent:
            return
        with contextlib.suppress(RuntimeError):
            if self._process.is_rank_zero:
                self._store.set(_FIRST_ERROR, own)
            if self._process.is_rank_zero or isinstance(error, LostPeer) or not isinstance(error, DescendError):
                return
            until = time.monotonic() + self._grace
            while time.monotonic() < until and not self._store.check([_FIRST_ERROR]):
                time.sleep(0.02)
            error.said = self._store.check([_FIRST_ERROR]) and self._store.get(_FIRST_ERROR).decode() == own

    # ---- the thread

    def _watch(self) -> None:
        number, told = 1, None
        while not self._left.wait(self._interval):
            self._look(number)
            number, cause = number + 1, self._cause
            if cause is None:
                continue
            told = told or time.monotonic()
            if self._must_end(cause, told):
                self._end(cause)

    def _look(self, number: int) -> None:
        """Tell the others that this rank is alive, and learn whether one of them is not."""
        if self._silent:
            return
        try:
            self._beat(number)
            self._cause = self._cause or self._first_cause() or self._left_alone() or self._suspect()
            self._answered = time.monotonic()
        except RuntimeError:  # torch's DistStoreError
            self._cause = self._cause or self._store_gone()

    def _guard(self) -> None:
        """End this process where the store does not even refuse to answer: whoever has it is suspended."""
        while not self._left.wait(self._interval):
            if time.monotonic() - self._answered > self._timeout + self._grace:
                self._end(self._store_gone())

    def _store_gone(self) -> dict[str, Any]:
        self._silent = True
        who = "the launcher" if self._keeper is None else f"rank {self._keeper}"
        why = f"{who} has crashed, was killed or hangs, and with it what the ranks tell each other"
        return {"why": why, "rank": self._keeper, "hangs": True}

    def _must_end(self, cause: dict[str, Any], told: float) -> bool:
        """Whether this process cannot end by itself: it hangs, or waits for a rank that will not come."""
        doing, now = self._process.status, time.monotonic()
        if cause["rank"] == self._process.rank:
            return bool(cause.get("hangs"))
        stuck = doing.waiting is not None and now - max(told, doing.since) > self._grace
        return stuck or now - told > (self._timeout if doing.is_busy else 1.5 * self._grace)

    def _end(self, cause: dict[str, Any]) -> None:
        with self._leaving:
            if self._left.is_set():
                return
            self._ending = True
        if cause["rank"] == self._process.rank:
            faulthandler.dump_traceback(file=sys.stderr)
        elif cause.get("hangs") and cause["rank"] is not None:
            with contextlib.suppress(RuntimeError):
                self._kill(cause["rank"])
        sys.stderr.write(f"error: rank {self._process.rank} ends: {cause['why']}\n")
        sys.stderr.flush()
        sys.stdout.flush()
        self._say_ended()
        if self._process.rank == self._keeper:
            self._wait_for_others()
        os._exit(LostPeer.exit_code)

    def _left_alone(self) -> dict[str, Any] | None:
        """That the launcher, which would end the ranks, has gone itself."""
        if self._launcher in (None, os.getppid()):
            return None
        return self._note(f"the launcher (process {self._launcher}) was killed or has crashed", None)

    def _suspect(self) -> dict[str, Any] | None:
        """A rank that gives no sign of life, or that this one has waited for too long."""
        now, doing = time.monotonic(), self._process.status
        waited = now - doing.since if doing.waiting else 0.0
        for rank in self._watched:
            if self._has_ended(rank):
                continue
            beat, since = self._beat_of(rank, now)
            if beat:
                self._follow(rank, beat, now)
            if now - since > self._timeout:
                return self._note(f"rank {rank} has given no sign of life for {self._timeout:g} seconds", rank, True)
            if beat and rank in doing.served and now - self._progress[rank][1] > self._timeout:
                return self._note(f"rank {rank} hangs: it has made no step for {self._timeout:g} seconds", rank, True)
            if waited > self._timeout and beat and self._keeps_waiting(rank, beat, now):
                return self._note(
                    f"rank {rank} hangs: the others have waited {self._timeout:g} seconds for it, at {doing.waiting}; "
                    f"all of them had last met at {beat['met']}",
                    rank,
                    True,
                )
        return None

    def _keeps_waiting(self, rank: int, beat: dict[str, Any], now: float) -> bool:
        """Whether it is the fault of another rank that this one waits."""
        doing = self._process.status
        if beat["acting"]:
            return False
        if not doing.patient:
            peers = doing.peers is None or rank in doing.peers
            return peers and (beat["waits"] < doing.waits or self._stays_behind(rank, beat, now))
        return now - self._progress[rank][1] > self._timeout

    def _follow(self, rank: int, beat: dict[str, Any], now: float) -> None:
        """Remember since when another rank makes no steps, while it could."""
        known = self._progress.get(rank)
        if known is None or known[0] != beat["steps"] or beat["waiting"] or beat["acting"]:
            self._progress[rank] = (beat["steps"], now)
        known = self._begun.get(rank)
        if known is None or known[0] != beat["begun"]:
            self._begun[rank] = (beat["begun"], now)

    def _stays_behind(self, rank: int, beat: dict[str, Any], now: float) -> bool:
        """Whether another rank is where torch lets ranks wait for each other, as in a backward pass of FSDP2, and has
        long had fewer exchanges begun than this one, which waits for the next."""
        own = self._process.status.begun
        return own is not None and 0 <= beat["begun"] < own() and now - self._begun[rank][1] > self._timeout

    # ---- what ranks tell each other

    def _beat(self, number: int) -> None:
        doing = self._process.status
        told = {"number": number, "waits": doing.waits, "acting": doing.is_busy, "met": doing.last_sync}
        begun = doing.begun
        told |= {"steps": doing.steps, "waiting": doing.waiting is not None, "begun": begun() if begun else -1}
        self._store.set(f"beat {self._process.rank}", json.dumps({**told, **_identity()}))

    def _beat_of(self, rank: int, now: float) -> tuple[dict[str, Any] | None, float]:
        """The newest word of a rank, and since when there has been no newer one."""
        key = f"beat {rank}"
        text = self._store.get(key).decode() if self._store.check([key]) else ""
        known = self._beats.get(rank)
        if known is None or known[0] != text:
            known = self._beats[rank] = (text, now)
        return (json.loads(text) if text else None), known[1]

    def _note(self, why: str, rank: int | None, hangs: bool = False) -> dict[str, Any]:
        """Write down a cause, unless there is one already; the one that counts."""
        own = json.dumps({"why": why, "rank": rank, "hangs": hangs})
        return json.loads(self._store.compare_set(_CAUSE, "", own).decode())

    def _first_cause(self) -> dict[str, Any] | None:
        return json.loads(self._store.get(_CAUSE).decode()) if self._store.check([_CAUSE]) else None

    def _say_ended(self) -> None:
        if not self._silent:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"ended {self._process.rank}", "1")

    def _raised(self, more: int = 0) -> int:
        """How many ranks have an error of their own."""
        with contextlib.suppress(RuntimeError):
            return self._store.add(_RAISED, more)
        return 0

    def _has_ended(self, rank: int) -> bool:
        return self._store.check([f"ended {rank}"])

    def _wait_for_others(self) -> None:
        """Wait a little until all have ended: one of them may be where the ranks meet."""
        if self._silent:
            return
        keys = [f"ended {rank}" for rank in range(self._process.world_size)]
        with contextlib.suppress(RuntimeError):
            until = time.monotonic() + self._grace + 4 * self._interval
            while time.monotonic() < until and not self._store.check(keys):  # a wait in vain would print a warning
                time.sleep(0.05)

    def _wait_for_the_end(self) -> str | None:
        """Wait until all ranks have come to the end of the run; why one of them does not."""
        doing, pause = self._process.status, 0.01
        doing.begin_wait("the end of the run")
        try:
            self._store.add(_DONE, 1)
            with doing.waiting_patiently():
                while self._store.add(_DONE, 0) < self._process.world_size:
                    if cause := self._cause or self._crashed():
                        return cause["why"]
                    time.sleep(pause)
                    pause = min(2 * pause, self._interval)
        except RuntimeError:  # torch's DistStoreError
            return (self._cause or self._store_gone())["why"]
        finally:
            doing.waiting = None
        return None

    def _cause_of(self, error: BaseException) -> str:
        """Why the connection to another rank broke: what that rank said, or which one is gone."""
        until = time.monotonic() + self._grace
        try:
            while time.monotonic() < until:
                if cause := self._cause or self._first_cause() or self._crashed():
                    return cause["why"]
                time.sleep(0.05)
        except RuntimeError:  # torch's DistStoreError
            return (self._cause or self._store_gone())["why"]
        return str(error) if isinstance(error, LostPeer) else f"another rank has gone: {str(error).splitlines()[0]}"

    def _crashed(self) -> dict[str, Any] | None:
        """A rank of this host that has ended without a word."""
        for rank in self._watched:
            beat, _ = self._beat_of(rank, time.monotonic())
            if beat and not self._has_ended(rank) and _gone(beat):
                after = self._process.status.last_sync
                why = f"rank {rank} (process {beat['pid']}) was killed or has crashed after {after}"
                cause = self._note(why, rank)
                self._store.set(f"ended {rank}", "1")
                return cause
        return None

    def _kill(self, rank: int) -> None:
        """End a rank of this host that hangs and does not end itself, as one that is suspended cannot."""
        text, _ = self._beats.get(rank, ("", 0.0))
        beat = json.loads(text) if text else None
        if beat is None or not _is_here(beat):
            return
        until = time.monotonic() + self._grace
        while not self._silent and time.monotonic() < until and not _suspended(beat) and not self._has_ended(rank):
            time.sleep(0.05)
        if (self._silent or not self._has_ended(rank)) and _is_here(beat):
            with contextlib.suppress(OSError):
                os.kill(beat["pid"], signal.SIGKILL)
            if not self._silent:
                self._store.set(f"ended {rank}", "1")

    @contextlib.contextmanager
    def _undisturbed(self) -> Generator[threading.Event]:
        """A launcher that sees the others end asks this rank to end too; it has the cause still to print.

        Yields:
            Set as soon as it was asked to.
        """
        asked = threading.Event()
        if threading.current_thread() is not threading.main_thread():
            yield asked
            return
        before = signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
        try:
            yield asked
        finally:
            signal.signal(signal.SIGTERM, before)


def _broken(error: BaseException) -> bool:
    """Whether another rank has gone while this one waited for it within torch, as FSDP2 waits for weights."""
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _BROKEN)


def _text(error: BaseException) -> str:
    if isinstance(error, DescendError):
        return "; ".join(error.problems)
    return f"{type(error).__name__}: {error}"


def _tell_launcher(error: BaseException) -> None:
    """Leave the cause for torchrun, which prints that of the rank that failed first."""
    if isinstance(error, Exception) and os.environ.get("TORCHELASTIC_ERROR_FILE"):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def _identity() -> dict[str, Any]:
    """This process, so that another one of the same host can tell it from one that got its number later."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _state(os.getpid())[1]}


def _state(pid: int) -> tuple[str, str]:
    """State and start time of a process of this host, as Linux tells them; empty where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def _is_here(beat: dict[str, Any]) -> bool:
    return beat["host"] == socket.gethostname() and bool(beat["started"]) and _state(beat["pid"])[1] == beat["started"]


def _suspended(beat: dict[str, Any]) -> bool:
    return _state(beat["pid"])[0] == "T"


def _gone(beat: dict[str, Any]) -> bool:
    """Whether a process of this host has ended, waited for by its parent or not."""
    if beat["host"] != socket.gethostname() or not beat["started"]:
        return False
    state, started = _state(beat["pid"])
    return started != beat["started"] or state in ("Z", "X")
