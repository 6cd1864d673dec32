"""This process among its ranks: the device it computes on, the sums it shares, and what one rank does for all.

The training loop speaks to this class alone, so one rank and many run through the same lines. What is sent is tensors,
and JSON as bytes.
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
from descend.errors import ConfigurationError, DescendError, LostPeer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import numpy as np

__all__ = ["Communicator", "RankStatus", "SyncResult"]

_T = TypeVar("_T")
_SHOWN = 6
_AWAKE_SECONDS = 0.01  # ranks in step are this close to each other; who has slept 1 ms computes up to a tenth slower


@dataclass
class RankStatus:
    """What a rank is doing, for those that watch over it.

    Attributes:
        clock: The clock of rank 0 as it was when all ranks last met; None before that.
        waits: How many times it has begun to wait for other ranks.
        waiting: What it waits for; None while it works.
        since: When that began, by the clock of this process.
        met: Where all ranks have last met.
        acting: Whether it does something for all ranks, which may take its time.
        steps: Steps and mini-batches of evaluations that it has done.
        patient: Whether it waits for ranks that may be as slow as they like, as long as they get on.
        peers: The ranks that wait for each other in every step; None where all of them do.
        served: The ranks that this one alone waits for, as a server for its workers.
        awake: Whether it keeps its core for a moment while it waits for a sum, since there is one for every rank.
        begun: Tells how many exchanges it has begun, while it is where torch makes them, with work in between; or None.
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
    begun: Callable[[], int] | None = None

    @contextmanager
    def waiting_patiently(self) -> Generator[None]:
        """Within this block it is no fault of other ranks that they are not there yet, while they get on."""
        before, self.patient = self.patient, True
        try:
            yield
        finally:
            self.patient = before

    @contextmanager
    def busy(self) -> Generator[None]:
        """Within this block it does something for all ranks."""
        before, self.is_busy = self.is_busy, True
        try:
            yield
        finally:
            self.is_busy = before

    def begin_wait(self, what: str) -> None:
        """Say that it waits for other ranks from now on."""
        self.since, self.waiting, self.waits = time.monotonic(), what, self.waits + 1

    @contextmanager
    def wait(self, what: str) -> Generator[None]:
        """Wait for other ranks; what torch raises when one is gone becomes an error of ours.

        Raises:
            LostPeer: another rank is gone.
        """
        self.begin_wait(what)
        try:
            yield
        except RuntimeError as error:
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise LostPeer(f"another rank has gone while this one waited for {what}: {line}") from error
        finally:
            self.waiting = None


@dataclass(frozen=True)
class SyncResult:
    """What came of a meeting of all ranks.

    Attributes:
        asked: Whether any of them asks for an end.
        sums: (values,) float64, what all brought, added up.
    """

    stop_requested: bool
    sums: torch.Tensor


