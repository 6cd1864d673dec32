"""What of pytorch_optimizer 4.1 is a published rule: LARS, with its own conventions.

Its Lamb is not: v is not corrected for its bias, the ratio is of the uncorrected direction, norms are at most
10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.compat.translation import TranslatedGroup, Translation
from descend.optim.rules.lars import LARS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OPTIMIZERS", "REFUSED"]


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


OPTIMIZERS: dict[str, Callable[..., Translation]] = {"lars": _lars}

REFUSED = {
    "lamb": "its arithmetic is not LAMB's: v uncorrected, a ratio of the uncorrected direction, norms limited to 10",
}
