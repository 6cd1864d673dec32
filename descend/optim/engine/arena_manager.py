"""Assigns parameters to arenas and selects the runner for each.

    plain      the reference update, one tensor at a time
    blocks     arenas, updated by the interpreter
    compiled   arenas, updated by compiled kernels; the first step waits for the compiler
    auto       arenas, updated by the interpreter until kernels are compiled in the background, which starts once a run
               has lasted about a second

Parameters that are in no arena go the ways of their rule (ways.py).
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError
from descend.optim.compiler.cache import CompilePolicy, KernelCompiler
from descend.optim.compiler.cuda import CudaCompileJob
from descend.optim.compiler.native import CpuCompileJob
from descend.optim.compiler.trace import Trace, Untraceable, trace
from descend.optim.engine.aliases import detach, in_place
from descend.optim.engine.arena import ActiveSlots, Arena, grouped
from descend.optim.engine.arena_layout import fits_arena
from descend.optim.engine.blocks import ArenaStep, step_arena
from descend.optim.engine.device_matrices import DeviceMatrixArena, arena_of
from descend.optim.engine.gradient_scan import GradientScanner, ScannerCompileJob, TensorList
from descend.optim.engine.launch import DeviceKernels
from descend.optim.engine.matrices import MatrixArena, batches_of
from descend.optim.engine.step_inputs import (
    LOW_PRECISION,
    TensorUpdate,
    is_sparse,
    named_entries,
    open_states,
    tasks_of,
    template,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from descend.optim.compiler.cache import CompileJob
    from descend.optim.engine.finite import FlaggedTensors, FlagReport
    from descend.optim.engine.matrices import MatrixBatch
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.state import State
    from descend.optim.engine.step_inputs import Entry
    from descend.optim.rules.base import Rule

__all__ = ["RUNNERS", "ArenaManager", "jobs_of"]

RUNNERS = ("auto", "compiled", "blocks", "plain")

_compiler = KernelCompiler()


@functools.lru_cache(maxsize=256)
def _trace_of(settings: GroupSettings, low: bool) -> Trace | None:
    try:
        return trace(settings, low)
    except Untraceable as reason:
        _compiler.tell(f"{type(settings.rule).__name__} runs one tensor at a time: {reason}")
        return None


def traces_of(settings: Sequence[GroupSettings], low: bool) -> list[Trace | None]:
    """The trace of each group, or None for rules that need the reference update; no trace depends on learning rates.

    Where one group has weight decay, all traces contain a decay, of 0 for the others, so that groups share a trace.
    """
    decay = float(any(s.decay != 0.0 for s in settings))
    return [
        None if s.rule.whole_tensor else _trace_of(replace(s, lr=1.0, decay=decay, scaled=True), low) for s in settings
    ]


def _has_elements_and_numbers_alone(rule: Rule, p: Tensor) -> bool:
    """Whether every entry of the state is shaped like p, in its precision, or is one number."""
    wide = torch.float32 if p.dtype in LOW_PRECISION else p.dtype
    return all(
        (value.shape == p.shape and value.dtype == wide) or (value.ndim == 0 and value.is_floating_point())
        for value in named_entries(template(rule, p)).values()
    )


@dataclass
class ArenaManager:
    """The arenas of one optimizer.

    Attributes:
        runner: One of `RUNNERS`.
        arenas: The arenas.
        schedule: When to compile kernels.
        known: Settings of each group, as of the last step.
        traces: Of each arena under those settings, by group.
        residents: Identities of all parameters in an arena.
        scanner: Finds gradients and checks addresses.
        report: The pending result of the finite check of the last step on a GPU.
        matrices: Those of tensors that are updated where they are, under rules with means over rows and columns.
        lacks_kernels: Whether some tensors of such rules were left to the reference update at the last step.
    """

    runner: str
    arenas: list[Arena] = field(default_factory=list[Arena])
    schedule: CompilePolicy = field(default_factory=CompilePolicy)
    known: list[GroupSettings] = field(default_factory=list["GroupSettings"])
    traces: list[dict[int, Trace]] = field(default_factory=list[dict[int, Trace]])
    residents: set[int] = field(default_factory=set[int])
    scanner: GradientScanner = field(default_factory=GradientScanner)
    report: FlagReport | None = None
    matrices: list[MatrixArena] = field(default_factory=list[MatrixArena])
    lacks_kernels: bool = False

    @property
    def is_compiled(self) -> bool:
        """Whether all parameters that kernels can update are updated by them; and there are some."""
        return bool(self.arenas or self.matrices) and not self.lacks_kernels and not self._bare()

    def _bare(self) -> list[int]:
        """Numbers of the arenas without compiled kernels."""
        return [i for i, arena in enumerate(self.arenas) if arena.native is None]

    def clear(self) -> None:
        """Drop the arenas; parameters and state keep their memory until the next step moves them."""
        self.arenas.clear()
        self.matrices.clear()
        self.traces.clear()
        self.residents.clear()

    def device_kernels(self, parameters: int) -> list[FlaggedTensors]:
        """The kernels of all arenas, where they are of one GPU and update all parameters; else none."""
        matrices = [arena for arena in self.matrices if isinstance(arena, DeviceMatrixArena)]
        held: list[FlaggedTensors] = [*self._on_device(), *matrices]
        whole = len(held) == len(self.arenas) + len(self.matrices) and len(self.residents) == parameters
        return held if whole and len({kernels.device for kernels in held}) == 1 else []

    def _on_device(self) -> list[DeviceKernels]:
        return [arena.native for arena in self.arenas if isinstance(arena.native, DeviceKernels)]

    def _recorded(self) -> list[DeviceKernels]:
        return [kernels for kernels in self._on_device() if kernels.recorded]

    @property
    def is_capturing(self) -> bool:
        """Whether what is launched now becomes part of a CUDA graph."""
        return any(kernels.tables.is_capturing() for kernels in self._on_device()[:1])

    @property
    def is_recorded(self) -> bool:
        """Whether a step was captured in a CUDA graph since `catch_up`."""
        return bool(self._recorded())

    def catch_up(self) -> int:
        """By how many steps replays of a CUDA graph are ahead of the host, which takes over their counts."""
        return max([kernels.catch_up() for kernels in self._recorded()], default=0)

    def begin_step(self, settings: Sequence[GroupSettings], state: State) -> list[ActiveSlots]:
        """The parameters of each arena that this step updates; first drops arenas that were changed from outside."""
        if self.arenas or self.matrices:
            self._equip()
            if not self._is_current(settings, state):
                self.clear()
        return [arena.begin_step() for arena in self.arenas]

    def _is_current(self, settings: Sequence[GroupSettings], state: State) -> bool:
        """Whether parameters and state are still in their arenas and the groups still have the arenas' traces."""
        if not state.changes.seen:
            return False
        for arena, traces in zip(self.arenas, self._traces(settings), strict=True):
            if any(trace.structure is not arena.trace.structure for trace in traces.values()):
                return False
            if not arena.is_intact(self.scanner):
                return False
        return all(arena.is_current(settings, self.scanner) for arena in self.matrices)

    def _traces(self, settings: Sequence[GroupSettings]) -> list[dict[int, Trace]]:
        """For each arena the trace of each group with a parameter in it."""
        same = len(self.traces) == len(self.arenas) and len(settings) == len(self.known)
        if not (same and all(map(operator.is_, settings, self.known))):
            traces = {low: traces_of(settings, low) for low in (False, True)}
            self.known = list(settings)
            self.traces = [
                {
                    g: trace
                    for g in arena.layout.groups
                    if (trace := traces[arena.buffers.low is not None][g]) is not None
                }
                for arena in self.arenas
            ]
        return self.traces

    def refuse_capture(self, outside: Sequence[TensorUpdate]) -> None:
        """Raise where an update would become part of a CUDA graph that takes numbers from the host.

        Args:
            outside: Updates of parameters outside the arenas.

        Raises:
            ConfigurationError: A CUDA graph is captured, which would repeat this step's rates and counts as they are.
        """
        if not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
            return
        devices = [task.param.device for task in outside]
        devices += [arena.layout.device for arena in (*map(self.arenas.__getitem__, self._bare()), *self.matrices)]
        if any(device.type == "cuda" for device in devices):
            raise ConfigurationError(
                "a step can be captured in a CUDA graph where compiled kernels of elementwise rules update all "
                "parameters; this one takes numbers from the host, which the graph would repeat as they are. Take "
                'some steps with runner="compiled" before the capture, and leave rules of whole matrices out of it'
            )

    def others(
        self,
        groups: list[dict[str, Any]],
        settings: list[GroupSettings],
        names: list[list[str]],
        state: Mapping[Tensor, Entry],
    ) -> list[TensorUpdate]:
        """The updates of parameters with a gradient outside the arenas; arguments as for `tasks_of`."""
        if len(self.residents) == sum(len(group["params"]) for group in groups):
            return []
        return tasks_of(groups, settings, names, state, self.residents)

    @torch.no_grad()
    def add(
        self, tasks: Sequence[TensorUpdate], settings: Sequence[GroupSettings], lists: Sequence[TensorList]
    ) -> list[ActiveSlots]:
        """Move parameters into arenas where that is possible.

        Args:
            tasks: Updates of parameters outside the arenas.
            settings: Of each group.
            lists: All parameters of each group.

        Returns:
            The active slots of the new arenas.
        """
        if not tasks:
            return []
        before = len(self.arenas)
        traces = {low: traces_of(settings, low) for low in (False, True)}
        if not any(traces[task.param.dtype in LOW_PRECISION][task.group] for task in tasks):
            return []
        staying = in_place([task.param for task in tasks], [p for known in lists for p in known.tensors])
        fitting = [task for task in tasks if _fits(task, traces, id(task.param) in staying)]
        for together in grouped(fitting, traces, staying).values():
            first = together[0]
            trace = traces[first.param.dtype in LOW_PRECISION][first.group]
            assert trace is not None
            self.arenas.append(Arena.of(trace, together, in_place=id(first.param) in staying))
            self.residents |= {id(task.param) for task in together}
        self._equip()
        new = self.arenas[before:]
        for arena in new:
            arena.is_intact(self.scanner)
        return [arena.begin_step() for arena in new]

    def step(self, active: Sequence[ActiveSlots], settings: Sequence[GroupSettings], seed: int) -> None:
        """Update all parameters of the arenas that have a gradient."""
        for one, traces in zip(active, self._traces(settings), strict=True):
            step_arena(ArenaStep(one, settings, traces, seed))
            one.arena.mark_written(self.scanner, one.absent)

    def update_matrices(self, settings: Sequence[GroupSettings]) -> None:
        """Update those of `matrices` that have a gradient."""
        for arena in self.matrices:
            arena.update(settings, self.scanner)

    def step_matrices(self, tasks: Sequence[TensorUpdate], settings: Sequence[GroupSettings]) -> list[TensorUpdate]:
        """Update the parameters whose rule asks for means over rows and columns, waiting for kernels that are new.

        Args:
            tasks: Updates of parameters outside the arenas.

        Returns:
            The updates of the others.
        """
        served = self.runner in ("compiled", "auto")
        batches, others = batches_of(tasks) if served else ([], list(tasks))
        jobs = [batch.job for batch in batches]
        _compiler.order(jobs)
        _compiler.collect(jobs, wait=True, required=self.runner == "compiled")
        for batch, job in zip(batches, jobs, strict=True):
            open_states(batch.tasks)
            arena = _matrix_arena(batch, job)
            if arena is None:
                others += batch.tasks
                self.lacks_kernels = True
            else:
                arena.is_current(settings, self.scanner)
                arena.update(settings, self.scanner)
                self.matrices.append(arena)
                self.residents |= {id(task.param) for task in batch.tasks}
        return others

    def end_step(self) -> None:
        """Release the gradients of the step, applied or not."""
        for arena in self.arenas:
            detach(arena.pinned)

    def _equip(self) -> None:
        """Give arenas their compiled kernels as they become available."""
        bare = self._bare()
        done = type(self.scanner) is not GradientScanner or _compiler.has_failed(ScannerCompileJob())
        if (done and not bare) or self.runner == "blocks" or (self.runner == "auto" and not self.schedule.is_due()):
            return
        wait = self.runner == "compiled"
        jobs = {i: jobs_of(self.arenas[i]) for i in bare}
        wanted = [job for held in jobs.values() for job in held] + [ScannerCompileJob()]
        if wait or self.schedule.lasts():
            _compiler.order(wanted)
            _compiler.collect(wanted, wait=wait, required=wait)
        for i, held in jobs.items():
            kernels = _compiler.take(held)
            if kernels:
                with _compiler.failing(held[0], "a compiled kernel cannot be used"):
                    self.arenas[i].use_kernels(kernels[0])
        for scanner in _compiler.take([ScannerCompileJob()]):
            self.scanner = scanner


