"""Tensors of rules with means over rows and columns, whose addresses a kernel's call keeps from step to step.

As of an arena, Python looks at none of the tensors at a step: a small library finds the gradients and sees that nothing
was moved (engine/gradient_scan.py). Unlike an arena's, parameters and state stay where they are.
"""

from __future__ import annotations

import ctypes
import operator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from descend.optim.compiler.matrix_plan import plan
from descend.optim.compiler.native import KernelLaunch
from descend.optim.engine.arena_gradients import ArenaGradients
from descend.optim.engine.arena_layout import ArenaLayout
from descend.optim.engine.device_flag import DeviceFlag
from descend.optim.engine.device_matrices import DeviceMatrixCall, look_of
from descend.optim.engine.device_tables import DeviceTables
from descend.optim.engine.gradient_scan import TensorList
from descend.optim.engine.matrices import call_of, numbers_of, places_of, shape_of, table_of, trace_of
from descend.optim.engine.native import Units, threads_for
from descend.optim.engine.step_counts import StepCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.gradient_scan import GradientScanner
    from descend.optim.engine.matrices import MatrixCall, MatrixKernel
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["DeviceMatrixArena", "MatrixArena", "arena_of"]


class _Call(NamedTuple):
    """The call for some tensors.

    Attributes:
        left_out: Numbers of the others.
        present: Their numbers.
        addresses: Of their buffers, which the call reads.
        call: The call.
    """

    left_out: tuple[int, ...]
    present: NDArray[np.int64]
    addresses: NDArray[np.int64]
    call: MatrixCall | DeviceMatrixCall


class _Look:
    """A look at the gradients of tensors on a CPU for what is not finite.

    Args:
        library: Of a kernel: each has functions for the look.
        layout: The tensors.
        gradient: Addresses of their gradients, 0 for none; read at each look.
    """

    def __init__(self, library: ctypes.CDLL, layout: ArenaLayout, gradient: NDArray[np.int64]) -> None:
        self._layout, self._work = layout, KernelLaunch()
        self._kept = (*Units.of(layout), gradient)  # as their addresses are read
        self._work.begin, self._work.end = 0, len(self._kept[0])
        for name, x in zip(("tensor", "first", "count", "border", "start", "gradient"), self._kept, strict=True):
            setattr(self._work, name, x.ctypes.data)
        self._unfit = getattr(library, f"unfit_{str(layout.dtype).removeprefix('torch.')}")
        self._unfit.restype = ctypes.c_int64

    def is_finite(self) -> bool:
        """Whether all gradients are."""
        self._work.threads = threads_for(self._layout)
        return not self._unfit(ctypes.byref(self._work))