@dataclass(frozen=True)
class Communicator:
    """One process of a run.

    Attributes:
        rank: Number of this process, from 0.
        ranks: How many there are.
        device: Where the module lives.
        doing: What this rank is doing.
        group: The ranks that are meant, where these are not all that have been started together.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    status: RankStatus = field(default_factory=RankStatus, repr=False, compare=False)
    group: distributed.ProcessGroup | None = field(default=None, repr=False, compare=False)

    @classmethod
    def current(cls, device: torch.device | None = None) -> Communicator:
        """The process as torch.distributed knows it.

        Args:
            device: Where the module is; None for the GPU where there is one.
        """
        device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size(), device)
        return cls(device=device)

    @property
    def is_rank_zero(self) -> bool:
        """Whether this rank prints, records and owns the run directory."""
        return self.rank == 0

    def to_device(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        """An array as a tensor on the device of the run; the memory is shared where that device is the CPU."""
        tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        return tensor if tensor.device == self.device else tensor.to(self.device, non_blocking=True)

    def now(self) -> float:
        """Seconds of a monotonic clock that all ranks read alike: that of rank 0, as of the last meeting."""
        agreed = self.status.clock
        return time.monotonic() if self.world_size == 1 or agreed is None else agreed

    # Sums and copies

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, in place, summed over all ranks."""
        if self.world_size > 1:
            with self.status.wait("a sum over all ranks"):
                if self.status.awake and tensor.device.type == "cpu":
                    _stay_awake(distributed.all_reduce(tensor, group=self.group, async_op=True))
                else:
                    distributed.all_reduce(tensor, group=self.group)
        return tensor

    def broadcast(self, source: int, tensors: Iterable[torch.Tensor]) -> None:
        """Give `tensors` on all ranks the values that they have on rank `source`; those of one type go together."""
        if self.world_size == 1:
            return
        by_type: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for some in by_type.values():
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in some])
            with self.status.wait(f"values of rank {source}"):
                distributed.broadcast(flat, group=self.group, group_src=source)
            with torch.no_grad():
                for tensor, values in zip(some, flat.split([tensor.numel() for tensor in some]), strict=True):
                    tensor.copy_(values.view(tensor.shape))

    def all_gather_object(self, value: Any) -> list[Any]:
        """A plain value of each rank, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.all_gather(own.to(self.device))]

    def all_gather_cat(self, rows: torch.Tensor) -> torch.Tensor:
        """The (n, *shape) tensors of all ranks one after the other; n may differ and be 0, the shape may not."""
        return rows if self.world_size == 1 else torch.cat(self.all_gather(rows))

    def all_gather(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The (n, *shape) tensor of each rank; they are sent in the length of the longest."""
        lengths = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        lengths[self.rank] = len(rows)
        counts = self.all_reduce(lengths).tolist()
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.zeros_like(padded) for _ in counts]
        with self.status.wait("a value of each rank"):
            distributed.all_gather(parts, padded, group=self.group)
        return [part[:count] for part, count in zip(parts, counts, strict=True)]

    def on_rank_zero(self, act: Callable[[], _T]) -> _T:
        """What `act` returns, a plain value, on rank 0, which alone calls it; an error of it is raised on all ranks."""
        if self.world_size == 1:
            with self.status.busy():  # others may wait for this process all the same, as workers for their server
                return act()
        outcome: dict[str, Any] = {}
        error: Exception | None = None
        if self.is_rank_zero:
            try:
                with self.status.busy():
                    outcome = {"value": act()}
            except Exception as raised:
                error = raised
                problems = raised.problems if isinstance(raised, DescendError) else [repr(raised)]
                outcome = {"error": type(raised).__name__, "problems": list(problems)}
        outcome = self.all_gather_object(outcome)[0]
        if error is not None:
            raise error
        if "error" in outcome:
            raise _error_of(outcome["error"], outcome["problems"])
        return outcome["value"]

    # Meetings

    def synchronize(self, at: str, asks: bool = False, values: torch.Tensor | None = None, room: int = 0) -> SyncResult:
        """Wait for all ranks to come to the same place of a run, and add up what they bring.

        Args:
            at: The place.
            asks: Whether this rank asks for an end of the run.
            values: (n,) float64 numbers on the CPU to add up.
            room: The same for all meetings of a run and at least n, so that ranks that are at different places can
                tell each other so.

        Raises:
            DataError: the ranks are at different places.
        """
        brought = torch.zeros(0, dtype=torch.float64) if values is None else values
        if self.world_size == 1:
            return SyncResult(asks, brought)
        sent = torch.zeros(3 + max(room, len(brought)), dtype=torch.float64)
        code = _code(at)
        sent[:3] = torch.tensor([time.monotonic() if self.is_rank_zero else 0.0, code, asks], dtype=torch.float64)
        sent[3 : 3 + len(brought)] = brought
        sent = self.all_reduce(sent.to(self.device)).cpu()
        clock, codes, asked = sent[:3].tolist()
        self.status.clock = clock
        if codes != self.world_size * code:
            raise _apart(self.all_gather_object(at))
        self.status.last_sync = at
        return SyncResult(asked > 0, sent[3 : 3 + len(brought)])

    def require_equal(self, facts: Mapping[str, Any], what: str) -> None:
        """Compare plain facts among all ranks.

        Raises:
            ConfigurationError: some differ; a table says which.
        """
        if self.world_size == 1:
            return
        own = {name: repr(value) for name, value in facts.items()}
        if len(set(self.all_gather_object(_code(json.dumps(own, sort_keys=True))))) == 1:
            return
        of_all = cast("Sequence[Mapping[str, str]]", self.all_gather_object(own))
        names = [name for name in {name: None for own in of_all for name in own} if _differ(of_all, name)]
        rows = [f"    {name}: {_by_rank([own.get(name, 'not there') for own in of_all])}" for name in names[:_SHOWN]]
        more = [f"    and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        raise ConfigurationError([f"{what} differ between ranks; make them equal:", *rows, *more])


def _stay_awake(work: distributed.Work | None) -> None:
    """Wait for what is under way, at first without falling asleep."""
    assert work is not None  # this rank belongs to its group
    until = time.monotonic() + _AWAKE_SECONDS
    while not work.is_completed() and time.monotonic() < until:
        os.sched_yield()
    work.wait()


def _code(text: str) -> int:
    """A number below 2⁴⁰, so that the sum over up to 8192 ranks is exact in float64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=5).digest(), "big")


def _error_of(name: str, problems: list[str]) -> DescendError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, DescendError):
        return kind(problems)
    return LostPeer([f"rank 0 failed: {problem}" for problem in problems])


def _apart(places: list[str]) -> errors.DataError:
    return errors.DataError(
        f"ranks have come to different places: {_by_rank(places)}; hand the same data to all of them, each takes its "
        "share"
    )


def _differ(of_all: Sequence[Mapping[str, str]], name: str) -> bool:
    return len({own.get(name) for own in of_all}) > 1


def _by_rank(values: Sequence[str]) -> str:
    """Each value once, with the ranks that have it."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    return "; ".join(f"{value} on rank {', '.join(some)}" for value, some in ranks.items())
