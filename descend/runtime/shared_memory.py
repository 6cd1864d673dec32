"""Shared memory among the ranks of one host, and an all-reduce in it that uses no network.

    shared_memory         each rank makes an anonymous file (memfd), and the others open it through /proc
    all_reduce_shared     rank r sums segment r of all ranks' memory and writes the sum to all of them
    reduce_shared         one rank sums the memory of all ranks into its own

The system frees such memory however a rank exits. Callers place a barrier before an all-reduce, so that all values are
written, and one after it.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend.errors import DataError
from descend.runtime.heartbeat import is_dead, process_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from descend.runtime.communicator import Communicator

__all__ = ["SPIN_SECONDS", "SharedAllReduce", "all_reduce_shared", "reduce_shared", "shared_memory"]

_CHUNK = 1 << 16  # elements summed before they are written to the other ranks' memory, while they are in the cache


def shared_memory(communicator: Communicator, size: int, say: Callable[[str], None]) -> list[torch.Tensor]:
    """The memory of each rank, (size,) bytes, in the order of ranks. All ranks call it together.

    Args:
        communicator: The communicator of this rank.
        size: Bytes of each rank, above 0 and equal on all ranks.
        say: Prints why ranks of one host share no memory.

    Returns:
        An empty list on all ranks if they are not on one host, or if the host has no memory of this kind.
    """
    host, (own, problem) = _host(), _create(size)
    try:
        gathered: list[Any] = communicator.all_gather_object([host, f"/proc/{os.getpid()}/fd/{own}", problem])
        if host is None or any(other != host for other, _, _ in gathered):
            return []
        problems = [problem for _, _, problem in gathered if problem]
        found: list[torch.Tensor] = []
        if not problems:
            found, problem = _open([path for _, path, _ in gathered], size)
            problems = [problem for problem in communicator.all_gather_object(problem) if problem]
    finally:
        if own is not None:
            os.close(own)  # memory that is mapped stays
    if problems:
        say(f"ranks on one host sum gradients over the network, since they cannot share memory: {problems[0]}")
        return []
    return found


def _host() -> list[str] | None:
    """Equal on ranks that can open each other's files through /proc; None on a system without it."""
    try:
        return [
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip(),
            str(Path("/proc/self/ns/pid").readlink()),
        ]
    except OSError:
        return None


def _create(size: int) -> tuple[int | None, str | None]:
    """An anonymous file, its memory allocated: a shortage is an error here and not at the first use."""
    if not hasattr(os, "memfd_create"):
        return None, "this system has no anonymous files (memfd_create)"
    file = None
    try:
        file = os.memfd_create("descend")
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if file is not None:
            os.close(file)
        return None, f"{size:,} bytes: {error.strerror}"
    return file, None


def _open(paths: Sequence[str], size: int) -> tuple[list[torch.Tensor], str | None]:
    try:
        return [torch.from_file(path, shared=True, size=size, dtype=torch.uint8) for path in paths], None
    except (RuntimeError, OSError) as error:
        return [], str(error).splitlines()[0]


@torch.no_grad()
def all_reduce_shared(tensors: Sequence[torch.Tensor], rank: int) -> None:
    """This rank's segment of an all-reduce: after all ranks have called it, every tensor is the sum, equal to the bit.

    Args:
        tensors: (n,) of each rank, in the order of ranks, which is the order of summation.
        rank: Rank of this process.
    """
    count = len(tensors[0])
    begin, end = count * rank // len(tensors), count * (rank + 1) // len(tensors)
    for pieces, total in _sums(tensors, rank, begin, end):
        for piece in pieces:
            if piece is not total:
                piece.copy_(total)


@torch.no_grad()
def reduce_shared(tensors: Sequence[torch.Tensor], rank: int) -> None:
    """Sum all tensors into that of this rank, to the same bits as `all_reduce_shared`; one rank calls it.

    Args:
        tensors: (n,) of each rank, in the order of ranks.
        rank: Rank of this process.
    """
    for pieces, total in _sums(tensors, rank, 0, len(tensors[0])):
        if pieces[rank] is not total:
            pieces[rank].copy_(total)


def _sums(
    tensors: Sequence[torch.Tensor], rank: int, begin: int, end: int
) -> Generator[tuple[list[torch.Tensor], torch.Tensor]]:
    """The pieces of some elements of all ranks, and their sum in the order of ranks, which may lie in this rank's."""
    for at in range(begin, end, _CHUNK):
        pieces = [one[at : min(at + _CHUNK, end)] for one in tensors]
        # Of the first two either can be added to the other: the bits are the same.
        total = pieces[rank].add_(pieces[1 - rank]) if rank < 2 else pieces[0] + pieces[1]
        for piece in pieces[2:]:
            total += piece
        yield pieces, total


