"""Kernels as programs for CUDA: each is written as a torch module and compiled by AOTInductor with Triton.

Runs in a process of its own, `python -m descend.optim.compiler.codegen_cuda`, which reads a job as JSON
from standard input. The module calls `partition.elements`, the definition that also runs eagerly, so both compute the
same. One compiled kernel serves all sizes, step counts, learning rates and constants.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, export

from descend.optim.compiler.cuda import KEY
from descend.optim.compiler.layout import BLOCK
from descend.optim.compiler.partition import Kernel, elements, partition
from descend.optim.compiler.trace import from_structure
from descend.torch_private import aoti_compile

__all__ = ["main", "traced"]

ROWS, TENSORS = 1000, 50  # sizes of the examples; any serve

# A master is compared with its rounded weights, so rounding must happen.
OPTIONS = {"emulate_precision_casts": True}


class CompilePass(torch.nn.Module):
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


def traced(job: dict[str, Any], device: str) -> torch.export.ExportedProgram:
    """The program of a job, for any number of blocks and tensors."""
    kernel = partition(from_structure(job["structure"]))[job["kernel"]]
    dtype = getattr(torch, job["dtype"])
    low = getattr(torch, job["low"]) if job["low"] else None
    # Two tensors: one object given twice would become one input.
    index, valid = (torch.zeros(ROWS, dtype=torch.int32, device=device) for _ in range(2))
    table = torch.rand(len(kernel.numbers), TENSORS, dtype=dtype, device=device)
    buffers = [_example(name, dtype, low, device) for name in kernel.buffers]
    rows, tensors = Dim("rows"), Dim("tensors")
    shapes = [{0: rows} for _ in buffers] + [{0: rows}, {0: rows}, {1: tensors}]
    with torch.no_grad():
        return export(CompilePass(kernel, low), (*buffers, index, valid, table), dynamic_shapes=(tuple(shapes),))


def main() -> None:
    """Compile the job, giving way to the run that waits for it."""
    job = json.load(sys.stdin)
    os.nice(5)
    options = {**OPTIONS, "aot_inductor.metadata": {KEY: job["key"]}}
    with torch.no_grad(), torch.cuda.device(job["index"]):
        aoti_compile(traced(job, "cuda"), job["path"], options)


if __name__ == "__main__":
    main()
