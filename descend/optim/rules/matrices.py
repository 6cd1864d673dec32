"""Tensors as matrices, their products and factorizations: of one tensor, or of a stack of tensors of one shape.

The last two dimensions are rows and columns. A dimension before them counts tensors, and each is treated as it would be
alone.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import torch

from descend.torch_private import float32_product

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    Factorize = Callable[[Tensor], Sequence[Tensor]]

__all__ = ["as_matrices", "factorize_each", "product", "sides"]

LARGE_PRODUCT = 160**3  # multiplications, from which oneDNN's product of float32 takes less time than MKL's


def sides(shape: torch.Size) -> tuple[int, int]:
    """Rows and columns of a tensor of this shape: the first dimension against all others, or one row."""
    return (1, shape.numel()) if len(shape) < 2 else (shape[0], shape[1:].numel())


def as_matrices(x: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of this shape as a matrix, or a stack of such tensors as a stack of matrices."""
    return x.reshape(*x.shape[: x.ndim - len(shape)], *sides(shape))


def product(a: Tensor, b: Tensor, start: Tensor | None = None, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """A B, or β S + α A B for S = `start`, rounded once where torch can."""
    if a.dtype is torch.float32 and a.is_cpu and a.shape[-2] * a.shape[-1] * b.shape[-1] >= LARGE_PRODUCT:
        fast = float32_product()
        if fast is not None:
            made = fast(a, b) if a.ndim == 2 else torch.stack([fast(x, y) for x, y in zip(a, b, strict=True)])
            return made if start is None else made.mul_(alpha).add_(start, alpha=beta)
    if start is None:
        return a @ b
    return (torch.addmm if a.ndim == 2 else torch.baddbmm)(start, a, b, beta=beta, alpha=alpha)


# ---- factorizations

# The least side of matrices that a GPU factorizes by themselves: smaller ones cuBLAS factorizes faster as one stack (QR
# of 16 matrices in float32 on an H200), or cuSOLVER (eigenvectors up to a side of 32).
_ALONE: Mapping[Any, int] = {torch.linalg.qr: 96, torch.linalg.eigh: 33}
STREAMS = 8


def factorize_each(factorize: Factorize, x: Tensor) -> Sequence[Tensor]:
    """What `torch.linalg.qr` or `torch.linalg.eigh` makes of a matrix, or of each of a stack.

    torch hands cuSOLVER one matrix of a stack after the other, and one of a few hundred rows occupies a small part of a
    GPU. So each gets one of a few streams, and since the host takes about as long to launch a factorization as a GPU to
    do it, each stream has a thread that launches.
    """
    if x.ndim < 3 or len(x) < 2 or min(x.shape[-2:]) < _ALONE[factorize] or not _has_streams(x):
        return factorize(x)
    made = [like.new_empty(len(x), *like.shape[1:]) for like in factorize(x[:0])]
    _load(x.device)
    streams, current = _streams(x.device), torch.cuda.current_stream(x.device)
    for stream in streams:
        stream.wait_stream(current)
    try:
        on_streams(factorize, x, made, streams)
    finally:
        for stream in streams:
            current.wait_stream(stream)
    return made


def _has_streams(x: Tensor) -> bool:
    return x.is_cuda and not torch.cuda.is_current_stream_capturing()


def on_streams(
    factorize: Factorize, x: Tensor, made: Sequence[Tensor], streams: Sequence[torch.cuda.Stream | None]
) -> None:
    """Factorize each matrix on one of the streams.

    Their memory is that of another stream, which these have waited for and which will wait for them.

    Args:
        factorize: The factorization.
        x: The matrices.
        made: Stacks for what is made of them.
        streams: None is the present one.

    Raises:
        BaseException: The first that a factorization raised, when none runs any more.
    """

    @torch.no_grad()  # each thread has a mode of its own
    def work(i: int) -> None:
        with torch.cuda.stream(streams[i]):  # pyright: ignore[reportArgumentType]  # None is the present one
            for j in range(i, len(x), len(streams)):
                for to, value in zip(made, factorize(x[j]), strict=True):
                    to[j].copy_(value)

    jobs = [_threads().submit(work, i) for i in range(min(len(streams), len(x)))]
    wait(jobs)
    for job in jobs:
        job.result()


@functools.cache
def _load(device: torch.device) -> None:
    """Load the library of factorizations, which torch does at the first one and not from several threads at once."""
    torch.linalg.qr(torch.ones(1, 1, device=device))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(STREAMS, thread_name_prefix="descend-factorizations")


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]
