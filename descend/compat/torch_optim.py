"""torch.optim's optimizers and schedulers: their names, arguments, defaults and arithmetic, by our rules.

`foreach`, `fused` and `capturable` choose a kernel there and change no number, so they are accepted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from descend.compat.translation import TranslatedGroup, Translation, falling
from descend.errors import RuleError, Unsupported
from descend.optim.rules.adadelta import AdaDelta
from descend.optim.rules.adafactor import Adafactor
from descend.optim.rules.adagrad import AdaGrad
from descend.optim.rules.adam import Adam
from descend.optim.rules.adamax import Adamax
from descend.optim.rules.muon import COEFFICIENTS, Muon
from descend.optim.rules.nadam import Nadam
from descend.optim.rules.rmsprop import RMSProp
from descend.optim.rules.rprop import Rprop
from descend.optim.rules.sgd import SGD
from descend.optim.schedules import Constant, Cosine, MultiStep, Polynomial, Ramp, Schedule, Step
from descend.rule_index import NO_RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from descend.optim.rules.base import Rule

__all__ = ["OPTIMIZERS", "REFUSED", "REFUSED_SCHEDULES", "SCHEDULES"]


def _recipe(
    rule: Rule, lr: Any, weight_decay: float, maximize: bool, differentiable: bool, *, decoupled: bool = False
) -> Translation:
    if differentiable:
        raise Unsupported(
            "differentiable=True asks for gradients through the update, which is made without a graph here"
        )
    decay = "decoupled" if decoupled else "coupled"
    return Translation(rule, _rate(lr), weight_decay=weight_decay, decay=decay, maximize=maximize)


def _rate(lr: Any) -> Any:
    """A tensor stays one, since scripts and torch's schedulers write into it and the next update reads it again."""
    return lr if isinstance(lr, Tensor) else float(lr)


def _pair(values: Sequence[float], name: str = "betas") -> tuple[float, float]:
    if len(values) != 2 or None in values:
        raise RuleError(f"{name} must be two numbers, got {values!r}")
    return float(values[0]), float(values[1])


def _sgd(
    lr: float = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    *,
    maximize: bool = False,
    foreach: bool | None = None,
    differentiable: bool = False,
    fused: bool | None = None,
) -> Translation:
    if nesterov and (not momentum or dampening):
        raise RuleError("torch's SGD takes nesterov only with a momentum and without dampening")
    rule = SGD(momentum, dampening, nesterov)
    return _recipe(rule, lr, weight_decay, maximize, differentiable)


def _adam(
    lr: float = 1e-3,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    *,
    foreach: bool | None = None,
    maximize: bool = False,
    capturable: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
    decoupled_weight_decay: bool = False,
) -> Translation:
    rule = Adam(*_pair(betas), eps, amsgrad=amsgrad)
    return _recipe(rule, lr, weight_decay, maximize, differentiable, decoupled=decoupled_weight_decay)


def _adamw(
    lr: float = 1e-3,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
    *,
    maximize: bool = False,
    foreach: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
) -> Translation:
    rule = Adam(*_pair(betas), eps, amsgrad=amsgrad)
    return _recipe(rule, lr, weight_decay, maximize, differentiable, decoupled=True)


def _sparse_adam(
    lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8, maximize: bool = False
) -> Translation:
    made = _recipe(Adam(*_pair(betas), eps, "uncorrected"), lr, 0.0, maximize, differentiable=False)
    return replace(made, by_rows=True)


def _adamax(
    lr: float = 2e-3,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    foreach: bool | None = None,
    *,
    maximize: bool = False,
    differentiable: bool = False,
    capturable: bool = False,
) -> Translation:
    return _recipe(Adamax(*_pair(betas), eps, eps_inside=True), lr, weight_decay, maximize, differentiable)


