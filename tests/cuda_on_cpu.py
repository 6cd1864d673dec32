"""Kernels for CUDA on a processor: the source of `codegen_cuda` with `cuda_on_cpu.h`, by a C++ compiler.

Everything else is as on a GPU: addresses, tables, flags and the order of launches. Memory of the device is memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.optim.compiler.codegen_cuda import plan
from descend.optim.compiler.codegen_cuda_matrix import device_plan
from descend.optim.compiler.cuda import CudaCompileJob, DeviceMatrixJob
from descend.optim.compiler.trace import from_structure
from descend.optim.engine import arena_manager, matrices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
FLAGS = ("-O1", "-std=c++17", "-ffp-contract=off", "-w", "-shared", "-fPIC")
BLOCKS = 3  # fewer than there are units, so that a block takes several

_FLOAT16 = """
inline float16::float16(float x) { const _Float16 y = (_Float16)x; std::memcpy(&bits, &y, 2); }
inline float16::operator float() const { _Float16 y; std::memcpy(&y, &bits, 2); return y; }
"""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@functools.cache
def library(source: str) -> ctypes.CDLL:
    """The source as a library, with a function `launch_NAME(blocks, threads, work)` for each kernel."""
    names = re.findall(r"__global__ void __launch_bounds__\(THREADS\) (\w+)\(const (\w+) w\)", source)
    # Between `struct float16` and its first use.
    whole = HEADER.read_text(encoding="utf-8") + source.replace('extern "C" __global__', "__global__").replace(
        "struct Work {", f"{_FLOAT16}\nstruct Work {{", 1
    )
    whole += "".join(
        f'\nextern "C" void launch_{name}(unsigned blocks, unsigned threads, const {work}* w)'
        f" {{ emulate({name}, blocks, threads, *w); }}"
        for name, work in names
    )
    path = Path(_folder().name) / f"{hashlib.sha256(whole.encode()).hexdigest()[:16]}.so"
    done = subprocess.run(
        ["g++", *FLAGS, "-x", "c++", "-", "-o", str(path)], input=whole, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(path))


class EmulatedModule:
    """What `cuda.CudaModule` is on a GPU; it counts launches."""

    def __init__(self, source: str) -> None:
        self.library = library(source)
        self.launched: list[str] = []

    def blocks(self, wanted: int) -> int:
        return min(wanted, BLOCKS)

    def launch(self, names: Sequence[tuple[str, int]], work: ctypes.Structure, stream: int) -> None:
        for name, blocks in names:
            self.launched.append(name)
            getattr(self.library, f"launch_{name}")(self.blocks(blocks), 256, ctypes.byref(work))


class EmulatedJob(CudaCompileJob):
    """A job that is done at once, here."""

    @functools.cached_property
    def key(self) -> str:
        return "emulated"

    def load(self, content: bytes = b"") -> Any:
        return EmulatedModule(self.source()), plan(from_structure(self.structure))


class EmulatedMatrixJob(DeviceMatrixJob):
    """The same of kernels for rules with means over rows and columns."""

    @functools.cached_property
    def key(self) -> str:
        return "emulated"

    def load(self, content: bytes = b"") -> Any:
        return EmulatedModule(self.source()), device_plan(from_structure(self.structure))


class EverythingCompiled:
    """A compiler that has finished all emulated jobs, and no other."""

    def take(self, jobs: list[Any]) -> list[Any]:
        return [job.load() for job in jobs if isinstance(job, EmulatedJob)]

    def known(self, job: EmulatedMatrixJob) -> Any:
        return job.load()

    def failing(self, job: Any, what: str) -> Any:
        return contextlib.nullcontext()

    def has_failed(self, _: Any) -> bool:
        return True

    def order(self, _: Any) -> None:
        pass

    def collect(self, jobs: Any, wait: bool, required: bool) -> None:
        pass


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arenas of a processor have emulated kernels, at once."""

    def jobs_of(arena: Any) -> list[EmulatedJob]:
        dtype, low = (str(x).removeprefix("torch.") for x in (arena.buffers.dtype, arena.buffers.low))
        return [EmulatedJob(arena.trace.structure, dtype, None if low == "None" else low, 0)]

    def matrix_job(structure: str, dtype: str, low: str | None, _: int | None) -> EmulatedMatrixJob:
        return EmulatedMatrixJob(structure, dtype, low, 0)

    monkeypatch.setattr(matrices, "_job", matrix_job)
    monkeypatch.setattr(arena_manager, "_compiler", EverythingCompiled())
    monkeypatch.setattr(arena_manager, "jobs_of", jobs_of)
