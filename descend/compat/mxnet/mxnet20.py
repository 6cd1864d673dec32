"""MXNet 2.0's optimizers: their names, arguments, defaults and arithmetic, by our rules.

The decay is added after clipping, clip(r g) + λ w, except in AdaBelief, which clips it too, and in AdamW, LAMB, LANS
and Ftrl, which apply it themselves. Every constructor has a default rate and overwrites a schedule's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.compat.mxnet.common import EXEMPT, Common, needs_matrix
from descend.errors import Unsupported
from descend.optim.rules.adabelief import AdaBelief
from descend.optim.rules.adadelta import AdaDelta
from descend.optim.rules.adagrad import AdaGrad, GroupAdaGrad
from descend.optim.rules.adam import Adam, AdamW
from descend.optim.rules.adamax import Adamax
from descend.optim.rules.dcasgd import DCASGD
from descend.optim.rules.ftml import FTML
from descend.optim.rules.ftrl import FTRL
from descend.optim.rules.lamb import LAMB
from descend.optim.rules.lans import LANS
from descend.optim.rules.lars import LARS
from descend.optim.rules.nadam import Nadam
from descend.optim.rules.rmsprop import RMSProp
from descend.optim.rules.sgd import NAG, SGD
from descend.optim.rules.sgld import SGLD
from descend.optim.rules.signum import SignSGD, Signum

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.compat.translation import Translation

__all__ = ["OPTIMIZERS", "REFUSED"]


def _sgd(common: Common, momentum: float = 0.0, lazy_update: bool = False) -> Translation:
    lr = common.schedule.rate(0.1, overwrites=True)
    return common.recipe(SGD(momentum, rate_inside=True), lr, kernel=common.fused, by_rows=lazy_update)


def _nag(common: Common, momentum: float = 0.9) -> Translation:
    return common.recipe(NAG(momentum), common.schedule.rate(0.1, overwrites=True), kernel=common.fused)


def _signum(common: Common, momentum: float = 0.9, wd_lh: float = 0.0) -> Translation:
    lr = common.schedule.rate(0.01, overwrites=True)
    if momentum:
        return common.recipe(Signum(momentum, wd_lh), lr, kernel=common.fused)
    return common.sign_alone().recipe(SignSGD(), lr, kernel=True, decay="decoupled", more_decay=wd_lh)


def _adagrad(common: Common, epsilon: float = 1e-6) -> Translation:
    return common.recipe(AdaGrad(epsilon), common.schedule.rate(0.01, overwrites=True), kernel=False)


def _rmsprop(
    common: Common,
    rho: float = 0.9,
    momentum: float = 0.9,
    epsilon: float = 1e-8,
    centered: bool = False,
    clip_weights: float | None = None,
) -> Translation:
    used = momentum if centered else 0.0
    if clip_weights and clip_weights < 0 and not common.fused:
        raise Unsupported(
            f"clip_weights {clip_weights!r} has lower and upper bound swapped here; give None for no bound"
        )
    limit = clip_weights if clip_weights and clip_weights > 0 else None
    rule = RMSProp(rho, epsilon, centered, centered, used, used > 0, limit)
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=common.fused)


def _adadelta(common: Common, rho: float = 0.9, epsilon: float = 1e-6) -> Translation:
    return common.recipe(AdaDelta(rho, epsilon), common.schedule.rate(1.0, overwrites=True), kernel=False)


def _adam(
    common: Common, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, lazy_update: bool = False
) -> Translation:
    rule = Adam(beta1, beta2, epsilon, eps_at="uncorrected")
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=common.fused, by_rows=lazy_update)


def _adamw(
    common: Common, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, correct_bias: bool = True
) -> Translation:
    if common.rescale_grad == 0:
        raise Unsupported("MXNet's AdamW counts such an update and does not make it; leave the step out instead")
    decay_at = "corrected" if common.fused else "corrected after"
    rule = AdamW(beta1, beta2, epsilon, "uncorrected", correct_bias, decay_at=decay_at)
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=common.fused)


def _adabelief(
    common: Common, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, correct_bias: bool = True
) -> Translation:
    rule = AdaBelief(beta1, beta2, epsilon, "uncorrected", correct_bias)
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=common.fused, decay="clipped")


def _adamax(common: Common, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Translation:
    return common.recipe(Adamax(beta1, beta2, epsilon), common.schedule.rate(2e-3, overwrites=True), kernel=False)


def _nadam(
    common: Common,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    schedule_decay: float = 0.004,
) -> Translation:
    rule = Nadam(beta1, beta2, epsilon, schedule_decay)
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=False)


def _lars(
    common: Common, momentum: float = 0.0, eta: float = 0.001, epsilon: float = 1e-8, lazy_update: bool = False
) -> Translation:
    if common.fused and (common.aggregate_num or 1) > 1:
        common.refuse_negative_factor("LARS with aggregate_num")
    # Here alone a bound of 0 reaches the kernel, which then clips everything to 0.
    bound = 0.0 if common.clip_gradient == 0 else common.clip(kernel=common.fused)
    rule = LARS(momentum, eta, epsilon, clip_inside=bound)
    lr = common.schedule.rate(0.1, overwrites=True)
    return common.recipe(rule, lr, kernel=common.fused, clip_inside=True, exempt=EXEMPT)


def _lamb(
    common: Common,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    bias_correction: bool = True,
) -> Translation:
    rule = LAMB(beta1, beta2, epsilon, bias_correction, *common.bounds(lower_bound, upper_bound))
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=common.fused)


def _lans(
    common: Common,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
) -> Translation:
    clip = common.clip(kernel=common.fused)
    rule = LANS(beta1, beta2, epsilon, *common.bounds(lower_bound, upper_bound), not common.fused, clip)
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=common.fused, clip_inside=True)


def _dcasgd(common: Common, momentum: float = 0.0, lamda: float = 0.04) -> Translation:
    return common.recipe(DCASGD(lamda, momentum), common.schedule.rate(0.1, overwrites=True), kernel=False)


def _ftrl(common: Common, lamda1: float = 0.01, beta: float = 1.0) -> Translation:
    return common.recipe(FTRL(lamda1, beta), common.schedule.rate(0.1, overwrites=True), kernel=common.fused)


def _ftml(common: Common, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8) -> Translation:
    rule = FTML(beta1, beta2, epsilon)
    return common.recipe(rule, common.schedule.rate(2.5e-3, overwrites=True), kernel=common.fused)


def _sgld(common: Common) -> Translation:
    return common.recipe(SGLD(), common.schedule.rate(0.1, overwrites=True), kernel=False)


def _group_adagrad(common: Common, epsilon: float = 1e-6) -> Translation:
    common.refuse_decay("GroupAdaGrad")
    lr = common.schedule.rate(0.01, overwrites=True)
    return common.recipe(GroupAdaGrad(epsilon), lr, kernel=False, refuse=needs_matrix)


OPTIMIZERS: dict[str, Callable[..., Translation]] = {
    "sgd": _sgd,
    "nag": _nag,
    "signum": _signum,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adadelta": _adadelta,
    "adam": _adam,
    "adamw": _adamw,
    "adabelief": _adabelief,
    "adamax": _adamax,
    "nadam": _nadam,
    "lars": _lars,
    "lamb": _lamb,
    "lans": _lans,
    "dcasgd": _dcasgd,
    "ftrl": _ftrl,
    "ftml": _ftml,
    "sgld": _sgld,
    "groupadagrad": _group_adagrad,
}

REFUSED = {
    "lbsgd": "MXNet 2.0 removed LBSGD; mxnet-1.9 has it",
    "ccsgd": "MXNet 2.0 removed this alias; it is sgd",
    "test": "it is there for MXNet's own tests; sgd with rescale_grad is the same rule",
}
