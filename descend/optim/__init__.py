"""Optimizers: rules written as their equations, and the engine that applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.errors import nearest
from descend.lazy import lazy_names, registered
from descend.optim import groups, named_optimizers, rules, schedules
from descend.optim.explain import Explanation, explain
from descend.optim.named_optimizers import *  # noqa: F403  # every optimizer by its name
from descend.optim.optimizer import Optimizer
from descend.optim.optimizer_class import face, optimizer_class
from descend.optim.rules.base import Rule

if TYPE_CHECKING:  # an annex offers these; see descend/__init__.py
    from descend.compat import from_library, schedule_from_library
    from descend.compat.mxnet.gluon import GluonTrainer

__all__ = [
    "Explanation",
    "GluonTrainer",
    "Optimizer",
    "Rule",
    "explain",
    "face",
    "from_library",
    "groups",
    "optimizer_class",
    "rules",
    "schedule_from_library",
    "schedules",
]
__all__ += named_optimizers.__all__


def _hint(name: str) -> str:
    """Why there is no such name, as torch's `Adagrad`, or the nearest one."""
    if name.startswith("_"):
        return ""
    refused = registered("refused_optimizers") or {}
    return f": {refused[name]}" if name in refused else nearest(name, __all__)


__getattr__, __dir__ = lazy_names(__name__, {}, _hint)
