"""Launches kernels for rules with means over rows and columns on a GPU: some a stage, for all tensors together.

Addresses and the numbers of a step are sent when they change, from page-locked memory. Values of rows, columns and
matrices are in memory that a step gets from torch and gives back.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from descend.optim.compiler.codegen_cuda_matrix import TILE, WALKS
from descend.optim.compiler.cuda import THREADS, CudaLaunch, DeviceMatrixLaunch, Walk
from descend.optim.engine.arena_layout import Units
from descend.optim.engine.finite import DeviceFlag
from descend.optim.engine.launch import UNIT_ON_A_GPU, DeviceTables
from descend.optim.engine.matrices import MatrixArena, wide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from descend.optim.compiler.codegen_cuda_matrix import DevicePlan
    from descend.optim.compiler.cuda import CudaModule
    from descend.optim.engine.matrices import MatrixBatch, MatrixCall, MatrixKernel

__all__ = ["DeviceMatrixArena", "DeviceMatrixCall", "arena_of"]

UNIT = UNIT_ON_A_GPU  # elements that a block takes at a time, and of smaller things as many as have so many elements
_ALIGNED = 256  # bytes


class _Walked(NamedTuple):
    """What one kind of launches goes over, see `Walk` in cuda_matrix.h.

    Attributes:
        units: The units of all tensors.
        start: Where the values of each tensor begin in memory.
        room: For how many values there is memory.
    """

    units: Units
    start: NDArray[np.int64]
    room: int

    @staticmethod
    def of(sizes: NDArray[np.int64], most: NDArray[np.int64] | int, stored: NDArray[np.int64] | None = None) -> _Walked:
        """Units of at most so many things each.

        Args:
            sizes: How many things each tensor has.
            most: How many of them a unit has at most.
            stored: How many of them have memory, where not all do.
        """
        stored = sizes if stored is None else stored
        return _Walked(Units.of(sizes, most), (np.cumsum(stored) - stored).astype(np.int64), int(stored.sum()))

    def tables(self) -> dict[str, NDArray[np.int64]]:
        """The arrays of a `Walk`, by name."""
        units = self.units
        return {"tensor": units.tensor, "first": units.first, "size": units.size, "start": self.start}


def _walks(shapes: NDArray[np.int64]) -> dict[str, _Walked]:
    """The walks over elements, rows, columns, matrices, and parts of columns, stored where a column has several."""
    batch, n, m = shapes
    tiles = -(-n // TILE)
    parts = batch * tiles * m
    return {
        "elements": _Walked.of(batch * n * m, UNIT),
        "rows": _Walked.of(batch * n, np.where(m < UNIT, np.maximum(UNIT // m, THREADS // 32), 1)),
        "columns": _Walked.of(batch * m, UNIT),
        "matrices": _Walked.of(batch, np.maximum(1, UNIT // np.maximum(n, m))),
        "parts": _Walked.of(
            parts, THREADS * np.maximum(1, UNIT // THREADS // np.minimum(n, TILE)), np.where(tiles > 1, parts, 0)
        ),
    }


def _places(plan: DevicePlan, walks: Mapping[str, _Walked], itemsize: int) -> tuple[NDArray[np.int64], int]:
    """Offset of each array in memory, and the bytes of all."""
    offsets, end = [0], 0
    for walk, size in plan.arrays:
        end += -(-walks[walk].room * (size or itemsize) // _ALIGNED) * _ALIGNED
        offsets.append(end)
    return np.array(offsets, dtype=np.int64), max(end, 1)


class DeviceMatrixCall:
    """The launches that update some tensors, which may be made again and again.

    Args:
        compiled: Kernels of a trace, and their plan.
        shapes: (3, tensors) int64: of each tensor how many matrices, their rows and their columns.
        addresses: (buffers, tensors) int64, buffers in the order of `MatrixPlan.buffers`; read at each run.
        device: Of the tensors.
        dtype: In which the update is computed.
    """

    def __init__(
        self,
        compiled: tuple[CudaModule, DevicePlan],
        shapes: NDArray[np.int64],
        addresses: NDArray[np.int64],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._module, plan = compiled
        self._addresses, self._device, self._tensors = addresses, device, shapes.shape[1]
        walks = _walks(shapes)
        self._tables = DeviceTables(device)
        offsets, self._bytes = _places(plan, walks, dtype.itemsize)
        fixed = {(walk, name): x for walk in WALKS for name, x in walks[walk].tables().items()}
        fixed |= {("", "n"): shapes[1], ("", "m"): shapes[2], ("", "offset"): offsets}
        fixed |= {("", "border"): walks["elements"].units.border}
        whole = torch.from_numpy(np.concatenate(list(fixed.values()))).to(device)
        pieces = whole.split([len(x) for x in fixed.values()])
        places = {name: x.data_ptr() for name, x in zip(fixed, pieces, strict=True)}
        self._tables.send("address", addresses)
        self._tables.send("given", np.zeros((max(1, len(plan.made.given)), self._tensors)))
        computed = torch.empty(max(1, len(plan.made.computed)), self._tensors, dtype=torch.float64, device=device)
        sums = torch.empty(
            max(1, len(plan.sums)), len(walks["elements"].units.tensor), dtype=torch.float64, device=device
        )
        self._kept = (whole, computed, sums)
        self._work = DeviceMatrixLaunch(
            tensors=self._tensors,
            address=self._tables.held["address"].data_ptr(),
            given=self._tables.held["given"].data_ptr(),
            computed=computed.data_ptr(),
            sums=sums.data_ptr(),
            **{name: place for (walk, name), place in places.items() if not walk},
        )
        count = {walk: len(walks[walk].units.tensor) for walk in WALKS}
        for walk in WALKS:
            setattr(self._work, walk, Walk(count[walk], *(places[walk, name] for name in walks[walk].tables())))
        self._launches = [(name, count[walk] if walk else self._tensors) for name, walk in plan.launches]

    def run(self, table: NDArray[np.float64], bad: int | None = None, grad_scale: int | None = None) -> None:
        """Update the tensors. The host does not wait.

        Args:
            table: (numbers, tensors), or (numbers, 1) where all tensors have the same.
            bad: Address of a flag, where one keeps the update from happening; see `DeviceFlag`.
            grad_scale: Address of a factor that is left in the gradients, where there is one.
        """
        self._tables.send("address", self._addresses)
        self._tables.send("given", np.ascontiguousarray(np.broadcast_to(table, (len(table), self._tensors))))
        memory = torch.empty(self._bytes, dtype=torch.uint8, device=self._device)
        self._work.memory, self._work.bad, self._work.grad_scale = memory.data_ptr(), bad, grad_scale
        self._module.launch(self._launches, self._work, self._tables.stream)


def _check_args(sizes: NDArray[np.int64], tables: DeviceTables) -> CudaLaunch:
    """The argument of a finite check; `tables` gets what it reads.

    Args:
        sizes: Elements of each tensor.
        tables: The tables of their device.
    """
    units = Units.of(sizes, UNIT)
    for name, x in zip(("unit_tensor", "unit_first", "unit_count"), units[:3], strict=True):
        tables.send(name, x)
    tables.send("gradient", np.zeros(len(sizes), dtype=np.int64))
    arrays = {name: x.data_ptr() for name, x in tables.held.items()}
    return CudaLaunch(units=len(units.tensor), tensors=len(sizes), **arrays)


class DeviceMatrixArena(MatrixArena):
    """Tensors on a GPU, whose launches read a flag: see `finite.FlaggedTensors`.

    Attributes:
        flag: Raised where a gradient is not finite.
        tables: The tables that the finite check reads.
    """

    def _check_by(self, kernel: MatrixKernel) -> DeviceFlag:
        assert isinstance(kernel, tuple)
        self.tables = DeviceTables(self.device)
        self._work = _check_args(self.layout.sizes, self.tables)
        self.flag = DeviceFlag(kernel[0], self._work, self.tables, self.gradient, self.device, self.layout.dtype)
        return self.flag

    def _left_out(self) -> tuple[int, ...]:
        """None where the kernels see for themselves which tensors have no gradient; another call takes a wait."""
        return () if "g" in self._plan.buffers else self.absent

    def _call_for(self, shapes: NDArray[np.int64], addresses: NDArray[np.int64]) -> DeviceMatrixCall:
        assert isinstance(self._kernel, tuple)
        return DeviceMatrixCall(self._kernel, shapes, addresses, self.device, wide(self.layout.dtype))

    def _run(self, call: MatrixCall | DeviceMatrixCall, table: NDArray[np.float64]) -> None:
        assert isinstance(call, DeviceMatrixCall)
        self.flag.begin_update()
        call.run(table, self._work.bad, self._work.grad_scale)


def arena_of(batch: MatrixBatch, kernel: MatrixKernel) -> MatrixArena:
    """The arena of a kernel for a CPU or a GPU."""
    return MatrixArena(batch, kernel) if isinstance(kernel, ctypes.CDLL) else DeviceMatrixArena(batch, kernel)
