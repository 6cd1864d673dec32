"""Muon: momentum made orthogonal, so that every direction of a matrix moves equally far.

    bₜ = μ bₜ₋₁ + (1 − μ) gₜ            u = (1 − μ) gₜ + μ bₜ with Nesterov, else bₜ
    x₀ = u / ‖u‖                        A = x xᵀ,  x ← a x + (b A + c A²) x, five times: close to U Vᵀ of u = U S Vᵀ
    dₜ = f x                            then the engine sets p ← p − lr dₜ

    f = √max(1, n/m) ("original") or 0.2 √max(n, m) ("match_rms_adamw": lr as AdamW's) for n rows and m columns

Shapes: g, b and d are shaped like p; more than two dimensions are taken as (first, all others), fewer as one row.
        Of more rows than columns A = xᵀ x and x ← a x + x (b A + c A²), which is the same with smaller matrices.
Units:  "original": d moves a matrix by about 1 in spectral norm, so lr is about 0.02.
Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; scale: Liu et al. 2025, https://arxiv.org/abs/2502.16982

| where | deviation |
|---|---|
| Jordan's code | x in bfloat16: `bfloat16=True`; here in the precision of the state |
| torch `Muon` | bfloat16 too; only matrices are taken; lr = 1e-3 and decay 0.1 by default |
| timm `Muon` | `adjust="match_rms_adamw"`; vectors and matrices with a side below 4 go under AdamW |
| Jordan's advice | weights with fewer than two dimensions, embeddings and the last layer belong under AdamW |

With five iterations the singular values of x lie between about 0.7 and 1.2, not at 1: the authors' choice, for speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from descend.arguments import check_number, require, shown
from descend.errors import RuleError
from descend.optim.rules.base import Rule, check_choice, check_count, check_fraction, check_positive
from descend.optim.rules.matrices import as_matrices, product, sides

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["COEFFICIENTS", "Muon", "MuonState", "orthogonalize"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # steepest at zero: https://kellerjordan.github.io/posts/muon/


class MuonState(NamedTuple):
    """The state of Muon for a tensor."""

    b: Tensor  # running mean of g, shaped like p


def orthogonalize(u: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """About U Vᵀ for a matrix u = U S Vᵀ, or for each of a stack, by Newton and Schulz's iteration of fifth order."""
    a, b, c = coefficients
    tall = u.shape[-2] > u.shape[-1]
    x = u / torch.linalg.matrix_norm(u, keepdim=True).clamp(min=eps)
    for _ in range(int(steps)):
        A = product(x.mT, x) if tall else product(x, x.mT)
        B = product(A, A, A, beta=b, alpha=c)  # one rounding for b A + c A², which matters in bfloat16
        x = product(x, B, x, beta=a) if tall else product(B, x, x, beta=a)
    return x


@dataclass(frozen=True)
class Muon(Rule):
    """Momentum orthogonalised by Newton and Schulz's iteration.

    Args:
        momentum: μ in [0, 1).
        nesterov: Mix the gradient in once more.
        ns_steps: Iterations, at least 1.
        ns_coefficients: a, b and c.
        eps: Least ‖u‖ that u is divided by, above 0.
        adjust: "original" or "match_rms_adamw", see f above.
        bfloat16: Iterate in bfloat16.

    Raises:
        RuleError: a number is out of range.
    """

    whole_tensor: ClassVar[bool] = True
    takes_stacks: ClassVar[bool] = True
    default_lr: ClassVar[float] = 0.02
    default_decay: ClassVar[str] = "decoupled"

    momentum: float = 0.95
    nesterov: bool = True
    ns_steps: int = 5
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS
    eps: float = 1e-7
    adjust: str = "original"
    bfloat16: bool = False

    def __post_init__(self) -> None:
        check_fraction(self, "momentum")
        check_positive(self, "eps")
        check_choice(self, "adjust", ("original", "match_rms_adamw"))
        check_count(self, "ns_steps")
        three: Any = self.ns_coefficients
        if not isinstance(three, (tuple, list)) or len(three) != 3 or any(check_number("", x) for x in three):
            require(f"ns_coefficients must be three finite numbers, got {shown(three)}", where="Muon", error=RuleError)

    def init(self, p: Tensor) -> MuonState:
        """Zeros."""
        return MuonState(b=torch.zeros_like(p))

    def direction(self, g: Tensor, s: MuonState, shape: torch.Size) -> tuple[Tensor, MuonState]:
        """One step of the equations above."""
        b = torch.lerp(s.b, g, 1 - self.momentum)
        u = as_matrices(torch.lerp(g, b, self.momentum) if self.nesterov else b, shape)
        x = u.to(torch.bfloat16) if self.bfloat16 else u
        x = orthogonalize(x, self.ns_coefficients, self.ns_steps, self.eps).to(g.dtype)
        return x.reshape(g.shape).mul_(self._scale(*sides(shape))), MuonState(b)

    def _scale(self, n: int, m: int) -> float:
        if self.adjust == "match_rms_adamw":
            return 0.2 * max(n, m) ** 0.5
        return max(1.0, n / max(m, 1)) ** 0.5
