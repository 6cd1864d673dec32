"""Kernels for CUDA: built by NVRTC in a process of its own, loaded and launched through the driver.

So all that a machine needs is torch's build for CUDA: no toolkit, no C++ compiler, and no Triton.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.optim.compiler import nvrtc
from descend.optim.compiler.cache import CompileJob, key_of, script_process
from descend.optim.compiler.codegen_cuda import emit_cuda, plan
from descend.optim.compiler.codegen_cuda_matrix import WALKS, DevicePlan, device_plan, emit_cuda_matrices
from descend.optim.compiler.nvrtc import OPTIONS, NvrtcError, target
from descend.optim.compiler.trace import from_structure

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from descend.optim.compiler.cache import CompilerProcess

__all__ = [
    "THREADS",
    "CudaCompileJob",
    "CudaLaunch",
    "CudaModule",
    "DeviceMatrixJob",
    "DeviceMatrixLaunch",
    "Walk",
]

THREADS = 256  # of a block, as in cuda_kernel.h
BLOCKS_A_PROCESSOR = 8  # 2,048 threads, all that a multiprocessor holds


class CudaLaunch(ctypes.Structure):
    """The struct `Work` in cuda_kernel.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("units", "tensors", "groups")),
        *((name, ctypes.c_void_p) for name in ("unit_tensor", "unit_first", "unit_count", "border", "start", "group")),
        *((name, ctypes.c_void_p) for name in ("key", "weights", "gradient", "buffer", "column", "input", "count")),
        *((name, ctypes.c_void_p) for name in ("table", "sums", "bad", "bad_tensor", "found_inf", "grad_scale")),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    held = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    held.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return held


def _check(result: int) -> None:
    if result:
        said = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(said))
        raise RuntimeError(f"CUDA's driver: {said.value.decode() if said.value else result}")


class CudaModule:
    """The kernels of a trace on one device.

    Args:
        code: What NVRTC made.
        index: Of the device.

    Raises:
        RuntimeError: The driver refuses it.
    """

    def __init__(self, code: bytes, index: int) -> None:
        torch.cuda.init()
        device = ctypes.c_int()
        self._context, self._module = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuDeviceGet(ctypes.byref(device), index))
        _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))  # the one that torch uses
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._most = BLOCKS_A_PROCESSOR * torch.cuda.get_device_properties(index).multi_processor_count
        with self._current():
            _check(_driver().cuModuleLoadData(ctypes.byref(self._module), code))

    @contextlib.contextmanager
    def _current(self) -> Generator[None]:
        """Make the device's context that of this thread; another thread may have made another device current."""
        _check(_driver().cuCtxPushCurrent_v2(self._context))
        try:
            yield
        finally:
            _check(_driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            found = ctypes.c_void_p()
            _check(_driver().cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()))
            self._functions[name] = found
        return self._functions[name]

    def launch(self, names: Sequence[tuple[str, int]], work: ctypes.Structure, stream: int) -> None:
        """Launch kernels one after the other; nothing waits for them.

        Args:
            names: Of the kernels, each with the number of blocks that would serve everything at once.
            work: Their argument, copied by the driver.
            stream: Address of the stream.

        Raises:
            RuntimeError: The driver refuses a launch.
        """
        given = (ctypes.c_void_p * 1)(ctypes.addressof(work))
        with self._current():
            for name, wanted in names:
                blocks = max(1, min(wanted, self._most))
                size, nothing = (ctypes.c_uint(n) for n in (THREADS, 0))
                one = ctypes.c_uint(1)
                grid = (ctypes.c_uint(blocks), one, one, size, one, one, nothing)
                _check(_driver().cuLaunchKernel(self._function(name), *grid, ctypes.c_void_p(stream), given, None))


@dataclass(frozen=True)
class CudaCompileJob(CompileJob):
    """All kernels of a trace.

    Attributes:
        structure: Of the trace.
        dtype: Precision in which it is computed, e.g. "float32".
        low: Precision of weights that have a master, or None.
        index: Which of the devices of this process.
    """

    structure: str
    dtype: str
    low: str | None
    index: int

    device = "cuda"
    suffix = ".cubin"

    @functools.cached_property
    def key(self) -> str:
        """See `CompileJob`."""
        capability = torch.cuda.get_device_capability(self.index)  # devices of one kind share the file
        kind = type(self).__name__  # whose kernels of one text are others
        return key_of(kind, capability, torch.version.cuda, OPTIONS, self.structure, self.dtype, self.low)

    def source(self) -> str:
        """What NVRTC compiles.

        Raises:
            Untraceable: There is nothing for this trace.
        """
        return emit_cuda(from_structure(self.structure), self.dtype, self.low)

    def start(self, unfinished: Path) -> CompilerProcess:
        """Run `compiler/nvrtc.py`."""
        try:
            architecture = target(torch.cuda.get_device_capability(self.index))
        except NvrtcError as problem:
            raise OSError(str(problem)) from problem
        return script_process(Path(nvrtc.__file__), [architecture], self.source(), unfinished)

    def load(self, content: bytes) -> tuple[CudaModule, Any]:
        """The kernels, by the driver, which refuses a file that is damaged; and their plan, a `CudaPlan` here."""
        return CudaModule(content, self.index), plan(from_structure(self.structure))


class Walk(ctypes.Structure):
    """The struct of the same name in cuda_matrix.h."""

    _fields_ = (
        ("units", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("tensor", "first", "size", "start")),
    )


class DeviceMatrixLaunch(ctypes.Structure):
    """The struct `Matrices` in cuda_matrix.h."""

    _fields_ = (
        ("tensors", ctypes.c_int64),
        *((name, Walk) for name in WALKS),
        *((name, ctypes.c_void_p) for name in ("n", "m", "border", "address", "given", "computed", "sums", "offset")),
        *((name, ctypes.c_void_p) for name in ("memory", "bad", "grad_scale")),
    )


@dataclass(frozen=True)
class DeviceMatrixJob(CudaCompileJob):
    """All kernels of a trace with means over rows and columns."""

    def source(self) -> str:
        """See `CudaCompileJob`."""
        return emit_cuda_matrices(from_structure(self.structure), self.dtype, self.low)

    def load(self, content: bytes) -> tuple[CudaModule, DevicePlan]:
        """See `CudaCompileJob`."""
        return CudaModule(content, self.index), device_plan(from_structure(self.structure))
