"""Heartbeat watchdog: detects crashed or hung ranks and ends the others with the first error.

Every rank has a background thread that writes a heartbeat into the process group's key-value store at regular
intervals: that it is alive, how many collectives it has entered, and whether it waits in one.

    a rank raises         it writes its error to the store before it exits; the other ranks exit with that error
    a rank crashes        the ranks that wait for it get an error from torch and report which rank it was
    a hung rank           the ranks that wait for it report it, and all ranks exit within DESCEND_TIMEOUT_SECONDS; the
                          hung rank exits by itself, and is killed if it cannot
    torchrun is killed    all ranks exit, since no launcher is left to end them

The first error is written once, by compare-and-set, and every rank prints it. A rank that writes a checkpoint is waited
for as long as it computes, reads or writes, and ten timeouts more; a rank of another trainer as long as its step count
increases. A thread in
native code (a blocked all_reduce, say) cannot be interrupted, so a waiting rank ends its whole process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from descend.errors import DescendError, LostPeer
from descend.runtime.heartbeat import HeartbeatStore, is_dead, is_on_this_host, is_suspended
from descend.terminal import emit

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType

    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]  # its home is a private module

    from descend.runtime.communicator import Communicator

__all__ = ["Watchdog"]

_MONITORED_RANKS = 8  # how many of the following ranks each rank monitors; all of thousands would overload the store
_BUSY_TIMES = 10  # timeouts for which a rank that works for all may do nothing: to flush a disk may take minutes
_SHUTDOWN_SECONDS = 5.0  # from the detection of a hung rank until all ranks have exited
_LEAST_SHARE = 0.8  # of a short timeout that a rank is waited for; with less a busy rank would pass for a hung one
_OUTPUT_SECONDS = 0.3  # for the output of ranks that have just exited
_CONNECTION_ERRORS = ("gloo/transport", "ncclRemoteError")  # in torch's message when the connection to a rank breaks


class _RankMonitor:
    """Finds crashed and hung ranks by their heartbeats.

    Args:
        store: The heartbeats.
        communicator: The communicator of this rank.
        timeout_seconds: How long a rank may be silent, or keep others waiting.
    """

    def __init__(self, store: HeartbeatStore, communicator: Communicator, timeout_seconds: float) -> None:
        self._store, self._communicator, self._timeout = store, communicator, timeout_seconds
        self._progress: dict[int, tuple[int, float]] = {}  # by rank: its step count, and since when it is unchanged
        self._collectives: dict[int, tuple[int, float]] = {}  # by rank: collectives begun, and since when unchanged
        self._work: dict[int, tuple[str, float]] = {}  # by rank: what it has done while busy, and since when unchanged

    @property
    def ranks(self) -> list[int]:
        """The monitored ranks: those that follow this one among all ranks and among its peers, and those it serves."""
        status = self._communicator.status
        groups = (range(self._communicator.world_size), sorted(status.peers or ()))
        following = [self._successors(group) for group in groups]
        return [*dict.fromkeys(rank for some in (*following, status.served) for rank in some)]

    def _successors(self, ranks: Sequence[int]) -> list[int]:
        if not ranks:
            return []
        at = ranks.index(self._communicator.rank)
        return [ranks[(at + i) % len(ranks)] for i in range(1, min(_MONITORED_RANKS + 1, len(ranks)))]

    def find_hung_rank(self) -> dict[str, Any] | None:
        """A rank that sends no heartbeat, or that this rank has waited for too long, as a cause; or None."""
        now, status, timeout = time.monotonic(), self._communicator.status, self._timeout
        waited = now - status.since if status.waiting else 0.0
        for rank in self.ranks:
            if self._store.has_exited(rank):
                continue
            heartbeat, since = self._store.read(rank, now)
            if heartbeat:
                self._track_progress(rank, heartbeat, now)
            silent_seconds, why = now - since, None
            if heartbeat and rank in status.served and now - self._progress[rank][1] > timeout:
                why = f"rank {rank} hangs: it has made no step for {timeout:g} seconds"
            elif waited > timeout and heartbeat and heartbeat["busy"]:
                idle = now - self._work[rank][1]
                if idle > _BUSY_TIMES * timeout:
                    why = (
                        f"rank {rank} hangs: it works for all ranks, as while it writes a checkpoint, and has neither "
                        f"computed nor read or written anything for {idle:.3g} seconds; the others wait at "
                        f"{status.waiting}"
                    )
            elif waited > timeout and heartbeat and self._is_holding_up(rank, heartbeat, now):
                why = (
                    f"rank {rank} hangs: the other ranks have waited {timeout:g} seconds for it, at {status.waiting}; "
                    f"their last common synchronization was at {heartbeat['last_sync']}"
                )
            # A suspended process makes no step either, and its last step may be older than its last heartbeat.
            if silent_seconds > (timeout / 2 if why else timeout):
                why = f"rank {rank} has sent no heartbeat for {silent_seconds:.3g} seconds"
            if why:
                return self._store.record_cause(why, rank, hangs=True)
        return None

    def find_crashed_rank(self) -> dict[str, Any] | None:
        """A rank of this host whose process ended without a message, as a cause; or None."""
        for rank in self.ranks:
            heartbeat, _ = self._store.read(rank, time.monotonic())
            if heartbeat and not self._store.has_exited(rank) and is_dead(heartbeat):
                after = self._communicator.status.last_sync
                why = f"rank {rank} (process {heartbeat['pid']}) was killed or has crashed after {after}"
                cause = self._store.record_cause(why, rank)
                self._store.mark_exited(rank)
                return cause
        return None

    def _is_holding_up(self, rank: int, heartbeat: dict[str, Any], now: float) -> bool:
        """Whether this rank waits because of another rank, and not because of a third one."""
        status = self._communicator.status
        if not status.patient:
            peers = status.peers is None or rank in status.peers
            return peers and (heartbeat["waits"] < status.waits or self._is_behind_in_collectives(rank, heartbeat, now))
        return now - self._progress[rank][1] > self._timeout

    def _track_progress(self, rank: int, heartbeat: dict[str, Any], now: float) -> None:
        """Note since when another rank makes no steps although it could."""
        known = self._progress.get(rank)
        if known is None or known[0] != heartbeat["steps"] or heartbeat["waiting"] or heartbeat["busy"]:
            self._progress[rank] = (heartbeat["steps"], now)
        known = self._work.get(rank)
        if known is None or known[0] != heartbeat["work"] or not heartbeat["work"]:
            self._work[rank] = (heartbeat["work"], now)
        known = self._collectives.get(rank)
        if known is None or known[0] != heartbeat["collectives"]:
            self._collectives[rank] = (heartbeat["collectives"], now)

    def _is_behind_in_collectives(self, rank: int, heartbeat: dict[str, Any], now: float) -> bool:
        """Whether another rank has long begun fewer collectives than this rank, which waits in its next one.

        For collectives that torch issues itself, as in a backward pass of FSDP2.
        """
        own = self._communicator.status.begun
        if own is None or not 0 <= heartbeat["collectives"] < own():
            return False
        return now - self._collectives[rank][1] > self._timeout


class Watchdog:
    """Monitors the ranks of a run for as long as the context is entered.

    On leaving it: a barrier, or, with an error, the report of that error to the other ranks.

    Args:
        store: The key-value store that all ranks share.
        communicator: The communicator of this rank.
        timeout_seconds: Within this time after a rank hangs all ranks have exited; most of it is spent waiting for the
            hung rank.
        store_rank: The rank that hosts the store; None if the launcher hosts it.

    Raises:
        LostPeer: when the context is left: another rank crashed, hung, or failed with an error.
    """

    def __init__(
        self, store: Store, communicator: Communicator, timeout_seconds: float, store_rank: int | None = None
    ) -> None:
        self._timeout = max(timeout_seconds - _SHUTDOWN_SECONDS, _LEAST_SHARE * timeout_seconds)
        self._interval = min(0.5, timeout_seconds / 10)
        self._grace = min(2.0, timeout_seconds / 4)  # for a rank to exit by itself
        self._communicator = communicator
        self._heartbeats = HeartbeatStore(store, communicator)
        self._ranks = _RankMonitor(self._heartbeats, communicator, self._timeout)
        self._store_rank = store_rank
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._cause: dict[str, Any] | None = None
        self._left = threading.Event()
        self._exit_lock, self._exiting = threading.Lock(), False  # one of the two threads ends the process, not both
        self._answered = time.monotonic()  # when the store answered last
        self._threads = [
            threading.Thread(target=work, name="descend-watchdog", daemon=True)
            for work in (self._monitor, self._monitor_store)
        ]

    def __enter__(self) -> Self:
        self._heartbeats.send(0)
        self._heartbeats.wait_for(self._ranks.ranks, self._timeout)
        for rank in self._ranks.ranks:
            self._heartbeats.read(rank, time.monotonic())
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            missed = self._final_barrier() if error is None else None
        finally:
            with self._exit_lock:
                self._left.set()
            for thread in self._threads:
                thread.join(None if self._exiting else self._grace)
        rank = self._communicator.rank
        if error is not None:
            self._compare_with_rank_zero(error)
        if error is None or isinstance(error, LostPeer) or _is_connection_error(error):
            cause = self._cause_of(error) if error else missed
            self._heartbeats.mark_exited()
            if cause is None or rank == self._store_rank:  # its exit ends the store, and with it the cause
                self._wait_for_exits()
            if cause:
                raise LostPeer(cause) from error
            return
        with _sigterm_deferred() as sigterm:
            self._heartbeats.record_cause(f"rank {rank} failed: {_error_text(error)}", rank)
            _report_to_launcher(error)
            self._heartbeats.count_failed(1)
            self._heartbeats.mark_exited()
            self._wait_for_exits()
            if self._launcher and self._heartbeats.count_failed() < self._communicator.world_size:
                sigterm.wait(_SHUTDOWN_SECONDS)  # torchrun sends it as soon as another rank has exited
            time.sleep(_OUTPUT_SECONDS)

    def _compare_with_rank_zero(self, error: BaseException) -> None:
        """Mark an error that rank 0 has too as reported: rank 0 prints it."""
        own = f"{type(error).__name__} {_error_text(error)}"
        if self._heartbeats.lost:
            return
        with contextlib.suppress(RuntimeError):
            if self._communicator.is_rank_zero:
                self._heartbeats.write_rank_zero_error(own)
            elif isinstance(error, DescendError) and not isinstance(error, LostPeer):
                error.said = self._heartbeats.is_rank_zero_error(own, self._grace)

    # ---- the threads

    def _monitor(self) -> None:
        """Thread: send heartbeats and look for crashed and hung ranks; end this process if it cannot end by itself."""
        number, known_since = 1, None
        while not self._left.wait(self._interval):
            self._monitor_once(number)
            number, cause = number + 1, self._cause
            if cause is None:
                continue
            known_since = known_since or time.monotonic()
            if self._must_exit(cause, known_since):
                self._exit_process(cause)

    def _monitor_once(self, number: int) -> None:
        """Send a heartbeat, and look for the first cause."""
        if self._heartbeats.lost:
            return
        try:
            self._heartbeats.send(number)
            found = self._cause or self._heartbeats.first_cause()
            self._cause = found or self._launcher_failure() or self._ranks.find_hung_rank()
            self._answered = time.monotonic()
        except RuntimeError:  # torch's DistStoreError
            self._cause = self._cause or self._store_failure()

    def _monitor_store(self) -> None:
        """Thread: end this process if a request to the store never returns, since the store's host is suspended."""
        while not self._left.wait(self._interval):
            if time.monotonic() - self._answered > self._timeout + self._grace:
                self._exit_process(self._store_failure())

    def _store_failure(self) -> dict[str, Any]:
        self._heartbeats.lost = True
        host = "the launcher" if self._store_rank is None else f"rank {self._store_rank}"
        why = f"{host}, which hosts the ranks' key-value store, was killed, has crashed or hangs"
        return {"why": why, "rank": self._store_rank, "hangs": True}

    def _launcher_failure(self) -> dict[str, Any] | None:
        """That the launcher, which would end the ranks, is gone itself."""
        if self._launcher in (None, os.getppid()):
            return None
        return self._heartbeats.record_cause(f"the launcher (process {self._launcher}) was killed or has crashed", None)

    def _must_exit(self, cause: dict[str, Any], known_since: float) -> bool:
        """Whether this process cannot end by itself: it hangs, or waits in a collective that will not complete."""
        status, now = self._communicator.status, time.monotonic()
        if cause["rank"] == self._communicator.rank:
            return bool(cause.get("hangs"))
        stuck = status.waiting is not None and now - max(known_since, status.since) > self._grace
        return stuck or now - known_since > (self._timeout if status.is_busy else 1.5 * self._grace)

    def _exit_process(self, cause: dict[str, Any]) -> None:
        with self._exit_lock:
            if self._left.is_set():
                return
            self._exiting = True
        if cause["rank"] == self._communicator.rank:
            with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):  # no such stream
                faulthandler.dump_traceback(file=sys.stderr)
        elif cause.get("hangs") and cause["rank"] is not None:
            with contextlib.suppress(RuntimeError):
                self._kill_hung_rank(cause["rank"])
        emit(f"error: rank {self._communicator.rank} ends: {cause['why']}\n", sys.stderr)
        emit("", sys.stdout)
        self._heartbeats.mark_exited()
        if self._communicator.rank == self._store_rank:
            self._wait_for_exits()
        os._exit(LostPeer.exit_code)

    def _kill_hung_rank(self, rank: int) -> None:
        """Kill a hung rank of this host that does not exit by itself, as a suspended process cannot."""
        heartbeats = self._heartbeats
        heartbeat = heartbeats.last_read(rank)
        if heartbeat is None or not is_on_this_host(heartbeat):
            return
        until = time.monotonic() + self._grace
        while time.monotonic() < until and not is_suspended(heartbeat):
            if heartbeats.lost or heartbeats.has_exited(rank):
                break
            time.sleep(0.05)
        if (heartbeats.lost or not heartbeats.has_exited(rank)) and is_on_this_host(heartbeat):
            with contextlib.suppress(OSError):
                os.kill(heartbeat["pid"], signal.SIGKILL)
            heartbeats.mark_exited(rank)

    # ---- leaving the context

    def _wait_for_exits(self) -> None:
        self._heartbeats.wait_for_exits(self._grace + 4 * self._interval)

    def _final_barrier(self) -> str | None:
        """Barrier at the end of the run; returns why a rank does not reach it, or None."""
        status, pause = self._communicator.status, 0.01
        status.begin_wait("the end of the run")
        try:
            self._heartbeats.count_finished(1)
            with status.waiting_patiently():
                while self._heartbeats.count_finished() < self._communicator.world_size:
                    if cause := self._cause or self._ranks.find_crashed_rank():
                        return cause["why"]
                    time.sleep(pause)
                    pause = min(2 * pause, self._interval)
        except RuntimeError:  # torch's DistStoreError
            return (self._cause or self._store_failure())["why"]
        finally:
            status.waiting = None
        return None

    def _cause_of(self, error: BaseException) -> str:
        """Why the connection to another rank broke: the error of that rank, or which rank crashed."""
        until = time.monotonic() + self._grace
        try:
            while time.monotonic() < until:
                if cause := self._cause or self._heartbeats.first_cause() or self._ranks.find_crashed_rank():
                    return cause["why"]
                time.sleep(0.05)
        except RuntimeError:  # torch's DistStoreError
            return (self._cause or self._store_failure())["why"]
        return str(error) if isinstance(error, LostPeer) else f"another rank has gone: {str(error).splitlines()[0]}"


@contextlib.contextmanager
def _sigterm_deferred() -> Generator[threading.Event]:
    """Within this block SIGTERM ends nothing: a launcher that sees other ranks exit sends it before the cause is out.

    Yields:
        Set as soon as SIGTERM came.
    """
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.set())
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_connection_error(error: BaseException) -> bool:
    """Whether the connection to another rank broke while torch waited for it, as FSDP2 does for an all_gather."""
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _CONNECTION_ERRORS)


def _error_text(error: BaseException) -> str:
    if isinstance(error, DescendError):
        return "; ".join(error.problems)
    return f"{type(error).__name__}: {error}"


def _report_to_launcher(error: BaseException) -> None:
    """Write the error where torchrun looks for it; it prints that of the rank that failed first."""
    if isinstance(error, Exception) and os.environ.get("TORCHELASTIC_ERROR_FILE"):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
