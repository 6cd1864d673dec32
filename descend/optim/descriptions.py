"""The rules and options that LBANN's messages of optimizers mean, such as `descend.Adam(learn_rate=0.01)`.

LBANN has no coupled weight decay here; L2 is a term of its objective function. Each optimizer has a learning rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.optim.rules.adagrad import AdaGrad
from descend.optim.rules.adam import AdamW
from descend.optim.rules.hypergradient import HypergradientAdam
from descend.optim.rules.rmsprop import RMSProp
from descend.optim.rules.sgd import SGD

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.optim.rules.base import Rule

    Options = tuple[Rule, float, float]

__all__ = ["MEANINGS", "group_options"]


def _sgd(learn_rate: float, momentum: float, nesterov: bool) -> Options:
    # Without momentum LBANN takes plain SGD, whatever nesterov says.
    return SGD(momentum, nesterov=nesterov and momentum > 0), learn_rate, 0.0


def _adam(learn_rate: float, beta1: float, beta2: float, eps: float, adamw_weight_decay: float) -> Options:
    return AdamW(beta1, beta2, eps, "uncorrected", skip_nonfinite=True), learn_rate, adamw_weight_decay


def _adagrad(learn_rate: float, eps: float) -> Options:
    return AdaGrad(eps), learn_rate, 0.0


def _rmsprop(learn_rate: float, decay_rate: float, eps: float) -> Options:
    return RMSProp(decay_rate, eps), learn_rate, 0.0


def _hypergradient_adam(
    init_learning_rate: float, hyper_learning_rate: float, beta1: float, beta2: float, eps: float
) -> Options:
    return HypergradientAdam(hyper_learning_rate, beta1, beta2, eps), init_learning_rate, 0.0


MEANINGS: dict[str, Callable[..., Options]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdaGrad": _adagrad,
    "RMSprop": _rmsprop,
    "HypergradientAdam": _hypergradient_adam,
}


def group_options(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The options of a group for a message.

    Args:
        name: Of the message, such as "Adam".
        values: All its fields.
    """
    rule, lr, weight_decay = MEANINGS[name](**values)
    form = {} if "decay" in rule.needs else {"decay": "decoupled" if name == "Adam" else "coupled"}
    return {"rule": rule, "lr": lr, "weight_decay": weight_decay, **form}
