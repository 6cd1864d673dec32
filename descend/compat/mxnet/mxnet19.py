"""MXNet 1.9's optimizers: their names, arguments, defaults and arithmetic, by our rules.

The decay stands, for clip(x) and λ: A after clipping, clip(r g) + λ w; B clipped too, clip(r g + λ w); C apart.
A: SGD, NAG, Signum, LARS, LBSGD, SGLD. B: Adam, Adamax, Nadam, RMSProp, FTML. C: AdaGrad, AdaDelta, DCASGD, LAMB, Ftrl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.compat.mxnet.common import EXEMPT, Common, needs_matrix, scale_of
from descend.errors import Unsupported
from descend.optim.rules.adadelta import AdaDelta
from descend.optim.rules.adagrad import AdaGrad, GroupAdaGrad
from descend.optim.rules.adam import Adam
from descend.optim.rules.adamax import Adamax
from descend.optim.rules.dcasgd import DCASGD
from descend.optim.rules.ftml import FTML
from descend.optim.rules.ftrl import FTRL
from descend.optim.rules.lamb import LAMB
from descend.optim.rules.lars import LARS
from descend.optim.rules.lbsgd import LBSGD
from descend.optim.rules.nadam import Nadam
from descend.optim.rules.rmsprop import RMSProp
from descend.optim.rules.sgd import NAG, SGD
from descend.optim.rules.sgld import SGLD
from descend.optim.rules.signum import SignSGD, Signum
from descend.optim.schedules import Constant

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.compat.translation import Translation

__all__ = ["OPTIMIZERS", "REFUSED"]


def _sgd(common: Common, momentum: float = 0.0, lazy_update: bool = True) -> Translation:
    lr = common.schedule.rate(0.01, overwrites=False)
    return common.recipe(SGD(momentum, rate_inside=True), lr, kernel=True, by_rows=lazy_update)


def _nag(common: Common, momentum: float = 0.0) -> Translation:
    return common.recipe(NAG(momentum), common.schedule.rate(0.01, overwrites=False), kernel=True)


def _signum(common: Common, momentum: float = 0.9, wd_lh: float = 0.0) -> Translation:
    lr = common.schedule.rate(0.01, overwrites=True)
    if momentum:
        return common.recipe(Signum(momentum, wd_lh), lr, kernel=True)
    if wd_lh:
        raise Unsupported("MXNet 1.9's Signum raises when momentum is 0 and wd_lh is not; use wd, or mxnet-2.0")
    return common.sign_alone().recipe(SignSGD(), lr, kernel=True, decay="decoupled")


def _adagrad(common: Common, eps: float = 1e-7) -> Translation:
    lr = common.schedule.rate(0.01, overwrites=False)
    return common.recipe(AdaGrad(eps, eps_inside=True), lr, kernel=False, decay="decoupled")


def _rmsprop(
    common: Common,
    gamma1: float = 0.9,
    gamma2: float = 0.9,
    epsilon: float = 1e-8,
    centered: bool = False,
    clip_weights: float | None = None,
) -> Translation:
    momentum = gamma2 if centered else 0.0
    limit = clip_weights if clip_weights and clip_weights > 0 else None
    rule = RMSProp(gamma1, epsilon, True, centered, momentum, momentum > 0, limit)
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=True, decay="clipped")


def _adadelta(common: Common, rho: float = 0.9, epsilon: float = 1e-5) -> Translation:
    # This release's AdaDelta has no rate at all: w ← w − δ − λ w, whatever learning_rate, schedule and lr_mult say. A
    # constant schedule refuses a rate that is set later, which would do nothing there.
    return common.without_rate().recipe(AdaDelta(rho, epsilon), Constant(1.0), kernel=False, decay="decoupled")


def _adam(
    common: Common, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, lazy_update: bool = True
) -> Translation:
    rule = Adam(beta1, beta2, epsilon, eps_at="uncorrected")
    return common.recipe(
        rule, common.schedule.rate(1e-3, overwrites=True), kernel=True, decay="clipped", by_rows=lazy_update
    )


def _adamax(common: Common, beta1: float = 0.9, beta2: float = 0.999) -> Translation:
    rule = Adamax(beta1, beta2, eps=0.0)
    return common.recipe(rule, common.schedule.rate(2e-3, overwrites=True), kernel=False, decay="clipped")


def _nadam(
    common: Common,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    schedule_decay: float = 0.004,
) -> Translation:
    rule = Nadam(beta1, beta2, epsilon, schedule_decay)
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=False, decay="clipped")


def _lars(
    common: Common,
    momentum: float = 0.0,
    lazy_update: bool = True,
    eta: float = 0.001,
    eps: float = 0.0,
    momentum_correction: bool = True,
) -> Translation:
    common.refuse_negative_factor("LARS")
    correction = momentum_correction and momentum > 0
    clip = common.clip(kernel=True)
    rule = LARS(momentum, eta, eps, momentum_correction=correction, clip_inside=clip)
    lr = common.schedule.rate(0.01, overwrites=False)
    return common.recipe(rule, lr, kernel=True, clip_inside=True, weight_names=("_weight",), exempt=EXEMPT)


def _lbsgd(
    common: Common,
    momentum: float = 0.0,
    warmup_strategy: str = "linear",
    warmup_epochs: float = 5,
    batch_scale: int = 1,
    updates_per_epoch: int = 32,
    begin_epoch: int = 0,
    num_epochs: int = 60,
) -> Translation:
    rule = LBSGD(
        momentum,
        batch_scale,
        warmup_strategy,
        warmup_epochs,
        updates_per_epoch,
        begin_epoch,
        clip_inside=common.clip(kernel=True),
        norm_scale=scale_of(common.rescale),
    )
    lr = common.schedule.rate(0.01, overwrites=False)
    return common.recipe(rule, lr, kernel=True, clip_inside=True, begin_state=False)


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
    return common.recipe(rule, common.schedule.rate(1e-3, overwrites=True), kernel=True)


def _dcasgd(common: Common, momentum: float = 0.0, lamda: float = 0.04) -> Translation:
    if momentum:
        raise Unsupported("MXNet 1.9's DCASGD raises for every momentum but 0; mxnet-2.0's has one")
    rule = DCASGD(lamda, decay_in_square=False)
    return common.recipe(rule, common.schedule.rate(0.01, overwrites=False), kernel=False)


def _ftrl(common: Common, lamda1: float = 0.01, beta: float = 1.0) -> Translation:
    return common.recipe(FTRL(lamda1, beta), common.schedule.unattached(0.1), kernel=True)


def _ftml(common: Common, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8) -> Translation:
    lr = common.schedule.rate(0.01, overwrites=False)
    return common.recipe(FTML(beta1, beta2, epsilon), lr, kernel=True, decay="clipped")


def _sgld(common: Common) -> Translation:
    return common.recipe(SGLD(), common.schedule.rate(0.01, overwrites=False), kernel=False)


def _group_adagrad(common: Common, eps: float = 1e-5) -> Translation:
    common.refuse_decay("GroupAdaGrad")
    lr = common.schedule.rate(0.01, overwrites=False)
    return common.recipe(GroupAdaGrad(eps, eps_inside=True), lr, kernel=False, refuse=needs_matrix)


OPTIMIZERS: dict[str, Callable[..., Translation]] = {
    "sgd": _sgd,
    "ccsgd": _sgd,
    "nag": _nag,
    "signum": _signum,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adadelta": _adadelta,
    "adam": _adam,
    "adamax": _adamax,
    "nadam": _nadam,
    "lars": _lars,
    "lbsgd": _lbsgd,
    "lamb": _lamb,
    "dcasgd": _dcasgd,
    "ftrl": _ftrl,
    "ftml": _ftml,
    "sgld": _sgld,
    "groupadagrad": _group_adagrad,
}

REFUSED = {
    "adamw": "MXNet 1.9 has no AdamW; mxnet-2.0 has",
    "adabelief": "MXNet 1.9 has no AdaBelief; mxnet-2.0 has",
    "lans": "MXNet 1.9 has no LANS; mxnet-2.0 has",
    "test": "it adds the gradient to the weights, for MXNet's own tests",
}
