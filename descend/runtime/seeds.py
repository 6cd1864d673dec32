"""What makes a run repeat itself: seeds by name, and deterministic algorithms.

Every consumer of random numbers has a stream of its own, independent of all others.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

__all__ = [
    "arithmetic_settings",
    "deterministic_algorithms",
    "forked_rng",
    "generator",
    "seed_evaluation",
    "seed_of",
    "seed_step",
]

_GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio: the seeds of consecutive steps are far apart


def seed_of(seed: int, *names: str | int) -> int:
    """A 63-bit seed, a function of the run's seed and the consumer's name, such as ("weights", "conv1_kernel").

    Adding, removing or reordering other consumers does not change it. SHA-256 makes the streams of similar names
    independent.
    """
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@cache
def _steps_of(seed: int) -> int:
    return seed_of(seed, "step")


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator, seeded for the stream `names`."""
    return torch.Generator().manual_seed(seed_of(seed, *names))


def forked_rng(device: torch.device | None = None) -> AbstractContextManager[None]:
    """Preserve torch's global generator state within a block, without initializing CUDA in a run on the CPU.

    `torch.random.fork_rng()` without devices reads the state of every CUDA device, which initializes CUDA, and warns if
    there are several.

    Args:
        device: Device of the run; None if it is unknown: then CUDA devices count if CUDA is initialized already.
    """
    cuda = torch.cuda.is_initialized() or (device is not None and device.type == "cuda")
    return torch.random.fork_rng(range(torch.cuda.device_count()) if cuda else [])


def seed_step(seed: int, step: int, position: int = 0) -> None:
    """Seed torch's global generators for one training step.

    What a module draws in a step, a dropout mask for example, is then a function of (seed, step, position): a resumed
    run draws the same numbers, and no generator state has to be saved. Callers preserve the user's own generator state
    with `forked_rng`.

    Args:
        seed: Seed of the run.
        step: Number of updates before this step.
        position: Where the samples of this rank begin in the mini-batch, so that every rank draws other numbers.
    """
    begin = seed_of(seed, "step", position) if position else _steps_of(seed)
    _begin((begin + step * _GOLDEN) % 2**63)  # a hash in every step would slow down a small net


def seed_evaluation(seed: int, mode: str, step: int, batch: int, position: int = 0) -> None:
    """Seed torch's global generators for one mini-batch of an evaluation after `step` updates; see `seed_step`."""
    _begin(seed_of(seed, "evaluation", mode, step, batch, *[position] * (position > 0)))


def _begin(number: int) -> None:
    torch.default_generator.manual_seed(number)  # torch.manual_seed takes 100 µs, too long for a small net
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


# ---- deterministic algorithms of torch while a run lasts, and what of torch's settings decides the bits of a GPU

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS sums in one order with workspaces of a fixed size alone
_SIZES = ":4096:8"


@contextmanager
def deterministic_algorithms(wanted: bool) -> Generator[None]:
    """Within this block torch takes algorithms that give the same bits each time, and refuses an operation without one.

    cuDNN chooses among those by rule and not by trial. All that is set is restored afterwards.

    Args:
        wanted: False changes nothing.
    """
    if not wanted:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    of_cudnn, workspace = (cudnn.deterministic, cudnn.benchmark), os.environ.get(_WORKSPACE)
    try:
        if workspace not in (":4096:8", ":16:8"):
            os.environ[_WORKSPACE] = _SIZES
        torch.use_deterministic_algorithms(True)
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark = of_cudnn
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
        else:
            os.environ[_WORKSPACE] = workspace


def arithmetic_settings() -> dict[str, Any]:
    """The settings of torch on which the bits of a run depend, by name; those of CUDA also where no GPU is there."""
    cudnn: Any = torch.backends.cudnn
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_benchmark": cudnn.benchmark,
        "tf32_matrix_products": torch.get_float32_matmul_precision() != "highest",
        "tf32_convolutions": cudnn.allow_tf32,
        "threads": torch.get_num_threads(),
    }
