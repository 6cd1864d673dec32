"""Rules with means over rows and columns, such as Adafactor: all their tensors in one call of a compiled kernel.

Parameters and state stay where they are, and a call keeps their addresses: as of an arena, Python handles none of the
tensors at a step, and a small library finds the gradients and sees that nothing was moved. A tensor whose elements are
in another order than its rows and columns has a copy in that order, which a step fills and reads back. The first step
waits for the kernel, which a machine compiles once; without a compiler, or where a rule computes more than means and
arithmetic, tensors go the next way of their rule (engine/ways.py).
"""

from __future__ import annotations

import ctypes
import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from descend.optim.compiler.cuda import DeviceMatrixJob
from descend.optim.compiler.matrix_plan import plan
from descend.optim.compiler.native import MatrixCompileJob, MatrixLaunch
from descend.optim.compiler.partition import numbers
from descend.optim.compiler.trace import STATE, Trace, Untraceable, trace_matrices
from descend.optim.engine.arena_layout import ArenaLayout
from descend.optim.engine.finite import KernelCheck
from descend.optim.engine.gradient_scan import ArenaGradients, TensorList
from descend.optim.engine.state import StepCounts
from descend.optim.engine.step_inputs import LOW_PRECISION, PLAIN_TYPES, is_dense, is_sparse
from descend.optim.rules.base import MEANS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.optim.compiler.codegen_cuda_matrix import DevicePlan
    from descend.optim.compiler.cuda import CudaModule
    from descend.optim.engine.device_matrices import DeviceMatrixCall
    from descend.optim.engine.finite import DeviceFlag
    from descend.optim.engine.gradient_scan import GradientScanner
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_inputs import TensorUpdate

    MatrixKernel = ctypes.CDLL | tuple[CudaModule, DevicePlan]

__all__ = ["LARGEST_SIDE", "MatrixArena", "MatrixBatch", "MatrixCall", "batches_of", "wide"]

LARGEST_SIDE = 2**31 - 1  # rows or columns of a matrix on a GPU

Numbers = dict[int, Any]  # by their index in the trace


@functools.lru_cache(maxsize=1024)
def _trace(settings: GroupSettings, dtype: torch.dtype, dims: int) -> Trace | None:
    """The trace of an update, or None where no kernel computes it; dims above 2 are as 2."""
    try:
        trace = trace_matrices(settings, wide(dtype), dtype in LOW_PRECISION, dims)
        plan(trace)
    except Untraceable:
        return None
    return trace


def trace_of(settings: GroupSettings, dtype: torch.dtype, dims: int) -> Trace | None:
    """The trace of the updates of a group, or None where they get the reference update."""
    if settings.rule.needs.isdisjoint(MEANS):
        return None
    # No trace depends on the rate; the presence of decay is part of it.
    return _trace(replace(settings, lr=1.0, decay=float(settings.decay != 0.0), scaled=True), dtype, min(dims, 3))


