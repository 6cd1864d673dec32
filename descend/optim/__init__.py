"""Optimizers: rules written as their equations, and the engine that applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.errors import nearest
from descend.optim import groups, named_optimizers, rules, schedules
from descend.optim.compat import from_library, schedule_from_library
from descend.optim.compat.mxnet.gluon import GluonTrainer
from descend.optim.explain import Explanation, explain
from descend.optim.named_optimizers import *  # noqa: F403  # every optimizer by its name
from descend.optim.optimizer import Optimizer
from descend.optim.optimizer_class import face, optimizer_class
from descend.optim.rules.base import Rule

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

if not TYPE_CHECKING:  # type checkers accept only the names above

    def __getattr__(name: str) -> None:
        """Refuse an unknown name, such as torch's `Adagrad`, and suggest the nearest one."""
        from descend.optim.compat.torch_optim import REFUSED

        close = "" if name.startswith("_") else nearest(name, __all__)
        close = f": {REFUSED[name]}" if name in REFUSED else close
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'{close}")
