"""Which way the update of a tensor goes, by its rule: the one place that says so.

    arena      many tensors in one buffer, by a compiled kernel, until there is one by the interpreter
    in place   many tensors where they are, by a compiled kernel, until there is one on a CPU by NumPy
    stack      tensors of one shape at once, by the rule's text
    alone      one tensor after the other, by the rule's text: the meaning of an update

A way leaves to the next what it cannot take:

    arena      empty and sparse ones, distributed ones under a rule of norms, texts that are not arithmetic alone
    in place   empty ones, texts that are not means and arithmetic alone, and on a GPU all until the kernel is compiled
    stack      a tensor that no other is like, empty ones, and on a CPU large ones

With `runner="plain"` all go alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from descend.optim.rules.base import MEANS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.optim.rules.base import Rule

__all__ = ["WAYS", "Way", "kind_of", "ways_of"]

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
    return WAYS[kind_of(rule)] if runner != "plain" else ("alone",)