def _nadam(
    lr: float = 2e-3,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
    decoupled_weight_decay: bool = False,
    *,
    foreach: bool | None = None,
    maximize: bool = False,
    capturable: bool = False,
    differentiable: bool = False,
) -> Translation:
    rule = Nadam(*_pair(betas), eps, momentum_decay)
    return _recipe(rule, lr, weight_decay, maximize, differentiable, decoupled=decoupled_weight_decay)


def _rmsprop(
    lr: float = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    capturable: bool = False,
    foreach: bool | None = None,
    maximize: bool = False,
    differentiable: bool = False,
) -> Translation:
    rule = RMSProp(alpha, eps, centered=centered, momentum=momentum)
    return _recipe(rule, lr, weight_decay, maximize, differentiable)


def _adagrad(
    lr: float = 1e-2,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    foreach: bool | None = None,
    *,
    maximize: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
) -> Translation:
    rule = AdaGrad(eps, lr_decay=lr_decay, initial=initial_accumulator_value)
    return _recipe(rule, lr, weight_decay, maximize, differentiable)


def _adadelta(
    lr: float = 1.0,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    foreach: bool | None = None,
    *,
    capturable: bool = False,
    maximize: bool = False,
    differentiable: bool = False,
) -> Translation:
    return _recipe(AdaDelta(rho, eps), lr, weight_decay, maximize, differentiable)


def _rprop(
    lr: float = 1e-2,
    etas: Sequence[float] = (0.5, 1.2),
    step_sizes: Sequence[float] = (1e-6, 50.0),
    *,
    capturable: bool = False,
    foreach: bool | None = None,
    maximize: bool = False,
    differentiable: bool = False,
) -> Translation:
    return _recipe(Rprop(*_pair(etas, "etas"), *_pair(step_sizes, "step_sizes")), lr, 0.0, maximize, differentiable)


def _adafactor(
    lr: float = 1e-2,
    beta2_decay: float = -0.8,
    eps: Sequence[float | None] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
    *,
    foreach: bool | None = None,
    maximize: bool = False,
) -> Translation:
    if len(eps) != 2:
        raise RuleError(f"eps is a pair, and its first part may be None; it is {eps!r}")
    rule = Adafactor(beta2_decay, eps[0], eps[1] or 0.0, d)
    return _recipe(rule, lr, weight_decay, maximize, differentiable=False)


def _matrix_only(member: TranslatedGroup) -> str | None:
    shape = tuple(member.tensor.shape)
    return None if len(shape) == 2 else f"torch's Muon takes matrices only and this one is {shape}"


def _muon(
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_coefficients: Sequence[float] = COEFFICIENTS,
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr_fn: str | None = None,
) -> Translation:
    if len(ns_coefficients) != 3 or None in ns_coefficients:
        raise RuleError(f"ns_coefficients must be three finite numbers, got {ns_coefficients!r}")
    a, b, c = ns_coefficients
    rule = Muon(momentum, nesterov, ns_steps, (a, b, c), eps, adjust_lr_fn or "original", bfloat16=True)
    return Translation(rule, _rate(lr), weight_decay=weight_decay, decay="decoupled", refuse=_matrix_only)


OPTIMIZERS: dict[str, Callable[..., Translation]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adamw,
    "SparseAdam": _sparse_adam,
    "Adamax": _adamax,
    "NAdam": _nadam,
    "RMSprop": _rmsprop,
    "Adagrad": _adagrad,
    "Adadelta": _adadelta,
    "Rprop": _rprop,
    "Adafactor": _adafactor,
    "Muon": _muon,
}

REFUSED = NO_RULES


def _factor(title: str, name: str, value: float, *, positive: bool = False) -> float:
    """A factor that torch wants from 0 to 1."""
    if not 0 <= value <= 1 or (positive and value == 0):
        raise RuleError(f"torch's {title} wants {name} {'above' if positive else 'from'} 0 to 1 and it is {value!r}")
    return value


