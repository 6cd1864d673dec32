"""Optimizers as their authors' code has them: names, arguments, defaults and arithmetic, by our rules.

A source is the repository, such as "apple/ml-ademamix"; commits, and surprises of the code, are in the rules' tables of
deviations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.compat.translation import TranslatedGroup, Translation
from descend.errors import Unsupported
from descend.optim.rules.adam import AdamW
from descend.optim.rules.adan import Adan
from descend.optim.rules.ademamix import AdEMAMix
from descend.optim.rules.adopt import ADOPT
from descend.optim.rules.lars import LARS
from descend.optim.rules.lion import Lion
from descend.optim.rules.mars import MARS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["SOURCES"]


def _ademamix(
    lr: float = 1e-3,
    betas: Sequence[float] = (0.9, 0.999, 0.9999),
    alpha: float = 2.0,
    beta3_warmup: int | None = None,
    alpha_warmup: int | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Translation:
    beta1, beta2, beta3 = betas
    rule = AdEMAMix(beta1, beta2, beta3, alpha, eps, alpha_warmup or 0, beta3_warmup or 0)
    return Translation(rule, lr, weight_decay=weight_decay)


def _fourth_root(step: int) -> float:
    return step**0.25


def _adopt(
    lr: float = 1e-3,
    betas: Sequence[float] = (0.9, 0.9999),
    eps: float = 1e-6,
    clip_lambda: Any = _fourth_root,
    weight_decay: float = 0.0,
    decouple: bool = False,
    foreach: bool | None = None,
    maximize: bool = False,
    capturable: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
) -> Translation:
    if clip_lambda is not None and any(abs(clip_lambda(t) - t**0.25) > 1e-12 * t for t in range(1, 100)):
        raise Unsupported("ADOPT's clip_lambda must be None or step ** 0.25, the authors' choice, got another function")
    rule = ADOPT(betas[0], betas[1], eps, clip=clip_lambda is not None, decoupled=decouple)
    return Translation(rule, lr, weight_decay=weight_decay, maximize=maximize)


def _adan(
    lr: float = 1e-3,
    betas: Sequence[float] = (0.98, 0.92, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    max_grad_norm: float = 0.0,
    no_prox: bool = False,
    foreach: bool = True,
    fused: bool = False,
) -> Translation:
    if max_grad_norm:
        raise Unsupported(
            f"Adan's max_grad_norm={max_grad_norm!r} changes all gradients by their common norm: call "
            "torch.nn.utils.clip_grad_norm_ before step(), or fit with clip_global_norm"
        )
    return Translation(Adan(betas[0], betas[1], betas[2], eps, proximal=not no_prox), lr, weight_decay=weight_decay)


def _mars(
    lr: float = 3e-3,
    betas: Sequence[float] = (0.95, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    gamma: float = 0.025,
    is_approx: bool = True,
    mars_type: str = "mars-adamw",
    optimize_1d: bool = False,
    lr_1d: float = 3e-3,
    betas_1d: Sequence[float] = (0.9, 0.95),
    weight_decay_1d: float = 0.1,
) -> Translation:
    if not is_approx:
        raise Unsupported(
            "MARS's is_approx=False needs the gradient of the next samples at the present weights, a second backward "
            "pass per step: leave it at True"
        )
    if mars_type not in ("mars-adamw", "mars-lion"):
        raise Unsupported(f"MARS's mars_type must be 'mars-adamw' or 'mars-lion' here, got {mars_type!r}")
    rule = MARS(betas[0], betas[1], gamma, eps, mars_type.removeprefix("mars-"), amsgrad)

    def own(member: TranslatedGroup) -> Mapping[str, Any]:
        if optimize_1d or member.tensor.dim() == 2:
            return {}
        other = AdamW(betas_1d[0], betas_1d[1], eps, amsgrad=amsgrad)
        return {"rule": other, "weight_decay": weight_decay_1d, "lr_mult": lr_1d / lr}

    return Translation(rule, lr, weight_decay=weight_decay, own=own)


def _lucidrains_lion(
    lr: float = 1e-4,
    betas: Sequence[float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    use_triton: bool = False,
    decoupled_weight_decay: bool | None = None,
) -> Translation:
    if decoupled_weight_decay is None:
        raise Unsupported(
            "lion-pytorch has two classes Lion, of which that of cautious_lion.py masks its update, as no rule here "
            "does: say decoupled_weight_decay=False, which the other one takes, to mean that"
        )
    decay = weight_decay / lr if decoupled_weight_decay else weight_decay
    return Translation(Lion(betas[0], betas[1]), lr, weight_decay=decay, decay="decoupled")


def _lion(lr: float = 1e-4, betas: Sequence[float] = (0.9, 0.99), weight_decay: float = 0.0) -> Translation:
    return Translation(Lion(betas[0], betas[1]), lr, weight_decay=weight_decay, decay="decoupled")


# ---- LARS of pytorch_optimizer 4.1, a published rule with conventions of its own
#
# Its Lamb is not: v is not corrected for its bias, the ratio is of the uncorrected direction, norms are at most
# 10.


def _lars(
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    dampening: float = 0.0,
    trust_coefficient: float = 1e-3,
    nesterov: bool = False,
    maximize: bool = False,
    foreach: bool | None = None,
) -> Translation:
    rule = LARS(
        momentum,
        trust_coefficient,
        rate_inside=False,
        nesterov=nesterov and momentum > 0,
        dampening=dampening if momentum > 0 else 0.0,
        one_at_zero_gradient=False,
    )

    def own(member: TranslatedGroup) -> Mapping[str, Any]:
        matrix = member.tensor.dim() > 1
        return {"scaled": matrix, "weight_decay": weight_decay if matrix else 0.0}

    return Translation(rule, lr, weight_decay=weight_decay, maximize=maximize, own=own)


SOURCES: Mapping[str, tuple[Mapping[str, Callable[..., Translation]], Mapping[str, str]]] = {
    "apple/ml-ademamix": ({"AdEMAMix": _ademamix}, {}),
    "iShohei220/adopt": ({"ADOPT": _adopt}, {}),
    "sail-sg/Adan": ({"Adan": _adan}, {}),
    "google/automl": ({"Lion": _lion}, {}),
    "lucidrains/lion-pytorch": ({"Lion": _lucidrains_lion}, {}),
    "AGI-Arena/MARS": (
        {"MARS": _mars},
        {"MARS_M": "it is Muon on MARS's gradient, and MARS is a rule of elements here"},
    ),
    "pytorch_optimizer": (
        {"lars": _lars},
        {
            "lamb": "its arithmetic is not LAMB's: v uncorrected, a ratio of the uncorrected direction, norms limited "
            "to 10"
        },
    ),
}
