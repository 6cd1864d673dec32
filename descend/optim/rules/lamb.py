"""LAMB: Adam's direction, stretched tensor by tensor to the length of the weights.

    m, v, m̂, v̂ as Adam's
    u = m̂ / (√v̂ + ε) + λ p
    r = φ(‖p‖) / ‖u‖            φ limits ‖p‖ to [lower_bound, upper_bound]; r = 1 where φ(‖p‖) or ‖u‖ is 0
    d = r u                      then the engine sets p ← p − lr d

Shapes: g, m, v, u and d are shaped like p; r is one number a tensor.
Units:  ‖d‖ = ‖p‖, so lr is the part of its length that a tensor moves in one update, whatever its size or gradient.
Source: You et al. 2020, Algorithm 2, https://arxiv.org/abs/1904.00962

| where | deviation, and the setting that gives it |
|---|---|
| paper | none |
| MXNet | none; the bounds limit ‖p‖ and not r. 2.0 with `aggregate_num=1` counts every update twice (not copied) |
| timm `Lamb` | clips the norm of all gradients to 1 by default; scales only decayed tensors unless `always_adapt` |
| optax `lamb`, NVIDIA | none; NVIDIA's clips the norm of all gradients |
| pytorch_optimizer `Lamb` | v uncorrected, r of the uncorrected direction, ‖p‖ is at most 10: not supported |
| Flax `lamb` until 2022 | r = 0 where ‖p‖ = 0, so weights that start at zero never move |

Which tensors are stretched is the caller's choice: a group with `scaled=False` has r = 1, for biases and normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.errors import RuleError
from descend.optim.rules.base import Rule, check_fraction, check_nonnegative, quotient

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["LAMB", "LAMBState", "bounded", "check_bounds", "trust_ratio"]


class LAMBState(NamedTuple):
    """The state of LAMB for a tensor; both entries are shaped like it."""

    m: Tensor  # running mean of g
    v: Tensor  # running mean of g²


def bounded(length: Tensor, lower: float | None, upper: float | None) -> Tensor:
    """φ: a length limited to [lower, upper]; a bound of None does not limit."""
    if lower is not None:
        length = length.clamp(min=lower)
    return length if upper is None else length.clamp(max=upper)


def trust_ratio(length: Tensor, size: Tensor, scaled: Tensor) -> Tensor:
    """length / size, and 1 where either is 0 or the tensor is left out of layer-wise scaling."""
    both = (length > 0) & (size > 0) & (scaled > 0)
    return torch.where(both, length / torch.where(both, size, torch.ones_like(size)), torch.ones_like(size))


def check_bounds(rule: Rule, lower: float | None, upper: float | None) -> None:
    """Raise RuleError unless 0 ≤ lower ≤ upper, where given."""
    for name, value in (("lower_bound", lower), ("upper_bound", upper)):
        if value is not None:
            check_nonnegative(rule, name)
    if lower is not None and upper is not None and lower > upper:
        raise RuleError(f"{type(rule).__name__}: lower_bound {lower!r} is above upper_bound {upper!r}")


@dataclass(frozen=True)
class LAMB(Rule):
    """Layer-wise adaptive moments for batch training.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε, at least 0.
        bias_correction: False takes m and v as they are.
        lower_bound: Least ‖p‖ that r is taken from, or None.
        upper_bound: Largest ‖p‖ that r is taken from, or None.

    Raises:
        RuleError: a number is out of range, or the bounds cross.
    """

    default_lr: ClassVar[float] = 1e-3
    default_weight_decay: ClassVar[float] = 0.01
    default_decay: ClassVar[str] = "decoupled"

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    bias_correction: bool = True
    lower_bound: float | None = None
    upper_bound: float | None = None

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2")
        check_nonnegative(self, "eps")
        check_bounds(self, self.lower_bound, self.upper_bound)

    def init(self, p: Tensor) -> LAMBState:
        """Zero moments."""
        return LAMBState(m=torch.zeros_like(p), v=torch.zeros_like(p))

    def direction(
        self,
        g: Tensor,
        p: Tensor,
        s: LAMBState,
        t: Tensor,
        decay: Tensor,
        scaled: Tensor,
        norm: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, LAMBState]:
        """One step of the equations above."""
        m = self.beta1 * s.m + (1 - self.beta1) * g
        v = self.beta2 * s.v + (1 - self.beta2) * g * g
        m_hat = m / (1 - self.beta1**t) if self.bias_correction else m
        v_hat = v / (1 - self.beta2**t) if self.bias_correction else v
        u = quotient(m_hat, v_hat.sqrt() + self.eps, self.eps) + decay * p
        length = bounded(norm(p), self.lower_bound, self.upper_bound)
        return trust_ratio(length, norm(u), scaled) * u, LAMBState(m, v)
