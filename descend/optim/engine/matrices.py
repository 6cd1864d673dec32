"""Rules with means over rows and columns, such as Adafactor: all their tensors in one call of a compiled kernel.

Parameters, gradients and state stay where they are; the kernel takes their addresses. On a GPU a call is some launches
a stage (engine/device_matrices.py). Without a kernel NumPy computes the same text to the same bits, of small tensors
many at a time (engine/matrix_evaluation.py), and a GPU's tensors are updated as stacks (engine/stacked.py). What this
cannot take (texts that are more than means and arithmetic) gets the reference update.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from descend.optim.compiler.cuda_matrix import DeviceMatrixJob
from descend.optim.compiler.matrix_plan import MatrixPlan, plan
from descend.optim.compiler.native import MatrixCompileJob, MatrixLaunch
from descend.optim.compiler.partition import numbers
from descend.optim.compiler.trace import STATE, Trace, Untraceable, trace_matrices
from descend.optim.engine.device_matrices import LARGEST_SIDE, DeviceMatrixCall
from descend.optim.engine.matrix_evaluation import ArrayPool, evaluate
from descend.optim.engine.parameter_checks import PLAIN_TYPES
from descend.optim.engine.step_inputs import LOW_PRECISION, is_sparse
from descend.optim.rules.base import MEANS
from descend.torch_private import foreach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.optim.compiler.codegen_cuda_matrix import DevicePlan
    from descend.optim.compiler.cuda import CudaModule
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_inputs import TensorUpdate

    MatrixKernel = ctypes.CDLL | tuple[CudaModule, DevicePlan]

__all__ = [
    "STACK_ELEMENTS",
    "MatrixBatch",
    "MatrixCall",
    "MatrixUpdates",
    "Numbers",
    "call_of",
    "numbers_of",
    "places_of",
    "shape_of",
    "stays",
    "step_matrices",
    "table_of",
    "trace_of",
]

_ONE = torch.ones((), dtype=torch.float64, device="cpu")
STACK_ELEMENTS = 2**17  # of weights that NumPy updates side by side, of which a cache holds a few values for each
FEWEST = 4  # tensors of a full stack; larger ones are updated where they are, as a copy takes what fewer calls save


@functools.lru_cache(maxsize=1024)
def _trace(settings: GroupSettings, dtype: torch.dtype, dims: int) -> Trace | None:
    """The text of an update, or None where there is none; dims above 2 are as 2."""
    low = dtype in LOW_PRECISION
    try:
        found = trace_matrices(settings, wide(dtype), low, dims)
        plan(found)
    except Untraceable:
        return None
    return found


def trace_of(settings: GroupSettings, dtype: torch.dtype, dims: int) -> Trace | None:
    """The text of the updates of a group, or None where they get the reference update."""
    if settings.rule.needs.isdisjoint(MEANS):
        return None
    # No text depends on the rate; the presence of decay is part of it.
    return _trace(replace(settings, lr=1.0, decay=float(settings.decay != 0.0), scaled=True), dtype, min(dims, 3))


def _can_be_held(task: TensorUpdate) -> bool:
    """Whether weights and gradient are plain memory, of this machine or a GPU."""
    p = task.param
    here = p.is_cpu or (p.is_cuda and max(shape_of(p)[1:]) <= LARGEST_SIDE)
    plain = type(p) in PLAIN_TYPES and here and p.layout is torch.strided
    return plain and p.numel() > 0 and not is_sparse(task.gradient)


@dataclass(frozen=True, eq=False)
class MatrixBatch:
    """Updates with one text and precision.

    Attributes:
        trace: The text of the first; the others differ in constants alone.
        tasks: The updates.
        traces: The text of each.
    """

    trace: Trace
    tasks: list[TensorUpdate]
    traces: list[Trace]

    @property
    def device(self) -> torch.device:
        """Of all of them."""
        return self.tasks[0].param.device

    @functools.cached_property
    def job(self) -> MatrixCompileJob | DeviceMatrixJob:
        """Of their kernel."""
        dtype = self.tasks[0].param.dtype
        names = [str(x).removeprefix("torch.") for x in (wide(dtype), dtype)]
        low = names[1] if dtype in LOW_PRECISION else None
        return _job(self.trace.structure, names[0], low, None if self.device.type == "cpu" else self.device.index)

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of what is read and written of each tensor."""
        return plan(self.trace).buffers

    def numbers(self) -> list[Numbers]:
        """Those of each update; equal ones are one object."""
        counts = torch.stack([task.entry["step"] for task in self.tasks]).tolist()
        kinds = [
            (trace, task.settings, float(count))
            for trace, task, count in zip(self.traces, self.tasks, counts, strict=True)
        ]
        return numbers_of(kinds, [task.param.numel() for task in self.tasks])


