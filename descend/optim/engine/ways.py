"""Which way the update of a tensor goes, by its rule: the one place that says so.

    arena      many tensors in one buffer, by a compiled kernel, until there is one by the interpreter
    in place   many tensors where they are, by a compiled kernel, for which the first step waits
    stack      tensors of one shape at once, by the rule's text
    alone      one tensor after the other, by the rule's text: the meaning of an update

A way leaves to the next what it cannot take:

    arena      empty and sparse ones, distributed ones under a rule of norms, texts that are not arithmetic alone
    in place   empty ones, texts that are not means and arithmetic alone, and all where no compiler is
    stack      a tensor that no other is like, empty ones, and on a CPU large ones

With `runner="plain"` all go alone, and with `runner="blocks"`, which has no compiled kernels, none in place.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from descend.optim.engine.plain import step_plain
from descend.optim.engine.stacked import step_stacks
from descend.optim.engine.step_inputs import open_states
from descend.optim.rules.base import MEANS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from descend.optim.engine.arena import ActiveSlots
    from descend.optim.engine.arena_manager import ArenaManager
    from descend.optim.engine.gradient_scan import TensorList
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_inputs import TensorUpdate
    from descend.optim.rules.base import Rule

__all__ = ["WAYS", "Way", "kind_of", "update_outside", "ways_of"]

Way = Literal["arena", "in place", "stack", "alone"]

WAYS: Mapping[str, tuple[Way, ...]] = {
    "elements, norms and noise": ("arena", "alone"),
    "means over rows and columns": ("in place", "stack", "alone"),
    "whole tensors, in stacks": ("stack", "alone"),
    "whole tensors": ("alone",),
}


def kind_of(rule: Rule) -> str:
    """The row of the table that a rule is in."""
    if not rule.needs.isdisjoint(MEANS) and "shape" not in rule.needs:
        return "means over rows and columns"
    if not rule.whole_tensor:
        return "elements, norms and noise"
    return "whole tensors, in stacks" if rule.takes_stacks else "whole tensors"


def ways_of(rule: Rule, runner: str) -> tuple[Way, ...]:
    """The ways of its tensors, in order."""
    if runner == "plain":
        return ("alone",)
    ways = WAYS[kind_of(rule)]
    return ways if runner != "blocks" else tuple(way for way in ways if way != "in place")


def update_outside(
    arenas: ArenaManager,
    tasks: Sequence[TensorUpdate],
    settings: Sequence[GroupSettings],
    lists: Sequence[TensorList],
    seed: int,
) -> list[ActiveSlots]:
    """Update the parameters outside the arenas, each in the ways of its rule.

    Args:
        arenas: The arenas, which take those that they can.
        tasks: Their updates.
        settings: Of each group.
        lists: All parameters of each group.
        seed: Of the noise.

    Returns:
        The active slots of new arenas, whose parameters are not updated yet.
    """
    arenas.update_matrices(settings)
    arenas.lacks_kernels = False
    if not tasks:
        return []
    ways = {id(s): ways_of(s.rule, arenas.runner) for s in settings}
    new = arenas.add([task for task in tasks if "arena" in ways[id(task.settings)]], settings, lists)
    others = [task for task in tasks if id(task.param) not in arenas.residents]
    open_states(others)  # of all, before any is updated
    steps: dict[Way, Callable[[list[TensorUpdate]], list[TensorUpdate]]] = {
        "in place": functools.partial(arenas.step_matrices, settings=settings),
        "stack": step_stacks,
        "alone": functools.partial(step_plain, seed=seed),
    }
    together: dict[tuple[Way, ...], list[TensorUpdate]] = {}
    for task in others:
        together.setdefault(ways[id(task.settings)], []).append(task)
    for mine, left in together.items():
        for way in mine:
            left = steps[way](left) if left and way in steps else left
    return new
