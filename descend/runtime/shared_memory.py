"""Shared memory among the ranks of one host, and an all-reduce in it that uses no network.

    shared_memory         each rank makes an anonymous file (memfd), and the others open it through /proc
    all_reduce_shared     rank r sums segment r of all ranks' memory and writes the sum to all of them
    reduce_shared         one rank sums the memory of all ranks into its own

The system frees such memory however a rank exits. Callers place a barrier before an all-reduce, so that all values are
written, and one after it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from descend.runtime.communicator import Communicator

__all__ = ["all_reduce_shared", "reduce_shared", "shared_memory"]

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