Numbers = dict[int, Any]  # by their place in the text


def numbers_of(kinds: Sequence[tuple[Trace, GroupSettings, float]], sizes: Sequence[int]) -> list[Numbers]:
    """The numbers of updates that no norm is needed for; equal ones are one object.

    They are computed one by one, so that those of a tensor do not depend on which others are updated with it: torch
    rounds a power of many numbers otherwise than Python that of one.

    Args:
        kinds: Of each update its text, what holds for its group, and how many there were before.
        sizes: Elements of each tensor.
    """
    common: dict[tuple[int, int, float], Numbers] = {}
    known: dict[tuple[int, int, float, int], Numbers] = {}
    found: list[Numbers] = []
    for (trace, settings, count), size in zip(kinds, sizes, strict=True):
        kind = (id(trace), id(settings), count)
        mine = known.get((*kind, size))
        if mine is None:
            if kind not in common:
                common[kind] = _numbers_of_one(trace, settings, count, size)
            mine = known[*kind, size] = _of_size(trace, common[kind], size)
        found.append(mine)
    return found


def _numbers_of_one(trace: Trace, settings: GroupSettings, count: float, size: int) -> Numbers:
    named = {
        "t": count + 1.0,
        "lr": settings.lr,
        "decay": settings.decay,
        "scaled": float(settings.scaled),
        "size": float(size),
    }
    known: Numbers = {at: named[name] for at, name in trace.given}
    known |= {at: trace.literals[i] for at, i in trace.constants}
    numbers(trace, known, 0)
    return known


def _of_size(trace: Trace, known: Numbers, size: int) -> Numbers:
    """The numbers of a tensor of another size."""
    places = [at for at, name in trace.given if name == "size" and known[at] != size]
    if not places:
        return known
    known = known | dict.fromkeys(places, float(size))
    numbers(trace, known, 0, after="size")
    return known


@functools.lru_cache(maxsize=256)  # as the key takes a millisecond to compute
def _job(structure: str, dtype: str, low: str | None, index: int | None) -> MatrixCompileJob | DeviceMatrixJob:
    if index is None:
        return MatrixCompileJob(structure, dtype, low)
    return DeviceMatrixJob(structure, dtype, low, index)


@dataclass
class MatrixUpdates:
    """The batches of a step.

    Attributes:
        batches: What kernels can update, or NumPy in their place.
        others: What gets the reference update.
    """

    batches: list[MatrixBatch] = field(default_factory=list["MatrixBatch"])
    others: list[TensorUpdate] = field(default_factory=list["TensorUpdate"])

    @staticmethod
    def of(tasks: Sequence[TensorUpdate]) -> MatrixUpdates:
        """Sort updates by text and precision."""
        found = MatrixUpdates()
        batches: dict[tuple[str, torch.dtype, torch.device], MatrixBatch] = {}
        known: dict[tuple[int, torch.dtype, torch.device, int], tuple[Trace, MatrixBatch] | None] = {}
        for task in tasks:
            p = task.param
            key = (task.group, p.dtype, p.device, p.ndim)
            if key not in known:
                trace = trace_of(task.settings, p.dtype, p.ndim)
                if trace is None:
                    known[key] = None
                else:
                    batch = batches.setdefault((trace.structure, p.dtype, p.device), MatrixBatch(trace, [], []))
                    known[key] = trace, batch
            mine = known[key]
            if mine is None or not _can_be_held(task):
                found.others.append(task)
            else:
                mine[1].tasks.append(task)
                mine[1].traces.append(mine[0])
        found.batches = [batch for batch in batches.values() if batch.tasks]
        return found


