"""SOAP: Adam in the eigenbasis of Shampoo's preconditioners.

    G′ = Qₗᵀ g Qᵣ                       M = β₁ M + (1 − β₁) G′, which is Qₗᵀ m Qᵣ of the running mean m of g
    V = β₂ V + (1 − β₂) G′²             N′ = √(1 − β₂ᵗ)/(1 − β₁ᵗ) M / (√V + ε)
    dₜ = Qₗ N′ Qᵣᵀ                      then the engine sets p ← p − lr dₜ
    L ← βₛ L + (1 − βₛ) g gᵀ            R ← βₛ R + (1 − βₛ) gᵀ g
    every `frequency` updates           Q ← orthonormal basis of (L Q), largest column first; at t = 1 eigenvectors;
                                        M is rotated from the old bases to the new ones

Shapes: p is taken as a matrix (n, m), more dimensions as (first, all others); L and Qₗ are (n, n), R and Qᵣ (m, m);
        V, M and d are shaped like p. A side longer than `max_side`, and all of a vector, is not rotated: that is Adam.
Units:  d is a pure number of size about 1, as Adam's.
Source: Vyas et al. 2024, Algorithm 3, https://arxiv.org/abs/2409.11321

| where | deviation |
|---|---|
| paper | none; the first update, before any basis is known, is Adam's |
| the authors' code | takes no step at all the first time; treats every dimension of a tensor on its own |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_count, check_fraction, check_nonnegative, quotient
from descend.optim.rules.matrices import as_matrices, factorize_each, product, sides

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SOAP", "SOAPState"]


class SOAPState(NamedTuple):
    """The state of SOAP for a tensor; a side that is not rotated has no matrices."""

    M: Tensor  # running mean of G′, shaped like p
    V: Tensor  # running mean of G′², shaped like p
    L: Tensor | None  # running mean of g gᵀ, (n, n)
    R: Tensor | None  # running mean of gᵀ g, (m, m)
    QL: Tensor | None  # basis of L
    QR: Tensor | None  # basis of R


def _rotate(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    x = x if left is None else product(left.mT, x)
    return x if right is None else product(x, right)


def _back(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    return _rotate(x, None if left is None else left.mT, None if right is None else right.mT)


def _refresh(P: Tensor, Q: Tensor, first: bool) -> tuple[Tensor, Tensor]:
    """A better basis of P, and the order in which it takes the columns of the old one."""
    if first:
        order = torch.arange(P.shape[-1], device=P.device).expand(P.shape[:-1])
        return factorize_each(torch.linalg.eigh, P)[1].flip(-1), order
    PQ = product(P, Q)
    order = (Q * PQ).sum(-2).argsort(descending=True)  # by the diagonal of Qᵀ P Q
    return factorize_each(torch.linalg.qr, PQ.take_along_dim(order.unsqueeze(-2), -1))[0], order


@dataclass(frozen=True)
class SOAP(Rule):
    """Shampoo with Adam in the preconditioner's eigenbasis.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        shampoo_beta: βₛ in [0, 1).
        eps: ε, at least 0.
        frequency: Updates from one refresh of the bases to the next, at least 1.
        max_side: Longest side of a matrix that gets a basis.

    Raises:
        RuleError: a number is out of range.
    """

    whole_tensor: ClassVar[bool] = True
    takes_stacks: ClassVar[bool] = True
    default_lr: ClassVar[float] = 3e-3
    default_weight_decay: ClassVar[float] = 0.01
    default_decay: ClassVar[str] = "decoupled"

    beta1: float = 0.95
    beta2: float = 0.95
    shampoo_beta: float = 0.95
    eps: float = 1e-8
    frequency: int = 10
    max_side: int = 10_000

    def __post_init__(self) -> None:
        check_fraction(self, "beta1", "beta2", "shampoo_beta")
        check_nonnegative(self, "eps", "max_side")
        check_count(self, "frequency")

    def init(self, p: Tensor) -> SOAPState:
        """Zero moments and the standard bases."""
        n, m = sides(p.shape)
        left, right = (self._side(p, side) for side in (n, m))
        zeros = [None if Q is None else torch.zeros_like(Q) for Q in (left, right)]
        return SOAPState(torch.zeros_like(p), torch.zeros_like(p), zeros[0], zeros[1], left, right)

    def _side(self, p: Tensor, side: int) -> Tensor | None:
        if p.dim() < 2 or p.numel() == 0 or side > self.max_side:
            return None
        return torch.eye(side, dtype=p.dtype, device=p.device)

    def direction(self, g: Tensor, s: SOAPState, t: Tensor, shape: torch.Size) -> tuple[Tensor, SOAPState]:
        """One step of the equations above."""
        G = as_matrices(g, shape)
        rotated = _rotate(G, s.QL, s.QR)
        M = torch.lerp(as_matrices(s.M, shape), rotated, 1 - self.beta1)
        V = torch.lerp(as_matrices(s.V, shape), rotated * rotated, 1 - self.beta2)
        c = (1 - self.beta2**t).sqrt() / (1 - self.beta1**t)
        N = c * quotient(M, V.sqrt() + self.eps, self.eps)
        d = _back(N, s.QL, s.QR).reshape(g.shape)
        b = self.shampoo_beta
        L = None if s.L is None else product(G, G.mT, s.L, beta=b, alpha=1 - b)
        R = None if s.R is None else product(G.mT, G, s.R, beta=b, alpha=1 - b)
        s = self._with_bases(SOAPState(M, V, L, R, s.QL, s.QR), t)
        return d, s._replace(M=s.M.reshape(g.shape), V=s.V.reshape(g.shape))

    def _with_bases(self, s: SOAPState, t: Tensor) -> SOAPState:
        first = bool(t == 1)
        if not first and bool(t % self.frequency != 0):
            return s
        squares, mean = s.V, _back(s.M, s.QL, s.QR)
        left, right = s.QL, s.QR
        if s.L is not None and left is not None:
            left, order = _refresh(s.L, left, first)
            squares = squares.take_along_dim(order.unsqueeze(-1), -2)
        if s.R is not None and right is not None:
            right, order = _refresh(s.R, right, first)
            squares = squares.take_along_dim(order.unsqueeze(-2), -1)
        return s._replace(M=_rotate(mean, left, right), V=squares, QL=left, QR=right)