class MatrixArena:
    """Tensors that one call of a kernel updates where they are.

    Args:
        trace: The text of one of them; the others differ in constants alone.
        updates: Of tensors of one precision that `matrices.stays` is true of.
        kernel: Of the text.

    Attributes:
        layout: The tensors, with their groups and state.
    """

    def __init__(self, trace: Trace, updates: Sequence[TensorUpdate], kernel: MatrixKernel) -> None:
        params = [update.param for update in updates]
        self.layout = ArenaLayout.of(updates, params)
        self._structure, self._made, self._kernel = trace.structure, plan(trace), kernel
        self._counts = StepCounts(len(params))
        for i, update in enumerate(updates):
            self._counts.adopt(i, update.entry)
        self._params = TensorList(params)
        state = TensorList([x for update in updates for x in update.entry.values()])
        self._gradients = ArenaGradients(self.layout, self._params, state)
        # Tensors that are alike in these have the same numbers, after as many updates.
        kinds = [(update.group, update.param.ndim, update.param.numel()) for update in updates]
        self._kinds = list(dict.fromkeys(kinds))
        places = {kind: i for i, kind in enumerate(self._kinds)}
        self._kind: NDArray[np.int64] = np.array([places[kind] for kind in kinds], dtype=np.int64)
        self._known: list[GroupSettings] = []
        self._traces: list[Trace] = []  # of each kind
        names = self._made.buffers
        held = [{**places_of(update, names), "g": update.gradient} for update in updates]
        addresses = [[x[name].data_ptr() for x in held] for name in names]
        self._addresses: NDArray[np.int64] = np.array(addresses, dtype=np.int64)
        self._shapes: NDArray[np.int64] = np.array([shape_of(p) for p in params], dtype=np.int64).T.copy()
        self._call: _Call | None = None
        self._look = self._look_by(kernel)

    def _look_by(self, kernel: MatrixKernel) -> _Look | DeviceFlag:
        """What looks at the gradients."""
        assert isinstance(kernel, ctypes.CDLL)
        return _Look(kernel, self.layout, self._gradients.gradient)

    def is_current(self, settings: Sequence[GroupSettings], scanner: GradientScanner) -> bool:
        """Find the gradients of a step, and see whether tensors and state are where they were, under the same text.

        Raises:
            RuleError: A gradient is of a kind that no rule takes.
        """
        self._counts.refresh()
        held = [settings[g] for g in self.layout.groups]
        if len(held) != len(self._known) or any(map(operator.is_not, held, self._known)):
            traces: dict[tuple[int, int], Trace] = {}  # by group and dimensions
            for group, dims in {kind[:2] for kind in self._kinds}:
                trace = trace_of(settings[group], self.layout.dtype, dims)
                if trace is None or trace.structure is not self._structure:
                    return False
                traces[group, dims] = trace
            self._known, self._traces = held, [traces[kind[:2]] for kind in self._kinds]
        return self._gradients.look(scanner)

    def is_finite(self) -> bool:
        """Whether all gradients are."""
        return self._look.is_finite()

    def update(self, settings: Sequence[GroupSettings], scanner: GradientScanner) -> None:
        """Update all tensors that have a gradient."""
        left_out = self._left_out()
        if self._call is None or self._call.left_out != left_out:
            present = np.delete(np.arange(len(self._kind)), left_out)
            addresses, shapes = (x[:, present].copy() for x in (self._addresses, self._shapes))
            call = call_of(self._kernel, shapes, addresses, self.layout.device, self.layout.dtype)
            self._call = _Call(left_out, present, addresses, call)
        _, present, addresses, call = self._call
        if len(present):
            if "g" in self._made.buffers:
                addresses[self._made.buffers.index("g")] = self._gradients.gradient[present]
            self._run(call, self._table(settings, present))
        self._gradients.copies.clear()
        self._counts.advance(self._gradients.absent)
        scanner.written(self._params)

    def _left_out(self) -> tuple[int, ...]:
        """Numbers of the tensors that a call knows nothing of."""
        return self._gradients.absent

    def _run(self, call: MatrixCall | DeviceMatrixCall, table: NDArray[np.float64]) -> None:
        call.run(table)

    def _table(self, settings: Sequence[GroupSettings], present: NDArray[np.int64]) -> NDArray[np.float64]:
        """The numbers of a step: one column, or one for each tensor."""
        kind = self._kind[present]
        if self._counts.common is not None:
            kinds, owner = [(i, float(self._counts.common)) for i in range(len(self._kinds))], kind
        else:
            counts, which = np.unique(self._counts.values.numpy()[present], return_inverse=True)
            found, owner = np.unique(kind * len(counts) + which, return_inverse=True)
            kinds = [(i // len(counts), float(counts[i % len(counts)])) for i in found.tolist()]
        known = numbers_of(
            [(self._traces[i], settings[self._kinds[i][0]], count) for i, count in kinds],
            [self._kinds[i][2] for i, _ in kinds],
        )
        table = table_of(self._made, known)
        return table if table.shape[1] == 1 else table[:, owner].copy()


class DeviceMatrixArena(MatrixArena):
    """Tensors on a GPU, whose launches read a flag: see `late_check.FlaggedTensors`.

    Attributes:
        flag: Raised where a gradient is not finite.
        tables: What the look at the gradients reads.
    """

    def _look_by(self, kernel: MatrixKernel) -> DeviceFlag:
        assert isinstance(kernel, tuple)
        self.tables = DeviceTables(self.device)
        work = look_of([slot.param.numel() for slot in self.layout.slots], self.tables)
        given = (self._gradients.gradient, self.device, self.layout.dtype)
        self.flag = DeviceFlag(kernel[0], work, self.tables, *given)
        self._work = work
        return self.flag

    @property
    def absent(self) -> tuple[int, ...]:
        """Numbers of the parameters without a gradient."""
        return self._gradients.absent

    @property
    def device(self) -> torch.device:
        """The device of all parameters."""
        return self.layout.device

    def name_of(self, i: int) -> str:
        """What the user calls parameter i."""
        return self.layout.slots[i].name

    def forget(self, absent: Sequence[int]) -> None:
        """Take back the count of the last update, which the flag kept from happening; these had no gradient."""
        self._counts.retreat(absent)

    def _left_out(self) -> tuple[int, ...]:
        """None where the kernels see for themselves which tensors have no gradient; another call takes a wait."""
        return () if "g" in self._made.buffers else self.absent

    def _run(self, call: MatrixCall | DeviceMatrixCall, table: NDArray[np.float64]) -> None:
        assert isinstance(call, DeviceMatrixCall)
        self.flag.begin_update()
        call.run(table, self._work.bad, self._work.grad_scale)


def arena_of(trace: Trace, updates: Sequence[TensorUpdate], kernel: MatrixKernel) -> MatrixArena:
    """The arena of a kernel for a CPU or a GPU. Arguments are those of `MatrixArena`."""
    return (DeviceMatrixArena if isinstance(kernel, tuple) else MatrixArena)(trace, updates, kernel)
