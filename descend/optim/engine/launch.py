"""Launches compiled kernels on an arena: one call, or on a GPU one launch a stage, updates all parameters.

A kernel takes addresses. Parameters and state are in the arena's buffers; gradients are read at their own addresses,
whether large or small, so a step copies nothing. A kernel works through *units*, consecutive elements of one parameter.

On a GPU no step waits for the device. Addresses of gradients, rates and constants are sent when they change, from
page-locked memory; step counts stay on the device. A gradient that is not finite raises a flag there, see `finite`.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from descend.machine import page_locked, page_locked_copy
from descend.optim.compiler.codegen_cpp import calls
from descend.optim.compiler.codegen_cuda import SETTINGS
from descend.optim.compiler.cuda import THREADS, CudaLaunch
from descend.optim.compiler.layout import UNIT
from descend.optim.compiler.native import KernelLaunch
from descend.optim.engine.arena_layout import Units
from descend.optim.engine.finite import DeviceFlag
from descend.optim.engine.gradient_scan import ArenaGradients
from descend.optim.engine.noise import key_of
from descend.optim.engine.step_inputs import PLAIN_TYPES, is_dense

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from descend.optim.compiler.codegen_cuda import CudaPlan
    from descend.optim.compiler.cuda import CudaModule
    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.arena_layout import ArenaBuffers, ArenaLayout, Slot
    from descend.optim.engine.gradient_scan import GradientScanner, TensorList
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.state import StepCounts

__all__ = ["DeviceKernels", "DeviceTables", "Native"]

NEAR = 4 * UNIT  # elements within which those of a unit lie, where kernels put them in order: they fit a core's cache
UNIT_ON_A_GPU = 2**12  # elements of a unit: sixteen a thread, and enough units for every multiprocessor in a small net


def _layout_of(slot: Slot, g: Tensor) -> NDArray[np.int64] | None:
    """How a gradient lies, as `gather` in kernel.h has it; None where the elements of a unit lie too far apart for it.

    Dimensions that can be counted as one are.
    """
    dims: list[tuple[int, int]] = []
    for i in slot.order:
        size, stride = g.shape[i], g.stride(i)
        if dims and dims[-1][1] == size * stride:
            size *= dims.pop()[0]
        if size > 1:
            dims.append((size, stride))
    # The innermost dimensions that lie together: a unit's elements are in few such pieces, each read as a whole.
    inner = [dims[i:] for i in reversed(range(len(dims)))]
    together = next(
        math.prod(n for n, _ in some)
        for some in inner
        if sum((n - 1) * s for n, s in some) + 1 == math.prod(n for n, _ in some)
    )
    if together > NEAR:
        return None
    return np.array([len(dims), *(size for size, _ in dims), *(stride for _, stride in dims)], dtype=np.int64)


class Native(ArenaGradients):
    """Addresses and numbers of an arena for its compiled CPU kernels, written before each call."""

    def __init__(
        self,
        trace: Trace,
        layout: ArenaLayout,
        buffers: ArenaBuffers,
        counts: StepCounts,
        params: TensorList,
        state: TensorList,
        library: ctypes.CDLL,
    ) -> None:
        super().__init__(layout, params, state, counts)
        self._elements = buffers.elements
        self.calls = calls(trace)
        self._draws = trace.draws
        self._seed: int | None = None
        self.layouts = np.zeros(len(layout.slots), dtype=np.int64)
        self._strides: dict[
            int, tuple[tuple[int, ...], NDArray[np.int64] | None]
        ] = {}  # of gradients that lie otherwise
        self.keys = np.zeros(len(layout.slots), dtype=np.uint64)  # of the noise of each parameter under `_seed`
        self.buffers = [np.array([self._address(name) for name in call.buffers], dtype=np.int64) for call in self.calls]
        self.tables = [np.zeros((max(1, len(call.given)), 1)) for call in self.calls]
        self.sums = [np.zeros((len(call.sums), len(self.layout.units.tensor))) for call in self.calls]
        self.works = [self._work(i) for i in range(len(self.calls))]
        self.given = [ctypes.byref(work) for work in self.works]
        self.functions = [getattr(library, f"call{i}") for i in range(len(self.calls))]
        dtype = str(layout.dtype).removeprefix("torch.")
        self.nonfinite = getattr(library, "check" if self.calls[0].checked else f"nonfinite_{dtype}")
        self.nonfinite.restype = ctypes.c_int64

    def _address(self, name: str) -> int:
        held = self._elements.get(name)
        return 0 if held is None else held.data_ptr()

    def _work(self, i: int) -> KernelLaunch:
        table, sums, units = self.tables[i], self.sums[i], len(self.layout.units.tensor)
        arrays = (*self.layout.units, self.layout.starts, self.params.addresses, self.gradient, self.buffers[i], table)
        beside = self.keys.ctypes.data, self.counts.values.data_ptr(), self.layouts.ctypes.data
        return KernelLaunch(0, units, *(x.ctypes.data for x in arrays), 1, 0, sums.ctypes.data, units, 1, *beside, 0)

    def find(self, scanner: GradientScanner) -> bool:
        """See `ArenaGradients.find`; kernels get as many threads as there are now."""
        self.layouts[:] = 0
        stayed = super().find(scanner)
        threads = self.layout.threads
        for work in self.works:
            work.threads, work.checked = threads, 0
        return stayed

    def _in_order(self, i: int) -> int:
        """See `ArenaGradients`; kernels read a gradient without gaps where it lies, whatever the order."""
        slot = self.layout.slots[i]
        g = slot.param.grad
        assert g is not None
        kind = type(g) in PLAIN_TYPES and g.layout is torch.strided and g.dtype == slot.param.dtype and not g.is_neg()
        if not kind or g.shape != slot.param.shape or g.device != slot.param.device or not is_dense(g):
            return super()._in_order(i)
        known = self._strides.get(i)
        if known is None or known[0] != g.stride():
            known = self._strides[i] = (g.stride(), _layout_of(slot, g))
        if known[1] is None:
            return super()._in_order(i)
        self.layouts[i] = known[1].ctypes.data
        return g.data_ptr()

    def is_finite(self) -> bool:
        """Whether all gradients are; the update that follows has those sums already that are of them alone."""
        nonfinite = self.nonfinite(self.given[0])
        self.works[0].checked = 1
        return not nonfinite

    def run(self, i: int, numbers: Sequence[Any], seed: int) -> None:
        """Make call i for all parameters that have a gradient.

        Args:
            i: Its number.
            numbers: Its inputs, each a number for all parameters or of shape (parameters,).
            seed: Start of the noise.
        """
        self._write(i, numbers)
        if self._draws and seed != self._seed:
            self._seed = seed
            self.keys[:] = [key_of(seed, slot.name) for slot in self.layout.slots]
        self.functions[i](self.given[i])

    def totals(self, i: int) -> dict[int, Tensor]:
        """Sums that call i made over each parameter, by the operation that reduces: (parameters,) in float64.

        The sum of an absent parameter is 0 or from an earlier step, and is not read.
        """
        totals = [np.bincount(self.layout.units.tensor, weights=sums) for sums in self.sums[i]]  # unit after unit
        return dict(zip(self.calls[i].sums, map(torch.from_numpy, totals), strict=True))

    def _write(self, i: int, numbers: Sequence[Any]) -> None:
        """Write the numbers of a call: one for all parameters, or one for each."""
        table, work = self.tables[i], self.works[i]
        each = not set(map(type, numbers)) <= {float} and any(isinstance(x, Tensor) and x.ndim for x in numbers)
        wide = len(self.layout.slots) if each else 1
        if table.shape[1] != wide:
            table = self.tables[i] = np.zeros((len(table), wide))
            work.table, work.stride, work.step = table.ctypes.data, wide, int(each)
        if each:
            for row, x in zip(table, numbers, strict=True):
                row[:] = x
        elif numbers:
            table[:, 0] = numbers


class DeviceTables:
    """Arrays of a device by name, each at one address.

    Attributes:
        held: On the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.held: dict[str, Tensor] = {}
        self._sent: dict[str, NDArray[Any]] = {}  # what lies there
        self._spare: dict[str, Tensor] = {}  # pinned memory for a step within a graph, which continues reading it
        self._kept: list[Tensor] = []

    @property
    def stream(self) -> int:
        """Address of the stream in which work is launched now."""
        return torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0

    def is_capturing(self) -> bool:
        """Whether what is launched now becomes part of a CUDA graph."""
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def send(self, name: str, values: NDArray[Any]) -> None:
        """Copy values to the device where they are not there yet; of a name always as many."""
        if name in self._sent and np.array_equal(self._sent[name], values):
            return
        self._sent[name] = values.copy()
        x = torch.from_numpy(self._sent[name])
        if name not in self.held:
            self.held[name] = x.to(self._device, copy=True)
        elif self._device.type != "cuda":
            self.held[name].copy_(x)
        elif self.is_capturing():
            # A graph copies again at each replay, so what it reads is kept and never written again.
            self._kept.append(self._spare.pop(name).copy_(x))
            self.held[name].copy_(self._kept[-1], non_blocking=True)
        else:
            self.held[name].copy_(
                page_locked_copy(x), non_blocking=True
            )  # torch keeps that memory until the copy is done

    def agree(self, name: str, values: NDArray[Any]) -> None:
        """Note that these values are on the device, which has computed them itself."""
        self._sent[name][:] = values

    def reserve(self, *names: str) -> None:
        """Set page-locked memory aside for a step within a graph, where none can be had."""
        if self._device.type == "cuda":
            for name in names:
                if name not in self._spare:
                    self._spare[name] = page_locked(self.held[name].shape, self.held[name].dtype)