def _fresh(title: str, last_epoch: int) -> None:
    if last_epoch != -1:
        raise Unsupported(
            f"torch's {title} with last_epoch={last_epoch!r} continues from the rate that it finds in an optimizer; "
            f"leave last_epoch out and take schedule.shifted({last_epoch!r} + 1), or begin_at(updates) of the optimizer"
        )


def _step_lr(lr: float, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> Schedule:
    _fresh("StepLR", last_epoch)
    return Step(lr, step_size, gamma)


def _multi_step_lr(lr: float, milestones: Sequence[float], gamma: float = 0.1, last_epoch: int = -1) -> Schedule:
    _fresh("MultiStepLR", last_epoch)
    reached = sorted(int(step) for step in milestones if step >= 0 and step == int(step))  # as torch never sees others
    if len(set(reached)) == len(reached):
        return MultiStep(lr, tuple(reached), gamma)
    return falling(lr, [(step, gamma) for step in reached])  # one that is given twice acts twice


def _constant_lr(lr: float, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1) -> Schedule:
    _fresh("ConstantLR", last_epoch)
    low = Constant(lr * _factor("ConstantLR", "factor", factor))
    if total_iters <= 0:  # torch takes the factor back at step total_iters, so never where that is the first one
        return low
    if factor == 0:
        raise RuleError(f"torch's ConstantLR divides by its factor at step {total_iters}, and the factor is 0")
    return low.then(Constant(lr), total_iters)


def _linear_lr(
    lr: float, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5, last_epoch: int = -1
) -> Schedule:
    _fresh("LinearLR", last_epoch)
    start = lr * _factor("LinearLR", "start_factor", start_factor, positive=True)
    end = lr * _factor("LinearLR", "end_factor", end_factor)
    return Ramp(start, end, total_iters) if total_iters > 0 else Constant(start)


def _exponential_lr(lr: float, gamma: float, last_epoch: int = -1) -> Schedule:
    _fresh("ExponentialLR", last_epoch)
    return Step(lr, 1, gamma)


def _polynomial_lr(lr: float, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> Schedule:
    _fresh("PolynomialLR", last_epoch)
    never = total_iters <= 0 or power == 0  # 0⁰ is 1
    return Constant(lr) if never else Polynomial(lr, total_iters, 0.0, power)


def _cosine_lr(lr: float, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> Schedule:
    _fresh("CosineAnnealingLR", last_epoch)
    if T_max < 1:
        raise RuleError(f"T_max must be an integer >= 1, got {T_max!r}")
    return Cosine(lr, T_max, eta_min, repeats=True)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "StepLR": _step_lr,
    "MultiStepLR": _multi_step_lr,
    "ConstantLR": _constant_lr,
    "LinearLR": _linear_lr,
    "ExponentialLR": _exponential_lr,
    "PolynomialLR": _polynomial_lr,
    "CosineAnnealingLR": _cosine_lr,
}

_ITSELF = "torch's own works over every optimizer here: torch.optim.lr_scheduler.{}(optimizer, ...)"
_FUNCTION = "give the optimizer a function from the number of updates so far to the rate as lr"

REFUSED_SCHEDULES = {
    **{
        name: f"{reason}; {_ITSELF.format(name)}"
        for name, reason in {
            "OneCycleLR": "it moves the momentum as well as the rate",
            "CyclicLR": "it moves the momentum as well as the rate",
            "CosineAnnealingWarmRestarts": "no schedule here restarts at growing intervals",
            "ReduceLROnPlateau": "it follows a measured value and is no function of the step",
            "SWALR": "it starts from whatever rate it finds",
            "SequentialLR": "it is made of schedulers; join translated ones with a.then(b, at_step)",
            "ChainedScheduler": "it is made of schedulers that multiply each other's rates",
        }.items()
    },
    "LambdaLR": f"it is made of a function; {_FUNCTION}",
    "MultiplicativeLR": f"it is made of a function; {_FUNCTION}",
}
