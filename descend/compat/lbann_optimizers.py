"""LBANN's optimizers: the messages of its text format (an unset field is 0) and its C++ classes (which have defaults).

LBANN has no coupled weight decay here; L2 is a term of its objective function. Each optimizer has a learning rate.

| name | meaning |
|---|---|
| "SGD", "Adam", "AdaGrad", ... | a message, as a prototext has it: an option that is not given is 0 |
| "sgd", "adam", "adagrad", ... | the C++ class: an option that is not given has the constructor's default |

`descend.Adam` and the other descriptions have published defaults and pass every option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.compat.translation import Translation
from descend.optim.descriptions import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPTIMIZERS", "REFUSED"]


def _means(name: str, *values: float) -> Translation:
    """The translation of a message, all of whose fields are given."""
    rule, lr, weight_decay = MEANINGS[name](*values)
    if name != "Adam":
        return Translation(rule, lr)
    return Translation(rule, lr, weight_decay=weight_decay, decay="decoupled", on_nonfinite="allow")


def _sgd(learn_rate: float = 0.0, momentum: float = 0.0, nesterov: bool = False) -> Translation:
    return _means("SGD", learn_rate, momentum, nesterov)


def _adam(
    learn_rate: float = 0.0,
    beta1: float = 0.0,
    beta2: float = 0.0,
    eps: float = 0.0,
    adamw_weight_decay: float = 0.0,
) -> Translation:
    return _means("Adam", learn_rate, beta1, beta2, eps, adamw_weight_decay)


def _adagrad(learn_rate: float = 0.0, eps: float = 0.0) -> Translation:
    return _means("AdaGrad", learn_rate, eps)


def _rmsprop(learn_rate: float = 0.0, decay_rate: float = 0.0, eps: float = 0.0) -> Translation:
    return _means("RMSprop", learn_rate, decay_rate, eps)


def _hypergradient_adam(
    init_learning_rate: float = 0.0,
    hyper_learning_rate: float = 0.0,
    beta1: float = 0.0,
    beta2: float = 0.0,
    eps: float = 0.0,
) -> Translation:
    return _means("HypergradientAdam", init_learning_rate, hyper_learning_rate, beta1, beta2, eps)


def _adam_object(
    learn_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
    adamw_weight_decay: float = 0.0,
) -> Translation:
    return _adam(learn_rate, beta1, beta2, eps, adamw_weight_decay)


def _adagrad_object(learn_rate: float, eps: float = 1e-8) -> Translation:
    return _adagrad(learn_rate, eps)


def _rmsprop_object(learn_rate: float, decay_rate: float, eps: float = 1e-8) -> Translation:
    return _rmsprop(learn_rate, decay_rate, eps)


def _hypergradient_adam_object(
    init_learning_rate: float = 1e-3,
    hyper_learning_rate: float = 1e-7,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
) -> Translation:
    return _hypergradient_adam(init_learning_rate, hyper_learning_rate, beta1, beta2, eps)


OPTIMIZERS: dict[str, Callable[..., Translation]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdaGrad": _adagrad,
    "RMSprop": _rmsprop,
    "HypergradientAdam": _hypergradient_adam,
    "sgd": _sgd,
    "adam": _adam_object,
    "adagrad": _adagrad_object,
    "rmsprop": _rmsprop_object,
    "hypergradient_adam": _hypergradient_adam_object,
}

REFUSED = {
    "NoOptimizer": "frozen weights have no optimizer: leave them out, or set requires_grad to False",
}
