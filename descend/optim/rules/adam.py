"""Adam and AdamW: follow a running mean of the gradient, scaled by its running size.

    mₜ = β₁ mₜ₋₁ + (1 − β₁) gₜ            vₜ = β₂ vₜ₋₁ + (1 − β₂) gₜ²
    m̂ = mₜ / (1 − β₁ᵗ)                    v̂ = vₜ / (1 − β₂ᵗ)
    Adam    dₜ = m̂ / (√v̂ + ε)             then the engine sets p ← p − lr dₜ
    AdamW   dₜ = m̂ / (√v̂ + ε) + λ pₜ₋₁
    amsgrad puts the largest v so far in the place of vₜ

Shapes: g, m, v and d are shaped like p; t, the number of this update, is a float64 scalar from 1 up.
Units:  d is a pure number of size about 1, so lr is in units of p per update; λ is per update and per unit of lr.
Source: Kingma and Ba 2015, Algorithm 1, https://arxiv.org/abs/1412.6980
        Loshchilov and Hutter 2019, Algorithm 2, https://arxiv.org/abs/1711.05101
        Reddi, Kale and Kumar 2018 (amsgrad), https://arxiv.org/abs/1904.09237

| where | deviation, and the setting that gives it |
|---|---|
| paper | none: ε is added to the corrected root |
| torch `Adam`, `AdamW` | none; amsgrad keeps the largest uncorrected v, as here |
| torch `SparseAdam` | `eps_at="uncorrected"`, on the rows of a sparse gradient alone |
| MXNet `Adam` | ε is added to the uncorrected root: `eps_at="uncorrected"`; 1 − β₂ is rounded to float32 (not copied) |
| MXNet 2.0 `AdamW` | the same, and λ is multiplied by the corrected rate: `decay_at="corrected"` |
| ... without its kernel | and the weight that has already moved decays: `decay_at="corrected after"` |
| LBANN `Adam` | `eps_at="uncorrected"`, `skip_nonfinite=True`, decay as AdamW's; β₂ = 0.99 in its constructor |
| timm, optax | none; optax can put ε inside the root: `eps_at="inside"` |
| BERT's Adam | `bias_correction=False` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_choice, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EPS_AT", "Adam", "AdamState", "AdamW", "scaled_mean"]

EPS_AT = ("outside", "inside", "uncorrected")  # √v̂ + ε, √(v̂ + ε), √v + ε


class AdamState(NamedTuple):
    """The state of Adam for a tensor; all entries are shaped like it."""

    m: Tensor  # running mean of g
    v: Tensor  # running mean of g²
    v_max: Tensor | None = None  # largest v so far, for amsgrad


def scaled_mean(m: Tensor, v: Tensor, t: Tensor, rule: Adam | AdamW) -> Tensor:
    """m̂ / (√v̂ + ε), with ε where the rule wants it and the bias corrected if it says so."""
    c1 = 1 - rule.beta1**t if rule.bias_correction else torch.ones_like(t)
    c2 = 1 - rule.beta2**t if rule.bias_correction else torch.ones_like(t)
    if rule.eps_at == "uncorrected":
        return c2.sqrt() / c1 * quotient(m, v.sqrt() + rule.eps, rule.eps)
    if rule.eps_at == "inside":
        return quotient(m / c1, (v / c2 + rule.eps).sqrt(), rule.eps)
    return quotient(m / c1, (v / c2).sqrt() + rule.eps, rule.eps)


def _adam(rule: Adam | AdamW, g: Tensor, s: AdamState, t: Tensor) -> tuple[Tensor, AdamState]:
    m = rule.beta1 * s.m + (1 - rule.beta1) * g
    v = rule.beta2 * s.v + (1 - rule.beta2) * g * g
    v_max = None if s.v_max is None else torch.maximum(s.v_max, v)
    return scaled_mean(m, v if v_max is None else v_max, t, rule), AdamState(m, v, v_max)


def _init(rule: Adam | AdamW, p: Tensor) -> AdamState:
    return AdamState(torch.zeros_like(p), torch.zeros_like(p), torch.zeros_like(p) if rule.amsgrad else None)


def _check(rule: Adam | AdamW) -> None:
    check_fraction(rule, "beta1", "beta2")
    check_nonnegative(rule, "eps")
    check_choice(rule, "eps_at", EPS_AT)


@dataclass(frozen=True)
class Adam(Rule):
    """Adam, with ε outside the square root as in the paper.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0; with 0 an entry whose v is 0 does not move.
        eps_at: "outside" √v̂ + ε, "inside" √(v̂ + ε), or "uncorrected" √v + ε, which makes ε larger by 1/√(1 − β₂ᵗ).
        bias_correction: False takes m and v as they are.
        amsgrad: Divide by the largest v so far.

    Raises:
        RuleError: beta1 or beta2 is outside [0, 1), eps is negative, or eps_at is none of the three.
    """

    rowwise: ClassVar[bool] = True

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    eps_at: str = "outside"
    bias_correction: bool = True
    amsgrad: bool = False

    def __post_init__(self) -> None:
        _check(self)

    def init(self, p: Tensor) -> AdamState:
        """Zero moments."""
        return _init(self, p)

    def direction(self, g: Tensor, s: AdamState, t: Tensor) -> tuple[Tensor, AdamState]:
        """One step of the equations above."""
        return _adam(self, g, s, t)


@dataclass(frozen=True)
class AdamW(Rule):
    """Adam with the decay outside the moments.

    Args:
        beta1: As Adam's, and so the next five.
        beta2: See Adam.
        eps: See Adam.
        eps_at: See Adam.
        bias_correction: See Adam.
        amsgrad: See Adam.
        decay_at: Which rate multiplies λ p: "rate" (the paper), "corrected" (the rate times √(1 − β₂ᵗ)/(1 − β₁ᵗ)) or
            "corrected after" (the same, on the weight that has already moved).
        skip_nonfinite: Leave an entry whose gradient is not finite as it is, moments and decay included.

    Raises:
        RuleError: a number is out of range, or a choice is none of those named.
    """

    default_weight_decay: ClassVar[float] = 0.01
    default_decay: ClassVar[str] = "decoupled"

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    eps_at: str = "outside"
    bias_correction: bool = True
    amsgrad: bool = False
    decay_at: str = "rate"
    skip_nonfinite: bool = False

    def __post_init__(self) -> None:
        _check(self)
        check_choice(self, "decay_at", ("rate", "corrected", "corrected after"))

    def init(self, p: Tensor) -> AdamState:
        """Zero moments."""
        return _init(self, p)

    def direction(
        self, g: Tensor, p: Tensor, s: AdamState, t: Tensor, lr: Tensor, decay: Tensor
    ) -> tuple[Tensor, AdamState]:
        """One step of the equations above."""
        d, new = _adam(self, g, s, t)
        if self.decay_at != "rate" and self.bias_correction:
            decay = decay * (1 - self.beta2**t).sqrt() / (1 - self.beta1**t)
        d = d + decay * (p - lr * d if self.decay_at == "corrected after" else p)
        return self._where_finite(g, d, new, s) if self.skip_nonfinite else (d, new)

    def _where_finite(self, g: Tensor, d: Tensor, new: AdamState, old: AdamState) -> tuple[Tensor, AdamState]:
        ok = g.isfinite()
        kept = [None if n is None or o is None else torch.where(ok, n, o) for n, o in zip(new, old, strict=True)]
        return torch.where(ok, d, torch.zeros_like(d)), AdamState(*kept)  # pyright: ignore[reportArgumentType]  # only v_max is optional
