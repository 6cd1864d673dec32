"""The communicator of a process: its rank, the world size, its device, and the collectives.

    all_reduce, broadcast, all_gather, all_gather_cat, all_gather_object     as in torch.distributed and MPI
    on_rank_zero       runs a function on rank zero and broadcasts what it returns, or raises its error on all ranks
    synchronize        a barrier that also sums a few numbers and checks that all ranks are at the same place
    require_equal      compares plain values among ranks

The training loop uses no other door to torch.distributed, so the same lines run on one rank and on many. Ranks exchange
tensors, and JSON as bytes; no pickle. `RankStatus` says where this rank waits: the watchdog (`watchdog.py`) reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import distributed

from descend import errors
from descend.data.plain_arrays import plain_tensor, widened
from descend.errors import ConfigurationError, DescendError, LostPeer
from descend.runtime.gpu_copies import send_to_gpu
from descend.runtime.shared_memory import SPIN_SECONDS, SharedAllReduce

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import numpy as np

__all__ = ["Communicator", "RankStatus", "SyncResult"]

_T = TypeVar("_T")
_SHOWN = 6


@dataclass
class RankStatus:
    """What a rank does at the moment; its watchdog sends this to the other ranks with every heartbeat.

    Attributes:
        clock: The clock of rank zero at the last `synchronize`; None before the first.
        waits: How many times this rank has begun to wait for other ranks.
        waiting: What it waits for; None while it computes.
        since: When that wait began, in seconds of this process's monotonic clock.
        last_sync: The place of the last `synchronize` of all ranks.
        is_busy: It does something for all ranks that may take long, such as writing a checkpoint.
        steps: Training steps and evaluation mini-batches done so far.
        patient: It waits for ranks that may be arbitrarily slow as long as their step count increases.
        peers: The ranks that wait for each other in every step; None for all ranks.
        served: The ranks that only this one waits for, as a parameter server for its workers.
        awake: Spin for a moment in an all-reduce before sleeping; for hosts with a core for every rank.
        sums: What sums a few numbers in memory that ranks share, by their process group, where there is such memory.
        begun: Returns how many collectives this rank has begun, for code whose collectives torch issues itself (FSDP2);
            None elsewhere.
    """

    clock: float | None = None
    waits: int = 0
    waiting: str | None = None
    since: float = 0.0
    last_sync: str = "the beginning"
    is_busy: bool = False
    steps: int = 0
    patient: bool = False
    peers: frozenset[int] | None = None
    served: Sequence[int] = ()
    awake: bool = False
    sums: dict[distributed.ProcessGroup | None, SharedAllReduce] = field(default_factory=dict[Any, SharedAllReduce])
    begun: Callable[[], int] | None = None

    @contextmanager
    def waiting_patiently(self) -> Generator[None]:
        """Within this block slow ranks count as hung only if their step count does not increase."""
        before, self.patient = self.patient, True
        try:
            yield
        finally:
            self.patient = before

    @contextmanager
    def busy(self) -> Generator[None]:
        """Within this block this rank works for all ranks, which wait as long as it computes, reads or writes."""
        before, self.is_busy = self.is_busy, True
        try:
            yield
        finally:
            self.is_busy = before

    def begin_wait(self, what: str) -> None:
        """Note that this rank waits for other ranks from now on."""
        self.since, self.waiting, self.waits = time.monotonic(), what, self.waits + 1

    @contextmanager
    def wait(self, what: str) -> Generator[None]:
        """Note a wait for other ranks; an error of torch, raised when the connection to a rank breaks, is translated.

        Raises:
            LostPeer: another rank crashed or has exited.
        """
        self.begin_wait(what)
        try:
            yield
        except RuntimeError as error:
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise LostPeer(f"another rank ended while this one waited for {what}: {line}") from error
        finally:
            self.waiting = None


@dataclass(frozen=True)
class SyncResult:
    """The result of `Communicator.synchronize`.

    Attributes:
        stop_requested: Whether any rank requests the end of the run.
        sums: (values,) float64, the values summed over all ranks.
    """

    stop_requested: bool
    sums: torch.Tensor


@dataclass(frozen=True)
class Communicator:
    """One rank of a run, and its collectives. With a world size of 1 every collective returns its argument.

    Attributes:
        rank: Rank of this process, from 0.
        world_size: Number of ranks.
        device: Device of the module.
        status: What this rank does at the moment.
        group: The process group of these ranks; None for all ranks that were started together.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    status: RankStatus = field(default_factory=RankStatus, repr=False, compare=False)
    group: distributed.ProcessGroup | None = field(default=None, repr=False, compare=False)

    @classmethod
    def current(cls, device: torch.device | None = None) -> Communicator:
        """The communicator of torch.distributed's default process group; of a single process if there is none.

        Args:
            device: Device of the module; None for the GPU if there is one.
        """
        device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size(), device)
        return cls(device=device)

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is rank zero, which prints, writes records and owns the run directory."""
        return self.rank == 0

    def to_device(self, fields: Mapping[str, np.ndarray | torch.Tensor]) -> dict[str, torch.Tensor]:
        """Arrays as tensors on the device of the run; on the CPU they share the arrays' memory where torch can.

        Raises:
            DataError: an array has no form as a tensor; see `descend.data.plain_arrays`.
        """
        if self.device.type == "cpu":  # what most small networks wait for, so the usual case is first
            for x in fields.values():
                if not isinstance(x, torch.Tensor) or not x.is_cpu:
                    break
            else:
                return cast("dict[str, torch.Tensor]", dict(fields))
        tensors = {
            name: x if isinstance(x, torch.Tensor) else widened(plain_tensor(name, x)) for name, x in fields.items()
        }
        if self.device.type != "cuda":
            here = self.device
            return {n: x if x.device == here else x.to(here, non_blocking=True) for n, x in tensors.items()}
        host = [name for name, x in tensors.items() if x.is_cpu]
        sent = send_to_gpu([tensors[name] for name in host], self.device) if host else []
        moved = dict(zip(host, sent, strict=True))
        return {name: moved[name] if name in moved else x.to(self.device) for name, x in tensors.items()}

    @property
    def agreements(self) -> torch.device:
        """The device on which ranks exchange a few numbers that the host needs at once.

        The CPU where the process group has a backend for it: on a GPU the host would wait for all that was launched.
        """
        if self.device.type != "cpu" and self.world_size > 1 and "cpu" in distributed.get_backend_config(self.group):
            return torch.device("cpu")
        return self.device

    def now(self) -> float:
        """Seconds of a monotonic clock, equal on all ranks: that of rank zero at the last `synchronize`."""
        agreed = self.status.clock
        return time.monotonic() if self.world_size == 1 or agreed is None else agreed

    # ---- collectives

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """All-reduce: `tensor` summed over all ranks, in place."""
        if self.world_size > 1:
            with self.status.wait("an all-reduce"):
                sums = self.status.sums.get(self.group)
                if sums is not None and sums.takes(tensor):
                    sums(tensor)
                elif self.status.awake and tensor.device.type == "cpu":
                    _spin_wait(distributed.all_reduce(tensor, group=self.group, async_op=True))
                else:
                    distributed.all_reduce(tensor, group=self.group)
        return tensor

    def use_shared_memory(self, awake: bool, say: Callable[[str], None]) -> None:
        """Sum small tensors in memory of the host from here on. All ranks call it together; they share memory.

        Args:
            awake: Whether each thread of the ranks has a core, so that it may spin while it waits.
            say: Prints why ranks of one host share no memory.
        """
        self.status.awake = awake
        if self.group not in self.status.sums:
            sums = SharedAllReduce.among(self, awake, say)
            if sums is not None:
                self.status.sums[self.group] = sums

    def broadcast(self, source: int, tensors: Iterable[torch.Tensor]) -> None:
        """Broadcast the values of `tensors` on rank `source` to all ranks, one message for each dtype and device."""
        if self.world_size == 1:
            return
        by_type: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for some in by_type.values():
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in some])
            with self.status.wait(f"a broadcast from rank {source}"):
                distributed.broadcast(flat, group=self.group, group_src=source)
            with torch.no_grad():
                for tensor, values in zip(some, flat.split([tensor.numel() for tensor in some]), strict=True):
                    tensor.copy_(values.view(tensor.shape))

    def all_gather_object(self, value: Any) -> list[Any]:
        """All-gather of a plain (JSON) value of each rank, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.all_gather(own.to(self.agreements))]

    def all_gather_cat(self, rows: torch.Tensor) -> torch.Tensor:
        """All-gather of (n, *shape) tensors, concatenated; n may differ between ranks and be 0, the shape may not."""
        return rows if self.world_size == 1 else torch.cat(self.all_gather(rows))

    def all_gather(self, rows: torch.Tensor, counts: Sequence[int] | None = None) -> list[torch.Tensor]:
        """All-gather of the (n, *shape) tensor of each rank; they are padded to the longest n while they are sent.

        Args:
            rows: This rank's.
            counts: n of each rank, where all ranks know them; otherwise they tell each other first.
        """
        if counts is None:
            lengths = torch.zeros(self.world_size, dtype=torch.int64, device=self.agreements)
            lengths[self.rank] = len(rows)
            counts = self.all_reduce(lengths).tolist()
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.zeros_like(padded) for _ in counts]
        with self.status.wait("an all-gather"):
            distributed.all_gather(parts, padded, group=self.group)
        return [part[:count] for part, count in zip(parts, counts, strict=True)]

    def on_rank_zero(self, act: Callable[[], _T]) -> _T:
        """Call `act` on rank zero only; its plain return value, or its error, reaches all ranks."""
        if self.world_size == 1:
            with self.status.busy():  # other ranks may wait for it, as workers for a server
                return act()
        sent: dict[str, Any] = {}
        error: Exception | None = None
        if self.is_rank_zero:
            try:
                with self.status.busy():
                    sent = {"value": act()}
            except Exception as raised:
                error = raised
                problems = raised.problems if isinstance(raised, DescendError) else [repr(raised)]
                sent = {"error": type(raised).__name__, "problems": list(problems)}
        sent = self.all_gather_object(sent)[0]
        if error is not None:
            raise error
        if "error" in sent:
            raise _error_of(sent["error"], sent["problems"])
        return sent["value"]

    # ---- barriers

    def synchronize(self, at: str, asks: bool = False, values: torch.Tensor | None = None, room: int = 0) -> SyncResult:
        """Barrier: wait until all ranks are at the same place of a run, and sum a few values over them.

        Args:
            at: The place, for messages.
            asks: Whether this rank requests the end of the run.
            values: (n,) float64 numbers on the CPU to sum.
            room: Length that n is padded to, equal at all places of a run, so that ranks at different places exchange
                messages of one length and find out.

        Raises:
            DataError: the ranks are at different places.
        """
        own = torch.zeros(0, dtype=torch.float64) if values is None else values
        if self.world_size == 1:
            return SyncResult(asks, own)
        sent = torch.zeros(3 + max(room, len(own)), dtype=torch.float64)
        code = _hash(at)
        sent[:3] = torch.tensor([time.monotonic() if self.is_rank_zero else 0.0, code, asks], dtype=torch.float64)
        sent[3 : 3 + len(own)] = own
        sent = self.all_reduce(sent.to(self.agreements)).cpu()
        clock, codes, asked = sent[:3].tolist()
        self.status.clock = clock
        if codes != self.world_size * code:
            raise _different_places(self.all_gather_object(at))
        self.status.last_sync = at
        return SyncResult(asked > 0, sent[3 : 3 + len(own)])

    def require_equal(self, facts: Mapping[str, Any], what: str) -> None:
        """Compare plain values by name among all ranks.

        Raises:
            ConfigurationError: some differ; the message lists them by rank.
        """
        if self.world_size == 1:
            return
        own = {name: repr(value) for name, value in facts.items()}
        if len(set(self.all_gather_object(_hash(json.dumps(own, sort_keys=True))))) == 1:
            return
        of_all = cast("Sequence[Mapping[str, str]]", self.all_gather_object(own))
        names = [name for name in {name: None for own in of_all for name in own} if _differ(of_all, name)]
        rows = [f"    {name}: {_by_rank([own.get(name, 'not there') for own in of_all])}" for name in names[:_SHOWN]]
        more = [f"    and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        raise ConfigurationError([f"{what} differ between ranks; make them equal:", *rows, *more])


def _spin_wait(work: distributed.Work | None) -> None:
    """Wait for a collective, at first without sleeping."""
    assert work is not None  # this rank belongs to its group
    until = time.monotonic() + SPIN_SECONDS
    while not work.is_completed() and time.monotonic() < until:
        os.sched_yield()
    work.wait()


def _hash(text: str) -> int:
    """Hash below 2⁴⁰, so that its sum over up to 8192 ranks is exact in float64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=5).digest(), "big")


def _error_of(name: str, problems: list[str]) -> DescendError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, DescendError):
        return kind(problems)
    return LostPeer([f"rank 0 failed: {problem}" for problem in problems])


def _different_places(places: list[str]) -> errors.DataError:
    return errors.DataError(
        f"ranks have come to different places: {_by_rank(places)}; pass the same data and the same settings to all "
        "ranks; each reads its shard"
    )


def _differ(of_all: Sequence[Mapping[str, str]], name: str) -> bool:
    return len({own.get(name) for own in of_all}) > 1


def _by_rank(values: Sequence[str]) -> str:
    """Each distinct value with its ranks."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    return "; ".join(f"{value} on rank {', '.join(some)}" for value, some in ranks.items())
