"""Optimizers. A constant that is not given is 0, as in LBANN, where nothing fills it in."""

from __future__ import annotations

from typing import Any

from descend.graph import optimizers
from descend.graph.text.schema import message_info
from descend.lbann.core.messages import FromMessage, message_class

__all__ = ["SGD", "AdaGrad", "Adam", "HypergradientAdam", "NoOptimizer", "Optimizer", "RMSprop"]

Optimizer = optimizers.Optimizer


class _Described(FromMessage, Optimizer):
    """An optimizer whose constants are its message's fields."""

    envelope = "Optimizer"


def _made(name: str) -> Any:
    kind: Any = getattr(optimizers, name)
    assert message_info(kind.message) is not None
    return message_class(kind.message, _Described)


SGD = _made("SGD")
Adam = _made("Adam")
AdaGrad = _made("AdaGrad")
RMSprop = _made("RMSprop")
HypergradientAdam = _made("HypergradientAdam")
NoOptimizer = _made("NoOptimizer")