class DeviceKernels(ArenaGradients):
    """The tables of an arena on its device, for the launches of its compiled kernels.

    Attributes:
        flag: Raised where a gradient is not finite.
        tables: What kernels read, on the device.
        recorded: Whether a step was captured in a CUDA graph, so that the device's counts may be ahead.
    """

    def __init__(
        self,
        layout: ArenaLayout,
        buffers: ArenaBuffers,
        counts: StepCounts,
        params: TensorList,
        state: TensorList,
        compiled: tuple[CudaModule, CudaPlan],
    ) -> None:
        super().__init__(layout, params, state, counts)
        self._module, self._plan = compiled
        self.recorded = False
        self.tables = DeviceTables(layout.device)
        tensors, groups, units = len(layout.slots), len(layout.groups), Units.of(layout.sizes, UNIT_ON_A_GPU)
        made, device = self._plan, layout.device
        for name, values in zip(("unit_tensor", "unit_first", "unit_count", "border"), units, strict=True):
            self.tables.send(name, values)
        place = {group: i for i, group in enumerate(layout.groups)}
        self.tables.send("start", layout.starts)
        self.tables.send("group", np.array([place[slot.group] for slot in layout.slots], dtype=np.int64))
        self.tables.send("weights", params.addresses)
        self.tables.send(
            "buffer", np.array([buffers.elements[n].data_ptr() for n in made.buffers] or [0], dtype=np.int64)
        )
        self.tables.send(
            "column", np.array([buffers.numbers[n].data_ptr() for n in made.columns] or [0], dtype=np.int64)
        )
        self.tables.send("key", np.zeros(tensors, dtype=np.int64))
        self.tables.send("gradient", np.zeros(tensors, dtype=np.int64))
        self.tables.send("count", counts.values.numpy())
        self.tables.send("input", np.zeros((made.inputs, groups)))
        count = len(units.tensor)
        self.tables.held["table"] = torch.zeros(max(1, len(made.rows)), tensors, dtype=torch.float64, device=device)
        self.tables.held["sums"] = torch.zeros(max(1, len(made.sums)), count, dtype=torch.float64, device=device)
        given = {name: x.data_ptr() for name, x in self.tables.held.items()}
        self._work = CudaLaunch(units=count, tensors=tensors, groups=groups, **given)
        self.flag = DeviceFlag(self._module, self._work, self.tables, self.gradient, device, layout.dtype)
        self._launches = [(name, self._blocks(name)) for name in made.launches]

    def _blocks(self, name: str) -> int:
        """How many blocks serve everything at once."""
        if name.startswith("stage"):
            return self._work.units
        return -(-self._work.tensors // THREADS) if name == "numbers0" else self._work.tensors

    def is_finite(self) -> bool:
        """Whether all gradients are; waits for the device."""
        return self.flag.is_finite()

    def update(self, settings: Sequence[GroupSettings], traces: Mapping[int, Trace], seed: int) -> None:
        """Update all parameters with a gradient and count them, unless the flag is raised.

        Args:
            settings: Of each group.
            traces: Of each group with a parameter here.
            seed: Start of the noise.
        """
        self.tables.send("gradient", self.gradient)
        groups = self.layout.groups
        inputs = [[float(getattr(settings[g], name)) for g in groups] for name in SETTINGS]
        inputs += map(list, zip(*(traces[g].literals for g in groups), strict=True))
        self.tables.send("input", np.array(inputs))
        if traces[groups[0]].draws:
            keys = [key_of(seed, slot.name) for slot in self.layout.slots]
            self.tables.send("key", np.array(keys, dtype=np.uint64).view(np.int64))
        if not self.recorded:
            self.tables.send("count", self.counts.values.numpy())
        self.flag.begin_update()
        self._module.launch(self._launches, self._work, self.tables.stream)
        if self.tables.is_capturing():
            self.recorded = True
            return
        self._reserve()
        self.counts.advance(self.absent)
        self.tables.agree("count", self.counts.values.numpy())  # the device has counted, too

    def _reserve(self) -> None:
        """Make room for what a step within a graph sends; see `DeviceTables.reserve`."""
        self.tables.reserve("gradient", "input", "count", "key")

    def forget(self, absent: Sequence[int]) -> None:
        """See `ArenaGradients`; the device has not counted."""
        super().forget(absent)
        self.tables.agree("count", self.counts.values.numpy())

    def catch_up(self) -> int:
        """Take over the device's counts after replays of a graph; waits for the device.

        Returns:
            By how much the largest count grew.
        """
        before = float(self.counts.values.max())
        self.counts.take(self.tables.held["count"])
        self.tables.agree("count", self.counts.values.numpy())
        self.recorded = False
        self._reserve()
        return int(float(self.counts.values.max()) - before)