@torch.no_grad()
def step_matrices(batch: MatrixBatch, kernel: MatrixKernel | None) -> None:
    """Update the tensors of a batch, by a kernel or, on a CPU, by NumPy."""
    made, known = plan(batch.trace), batch.numbers()
    if kernel is not None:
        _call(kernel, made, batch.tasks, known)
    else:
        _by_numpy(made, batch.tasks, known)
    increment_version([task.param for task in batch.tasks])
    counts = [task.entry["step"] for task in batch.tasks]
    foreach("add_")(counts, [_ONE] * len(counts))


@dataclass(frozen=True, eq=False)
class _Held:
    """The memory of one update.

    Attributes:
        shape: Matrices, rows and columns.
        tensors: By the name of their buffer, contiguous.
        origins: Of those that are copies, what they are copies of.
        in_place: Whether no tensor is a copy, the gradient included.
    """

    shape: tuple[int, int, int]
    tensors: dict[str, Tensor]
    origins: dict[str, Tensor]
    in_place: bool

    @staticmethod
    def of(task: TensorUpdate, names: tuple[str, ...]) -> _Held:
        # Asked of every tensor at every step, so a few operations of torch here are a part of a small update's time.
        p, g = task.param, task.gradient
        own = places_of(task, names)
        tensors, origins = own, {}
        if not all(x.is_contiguous() for x in own.values()):
            tensors = {name: x.contiguous() for name, x in own.items()}
            origins = {name: x for name, x in own.items() if x is not tensors[name]}
        if g.dtype is not p.dtype or g.is_neg() or not g.is_contiguous():
            g = g.resolve_neg().to(p.dtype).contiguous()
        tensors["g"] = g
        return _Held(shape_of(p), tensors, origins, not origins and g is task.gradient)

    def put_back(self) -> None:
        """Copy new values to where they belong."""
        for name, origin in self.origins.items():
            origin.copy_(self.tensors[name])


def shape_of(p: Tensor) -> tuple[int, int, int]:
    """Matrices, rows and columns of a tensor."""
    n, m = (1, p.numel()) if p.ndim < 2 else p.shape[-2:]
    return p.numel() // (n * m), n, m


def places_of(task: TensorUpdate, names: tuple[str, ...]) -> dict[str, Tensor]:
    """What the user and torch hold of the buffers of a tensor, by name; without the gradient."""
    own = {name: task.entry[entry] for name, entry in _entries(names)}
    own["p"] = task.entry.get("master", task.param)
    if "w" in names:
        own["w"] = task.param
    return own


def stays(task: TensorUpdate, names: tuple[str, ...]) -> bool:
    """Whether a kernel updates the tensor and its state where they are, without a copy."""
    return all(x.is_contiguous() for x in places_of(task, names).values())


