"""Factorizations of matrices on a GPU, several at a time.

torch hands cuSOLVER one matrix of a stack after the other, and one of a few hundred rows occupies a small part of a
GPU. Here each matrix gets one of a few streams. The host takes about as long to launch a factorization as the GPU to do
it, so each stream has a thread that launches.
"""

from __future__ import annotations

import functools
import itertools
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.torch_private import private_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Form = tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]  # shape, precision and strides
    Piece = tuple[Tensor, list[Tensor]]  # what is factorized, and places for what is made of it

__all__ = ["FACTORIZATIONS", "factorized"]

# Operators of a first argument (..., rows, columns), which return several tensors. Each with the least side of matrices
# that are factorized by themselves: smaller ones cuBLAS factorizes faster as one stack (QR of 16 matrices in float32 on
# an H200), or cuSOLVER (eigenvectors up to a side of 32).
FACTORIZATIONS: Mapping[Any, int] = {
    torch.ops.aten.linalg_qr.default: 96,
    private_operator("_linalg_eigh").default: 33,
}
STREAMS = 8


def factorized(
    factorize: Callable[[Tensor], Sequence[Tensor]],
    stacks: Sequence[Tensor],
    forms: Sequence[Sequence[Form]],
    least_side: int,
) -> list[Sequence[Tensor]]:
    """What a factorization makes of each stack, up to rounding.

    Args:
        factorize: The factorization.
        stacks: Each (..., rows, columns), all on one device.
        forms: Of each stack the forms of what is made of it.
        least_side: From which on a matrix of a stack is factorized by itself.
    """
    device = stacks[0].device
    alone = sum(x.shape[:-2].numel() if _is_spread(x, least_side) else 1 for x in stacks) == 1
    if alone or not _has_streams(stacks[0]):
        return [factorize(x) for x in stacks]
    made = [[torch.empty_strided(n, s, dtype=d, device=device) for n, d, s in some] for some in forms]
    _load(device)
    streams, current = _streams(device), torch.cuda.current_stream(device)
    for stream in streams:
        stream.wait_stream(current)
    try:
        on_streams(factorize, list(pieces(stacks, made, least_side)), streams)
    finally:
        for stream in streams:
            current.wait_stream(stream)
    return list(made)


def _has_streams(x: Tensor) -> bool:
    return x.is_cuda and not torch.cuda.is_current_stream_capturing()


def _is_spread(x: Tensor, least_side: int) -> bool:
    return min(x.shape[-2:]) >= least_side


def pieces(stacks: Sequence[Tensor], made: Sequence[Sequence[Tensor]], least_side: int) -> Iterator[Piece]:
    """Large matrices each by itself, and stacks of small ones."""
    for x, places in zip(stacks, made, strict=True):
        if _is_spread(x, least_side):
            for at in itertools.product(*map(range, x.shape[:-2])):
                yield x[at], [place[at] for place in places]
        else:
            yield x, list(places)


def on_streams(
    factorize: Callable[[Tensor], Sequence[Tensor]], some: Sequence[Piece], streams: Sequence[torch.cuda.Stream | None]
) -> None:
    """Factorize each piece on one of the streams.

    Their memory is that of another stream, which these have waited for and which will wait for them.

    Raises:
        BaseException: The first that a factorization raised, when none runs any more.
    """
    largest = sorted(some, key=lambda piece: -piece[0].numel())

    @torch.no_grad()  # each thread has a mode of its own
    def work(i: int) -> None:
        with torch.cuda.stream(streams[i]):  # pyright: ignore[reportArgumentType]  # None is the present one
            for x, places in largest[i :: len(streams)]:
                for place, value in zip(places, factorize(x), strict=True):
                    place.copy_(value)

    jobs = [_threads().submit(work, i) for i in range(min(len(streams), len(some)))]
    wait(jobs)
    for job in jobs:
        job.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(STREAMS, thread_name_prefix="descend-factorizations")


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]


@functools.cache
def _load(device: torch.device) -> None:
    """Load the library of factorizations, which torch does at the first one and not from several threads at once."""
    torch.linalg.qr(torch.ones(1, 1, device=device))
