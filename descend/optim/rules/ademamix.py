"""AdEMAMix: Adam with a second, much slower mean of the gradient beside the fast one.

    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ            nₜ = β₃(t) nₜ₋₁ + (1 − β₃(t)) gₜ        vₜ = β₂ vₜ₋₁ + (1 − β₂) gₜ²
    m̂ = mₜ / (1 − β₁ᵗ)                    v̂ = vₜ / (1 − β₂ᵗ)                      n is not corrected
    dₜ = (m̂ + α(t) nₜ) / (√v̂ + ε) + λ pₜ₋₁                                        then the engine sets p ← p − lr dₜ

    α(t) = α min(1, t/T_α). The half-life of the slow mean, minus one, rises linearly over T_β updates from that of β₁
    to that of β₃: β₃(t) = ½^(1/(h + 1)), h = (1 − t/T_β) h₁ + t/T_β h₃, hᵢ = log ½ / log(βᵢ + 1e-8) − 1.

Shapes: g, m, n, v and d are shaped like p.
Units:  d is a number of size about 1 + α; T_α and T_β are updates, 0 for none.
Source: Pagliardini, Ablin and Grangier 2024, Algorithm 1, https://arxiv.org/abs/2409.03137

| where | deviation, and the setting that gives it |
|---|---|
| paper | α = 5, and warm-ups of α and β₃ over the whole run: `alpha=5.0, alpha_warmup=steps, beta3_warmup=steps` |
| authors' code `AdEMAMix` | none; α = 2 and no warm-up by default. With β₁ = 0 the fast mean is the gradient |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_count, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AdEMAMix", "AdEMAMixState"]


class AdEMAMixState(NamedTuple):
    """The state of AdEMAMix for a tensor; all entries are shaped like it."""

    m: Tensor  # fast running mean of g
    n: Tensor  # slow running mean of g
    v: Tensor  # running mean of g²


@dataclass(frozen=True)
class AdEMAMix(Rule):
    """AdEMAMix, with the decay outside the moments.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        beta3: β₃ in [0, 1), of the slow mean.
        alpha: α, at least 0: the weight of the slow mean.
        eps: ε, at least 0.
        alpha_warmup: T_α, updates over which α rises from 0; 0 for none.
        beta3_warmup: T_β, updates over which the slow mean's half-life rises from that of β₁; 0 for none.

    Raises:
        RuleError: a number is out of range.
    """

    default_decay: ClassVar[str] = "decoupled"

    beta1: float = 0.9
    beta2: float = 0.999
    beta3: float = 0.9999
    alpha: float = 2.0
    eps: float = 1e-8
    alpha_warmup: int = 0
    beta3_warmup: int = 0

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2", "beta3")
        check_nonnegative(self, "alpha", "eps")
        check_count(self, "alpha_warmup", "beta3_warmup", minimum=0)

    def init(self, p: Tensor) -> AdEMAMixState:
        """Zeros."""
        return AdEMAMixState(torch.zeros_like(p), torch.zeros_like(p), torch.zeros_like(p))

    def direction(
        self, g: Tensor, p: Tensor, s: AdEMAMixState, t: Tensor, decay: Tensor
    ) -> tuple[Tensor, AdEMAMixState]:
        """One step of the equations above."""
        beta3 = self._beta3(t)
        m = self.beta1 * s.m + (1 - self.beta1) * g
        n = beta3 * s.n + (1 - beta3) * g
        v = self.beta2 * s.v + (1 - self.beta2) * g * g
        alpha = self.alpha * (t / self.alpha_warmup).clamp(max=1.0) if self.alpha_warmup else self.alpha
        mixed = m / (1 - self.beta1**t) + alpha * n
        d = quotient(mixed, (v / (1 - self.beta2**t)).sqrt() + self.eps, self.eps)
        return d + decay * p, AdEMAMixState(m, n, v)

    def _beta3(self, t: Tensor) -> Tensor | float:
        if not self.beta3_warmup:
            return self.beta3
        first, last = (math.log(0.5) / math.log(beta + 1e-8) - 1 for beta in (self.beta1, self.beta3))
        part = t / self.beta3_warmup
        risen = 0.5 ** (1 / ((1 - part) * first + part * last + 1))
        return torch.where(part < 1, risen, self.beta3 * torch.ones_like(t))