# ---- an all-reduce of a few numbers among the ranks of one host, in memory that all of them see
#
#     own memory      number of the newest sum, lengths | left | values of even sums | values of odd sums
#     a sum           write the values, then the number; spin until every rank has written that number; add all values
#
# A step of ranks on one host waits for nothing but such sums, and through gloo each takes a tenth of a millisecond to
# some: threads of gloo's own have to run on cores that the ranks keep busy.
#
# A rank may begin sum n + 2 as soon as all have begun sum n + 1, which they do after they have read the values of sum
# n. So two places for values are enough. Values are written before the number, and cores see another's writes in their
# order on the processors that `ORDERED` names; on others there is no such sum.

ORDERED = ("x86_64", "AMD64")  # Intel 64 and IA-32 Architectures Developer's Manual 3A, section 9.2
# Places in words of 8 bytes; what is written often has a cache line of its own.
_NUMBER, _LENGTHS, _LEFT, _VALUES = 0, 1, 8, 16
_ROOM_BYTES = 1 << 16  # of the values of a sum
_KINDS = {torch.float64: np.float64, torch.float32: np.float32, torch.int64: np.int64}
SPIN_SECONDS = 0.01  # ranks in lockstep are this close to each other; a core that slept 1 ms is up to a tenth slower
_SLEEP_SECONDS = (5e-5, 2e-3)  # shortest and longest sleep between looks, once it has taken longer
_CHECK_SECONDS = 0.1  # from one look at the other ranks' processes to the next


class SharedAllReduce:
    """Sums of small tensors over ranks. All ranks call it together, and in one order.

    Args:
        memory: Of each rank, as `shared_memory` returns it; `needed_bytes` or more, and zeros.
        rank: Of this process.
        identities: Of the processes, in the order of ranks, as `process_identity` gives them.

    Attributes:
        needed_bytes: Size of the memory of a rank.
    """

    needed_bytes = 8 * _VALUES + 2 * _ROOM_BYTES

    def __init__(self, memory: Sequence[torch.Tensor], rank: int, identities: Sequence[dict[str, Any]]) -> None:
        self._rank, self._identities = rank, identities
        self._words = [one[: 8 * _VALUES].numpy().view(np.int64) for one in memory]
        begins = (8 * _VALUES, 8 * _VALUES + _ROOM_BYTES)
        self._values = {
            kind: [[one[at : at + _ROOM_BYTES].numpy().view(held) for one in memory] for at in begins]
            for kind, held in _KINDS.items()
        }
        self._others = [words for at, words in enumerate(self._words) if at != rank]
        self._number = 0

    @classmethod
    def among(cls, communicator: Communicator, awake: bool, say: Callable[[str], None]) -> SharedAllReduce | None:
        """That of the ranks of a communicator, which call this together; None on all where one cannot take part.

        Args:
            communicator: Its ranks share memory.
            awake: Whether each thread of them has a core.
            say: Prints why ranks of one host share no memory.
        """
        fits = awake and platform.machine() in ORDERED
        asked: list[Any] = communicator.all_gather_object([fits, process_identity()])
        if not all(fits for fits, _ in asked):
            return None
        memory = shared_memory(communicator, cls.needed_bytes, say)
        return cls(memory, communicator.rank, [identity for _, identity in asked]) if memory else None

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one to sum here."""
        return tensor.is_cpu and tensor.dtype in _KINDS and tensor.nbytes <= _ROOM_BYTES and tensor.is_contiguous()

    def __call__(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over all ranks in place, in the order of ranks.

        Raises:
            RuntimeError: another rank has left, or its process has ended.
            DataError: another rank sums a tensor of another length.
        """
        self._number += 1
        place, own = self._number % 2, self._words[self._rank]
        total, count = tensor.detach().reshape(-1).numpy(), tensor.numel()
        values = [one[:count] for one in self._values[tensor.dtype][place]]
        values[self._rank][:] = total
        own[_LENGTHS + place] = count
        own[_NUMBER] = self._number
        self._wait()
        if any(words[_LENGTHS + place] != count for words in self._others):
            raise DataError(
                f"rank {self._rank} sums {count:,} numbers over ranks and another rank does not: pass the same data "
                "and the same settings to all ranks; each reads its shard"
            )
        with np.errstate(all="ignore"):  # as torch: what is not finite is found where it matters
            np.add(values[0], values[1], out=total)
            for more in values[2:]:
                total += more

    def leave(self) -> None:
        """Tell the other ranks that this one takes no further part."""
        self._words[self._rank][_LEFT] = 1

    def _wait(self) -> None:
        """Wait until all ranks have written the values of this sum."""
        began = checked = time.monotonic()
        sleep, longest = _SLEEP_SECONDS
        for words in self._others:
            while words[_NUMBER] < self._number:
                now = time.monotonic()
                if now - began < SPIN_SECONDS:
                    os.sched_yield()
                    continue
                if now - checked > _CHECK_SECONDS:
                    checked = now
                    self._check()
                time.sleep(sleep)
                sleep = min(2 * sleep, longest)

    def _check(self) -> None:
        """Raise an error where a rank that has not come will not."""
        for rank, (words, identity) in enumerate(zip(self._words, self._identities, strict=True)):
            gone = words[_LEFT] or (rank != self._rank and is_dead(identity))
            if gone and words[_NUMBER] < self._number:
                raise RuntimeError(f"rank {rank} has ended")
