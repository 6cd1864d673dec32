"""An arena: all parameters of one precision, device and update in common buffers, updated by a few kernel calls.

layout     which blocks belong to which parameter      engine/arena_layout.py
buffers    parameters, masters and state               engine/arena_layout.py
counts     updates of each parameter                   engine/state.py
planner    the blocks that one kernel call updates     engine/segments.py
native     the same arena for compiled kernels         engine/launch.py
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from descend.optim.engine.aliases import PinnedTensor, attach, note_placement
from descend.optim.engine.arena_layout import ArenaBuffers, ArenaLayout, small_first
from descend.optim.engine.finite import are_finite
from descend.optim.engine.gradient_scan import TensorList
from descend.optim.engine.launch import DeviceKernels, Native
from descend.optim.engine.segments import Segment, SegmentPlanner
from descend.optim.engine.state import StepCounts
from descend.optim.engine.step_inputs import LOW_PRECISION, TensorUpdate, check_gradient, ensure_state, local
from descend.torch_private import foreach_copy

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Collection, Mapping, Sequence

    from descend.optim.compiler.codegen_cuda import CudaPlan
    from descend.optim.compiler.cuda import CudaModule
    from descend.optim.compiler.interpreter import Interpreter
    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.gradient_scan import GradientScanner
    from descend.optim.engine.settings import GroupSettings

__all__ = ["ActiveSlots", "AddressedGradients", "Arena", "PackedGradients", "grouped"]

_gradient = operator.attrgetter("grad")
_requires_grad = operator.attrgetter("requires_grad")


@dataclass(frozen=True, slots=True)
class ActiveSlots:
    """The parameters that one step of an arena updates.

    Attributes:
        arena: The arena.
        absent: Numbers of the parameters that have no gradient or are frozen.
    """

    arena: Arena
    absent: tuple[int, ...]

    def is_finite(self) -> bool:
        """Whether all gradients are finite."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AddressedGradients(ActiveSlots):
    """For compiled kernels, which read gradients at their addresses."""

    native: Native | DeviceKernels

    def is_finite(self) -> bool:
        """See `ActiveSlots`."""
        return self.native.is_finite()


@dataclass(frozen=True, slots=True)
class PackedGradients(ActiveSlots):
    """For kernels that update one segment after the other.

    Attributes:
        gradients: Of each parameter, None for the absent ones.
        segments: The kernel calls that update the others.
        rows: The gradient of each segment; empty where a segment makes its own when it is updated.
    """

    gradients: list[Tensor | None]
    segments: list[Segment]
    rows: list[Tensor]

    @torch.no_grad()
    def is_finite(self) -> bool:
        """See `ActiveSlots`."""
        return are_finite(self.rows or [g for g in self.gradients if g is not None])

    def fetch(self) -> None:
        """Copy parameters outside the arena that kernels need as a copy."""
        _copy_all([copies for segment in self.segments for copies in segment.copies])

    def put_back(self) -> None:
        """Copy the updated copies back to the parameters."""
        _copy_all([(origin, copy) for segment in self.segments for copy, origin in segment.copies])


