"""Tensors of rules with means over rows and columns, whose addresses a kernel's call keeps from step to step.

As of an arena, Python looks at none of the tensors at a step: a small library finds the gradients and sees that nothing
was moved (engine/gradient_scan.py). Unlike an arena's, parameters and state stay where they are.
"""

from __future__ import annotations

import ctypes
import operator
from typing import TYPE_CHECKING

import numpy as np

from descend.optim.compiler.matrix_plan import plan
from descend.optim.compiler.native import KernelLaunch
from descend.optim.engine.arena_gradients import ArenaGradients
from descend.optim.engine.arena_layout import ArenaLayout
from descend.optim.engine.gradient_scan import TensorList
from descend.optim.engine.matrices import MatrixCall, numbers_of, places_of, shape_of, table_of, trace_of
from descend.optim.engine.native import Units, threads_for
from descend.optim.engine.step_counts import StepCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.gradient_scan import GradientScanner
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_inputs import TensorUpdate

__all__ = ["MatrixArena"]


class MatrixArena:
    """Tensors that one call of a kernel updates where they are.

    Args:
        trace: The text of one of them; the others differ in constants alone.
        updates: Of tensors of one precision that `matrices.stays` is true of.
        library: Of the kernel.

    Attributes:
        layout: The tensors, with their groups and state.
    """

    def __init__(self, trace: Trace, updates: Sequence[TensorUpdate], library: ctypes.CDLL) -> None:
        params = [update.param for update in updates]
        self.layout = ArenaLayout.of(updates, params)
        self._structure, self._made, self._library = trace.structure, plan(trace), library
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
        self._call: tuple[tuple[int, ...], NDArray[np.int64], NDArray[np.int64], MatrixCall] | None = None
        self._units = Units.of(self.layout)  # kept, as their addresses are read
        self._look = self._launch()
        dtype = str(self.layout.dtype).removeprefix("torch.")
        self._unfit = getattr(library, f"unfit_{dtype}")
        self._unfit.restype = ctypes.c_int64

    def _launch(self) -> KernelLaunch:
        """What the look at the gradients reads."""
        look, units = KernelLaunch(), self._units
        look.begin, look.end = 0, len(units.tensor)
        names = ("tensor", "first", "count", "border", "start", "gradient")
        for name, x in zip(names, (*units, self._params.gradients), strict=True):
            setattr(look, name, x.ctypes.data)
        return look

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
        self._look.threads = threads_for(self.layout)
        return not self._unfit(ctypes.byref(self._look))

    def update(self, settings: Sequence[GroupSettings], scanner: GradientScanner) -> None:
        """Update all tensors that have a gradient."""
        absent = self._gradients.absent
        if self._call is None or self._call[0] != absent:
            present = np.delete(np.arange(len(self._kind)), absent)
            addresses, shapes = (x[:, present].copy() for x in (self._addresses, self._shapes))
            self._call = absent, present, addresses, MatrixCall(self._library, shapes, addresses)
        _, present, addresses, call = self._call
        if len(present):
            if "g" in self._made.buffers:
                addresses[self._made.buffers.index("g")] = self._gradients.gradient[present]
            call.run(self._table(settings, present))
        self._gradients.copies.clear()
        self._counts.advance(absent)
        scanner.written(self._params)

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
