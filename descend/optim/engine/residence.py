"""Who lives in which arena, and what runs when: the part of an optimizer that makes it fast.

    plain      one tensor at a time
    blocks     arenas, kernels carried out eagerly
    compiled   arenas, compiled kernels; the first step waits for them
    auto       arenas; compiled kernels as soon as there are some, which a run that lasts has made in the background

Tensors that cannot live in an arena (empty, distributed, shared between processes, matrices under a rule that needs
them whole) are updated plainly beside it.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from descend.optim.engine.arena import Arena, Taken, may_live_in_an_arena, merged
from descend.optim.engine.blocks import Step, step_arena
from descend.optim.engine.kernels import Compiled, Schedule, Workshop, jobs_of
from descend.optim.engine.prepare import LOW_PRECISION, Task, has_rows, named_entries, template
from descend.optim.engine.text import Text, Untraceable, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.optim.engine.settings import Settings
    from descend.optim.rules.base import Rule

__all__ = ["RUNNERS", "Residence"]

RUNNERS = ("auto", "compiled", "blocks", "plain")

_workshop = Workshop()


@functools.lru_cache(maxsize=256)
def _text(settings: Settings, low: bool) -> Text | None:
    try:
        return read(settings, low)
    except Untraceable as reason:
        _workshop.tell(f"{type(settings.rule).__name__} runs one tensor at a time: {reason}")
        return None


def texts_of(settings: Sequence[Settings], low: bool) -> list[Text | None]:
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
class Residence:
    """The arenas of one optimizer.

    Attributes:
        runner: One of `RUNNERS`.
    """

    runner: str
    arenas: list[Arena] = field(default_factory=list[Arena])
    compiled: dict[int, list[Compiled]] = field(default_factory=dict[int, list[Compiled]])
    schedule: Schedule = field(default_factory=Schedule)
    known: list[Settings] = field(default_factory=list["Settings"])  # of each group, as of the last step
    texts: list[dict[int, Text]] = field(default_factory=list[dict[int, Text]])  # of each arena under those, by group
    residents: set[int] = field(default_factory=set[int])

    def dissolve(self) -> None:
        """Forget the arenas; tensors and state keep the memory they have until the next step moves them."""
        self.arenas.clear()
        self.texts.clear()
        self.compiled.clear()
        self.residents.clear()

    def is_current(self, settings: Sequence[Settings], state: Mapping[Tensor, Any]) -> bool:
        """Whether weights and state still lie in their arenas and the groups still have the arenas' texts."""
        for arena, texts in zip(self.arenas, self._texts(settings), strict=True):
            if not arena.is_intact() or state.get(arena.params[0]) is not arena.members[0].entry:
                return False
            if any(text.structure is not arena.text.structure for text in texts.values()):
                return False
        return True

    def _texts(self, settings: Sequence[Settings]) -> list[dict[int, Text]]:
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

    def admit(self, tasks: Sequence[Task], settings: Sequence[Settings]) -> list[Task]:
        """Move the tensors that can into arenas; returns those that cannot."""
        if self.runner == "plain" or not tasks:
            return list(tasks)
        texts = {low: texts_of(settings, low) for low in (False, True)}
        for together in merged([task for task in tasks if _fits(task, texts)], texts).values():
            low = together[0].param.dtype in LOW_PRECISION
            text = texts[low][together[0].group]
            assert text is not None
            self.arenas.append(Arena.of(text, together))
            self.residents |= {id(task.param) for task in together}
        return [task for task in tasks if id(task.param) not in self.residents]

    def take(self, since: int = 0) -> list[Taken]:
        """Who takes part in this step, of each arena from number `since` on."""
        return [arena.take() for arena in self.arenas[since:]]

    def step(self, taken: Sequence[Taken], settings: Sequence[Settings], seed: int) -> None:
        """One update of everybody who lives in an arena and has a gradient."""
        for i, (one, texts) in enumerate(zip(taken, self._texts(settings), strict=True)):
            step_arena(Step(one, settings, texts, seed, self._kernels(i, one.arena)))

    def _kernels(self, i: int, arena: Arena) -> list[Compiled]:
        if i in self.compiled or self.runner == "blocks":
            return self.compiled.get(i, [])
        if self.runner == "auto" and not self.schedule.may_look():
            return []
        jobs = jobs_of(arena)
        found = _workshop.take(jobs)
        if not found and (self.runner == "compiled" or self.schedule.lasts()):
            _workshop.order(jobs)
            _workshop.collect(jobs, wait=self.runner == "compiled")
            found = _workshop.take(jobs)
        if found:
            self.compiled[i] = found
        return found


def _fits(task: Task, texts: Mapping[bool, Sequence[Text | None]]) -> bool:
    """Whether a tensor can live in an arena under its rule."""
    text = texts[task.param.dtype in LOW_PRECISION][task.group]
    if text is None or not may_live_in_an_arena(task.param) or has_rows(task.gradient):
        return False
    # Noise is drawn in the order of the elements, which is not the order in memory of a transposed tensor.
    ordered = task.param.is_contiguous() or not text.draws
    return ordered and _has_elements_and_numbers_alone(task.settings.rule, task.param)
