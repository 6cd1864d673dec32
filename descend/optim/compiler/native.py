"""Kernels for a CPU: compiled from C++ by the machine's compiler, loaded and called through ctypes.

`CpuCompileJob` compiles all kernels of a trace into one shared library. A loaded library has a function `call0`,
`call1`, ... for each call of `codegen_cpp.calls`; each takes a pointer to a `KernelLaunch`, the struct of addresses and
numbers that `engine/launch.py` fills from an arena.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from descend.files.private_folder import load_library
from descend.optim.compiler.cache import THREADS, CompileJob, compile_command, compiler, key_of
from descend.optim.compiler.codegen_cpp import emit_cpp
from descend.optim.compiler.codegen_matrix import emit_matrices
from descend.optim.compiler.trace import from_structure

if TYPE_CHECKING:
    from pathlib import Path

    from descend.optim.compiler.cache import CompilerProcess

__all__ = ["FLAGS", "CpuCompileJob", "KernelLaunch", "MatrixCompileJob", "MatrixLaunch"]

# Vectors as wide as torch's own kernels use here. Named, and not "native": the cache may be shared between machines.
VECTORS = {
    "AVX512": ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mf16c", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mf16c"),
}
# Each operation is rounded by itself (no contraction), as in the eager form; errno and traps have no reader here.
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")


class KernelLaunch(ctypes.Structure):
    """The struct of the same name in kernel.h."""

    _fields_ = (
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("tensor", "first", "count", "border", "start")),
        *((name, ctypes.c_void_p) for name in ("weights", "gradient", "buffer", "table")),
        ("stride", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("sums", ctypes.c_void_p),
        ("units", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("key", ctypes.c_void_p),
        ("updates", ctypes.c_void_p),
        ("layout", ctypes.c_void_p),
        ("checked", ctypes.c_int64),
    )


class MatrixLaunch(ctypes.Structure):
    """`Tensors` in matrix.h."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("batch", "n", "m", "address", "table")),
        ("stride", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("memory", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class CpuCompileJob(CompileJob):
    """All kernels of a trace.

    Attributes:
        structure: Of the trace.
        dtype: Precision in which it is computed, e.g. "float32".
        low: Precision of weights that have a master, or None.
    """

    structure: str
    dtype: str
    low: str | None

    device = "cpu"
    suffix = ".so"

    @functools.cached_property
    def key(self) -> str:
        """See `CompileJob`."""
        kind = type(self).__name__  # whose kernels of one text are others
        return key_of(kind, torch.backends.cpu.get_cpu_capability(), compiler(), FLAGS, *asdict(self).values())

    def source(self) -> str:
        """The C++ of the library.

        Raises:
            Untraceable: There is none for this trace.
        """
        return emit_cpp(from_structure(self.structure), self.dtype, self.low)

    def start(self, unfinished: Path) -> CompilerProcess:
        """Run the compiler."""
        key = f'extern "C" const char* key() {{ return "{self.key}"; }}\n'
        source = self.source() + key
        vectors = VECTORS.get(torch.backends.cpu.get_cpu_capability(), ())
        return compile_command(source, unfinished, [*FLAGS, *THREADS, *vectors])

    def load(self, content: bytes) -> ctypes.CDLL:
        """Load the finished library."""
        library = load_library(content)
        library.key.restype = ctypes.c_char_p
        if library.key() != self.key.encode():
            raise RuntimeError(f"{self.file} holds another kernel than its name says")
        return library


@dataclass(frozen=True)
class MatrixCompileJob(CpuCompileJob):
    """The kernel of a trace with means over rows and columns: functions `size` and `call`, see matrix.h."""

    def source(self) -> str:
        """See `CpuCompileJob`."""
        return emit_matrices(from_structure(self.structure), self.dtype, self.low)
