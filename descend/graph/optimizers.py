"""Update rules as an experiment's text describes them: plain values, without arithmetic.

A field that is not set is 0; nothing is filled in. w is the weights, g the gradient of the mini-batch mean, t the
number of updates.

    SGD                v = momentum v + g; w -= learn_rate v, or with nesterov w -= learn_rate (momentum v + g)
    Adam               m, v running means of g and g²;
                       w -= learn_rate (√(1−beta2ᵗ) / (1−beta1ᵗ) m / (√v + eps) + adamw_weight_decay w)
    AdaGrad            s += g²; w -= learn_rate g / (√s + eps)
    RMSprop            s = decay_rate s + (1 − decay_rate) g²; w -= learn_rate g / (√s + eps)
    HypergradientAdam  Adam whose rate moves by hyper_learning_rate ⟨g, last direction⟩
    NoOptimizer        w stays
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from descend.errors import GraphError
from descend.graph.fields import described, field_types

__all__ = ["SGD", "AdaGrad", "Adam", "HypergradientAdam", "NoOptimizer", "Optimizer", "RMSprop", "check_optimizer"]

_FRACTIONS = frozenset(
    ("beta1", "beta2", "decay_rate", "momentum")
)  # at 1 or above the running mean never forgets, so it diverges or stalls


class Optimizer:
    """What all update rules have in common."""

    message: ClassVar[str]
    rates: ClassVar[tuple[str, ...]] = ("learn_rate",)  # without any of these weights stay as they are
    where: str | None = None

    @property
    def stands_still(self) -> bool:
        """Whether the weights would stay as they are, because no rate is set."""
        return bool(self.rates) and not any(getattr(self, name) for name in self.rates)

    def problems(self) -> list[str]:
        """What is wrong with the numbers: a negative or non-finite one, or a decay that is not below 1."""
        found: list[str] = []
        for name, kind in field_types(type(self), Optimizer).items():
            value: Any = getattr(self, name)
            if kind.base is not float:
                continue
            if not math.isfinite(value) or value < 0:
                found.append(f"{type(self).__name__}.{name} is {value!r}; expected a finite number that is at least 0")
            elif name in _FRACTIONS and value >= 1:
                found.append(f"{type(self).__name__}.{name} is {value!r}; expected at least 0 and below 1")
        return found


@described
class SGD(Optimizer):
    """Gradient descent with momentum."""

    message: ClassVar[str] = "Optimizer.SGD"

    learn_rate: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False


@described
class Adam(Optimizer):
    """Adam with ε beside the uncorrected root; its weight decay is decoupled."""

    message: ClassVar[str] = "Optimizer.Adam"

    learn_rate: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0
    adamw_weight_decay: float = 0.0


@described
class AdaGrad(Optimizer):
    """Rates that shrink with the sum of squared gradients."""

    message: ClassVar[str] = "Optimizer.AdaGrad"

    learn_rate: float = 0.0
    eps: float = 0.0


@described
class RMSprop(Optimizer):
    """Rates divided by the running size of the gradient."""

    message: ClassVar[str] = "Optimizer.RMSprop"

    learn_rate: float = 0.0
    decay_rate: float = 0.0
    eps: float = 0.0


@described
class HypergradientAdam(Optimizer):
    """Adam that descends on its own rate, one for each weights object."""

    message: ClassVar[str] = "Optimizer.HypergradientAdam"
    rates: ClassVar[tuple[str, ...]] = ("init_learning_rate", "hyper_learning_rate")

    init_learning_rate: float = 0.0
    hyper_learning_rate: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0


@described
class NoOptimizer(Optimizer):
    """The weights are not trained."""

    message: ClassVar[str] = "Optimizer.NoOptimizer"
    rates: ClassVar[tuple[str, ...]] = ()


def check_optimizer(optimizer: Optimizer, of: str) -> None:
    """Refuse numbers that no rule can use.

    Args:
        optimizer: The description.
        of: Whose it is, for the message, such as "the default optimizer".

    Raises:
        GraphError: every such number, with the place of the optimizer in its text.
    """
    place = f"{optimizer.where}: " if optimizer.where else ""
    problems = [f"{place}{of}: {problem}" for problem in optimizer.problems()]
    if problems:
        raise GraphError(problems)
