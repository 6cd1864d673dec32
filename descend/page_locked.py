"""Page-locked memory of the host, from which copies to a GPU do not wait; ordinary memory where there is none left.

The system may refuse it: containers, virtual machines and limits of a user have less of it than memory. Copies from
ordinary memory are right and wait, so nothing depends on it but the speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.errors import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

__all__ = ["page_locked", "page_locked_copy"]

_refused: list[str] = []


def page_locked(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU with any values, in page-locked memory if there is some."""
    import torch

    return _locked_or(
        lambda: torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True),
        lambda: torch.empty(tuple(shape), dtype=dtype, device="cpu"),
    )


def page_locked_copy(tensor: Tensor) -> Tensor:
    """A copy of a tensor on the CPU in page-locked memory, or the tensor itself where there is none."""
    return _locked_or(tensor.pin_memory, lambda: tensor)


def _locked_or(make: Callable[[], Tensor], instead: Callable[[], Tensor]) -> Tensor:
    if not _refused:
        try:
            return make()
        except RuntimeError as problem:
            _refused.append(str(problem).partition("\n")[0])
            warn(f"descend: there is no page-locked memory ({_refused[0]}); copies to the GPU wait for the host")
    return instead()