@torch.no_grad()
def _copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor into the first."""
    if pairs:
        foreach_copy([to for to, _ in pairs], [x for _, x in pairs])


@dataclass
class StepCache:
    """What steps of an arena reuse.

    Attributes:
        interpreters: Of each thread, for each eager kernel.
        settled: The groups' settings at the last step, and the numbers that follow from them.
    """

    interpreters: list[list[Interpreter]] = field(default_factory=list["list[Interpreter]"])
    settled: tuple[list[GroupSettings], dict[int, Any]] | None = None


@dataclass(eq=False)
class Arena:
    """Parameters with one layout and one update. Make one with `Arena.of`.

    Attributes:
        trace: The update.
        layout: Where each parameter is.
        buffers: Parameters and state.
        counts: Updates of each parameter.
        pinned: This rank's shards of distributed parameters: one for each parameter, or none.
        planner: Cuts the arena into segments.
        params: The parameters in the order of the layout, and their addresses.
        wholes: The same as the user holds them.
        state: The tensors of their state, and their addresses.
        cache: What steps reuse.
        native: The arena for compiled kernels, once there are some.
    """

    trace: Trace
    layout: ArenaLayout
    buffers: ArenaBuffers
    counts: StepCounts
    pinned: list[PinnedTensor]
    planner: SegmentPlanner
    params: TensorList
    wholes: list[Tensor]
    state: TensorList
    cache: StepCache = field(default_factory=StepCache)
    native: Native | DeviceKernels | None = None

    @staticmethod
    def of(trace: Trace, updates: Sequence[TensorUpdate], *, in_place: bool = False) -> Arena:
        """Move parameters and their state into an arena.

        Args:
            trace: Their common update.
            updates: Of parameters of one precision and device for which `fits_arena`.
            in_place: Whether the parameters stay at their address (engine/aliases.py).
        """
        ordered = small_first(updates)
        pinned = [PinnedTensor.of(update.param) for update in ordered if hasattr(update.param, "device_mesh")]
        layout = ArenaLayout.of(ordered, [p.here for p in pinned] or [update.param for update in ordered])
        buffers = ArenaBuffers.allocate(trace, layout, in_place=in_place)
        counts = StepCounts(len(layout.slots))
        for i, (slot, update) in enumerate(zip(layout.slots, ordered, strict=True)):
            ensure_state(slot.entry, update.settings.rule, slot.whole, slot.name)
            counts.adopt(i, slot.entry)
            buffers.adopt(i, slot)
        counts.refresh()
        arena = Arena(
            trace=trace,
            layout=layout,
            buffers=buffers,
            counts=counts,
            pinned=pinned,
            planner=SegmentPlanner(layout, buffers, draws=bool(trace.draws)),
            params=TensorList([slot.param for slot in layout.slots]),
            wholes=[slot.whole for slot in layout.slots],
            state=TensorList([local(x) for slot in layout.slots for x in slot.entry.values()]),
        )
        if not in_place:
            for slot in layout.slots:
                note_placement(slot.param, arena)
        return arena

    def use_kernels(self, library: ctypes.CDLL | tuple[CudaModule, CudaPlan]) -> None:
        """Update by compiled kernels from the next step on: a library on a CPU, a module on a GPU."""
        if isinstance(library, tuple):
            self.native = DeviceKernels(self.layout, self.buffers, self.counts, self.params, self.state, library)
        else:
            self.native = Native(self.trace, self.layout, self.buffers, self.counts, self.params, self.state, library)

    def is_intact(self, scanner: GradientScanner) -> bool:
        """Whether parameters and state are where the arena put them. For compiled kernels it also finds gradients."""
        self.counts.refresh()
        if self.pinned and not attach(self.pinned):
            return False
        if self.native is not None:
            return self.native.find(scanner)
        return scanner.stayed(self.params) and scanner.stayed(self.state)

    def mark_written(self, scanner: GradientScanner, absent: Collection[int]) -> None:
        """Advance autograd's version counters of all parameters but the absent ones.

        A backward pass over activations of the old parameters is an error then, as with torch's optimizers, instead of
        a gradient of neither point.
        """
        if self.native is not None and not self.pinned:
            scanner.written(self.params)
        elif absent:
            increment_version([whole for i, whole in enumerate(self.wholes) if i not in absent])
        else:
            increment_version(self.wholes)

    def begin_step(self) -> ActiveSlots:
        """The parameters of this step with their gradients.

        Raises:
            RuleError: A gradient is of a kind that no rule takes.
        """
        if self.native is not None:
            return AddressedGradients(self, self.native.absent, self.native)
        return self._packed()

    @torch.no_grad()
    def _packed(self) -> PackedGradients:
        gradients = self._gradients()
        present = all(map(operator.is_not, gradients, itertools.repeat(None)))
        absent = () if present else tuple(i for i, g in enumerate(gradients) if g is None)
        segments = self.planner.segments(absent)
        try:
            rows = [] if self.trace.draws else [segment.rows(gradients) for segment in segments]
        except RuntimeError:
            # Checking each gradient at each step would take longer than the step; now it is known that one is odd.
            for slot, g in zip(self.layout.slots, gradients, strict=True):
                if g is not None:
                    check_gradient(g, slot.param, slot.name)
            raise
        return PackedGradients(self, absent, gradients, segments, rows)

    def _gradients(self) -> list[Tensor | None]:
        params = self.params.tensors
        found = list(map(_gradient, params))
        if not all(map(_requires_grad, params)):
            found = [g if p.requires_grad else None for g, p in zip(found, params, strict=True)]
        return found


def grouped(
    updates: Sequence[TensorUpdate], traces: Mapping[bool, Sequence[Trace | None]], pinned: Collection[int]
) -> dict[tuple[Any, ...], list[TensorUpdate]]:
    """Updates by what an arena has in common: device, precision, structure of the trace, whether parameters stay.

    Args:
        updates: Of parameters that fit an arena.
        traces: Of each group, for parameters without and with a master.
        pinned: Identities of the parameters that are updated in place.
    """
    together: dict[tuple[Any, ...], list[TensorUpdate]] = {}
    for update in updates:
        p = update.param
        trace = traces[p.dtype in LOW_PRECISION][update.group]
        assert trace is not None
        key = (p.device, p.dtype, trace.structure, id(p) in pinned, hasattr(p, "device_mesh"))
        together.setdefault(key, []).append(update)
    return together