@functools.lru_cache(maxsize=1024)
def _entries(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Buffers of entries of the state, each with the name of its entry."""
    return [(name, name.removeprefix(STATE)) for name in names if name.startswith(STATE)]


def _by_numpy(made: MatrixPlan, tasks: Sequence[TensorUpdate], known: Sequence[Numbers]) -> None:
    """Update small tensors of one shape, with the same numbers, as stacks, and large ones where they are."""
    alike: dict[tuple[torch.Size, int], list[TensorUpdate]] = {}
    for task, mine in zip(tasks, known, strict=True):
        alike.setdefault((task.param.shape, id(mine)), []).append(task)
    common = {id(mine): mine for mine in known}
    memory = ArrayPool()
    for (shape, which), some in alike.items():
        most = STACK_ELEMENTS // shape.numel()
        most = most if most >= FEWEST else 1
        for i in range(0, len(some), most):
            _update_stack(made, some[i : i + most], common[which].copy(), memory)


def _update_stack(made: MatrixPlan, tasks: list[TensorUpdate], known: Numbers, memory: ArrayPool) -> None:
    if len(tasks) == 1:
        held = _Held.of(tasks[0], made.buffers)
        evaluate(made, held.tensors, (1, *held.shape), known, memory)
        held.put_back()
        return
    places = {name: _places_of_all(tasks, name) for name in made.buffers}
    tensors = {name: torch.stack(each) for name, each in places.items()}
    evaluate(made, tensors, (len(tasks), *shape_of(tasks[0].param)), known, memory)
    for name in (*made.writes, *made.kept):
        torch.unbind_copy(tensors[name], 0, out=places[name])


def _places_of_all(tasks: Sequence[TensorUpdate], name: str) -> list[Tensor]:
    """The tensors of one buffer; gradients as copies where they are not in the precision of the weights."""
    if name == "g":
        dtype, gradients = tasks[0].param.dtype, [task.gradient for task in tasks]
        return [g if g.dtype is dtype else g.to(dtype) for g in gradients]
    if name == "w":
        return [task.param for task in tasks]
    if name == "p":
        return [task.entry.get("master", task.param) for task in tasks]
    entry = name.removeprefix(STATE)
    return [task.entry[entry] for task in tasks]


def _call(kernel: MatrixKernel, made: MatrixPlan, tasks: Sequence[TensorUpdate], known: Sequence[Numbers]) -> None:
    """Make the one call of a kernel, and copy new values to where they belong."""
    dimensions: list[int] = []
    addresses: list[int] = []
    copies: list[_Held] = []  # what is kept of thousands of tensors would set off a collection of garbage
    for task in tasks:
        held = _Held.of(task, made.buffers)
        dimensions += held.shape
        addresses += [held.tensors[name].data_ptr() for name in made.buffers]
        if not held.in_place:
            copies.append(held)
    shapes = np.array(dimensions, dtype=np.int64).reshape(-1, 3).T.copy()
    address = np.array(addresses, dtype=np.int64).reshape(len(tasks), -1).T.copy()
    same = all(x is known[0] for x in known)
    p = tasks[0].param
    call_of(kernel, shapes, address, p.device, p.dtype).run(table_of(made, known[:1] if same else known))
    for held in copies:
        held.put_back()


def table_of(made: MatrixPlan, known: Sequence[Numbers]) -> NDArray[np.float64]:
    """The numbers that a kernel takes: (numbers, len(known))."""
    table = np.zeros((max(1, len(made.given)), len(known)))
    for row, at in zip(table, made.given, strict=False):
        row[:] = [float(x[at]) for x in known]
    return table


def call_of(
    kernel: MatrixKernel,
    shapes: NDArray[np.int64],
    addresses: NDArray[np.int64],
    device: torch.device,
    dtype: torch.dtype,
) -> MatrixCall | DeviceMatrixCall:
    """The call of a kernel for some tensors.

    Args:
        kernel: The kernel.
        shapes: See `MatrixCall`.
        addresses: See `MatrixCall`.
        device: Of the tensors.
        dtype: Of the weights as torch holds them.
    """
    if isinstance(kernel, tuple):
        return DeviceMatrixCall(kernel, shapes, addresses, device, wide(dtype))
    return MatrixCall(kernel, shapes, addresses)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The precision in which weights of a precision are updated."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


class MatrixCall:
    """The call of a kernel for some tensors, which may be made again and again.

    Args:
        library: Of the kernel.
        shapes: (3, tensors) int64: of each tensor how many matrices, their rows and their columns.
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
