"""What this machine has, on each system: processors and memory."""

from __future__ import annotations

import os
import sys

__all__ = ["cores", "memory_bytes"]


def cores() -> int:
    """Number of processors that this process may use; where the system does not say, all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of this machine; the largest integer where the system does not say, as Windows by these means."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize
