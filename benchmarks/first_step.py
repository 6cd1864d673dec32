"""The beginning of a run, in a process of its own: optimizer_step.py starts it and hands over what to run.

Reads one line of JSON (module, name, options, shapes, seconds) and answers with one. Nothing but torch is imported
when the clock starts, so what an optimizer imports is part of its first step.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch


def kilobytes(name: str) -> int:
    """A number that Linux keeps of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def extra_memory(step: Any, weights_bytes: int) -> float | None:
    """The most memory that a step takes beyond what is held between steps, as a fraction of the weights."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = kilobytes("VmRSS")
        for _ in range(3):
            step()
        return 1024 * (kilobytes("VmHWM") - before) / weights_bytes
    except (OSError, StopIteration):
        return None


def main() -> None:
    """Train as the JSON on standard input says."""
    job = json.loads(sys.stdin.readline())
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in job["shapes"]]
    for p in weights:
        p.grad = torch.randn_like(p) * 1e-3
    began = time.perf_counter()
    optimizer: Any = getattr(importlib.import_module(job["module"]), job["name"])(weights, **job["options"])
    optimizer.step()
    first = time.perf_counter() - began
    longest, compiled = 0.0, first if getattr(optimizer, "is_compiled", False) else None
    while time.perf_counter() - began < job["seconds"]:
        before = time.perf_counter()
        optimizer.step()
        longest = max(longest, time.perf_counter() - before)
        if compiled is None and optimizer.is_compiled:
            compiled = time.perf_counter() - began
    extra = extra_memory(optimizer.step, 4 * sum(p.numel() for p in weights))
    print(json.dumps({"first": first, "longest": longest, "compiled": compiled, "extra": extra}))


if __name__ == "__main__":
    main()