def wide(dtype: torch.dtype) -> torch.dtype:
    """The precision in which weights of a precision are updated."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


def _shape_of(p: Tensor) -> tuple[int, int, int]:
    """Matrices, rows and columns of a tensor."""
    n, m = (1, p.numel()) if p.ndim < 2 else p.shape[-2:]
    return p.numel() // (n * m), n, m


def _fits(task: TensorUpdate) -> bool:
    """Whether weights and gradient are plain memory without gaps, of this machine or a GPU."""
    p = task.param
    here = p.is_cpu or (p.is_cuda and max(_shape_of(p)[1:]) <= LARGEST_SIDE)
    plain = type(p) in PLAIN_TYPES and p.layout is torch.strided and p.numel() > 0
    return plain and here and is_dense(p) and not is_sparse(task.gradient)


class MatrixBatch(NamedTuple):
    """Updates with one trace, precision and device.

    Attributes:
        trace: The trace of the first; the others differ in constants alone.
        tasks: The updates.
    """

    trace: Trace
    tasks: list[TensorUpdate]

    @property
    def job(self) -> MatrixCompileJob | DeviceMatrixJob:
        """The compile job of their kernel."""
        p = self.tasks[0].param
        dtype, low = (str(x).removeprefix("torch.") for x in (wide(p.dtype), p.dtype))
        return _job(self.trace.structure, dtype, low if low != dtype else None, p.device.index if p.is_cuda else None)


@functools.lru_cache(maxsize=256)  # as the key takes a millisecond to compute
def _job(structure: str, dtype: str, low: str | None, index: int | None) -> MatrixCompileJob | DeviceMatrixJob:
    if index is None:
        return MatrixCompileJob(structure, dtype, low)
    return DeviceMatrixJob(structure, dtype, low, index)


def batches_of(tasks: Sequence[TensorUpdate]) -> tuple[list[MatrixBatch], list[TensorUpdate]]:
    """The updates that kernels can make, by trace, precision and device; and the others."""
    batches: dict[tuple[str, torch.dtype, torch.device], MatrixBatch] = {}
    others: list[TensorUpdate] = []
    for task in tasks:
        p = task.param
        trace = trace_of(task.settings, p.dtype, p.ndim)
        if trace is None or not _fits(task):
            others.append(task)
        else:
            batches.setdefault((trace.structure, p.dtype, p.device), MatrixBatch(trace, [])).tasks.append(task)
    return list(batches.values()), others


def _numbers(kinds: Sequence[tuple[Trace, GroupSettings, float]], sizes: Sequence[int]) -> list[Numbers]:
    """The numbers of updates that follow from no norm.

    They are computed one by one, so that those of a tensor do not depend on which others are updated with it: torch
    rounds a power of many numbers otherwise than Python that of one.

    Args:
        kinds: The trace of each update, the settings of its group, and how many there were before.
        sizes: Elements of each tensor.
    """
    common: dict[tuple[int, int, float], Numbers] = {}
    values: list[Numbers] = []
    for (trace, settings, count), size in zip(kinds, sizes, strict=True):
        kind = (id(trace), id(settings), count)
        if kind not in common:
            common[kind] = _of_settings(trace, settings, count, size)
        values.append(_of_size(trace, common[kind], size))
    return values


def _of_settings(trace: Trace, settings: GroupSettings, count: float, size: int) -> Numbers:
    named = {
        "t": count + 1.0,
        "lr": settings.lr,
        "decay": settings.decay,
        "scaled": float(settings.scaled),
        "size": float(size),
    }
    values: Numbers = {at: named[name] for at, name in trace.given}
    values |= {at: trace.literals[i] for at, i in trace.constants}
    numbers(trace, values, 0)
    return values


def _of_size(trace: Trace, values: Numbers, size: int) -> Numbers:
    """The numbers of a tensor of another size."""
    places = [at for at, name in trace.given if name == "size" and values[at] != size]
    if not places:
        return values
    values = values | dict.fromkeys(places, float(size))
    numbers(trace, values, 0, after="size")
    return values


class MatrixCall:
    """The call of a CPU kernel for some tensors, which may be made again and again.

    Args:
        library: The library of the kernel.
        shapes: (3, tensors) int64: how many matrices each tensor has, their rows and their columns.
        addresses: (buffers, tensors) int64, buffers in the order of `MatrixPlan.buffers`.
    """

    def __init__(self, library: ctypes.CDLL, shapes: NDArray[np.int64], addresses: NDArray[np.int64]) -> None:
        library.size.restype = ctypes.c_int64
        self._library, self._arrays = library, (*shapes, addresses)
        places = [x.ctypes.data for x in self._arrays]
        self._launch = MatrixLaunch(shapes.shape[1], 0, *places, 0, 1, 0, 0)
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")

    def run(self, table: NDArray[np.float64]) -> None:
        """Update the tensors.

        Args:
            table: (numbers, tensors), or (numbers, 1) where all tensors have the same.
        """
        launch, threads = self._launch, torch.get_num_threads()
        if launch.threads != threads:
            launch.threads = threads
            size = self._library.size(ctypes.byref(launch))
            self._memory = torch.empty(size + 64, dtype=torch.uint8, device="cpu")
            launch.memory = -(-self._memory.data_ptr() // 64) * 64
        launch.table, launch.stride, launch.step = table.ctypes.data, table.shape[1], int(table.shape[1] > 1)
        self._library.call(ctypes.byref(launch))


class _Call(NamedTuple):
    """The call for some tensors.

    Attributes:
        left_out: Indices of the others.
        present: Their indices.
        addresses: The addresses of their buffers, which the call reads.
        call: The call.
    """

    left_out: tuple[int, ...]
    present: NDArray[np.int64]
    addresses: NDArray[np.int64]
    call: MatrixCall | DeviceMatrixCall


class _Copy(NamedTuple):
    """A contiguous copy of a tensor that is not contiguous.

    Attributes:
        owner: The index of the parameter.
        copy: The copy, which a kernel reads and writes.
        origin: The tensor; None for a gradient, which is another tensor at each step.
    """

    owner: int
    copy: Tensor
    origin: Tensor | None


@torch.no_grad()
def _put_back(copies: Sequence[_Copy]) -> None:
    """Copy updated copies to their tensors."""
    for x in copies:
        if x.origin is not None:
            x.origin.copy_(x.copy)


class MatrixArena(ArenaGradients):
    """Tensors that one call of a kernel updates where they are.

    Args:
        batch: The updates, with their state.
        kernel: The kernel of their trace.
    """

    def __init__(self, batch: MatrixBatch, kernel: MatrixKernel) -> None:
        params = [task.param for task in batch.tasks]
        counts, state = StepCounts(len(params)), [x for task in batch.tasks for x in task.entry.values()]
        for i, task in enumerate(batch.tasks):
            counts.adopt(i, task.entry)
        super().__init__(ArenaLayout.of(batch.tasks, params), TensorList(params), TensorList(state), counts)
        self._structure, self._plan, self._kernel = batch.trace.structure, plan(batch.trace), kernel
        # Tensors that are alike in these have the same numbers, after as many updates.
        kinds = [(task.group, task.param.ndim, task.param.numel()) for task in batch.tasks]
        self._kinds = list(dict.fromkeys(kinds))
        places = {kind: i for i, kind in enumerate(self._kinds)}
        self._kind: NDArray[np.int64] = np.array([places[kind] for kind in kinds], dtype=np.int64)
        self._settings: list[GroupSettings] = []
        self._traces: list[Trace] = []  # of each kind
        self._shapes: NDArray[np.int64] = np.array([_shape_of(p) for p in params], dtype=np.int64).T.copy()
        self._copies: list[_Copy] = []
        addresses = [[self._place(i, task, name) for i, task in enumerate(batch.tasks)] for name in self._plan.buffers]
        self._addresses: NDArray[np.int64] = np.array(addresses, dtype=np.int64)
        self._call: _Call | None = None
        self._check = self._check_by(kernel)

    def _place(self, i: int, task: TensorUpdate, name: str) -> int:
        """Address of a buffer of tensor i, which is a copy where the tensor is not contiguous."""
        origin = {"p": task.entry.get("master", task.param), "w": task.param, "g": task.param}.get(name)
        x = (task.entry[name.removeprefix(STATE)] if origin is None else origin).detach()
        if x.is_contiguous():
            return x.data_ptr()
        copy = torch.empty_like(x, memory_format=torch.contiguous_format)
        self._copies.append(_Copy(i, copy, None if name == "g" else x))
        return copy.data_ptr()

    def _check_by(self, kernel: MatrixKernel) -> KernelCheck | DeviceFlag:
        """The finite check of their gradients."""
        assert isinstance(kernel, ctypes.CDLL)
        return KernelCheck(kernel, self.layout, self.gradient)

    def is_current(self, settings: Sequence[GroupSettings], scanner: GradientScanner) -> bool:
        """Find the gradients of a step, and see whether tensors and state are where they were, under the same trace.

        Raises:
            RuleError: A gradient is of a kind that no rule takes.
        """
        self.counts.refresh()
        now = [settings[g] for g in self.layout.groups]
        if len(now) != len(self._settings) or any(map(operator.is_not, now, self._settings)):
            traces: dict[tuple[int, int], Trace] = {}  # by group and dimensions
            for group, dims in {kind[:2] for kind in self._kinds}:
                trace = trace_of(settings[group], self.layout.dtype, dims)
                if trace is None or trace.structure is not self._structure:
                    return False
                traces[group, dims] = trace
            self._settings, self._traces = now, [traces[kind[:2]] for kind in self._kinds]
        return self.find(scanner)

    def is_finite(self) -> bool:
        """Whether all gradients are."""
        return self._check.is_finite()

    def update(self, settings: Sequence[GroupSettings], scanner: GradientScanner) -> None:
        """Update all tensors that have a gradient."""
        left_out = self._left_out()
        if self._call is None or self._call.left_out != left_out:
            present = np.delete(np.arange(len(self._kind)), left_out)
            addresses = self._addresses[:, present].copy()
            self._call = _Call(left_out, present, addresses, self._call_for(self._shapes[:, present].copy(), addresses))
        _, present, addresses, call = self._call
        if len(present):
            copies = [x for x in self._copies if self.gradient[x.owner]]
            gradient = self._filled(copies) if copies else self.gradient
            if "g" in self._plan.buffers:
                addresses[self._plan.buffers.index("g")] = gradient[present]
            self._run(call, self._table(settings, present))
            if copies:
                _put_back(copies)
        self.copies.clear()
        self.counts.advance(self.absent)
        scanner.written(self.params)

    @torch.no_grad()
    def _filled(self, copies: Sequence[_Copy]) -> NDArray[np.int64]:
        """Fill the copies of tensors that are not contiguous.

        Returns:
            The address of each gradient, or of its copy.
        """
        gradient = self.gradient.copy()
        for x in copies:
            origin = self.params.tensors[x.owner].grad if x.origin is None else x.origin
            assert origin is not None
            x.copy.copy_(origin)
            if x.origin is None:
                gradient[x.owner] = x.copy.data_ptr()
        return gradient

    def _call_for(self, shapes: NDArray[np.int64], addresses: NDArray[np.int64]) -> MatrixCall | DeviceMatrixCall:
        assert isinstance(self._kernel, ctypes.CDLL)
        return MatrixCall(self._kernel, shapes, addresses)

    def _left_out(self) -> tuple[int, ...]:
        """Indices of the tensors that a call leaves out."""
        return self.absent

    def _run(self, call: MatrixCall | DeviceMatrixCall, table: NDArray[np.float64]) -> None:
        call.run(table)

    def _table(self, settings: Sequence[GroupSettings], present: NDArray[np.int64]) -> NDArray[np.float64]:
        """The numbers of a step that a kernel takes: one column, or one for each tensor."""
        kind = self._kind[present]
        if self.counts.common is not None:
            kinds, owner = [(i, float(self.counts.common)) for i in range(len(self._kinds))], kind
        else:
            counts, which = np.unique(self.counts.values.numpy()[present], return_inverse=True)
            pairs, owner = np.unique(kind * len(counts) + which, return_inverse=True)
            kinds = [(i // len(counts), float(counts[i % len(counts)])) for i in pairs.tolist()]
        values = _numbers(
            [(self._traces[i], settings[self._kinds[i][0]], count) for i, count in kinds],
            [self._kinds[i][2] for i, _ in kinds],
        )
        table = np.zeros((max(1, len(self._plan.given)), len(values)))
        for row, at in zip(table, self._plan.given, strict=False):
            row[:] = [float(x[at]) for x in values]
        return table if table.shape[1] == 1 else table[:, owner].copy()
