"""Compile kernels, in a process of its own: `python -m descend.optim.engine.build`, the jobs as JSON on standard input.

What is compiled is the same text that runs eagerly (`stages.elements`), traced by torch.export and built by torch's
compiler: C++ with OpenMP for a CPU, Triton for CUDA. One kernel serves all sizes, step counts, rates and constants.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, export

from descend.optim.engine.kernels import KEY
from descend.optim.engine.parts import BLOCK
from descend.optim.engine.stages import Kernel, cut, elements
from descend.optim.engine.text import from_structure

__all__ = ["main"]

ROWS, TENSORS = 1000, 50  # sizes of the examples; any serve

OPTIONS = {
    "cpp.dynamic_threads": True,  # as many as the run has, not as many as this process
    "emulate_precision_casts": True,  # a master is compared with its rounded weights, so rounding must happen
}


class Pass(torch.nn.Module):
    """A kernel as a module: buffers, index, valid and table in, sums over blocks out, buffers updated in place."""

    def __init__(self, kernel: Kernel, low: torch.dtype | None) -> None:
        super().__init__()
        self.kernel = kernel
        self.low = low

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Carry the kernel out."""
        *held, index, valid, table = args
        buffers = dict(zip(self.kernel.buffers, held, strict=True))
        columns = {at: table[i][index][:, None] for i, at in enumerate(self.kernel.numbers)}
        boolean = {at: column != 0 for at, column in columns.items() if self.kernel.text.ops[at].boolean}
        new, sums = elements(self.kernel, buffers, {**columns, **boolean}, self.low, valid)
        for name, value in new.items():
            buffers[name].copy_(value)
        return tuple(sums)


def _example(name: str, dtype: torch.dtype, low: torch.dtype | None, device: str) -> Tensor:
    return torch.rand(ROWS, BLOCK, dtype=low if low and name in ("w", "g") else dtype, device=device)


def build(job: dict[str, Any]) -> None:
    """Compile one job to its path; the file appears there whole or not at all."""
    kernel = cut(from_structure(job["structure"]))[job["kernel"]]
    dtype = getattr(torch, job["dtype"])
    low = getattr(torch, job["low"]) if job["low"] else None
    device = job["device"]
    # Two tensors: one object given twice would become one input.
    index, valid = (torch.zeros(ROWS, dtype=torch.int32, device=device) for _ in range(2))
    table = torch.rand(len(kernel.numbers), TENSORS, dtype=dtype, device=device)
    buffers = [_example(name, dtype, low, device) for name in kernel.buffers]
    rows, tensors = Dim("rows"), Dim("tensors")
    shapes = [{0: rows} for _ in buffers] + [{0: rows}, {0: rows}, {1: tensors}]
    with torch.no_grad():
        program = export(Pass(kernel, low), (*buffers, index, valid, table), dynamic_shapes=(tuple(shapes),))
        path = Path(job["path"])
        unfinished = path.with_suffix(f".{os.getpid()}.pt2")
        options = {**OPTIONS, "aot_inductor.metadata": {KEY: job["key"]}}
        compile_to_file = torch._inductor.aoti_compile_and_package  # pyright: ignore[reportPrivateUsage]  # documented
        compile_to_file(program, package_path=str(unfinished), inductor_configs=options)
    unfinished.chmod(0o600)
    unfinished.replace(path)


def main() -> None:
    """Compile all jobs, giving way to the run that waits for them."""
    jobs = json.load(sys.stdin)
    os.nice(5)
    # The compiler leaves a loop serial when it is told of one thread; how many run is decided when the kernel does.
    torch.set_num_threads(max(2, torch.get_num_threads()))
    for job in jobs:
        build(job)


if __name__ == "__main__":
    main()
