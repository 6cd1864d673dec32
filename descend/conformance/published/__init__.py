"""The published rules in float64, written independently of `descend.optim.rules`."""

from __future__ import annotations

from descend.conformance.published.adaptive import ADAPTIVE
from descend.conformance.published.base import Array, Constants, Published
from descend.conformance.published.layerwise import LAYERWISE
from descend.conformance.published.momentum import MOMENTUM
from descend.errors import RuleError, nearest

__all__ = ["PUBLISHED", "Array", "Constants", "Published", "find", "guess"]

PUBLISHED: dict[str, Published] = {rule.name.lower(): rule for rule in (*MOMENTUM, *ADAPTIVE, *LAYERWISE)}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def guess(name: str) -> Published | None:
    """The published rule that the name of a class promises, or None: `NAdam`, `RMSprop` and `schedule_free_sgd` do."""
    return PUBLISHED.get(_plain(name))


def find(name: str) -> Published:
    """The published rule of a name that a user gave.

    Raises:
        RuleError: There is none; the message lists all.
    """
    rule = guess(name)
    if rule is None:
        known = sorted(rule.name for rule in PUBLISHED.values())
        raise RuleError(
            f"no published rule '{name}' is known{nearest(name, known) or ';'} known are {', '.join(known)}"
        )
    return rule
