"""Optimizers: rules written as their equations, and the engine that applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.errors import nearest
from descend.optim import groups, rules, schedules
from descend.optim.compat import from_library, schedule_from_library
from descend.optim.compat.mxnet.gluon import GluonTrainer
from descend.optim.explain import Explanation, explain
from descend.optim.named_optimizers import (
    DCASGD,
    FTML,
    FTRL,
    LAMB,
    LANS,
    LARS,
    LBSGD,
    NAG,
    SGD,
    SGLD,
    SOAP,
    AdaBelief,
    AdaDelta,
    Adafactor,
    AdaGrad,
    Adam,
    Adamax,
    AdamW,
    GroupAdaGrad,
    HypergradientAdam,
    Lion,
    Muon,
    Nadam,
    RMSProp,
    Rprop,
    ScheduleFreeAdamW,
    ScheduleFreeSGD,
    SignSGD,
    Signum,
    create,
    names,
    register,
)
from descend.optim.optimizer import Optimizer, face
from descend.optim.rules.base import Rule

__all__ = [
    "DCASGD",
    "FTML",
    "FTRL",
    "LAMB",
    "LANS",
    "LARS",
    "LBSGD",
    "NAG",
    "SGD",
    "SGLD",
    "SOAP",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "Adafactor",
    "Adam",
    "AdamW",
    "Adamax",
    "Explanation",
    "GluonTrainer",
    "GroupAdaGrad",
    "HypergradientAdam",
    "Lion",
    "Muon",
    "Nadam",
    "Optimizer",
    "RMSProp",
    "Rprop",
    "Rule",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "SignSGD",
    "Signum",
    "create",
    "explain",
    "face",
    "from_library",
    "groups",
    "names",
    "register",
    "rules",
    "schedule_from_library",
    "schedules",
]

if not TYPE_CHECKING:  # checkers are to know the names above and no others

    def __getattr__(name: str) -> None:
        """Answer a name that is not there, such as torch's `Adagrad`, with the nearest one."""
        close = "" if name.startswith("_") else nearest(name, __all__)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'{close}")