def _matrix_arena(batch: MatrixBatch, job: CompileJob) -> MatrixArena | None:
    """The tensors of a batch with their kernel, or None where there is no kernel."""
    kernel = _compiler.known(job)
    if kernel is not None:
        with _compiler.failing(job, "a compiled kernel cannot be used"):
            return arena_of(batch, kernel)
    return None


def jobs_of(arena: Arena) -> list[CpuCompileJob] | list[CudaCompileJob]:
    """The compile jobs of the kernels that an arena can use."""
    dtype = str(arena.buffers.dtype).removeprefix("torch.")
    low = None if arena.buffers.low is None else str(arena.buffers.low).removeprefix("torch.")
    structure = arena.trace.structure
    if arena.layout.device.type == "cpu":
        return [CpuCompileJob(structure, dtype, low)]
    return [CudaCompileJob(structure, dtype, low, arena.layout.device.index)]


def _fits(task: TensorUpdate, traces: Mapping[bool, Sequence[Trace | None]], in_place: bool) -> bool:
    """Whether a parameter can be in an arena under its rule."""
    trace = traces[task.param.dtype in LOW_PRECISION][task.group]
    if trace is None or not fits_arena(task.param, in_place) or is_sparse(task.gradient):
        return False
    # Noise is drawn in the order of the elements, which differs from the order in memory for a transposed tensor.
    ordered = not trace.draws or (task.param.is_contiguous() and not in_place)
    # A rank does not know the norm of the whole tensor.
    whole = trace.stages == 1 or not hasattr(task.param, "device_mesh")
    return ordered and whole and _has_elements_and_numbers_alone(task.settings.rule, task.param)
