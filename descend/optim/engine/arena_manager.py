"""Who lives in which arena, and what runs when: the part of an optimizer that makes it fast.

    plain      one tensor at a time
    blocks     arenas, kernels carried out eagerly
    compiled   arenas, compiled kernels; the first step waits for them
    auto       arenas; compiled kernels as soon as there are some, which a run that lasts has made in the background

Tensors that cannot live in an arena (empty, distributed under a rule that takes norms, matrices under a rule that needs
them whole) are updated plainly beside it.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from descend.optim.compiler.cache import CompilePolicy, KernelCompiler
from descend.optim.compiler.cuda import CudaCompileJob
from descend.optim.compiler.native import CpuCompileJob
from descend.optim.compiler.partition import partition
from descend.optim.compiler.trace import Trace, Untraceable, trace
from descend.optim.engine.aliases import in_place
from descend.optim.engine.arena import ActiveSlots, Arena, fits_arena, merged
from descend.optim.engine.blocks import ArenaStep, step_arena
from descend.optim.engine.gradient_scan import GradientScanner, ScannerCompileJob, TensorList
from descend.optim.engine.native import Native
from descend.optim.engine.pinned import detach
from descend.optim.engine.step_inputs import LOW_PRECISION, TensorUpdate, is_sparse, named_entries, tasks_of, template

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from descend.optim.compiler.cuda import Compiled
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.state_proxy import State
    from descend.optim.engine.step_inputs import Entry
    from descend.optim.rules.base import Rule

__all__ = ["RUNNERS", "ArenaManager", "jobs_of"]

RUNNERS = ("auto", "compiled", "blocks", "plain")

_workshop = KernelCompiler()


@functools.lru_cache(maxsize=256)
def _text(settings: GroupSettings, low: bool) -> Trace | None:
    try:
        return trace(settings, low)
    except Untraceable as reason:
        _workshop.tell(f"{type(settings.rule).__name__} runs one tensor at a time: {reason}")
        return None


def texts_of(settings: Sequence[GroupSettings], low: bool) -> list[Trace | None]:
    """The text of each group, or None for rules that have to be run plainly; none depends on rates.

    Where one group decays, the texts of all have a decay in them, if of 0, and so remain one text.
    """
    decay = float(any(s.decay != 0.0 for s in settings))
    return [None if s.rule.whole_tensor else _text(replace(s, lr=1.0, decay=decay, scaled=True), low) for s in settings]


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
        arenas: Where tensors live.
        compiled: Kernels for CUDA of the arenas that have them, by number of the arena.
        schedule: When to ask for compiled kernels.
        known: Settings of each group, as of the last step.
        texts: Of each arena under those, by group.
        residents: Identities of all tensors that live in an arena.
        lists: The tensors of each group, as of the last step.
        reader: Finds gradients, and that all is where it was.
        meshes: Over whose ranks tensors are distributed, in the order of the tensors.
    """

    runner: str
    arenas: list[Arena] = field(default_factory=list[Arena])
    compiled: dict[int, list[Compiled]] = field(default_factory=dict[int, "list[Compiled]"])
    schedule: CompilePolicy = field(default_factory=CompilePolicy)
    known: list[GroupSettings] = field(default_factory=list["GroupSettings"])
    texts: list[dict[int, Trace]] = field(default_factory=list[dict[int, Trace]])
    residents: set[int] = field(default_factory=set[int])
    lists: list[TensorList] = field(default_factory=list[TensorList])
    reader: GradientScanner = field(default_factory=GradientScanner)
    meshes: list[Any] = field(default_factory=list[Any])

    @property
    def is_compiled(self) -> bool:
        """Whether every arena has compiled kernels, and there is one."""
        return bool(self.arenas) and not self._bare()

    def _bare(self) -> list[int]:
        """Numbers of the arenas without compiled kernels."""
        return [i for i, arena in enumerate(self.arenas) if arena.native is None and i not in self.compiled]

    def clear(self) -> None:
        """Forget the arenas; tensors and state keep the memory they have until the next step moves them."""
        self.arenas.clear()
        self.texts.clear()
        self.compiled.clear()
        self.residents.clear()

    def has_lists(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the groups hold the tensors that `hold_lists` saw."""
        same = self.reader.same
        return len(groups) == len(self.lists) and all(
            same(group["params"], known) for group, known in zip(groups, self.lists, strict=True)
        )

    def hold_lists(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Take note of the tensors of each group; arenas are made anew."""
        self.lists = [TensorList(group["params"]) for group in groups]
        meshes = [getattr(p, "device_mesh", None) for known in self.lists for p in known.tensors]
        self.meshes = [mesh for mesh in dict.fromkeys(meshes) if mesh is not None]
        self.clear()

    def begin_step(self, settings: Sequence[GroupSettings], state: State) -> list[ActiveSlots]:
        """Who takes part in this step, of each arena. Arenas that are not as they were are dissolved before."""
        if self.arenas:
            self._equip()
            if not self._is_current(settings, state):
                self.clear()
        return [arena.take() for arena in self.arenas]

    def _is_current(self, settings: Sequence[GroupSettings], state: State) -> bool:
        """Whether weights and state still lie in their arenas and the groups still have the arenas' texts."""
        if not state.changes.seen:
            return False
        for arena, texts in zip(self.arenas, self._texts(settings), strict=True):
            if any(text.structure is not arena.text.structure for text in texts.values()):
                return False
            if not arena.is_intact(self.reader):
                return False
        return True

    def _texts(self, settings: Sequence[GroupSettings]) -> list[dict[int, Trace]]:
        """For each arena the text of each group that has a tensor in it."""
        same = len(self.texts) == len(self.arenas) and len(settings) == len(self.known)
        if not (same and all(map(operator.is_, settings, self.known))):
            texts = {low: texts_of(settings, low) for low in (False, True)}
            self.known = list(settings)
            self.texts = [
                {g: text for g in arena.groups if (text := texts[arena.low is not None][g]) is not None}
                for arena in self.arenas
            ]
        return self.texts

    def others(
        self,
        groups: list[dict[str, Any]],
        settings: list[GroupSettings],
        names: list[list[str]],
        state: Mapping[Tensor, Entry],
    ) -> list[TensorUpdate]:
        """The updates of tensors with a gradient that live in no arena; arguments as for `tasks_of`."""
        if len(self.residents) == sum(len(group["params"]) for group in groups):
            return []
        return tasks_of(groups, settings, names, state, self.residents)

    @torch.no_grad()
    def add(
        self, tasks: Sequence[TensorUpdate], settings: Sequence[GroupSettings]
    ) -> tuple[list[TensorUpdate], list[ActiveSlots]]:
        """Move the tensors that can into arenas.

        Returns:
            The others, and who takes part of the new arenas.
        """
        if self.runner == "plain" or not tasks:
            return list(tasks), []
        before = len(self.arenas)
        texts = {low: texts_of(settings, low) for low in (False, True)}
        staying = in_place([task.param for task in tasks], [p for known in self.lists for p in known.tensors])
        fitting = [task for task in tasks if _fits(task, texts, id(task.param) in staying)]
        for together in merged(fitting, texts, staying).values():
            first = together[0]
            text = texts[first.param.dtype in LOW_PRECISION][first.group]
            assert text is not None
            self.arenas.append(Arena.of(text, together, in_place=id(first.param) in staying))
            self.residents |= {id(task.param) for task in together}
        self._equip()
        new = self.arenas[before:]
        for arena in new:
            arena.is_intact(self.reader)
        return [task for task in tasks if id(task.param) not in self.residents], [arena.take() for arena in new]

    def step(self, taken: Sequence[ActiveSlots], settings: Sequence[GroupSettings], seed: int) -> None:
        """One update of everybody who lives in an arena and has a gradient."""
        for i, (one, texts) in enumerate(zip(taken, self._texts(settings), strict=True)):
            step_arena(ArenaStep(one, settings, texts, seed, self.compiled.get(i, [])))
            one.arena.tell(self.reader, one.absent)

    def end_step(self) -> None:
        """Hold nothing of the step that is over or was not taken."""
        for arena in self.arenas:
            detach(arena.guests)

    def _equip(self) -> None:
        """Give arenas their compiled kernels as these come to be."""
        bare = self._bare()
        done = type(self.reader) is not GradientScanner or _workshop.has_failed(ScannerCompileJob())
        if (done and not bare) or self.runner == "blocks" or (self.runner == "auto" and not self.schedule.may_look()):
            return
        wait = self.runner == "compiled"
        jobs = {i: jobs_of(self.arenas[i]) for i in bare}
        wanted = [job for held in jobs.values() for job in held] + [ScannerCompileJob()]
        if wait or self.schedule.lasts():
            _workshop.order(wanted)
            _workshop.collect(wanted, wait=wait)
        for i, held in jobs.items():
            kernels = _workshop.take(held)
            if kernels and held[0].device == "cuda":
                self.compiled[i] = kernels
            elif kernels:
                self.arenas[i].native = Native(self.arenas[i], kernels[0])
        for reader in _workshop.take([ScannerCompileJob()]):
            self.reader = reader


def jobs_of(arena: Arena) -> list[CpuCompileJob] | list[CudaCompileJob]:
    """The kernels that an arena could use."""
    dtype = str(arena.buffers["p"].dtype).removeprefix("torch.")
    low = None if arena.low is None else str(arena.low).removeprefix("torch.")
    structure = arena.text.structure
    if arena.index.device.type == "cpu":
        return [CpuCompileJob(structure, dtype, low)]
    return [
        CudaCompileJob(structure, k, dtype, low, arena.index.device.index) for k in range(len(partition(arena.text)))
    ]


def _fits(task: TensorUpdate, texts: Mapping[bool, Sequence[Trace | None]], in_place: bool) -> bool:
    """Whether a tensor can live in an arena under its rule."""
    text = texts[task.param.dtype in LOW_PRECISION][task.group]
    if text is None or not fits_arena(task.param, in_place) or is_sparse(task.gradient):
        return False
    # Noise is drawn in the order of the elements, which is not the order in memory of a transposed tensor.
    ordered = not text.draws or (task.param.is_contiguous() and not in_place)
    # No rank knows the norm of its part's tensor.
    whole = text.stages == 1 or not hasattr(task.param, "device_mesh")
    return ordered and whole and _has_elements_and_numbers_alone(task.settings.rule, task.param)
