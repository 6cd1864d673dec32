"""Deterministic algorithms of torch while a run lasts, and what of torch's settings decides the bits of a GPU."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["arithmetic_settings", "deterministic_algorithms"]

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
