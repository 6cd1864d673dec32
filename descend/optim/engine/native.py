"""Calls compiled CPU kernels on an arena: one call updates all parameters.

A kernel takes addresses. Parameters and state are in the arena's buffers; gradients are read at their own addresses,
whether large or small, so a step copies nothing. A kernel works through *units*, consecutive elements of one parameter.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from descend.optim.compiler.codegen_cpp import calls
from descend.optim.compiler.layout import BLOCK, UNIT
from descend.optim.compiler.native import KernelLaunch
from descend.optim.engine.arena_gradients import ArenaGradients
from descend.optim.engine.noise import key_of
from descend.optim.engine.parameter_checks import PLAIN_TYPES, is_dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.arena_buffers import ArenaBuffers
    from descend.optim.engine.arena_layout import ArenaLayout, Slot
    from descend.optim.engine.gradient_scan import GradientScanner, TensorList
    from descend.optim.engine.step_counts import StepCounts

__all__ = ["Native", "Units", "threads_for"]

NEAR = 4 * UNIT  # elements within which those of a unit lie, where kernels put them in order: they fit a core's cache
ALONE = 2**15  # elements that one thread updates sooner than several do; torch has the same limit


class Units(NamedTuple):
    """The units of an arena: at most UNIT consecutive elements of one parameter each. All arrays are int64.

    Attributes:
        tensor: Number of the parameter of each unit.
        first: Its first element in the parameter.
        elements: How many it has.
        borders: First unit of each parameter, then the number of units.
        start: First element of each parameter in the arena.
    """

    tensor: NDArray[np.int64]
    first: NDArray[np.int64]
    elements: NDArray[np.int64]
    borders: NDArray[np.int64]
    start: NDArray[np.int64]

    @staticmethod
    def of(layout: ArenaLayout) -> Units:
        """The units of a layout, parameter after parameter."""
        sizes = [slot.param.numel() for slot in layout.slots]
        rows = [(i, at, min(UNIT, n - at)) for i, n in enumerate(sizes) for at in range(0, n, UNIT)]
        tensor, first, elements = np.array(rows, dtype=np.int64).T.copy()
        borders = np.searchsorted(tensor, np.arange(len(sizes) + 1)).astype(np.int64)
        start = np.array([slot.start * BLOCK for slot in layout.slots], dtype=np.int64)
        return Units(tensor, first, elements, borders, start)


def threads_for(layout: ArenaLayout) -> int:
    """How many threads a kernel gets now."""
    return torch.get_num_threads() if layout.rows * BLOCK > ALONE else 1


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
    """Addresses and numbers of an arena for its compiled kernels, written before each call.

    Attributes:
        units: The arena's units.
    """

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
        super().__init__(layout, params, state)
        self._counts = counts
        self._elements = buffers.elements
        self.units = Units.of(layout)
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
        self.sums = [np.zeros((len(call.sums), len(self.units.tensor))) for call in self.calls]
        self.works = [self._work(i) for i in range(len(self.calls))]
        self.given = [ctypes.byref(work) for work in self.works]
        self.functions = [getattr(library, f"call{i}") for i in range(len(self.calls))]
        dtype = str(layout.dtype).removeprefix("torch.")
        self.unfit = getattr(library, "look" if self.calls[0].looked else f"unfit_{dtype}")
        self.unfit.restype = ctypes.c_int64

    def _address(self, name: str) -> int:
        held = self._elements.get(name)
        return 0 if held is None else held.data_ptr()

    def _work(self, i: int) -> KernelLaunch:
        table, sums, units = self.tables[i], self.sums[i], len(self.units.tensor)
        arrays = (*self.units, self._params.addresses, self.gradient, self.buffers[i], table)
        beside = self.keys.ctypes.data, self._counts.values.data_ptr(), self.layouts.ctypes.data
        return KernelLaunch(0, units, *(x.ctypes.data for x in arrays), 1, 0, sums.ctypes.data, units, 1, *beside, 0)

    def look(self, scanner: GradientScanner) -> bool:
        """See `ArenaGradients.look`; kernels get as many threads as there are now."""
        self.layouts[:] = 0
        stayed = super().look(scanner)
        threads = threads_for(self._layout)
        for work in self.works:
            work.threads, work.looked = threads, 0
        return stayed

    def _in_order(self, i: int) -> int:
        """See `ArenaGradients`; kernels read a gradient without gaps where it lies, whatever the order."""
        slot = self._layout.slots[i]
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
        found = self.unfit(self.given[0])
        self.works[0].looked = 1
        return not found

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
            self.keys[:] = [key_of(seed, slot.name) for slot in self._layout.slots]
        self.functions[i](self.given[i])

    def totals(self, i: int) -> dict[int, Tensor]:
        """Sums that call i made over each parameter, by the operation that reduces: (parameters,) in float64.

        The sum of an absent parameter is 0 or from an earlier step, and is not read.
        """
        found = [np.bincount(self.units.tensor, weights=sums) for sums in self.sums[i]]  # unit after unit
        return dict(zip(self.calls[i].sums, map(torch.from_numpy, found), strict=True))

    def _write(self, i: int, numbers: Sequence[Any]) -> None:
        """Write the numbers of a call: one for all parameters, or one for each."""
        table, work = self.tables[i], self.works[i]
        each = not set(map(type, numbers)) <= {float} and any(isinstance(x, Tensor) and x.ndim for x in numbers)
        wide = len(self.units.start) if each else 1
        if table.shape[1] != wide:
            table = self.tables[i] = np.zeros((len(table), wide))
            work.table, work.stride, work.step = table.ctypes.data, wide, int(each)
        if each:
            for row, x in zip(table, numbers, strict=True):
                row[:] = x
        elif numbers:
            table[:, 0] = numbers
