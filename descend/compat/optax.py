"""optax's optimizers and schedules: their names, arguments, defaults and arithmetic, by our rules.

A learning rate that is a function of the count is one of ours already: optax counts from 0, as we do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from descend.compat.translation import Translation, falling
from descend.errors import RuleError, Unsupported
from descend.optim.rules.adabelief import AdaBelief
from descend.optim.rules.adadelta import AdaDelta
from descend.optim.rules.adagrad import AdaGrad
from descend.optim.rules.adam import Adam
from descend.optim.rules.adamax import Adamax
from descend.optim.rules.lamb import LAMB
from descend.optim.rules.lars import LARS
from descend.optim.rules.lion import Lion
from descend.optim.rules.rmsprop import RMSProp
from descend.optim.rules.sgd import SGD
from descend.optim.rules.signum import SignSGD, Signum
from descend.optim.schedules import Constant, Cosine, Polynomial, Ramp, Schedule, Shifted, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OPTIMIZERS", "REFUSED", "REFUSED_SCHEDULES", "SCHEDULES"]


def _no(**given: Any) -> None:
    """Refuse arguments whose arithmetic is not supported."""
    for name, value in given.items():
        if value is not None and not (isinstance(value, (bool, int, float)) and value == 0):
            raise Unsupported(f"optax's {name}={value!r} is not supported; leave it at its default")


def _unmasked(**masks: Any) -> None:
    """Refuse a mask: groups say here what is decayed or scaled."""
    for name, mask in masks.items():
        if mask is not None and mask is not True:
            raise Unsupported(f"optax's {name} is a tree; give groups with weight_decay=0 or scaled=False instead")


def _adam_rule(b1: float, b2: float, eps: float, eps_root: float, nesterov: bool) -> Adam:
    _no(nesterov=nesterov)
    if eps and eps_root:
        raise Unsupported(
            f"optax's eps {eps!r} and eps_root {eps_root!r} together are not supported; set one of them to 0"
        )
    return Adam(b1, b2, eps_root or eps, "inside" if eps_root else "outside")


def _sgd(
    learning_rate: Any, momentum: float | None = None, nesterov: bool = False, accumulator_dtype: None = None
) -> Translation:
    _no(accumulator_dtype=accumulator_dtype)
    return Translation(SGD(momentum or 0.0, nesterov=nesterov and bool(momentum)), learning_rate)


def _adam(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: None = None,
    nesterov: bool = False,
) -> Translation:
    _no(mu_dtype=mu_dtype)
    return Translation(_adam_rule(b1, b2, eps, eps_root, nesterov), learning_rate)


def _adamw(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: None = None,
    weight_decay: float = 1e-4,
    mask: None = None,
    nesterov: bool = False,
) -> Translation:
    _no(mu_dtype=mu_dtype)
    _unmasked(mask=mask)
    rule = _adam_rule(b1, b2, eps, eps_root, nesterov)
    return Translation(rule, learning_rate, weight_decay=weight_decay, decay="decoupled")


def _adagrad(learning_rate: Any, initial_accumulator_value: float = 0.1, eps: float = 1e-7) -> Translation:
    return Translation(AdaGrad(eps, eps_inside=True, initial=initial_accumulator_value), learning_rate)


def _rmsprop(
    learning_rate: Any,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> Translation:
    _no(initial_scale=initial_scale, nesterov=nesterov, bias_correction=bias_correction)
    kept = momentum or 0.0
    return Translation(RMSProp(decay, eps, eps_in_sqrt, centered, kept, kept > 0), learning_rate)


def _adadelta(
    learning_rate: Any,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    weight_decay_mask: None = None,
) -> Translation:
    _unmasked(weight_decay_mask=weight_decay_mask)
    return Translation(AdaDelta(rho, eps), learning_rate, weight_decay=weight_decay)


def _adamax(learning_rate: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Translation:
    return Translation(Adamax(b1, b2, eps, eps_inside=True), learning_rate)


def _adamaxw(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    mask: None = None,
) -> Translation:
    _unmasked(mask=mask)
    rule = Adamax(b1, b2, eps, eps_inside=True)
    return Translation(rule, learning_rate, weight_decay=weight_decay, decay="decoupled")


def _lion(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: None = None,
    weight_decay: float = 1e-3,
    mask: None = None,
) -> Translation:
    _no(mu_dtype=mu_dtype)
    _unmasked(mask=mask)
    return Translation(Lion(b1, b2), learning_rate, weight_decay=weight_decay, decay="decoupled")


def _lamb(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    mask: None = None,
) -> Translation:
    _no(eps_root=eps_root)
    _unmasked(mask=mask)
    return Translation(LAMB(b1, b2, eps), learning_rate, weight_decay=weight_decay)


def _lars(
    learning_rate: Any,
    weight_decay: float = 0.0,
    weight_decay_mask: bool | None = True,
    trust_coefficient: float = 1e-3,
    eps: float = 0.0,
    trust_ratio_mask: bool | None = True,
    momentum: float = 0.9,
    nesterov: bool = False,
) -> Translation:
    _unmasked(weight_decay_mask=weight_decay_mask, trust_ratio_mask=trust_ratio_mask)
    rule = LARS(momentum, trust_coefficient, eps, nesterov=nesterov and momentum > 0, ratio_of="sum")
    return Translation(rule, learning_rate, weight_decay=weight_decay)


def _adabelief(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-16,
    eps_root: float = 1e-16,
    nesterov: bool = False,
) -> Translation:
    _no(nesterov=nesterov)
    if eps != eps_root:
        raise Unsupported(f"optax's eps {eps!r} and eps_root {eps_root!r} must be equal here, as in the paper")
    return Translation(AdaBelief(b1, b2, eps), learning_rate)


def _sign_sgd(learning_rate: Any) -> Translation:
    return Translation(SignSGD(), learning_rate)


def _signum(learning_rate: Any, beta: float = 0.9, accumulator_dtype: None = None) -> Translation:
    _no(accumulator_dtype=accumulator_dtype)
    return Translation(Signum(beta), learning_rate)


OPTIMIZERS: dict[str, Callable[..., Translation]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adadelta": _adadelta,
    "adamax": _adamax,
    "adamaxw": _adamaxw,
    "lion": _lion,
    "lamb": _lamb,
    "lars": _lars,
    "adabelief": _adabelief,
    "sign_sgd": _sign_sgd,
    "signum": _signum,
}

REFUSED = {
    "nadam": "it has a constant momentum where Dozat's and ours warms up",
    "nadamw": "it has a constant momentum where Dozat's and ours warms up",
    "adafactor": "its factored second moment adds eps to the squares and has a first moment; the torch one is had",
    "rprop": "it makes the move of the step before, and towards the gradient; torch's is the published rule",
    "noisy_sgd": "its noise falls with the count by a law of its own; SGLD's is the learning rate's",
    **dict.fromkeys(
        ("adan", "amsgrad", "fromage", "lbfgs", "novograd", "optimistic_gradient_descent", "radam", "sm3", "yogi"),
        "there is no such rule here",
    ),
}


def _constant(value: float) -> Schedule:
    return Constant(value)


def _after(schedule: Schedule, begin: int) -> Schedule:
    return Shifted(schedule, -begin) if begin > 0 else schedule  # optax takes a negative begin for 0


def _linear(init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0) -> Schedule:
    return _polynomial(init_value, end_value, 1.0, transition_steps, transition_begin)


def _polynomial(
    init_value: float, end_value: float, power: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    if transition_steps <= 0 or power == 0:  # 0⁰ is 1
        return Constant(init_value)
    return _after(Polynomial(init_value, transition_steps, end_value, power), transition_begin)


def _cosine(init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0) -> Schedule:
    if exponent != 1:
        raise Unsupported(f"optax's exponent={exponent!r} is not supported; leave it at 1")
    if decay_steps <= 0:
        raise RuleError(f"optax's cosine decay wants at least one step after the warm-up and has {decay_steps!r}")
    return Cosine(init_value, decay_steps, alpha * init_value)


def _exponential(
    init_value: float,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    if transition_steps <= 0 or decay_rate == 0:
        return Constant(init_value)
    rising = decay_rate >= 1  # end_value is then the highest rate, else the lowest, before transition_begin too
    if end_value is not None and (init_value >= end_value if rising else init_value <= end_value):
        return Constant(end_value)
    every, factor = (transition_steps, decay_rate) if staircase else (1, decay_rate ** (1 / transition_steps))
    if end_value is None or not rising:
        return _after(Step(init_value, every, factor, end_value or 0.0), transition_begin)
    climb: Schedule = Step(init_value, every, factor)
    if init_value > 0 and factor > 1:
        climb = climb.then(Constant(end_value), every * math.ceil(math.log(end_value / init_value) / math.log(factor)))
    return _after(climb, transition_begin)


def _piecewise_constant(init_value: float, boundaries_and_scales: Mapping[int, float] | None = None) -> Schedule:
    return falling(init_value, (boundaries_and_scales or {}).items())


def _warmup_constant(init_value: float, peak_value: float, warmup_steps: int) -> Schedule:
    return _linear(init_value, peak_value, warmup_steps)  # without a warm-up that is init_value for ever, as there


def _warmup_cosine(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    falling = _cosine(peak_value, decay_steps - warmup_steps, end_value / peak_value if peak_value else 0.0, exponent)
    return Ramp(init_value, peak_value, warmup_steps).then(falling, warmup_steps)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant_schedule": _constant,
    "linear_schedule": _linear,
    "polynomial_schedule": _polynomial,
    "cosine_decay_schedule": _cosine,
    "exponential_decay": _exponential,
    "piecewise_constant_schedule": _piecewise_constant,
    "warmup_constant_schedule": _warmup_constant,
    "warmup_cosine_decay_schedule": _warmup_cosine,
}

_JOIN = "join schedules of descend.optim.schedules with a.then(b, at_step), or give a function of the step as the rate"

REFUSED_SCHEDULES: Mapping[str, str] = dict.fromkeys(
    (
        "cosine_onecycle_schedule",
        "join_schedules",
        "linear_onecycle_schedule",
        "piecewise_interpolate_schedule",
        "sgdr_schedule",
        "warmup_exponential_decay_schedule",
    ),
    _JOIN,
)
