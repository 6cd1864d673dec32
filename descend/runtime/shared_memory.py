"""Memory that the ranks of one host see of each other, and sums in it that go through no network.

    shared_memory     each rank makes a file without a name, and the others open it by way of /proc
    add_up            rank r adds up part r of what all ranks have and gives the sum to all of them

Nothing is left of such memory, however a rank ends. Ranks meet before a sum, so that everything is there, and after it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from descend.runtime.communicator import Communicator

__all__ = ["all_reduce_shared", "shared_memory"]

_AT_ONCE = 1 << 16  # elements that are added before they are given to the others, while they are in the cache


def shared_memory(process: Communicator, size: int, say: Callable[[str], None]) -> list[torch.Tensor]:
    """The memory of each rank, (size,) bytes, in the order of ranks. All ranks call it together.

    Args:
        process: This process among its ranks.
        size: Bytes of each rank, above 0 and the same on all.
        say: Told why ranks of one host have none.

    Returns:
        An empty list on all ranks where they are not on one host, or where it does not give memory of this kind.
    """
    host, (own, problem) = _host(), _made(size)
    try:
        told: list[Any] = process.all_gather_object([host, f"/proc/{os.getpid()}/fd/{own}", problem])
        if host is None or any(other != host for other, _, _ in told):
            return []
        problems = [problem for _, _, problem in told if problem]
        found: list[torch.Tensor] = []
        if not problems:
            found, problem = _opened([path for _, path, _ in told], size)
            problems = [problem for problem in process.all_gather_object(problem) if problem]
    finally:
        if own is not None:
            os.close(own)  # what has been opened stays
    if problems:
        say(f"gradients of ranks on one host go through its network, since they can share no memory: {problems[0]}")
        return []
    return found


def _host() -> list[str] | None:
    """What is the same on ranks that can open each other's files by way of /proc; None where there is no such thing."""
    try:
        return [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(Path("/proc/self/ns/pid").readlink())]
    except OSError:
        return None


def _made(size: int) -> tuple[int | None, str | None]:
    """A file of memory, all of which is there: what cannot be had is an error here and not where it is first used."""
    if not hasattr(os, "memfd_create"):
        return None, "this system has no files without a name"
    file = None
    try:
        file = os.memfd_create("descend")
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if file is not None:
            os.close(file)
        return None, f"{size:,} bytes: {error.strerror}"
    return file, None


def _opened(paths: Sequence[str], size: int) -> tuple[list[torch.Tensor], str | None]:
    try:
        return [torch.from_file(path, shared=True, size=size, dtype=torch.uint8) for path in paths], None
    except RuntimeError as error:
        return [], str(error).splitlines()[0]


@torch.no_grad()
def all_reduce_shared(some: Sequence[torch.Tensor], rank: int) -> None:
    """Do this rank's part of a sum: once all ranks have, each of the tensors is the sum of all, the same to the bit.

    Args:
        some: (n,) of each rank, in the order of ranks, which is the order of the sum.
        rank: Of this process.
    """
    count = len(some[0])
    begin, end = count * rank // len(some), count * (rank + 1) // len(some)
    for at in range(begin, end, _AT_ONCE):
        pieces = [one[at : min(at + _AT_ONCE, end)] for one in some]
        total = pieces[0] + pieces[1]
        for piece in pieces[2:]:
            total += piece
        for piece in pieces:
            piece.copy_(total)
