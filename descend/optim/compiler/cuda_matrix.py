"""Kernels for CUDA for rules with means over rows and columns; what they are given, and how they are built."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from descend.optim.compiler.codegen_cuda_matrix import DevicePlan, device_plan, emit_cuda_matrices
from descend.optim.compiler.cuda import CudaCompileJob, CudaModule
from descend.optim.compiler.trace import from_structure

__all__ = ["TILE", "WALKS", "DeviceMatrixJob", "DeviceMatrixLaunch", "Walk"]

TILE = 64  # rows of a part of a column, as in cuda_matrix.h

WALKS = ("elements", "rows", "columns", "matrices", "parts")


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
