"""Kernels for CUDA: compiled ahead of time by AOTInductor (`codegen_cuda.py`), loaded and launched on one segment."""

from __future__ import annotations

import functools
import json
import operator
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from descend.optim.compiler.cache import CompileJob, key_of
from descend.optim.compiler.layout import BLOCK
from descend.optim.compiler.partition import Kernel, partition
from descend.optim.compiler.trace import Trace, from_structure
from descend.torch_private import load_aoti

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KEY", "Compiled", "CudaCompileJob"]

KEY = "descend"  # under which a finished kernel holds the key of its job

_dtype = operator.attrgetter("dtype")
_shape = operator.attrgetter("shape")


@dataclass(frozen=True, eq=False)
class Compiled:
    """A finished kernel and what it may be called with, since a kernel itself looks at nothing and may crash.

    Attributes:
        run: Takes buffers in the order of `Kernel.buffers`, then index, valid and the table of numbers, all in a list
            that it empties; returns sums over blocks.
        dtypes: Of each of them.
        numbers: Rows of the table.
    """

    run: Callable[[list[Tensor]], list[Tensor]]
    dtypes: tuple[torch.dtype, ...]
    numbers: int

    def __call__(self, arguments: list[Tensor]) -> list[Tensor]:
        """Update the buffers in place.

        Raises:
            TypeError: An argument is missing, or of another precision or shape. Nothing has changed.
        """
        if tuple(map(_dtype, arguments)) != self.dtypes:
            raise TypeError(f"a kernel that takes {self.dtypes} was given {[x.dtype for x in arguments]}")
        *buffers, index, valid, table = map(_shape, arguments)
        rows = (index[0], BLOCK)
        if valid != index or table[:-1] != (self.numbers,) or buffers.count(rows) != len(buffers):
            raise TypeError(f"a kernel with {self.numbers} numbers was given {[tuple(x.shape) for x in arguments]}")
        return self.run(arguments)


@functools.lru_cache(maxsize=256)
def _text(structure: str) -> Trace:
    return from_structure(structure)


@dataclass(frozen=True)
class CudaCompileJob(CompileJob):
    """One kernel of a text.

    Attributes:
        structure: Of the text.
        kernel: Its number among the kernels of the text.
        dtype: Precision in which it computes, e.g. "float32".
        low: Precision of weights that have a master, or None.
        index: Which of the devices of this process.
    """

    structure: str
    kernel: int
    dtype: str
    low: str | None
    index: int

    device = "cuda"
    suffix = ".pt2"

    @functools.cached_property
    def key(self) -> str:
        """See `CompileJob`."""
        name = torch.cuda.get_device_name(self.index)  # devices of one name share the file
        return key_of(name, self.structure, self.kernel, self.dtype, self.low)

    @property
    def cut(self) -> Kernel:
        """The kernel as cut from its text."""
        return partition(_text(self.structure))[self.kernel]

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of the buffers, index, valid and the table of numbers."""
        wide, low = getattr(torch, self.dtype), getattr(torch, self.low or self.dtype)
        held = [low if name in ("g", "w") else wide for name in self.cut.buffers]
        return (*held, torch.int32, torch.int32, wide)

    def start(self, unfinished: Path) -> subprocess.Popen[str]:
        """Run `compiler/codegen_cuda.py`."""
        root = str(Path(__file__).resolve().parents[3])
        paths = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
        process = subprocess.Popen(
            [sys.executable, "-m", "descend.optim.compiler.codegen_cuda"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({**asdict(self), "key": self.key, "path": str(unfinished)}))
        process.stdin.close()
        process.stdin = None
        return process

    def load(self) -> Compiled:
        """Load by torch's own loader."""
        loader = load_aoti(str(self.path), self.index)
        if loader.get_metadata().get(KEY) != self.key:
            raise RuntimeError(f"{self.path} holds another kernel than its name says")
        return Compiled(loader.boxed_run, self.dtypes, len(self.cut.numbers))
