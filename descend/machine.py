"""The resources of this machine, on each system: processors, memory, and devices with float64 or without.

From page-locked memory of the host, copies to a GPU do not wait. The system may refuse it: containers, virtual machines
and limits of a user have less of it than memory. Ordinary memory serves as well, and only more slowly.

The numbers of an update are in float64, which some devices do not have, such as Apple's GPUs (MPS). What is one number
for a tensor then lies on the host; torch takes such a number beside tensors of any device.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from descend.errors import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

__all__ = [
    "as_double",
    "cores",
    "for_double",
    "has_double",
    "home",
    "memory_bytes",
    "number",
    "page_locked",
    "page_locked_copy",
]


def cores() -> int:
    """Number of processors that this process may use; where the system does not say, all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of this machine; the largest integer where the system does not say, as Windows by these means."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def has_double(device: torch.device) -> bool:
    """Whether tensors on a device may be in float64."""
    return device.type in ("cpu", "cuda", "meta") or _takes_double(device)


@cache
def _takes_double(device: torch.device) -> bool:
    import torch

    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def for_double(x: Tensor) -> Tensor:
    """A tensor where float64 can be computed: itself, or a copy on the host."""
    return x if has_double(x.device) else x.cpu()


def as_double(x: Tensor) -> Tensor:
    """A tensor in float64, on its device or on the host."""
    return for_double(x).double()


def home(dtype: torch.dtype, p: Tensor) -> torch.device:
    """The device of an entry of the state of a tensor."""
    import torch

    return p.device if dtype != torch.float64 or has_double(p.device) else torch.device("cpu")


def number(p: Tensor, value: float = 0.0) -> Tensor:
    """One float64 number of the state of a tensor: on its device, or on the host where that has no float64."""
    import torch

    if has_double(p.device):
        return p.new_full((), value, dtype=torch.float64)
    return torch.full((), value, dtype=torch.float64, device="cpu")


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
