"""AdaGrad and GroupAdaGrad: divide the gradient by the root of all its squares so far.

    hₜ = hₜ₋₁ + gₜ²            dₜ = gₜ / (√hₜ + ε)            then the engine sets p ← p − lr dₜ

GroupAdaGrad keeps one number for each row of a matrix, h ← h + mean over the row of g².

Shapes: g, h and d are shaped like p; GroupAdaGrad's h has one entry for each index of p's first dimension.
Units:  d is a pure number that falls like 1/√t, so lr is in units of p.
Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html

| where | deviation, and the setting that gives it |
|---|---|
| paper | δ is added to the root: ours |
| MXNet 2.0 `AdaGrad` | none, ε = 1e-6 |
| MXNet 1.9 `AdaGrad` | ε inside the root (`eps_inside=True`), decay outside the accumulator (`decay="decoupled"`) |
| torch `Adagrad` | ε = 1e-10, `lr_decay` and `initial` |
| optax `adagrad` | ε = 1e-7 inside the root, initial 0.1, and no step where h = 0 |
| LBANN `AdaGrad` | none |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from descend.optim.rules.base import Rule, check_nonnegative, quotient

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AdaGrad", "AdaGradState", "GroupAdaGrad"]


class AdaGradState(NamedTuple):
    """The state of AdaGrad for a tensor."""

    h: Tensor  # sum of g²


def _root(h: Tensor, eps: float, eps_inside: bool) -> Tensor:
    return (h + eps).sqrt() if eps_inside else h.sqrt() + eps


@dataclass(frozen=True)
class AdaGrad(Rule):
    """AdaGrad with a diagonal matrix.

    Args:
        eps: ε, at least 0; with 0 an entry that has seen no gradient does not move.
        eps_inside: Divide by √(h + ε) instead.
        lr_decay: Divide d by 1 + (t − 1) lr_decay.
        initial: First value of h.

    Raises:
        RuleError: a number is negative or not finite.
    """

    rowwise: ClassVar[bool] = True
    default_lr: ClassVar[float] = 0.01

    eps: float = 1e-6
    eps_inside: bool = False
    lr_decay: float = 0.0
    initial: float = 0.0

    def __post_init__(self) -> None:
        check_nonnegative(self, "eps", "lr_decay", "initial")

    def init(self, p: Tensor) -> AdaGradState:
        """h = `initial` everywhere."""
        return AdaGradState(h=torch.full_like(p, self.initial))

    def direction(self, g: Tensor, s: AdaGradState, t: Tensor) -> tuple[Tensor, AdaGradState]:
        """One step of the equations above."""
        h = s.h + g * g
        d = quotient(g, _root(h, self.eps, self.eps_inside), self.eps)
        if self.lr_decay:
            d = d / (1 + (t - 1) * self.lr_decay)
        return d, AdaGradState(h)


@dataclass(frozen=True)
class GroupAdaGrad(Rule):
    """AdaGrad with one accumulator a row, for embeddings.

    A tensor of one dimension has rows of one entry, a single number is one row.

    Args:
        eps: ε, at least 0.
        eps_inside: Divide by √(h + ε), as MXNet 1.9 does.

    Raises:
        RuleError: eps is negative or not finite.
    """

    whole_tensor: ClassVar[bool] = True
    takes_stacks: ClassVar[bool] = True
    default_lr: ClassVar[float] = 0.01

    eps: float = 1e-6
    eps_inside: bool = False

    def __post_init__(self) -> None:
        check_nonnegative(self, "eps")

    def init(self, p: Tensor) -> AdaGradState:
        """One zero a row."""
        return AdaGradState(h=p.new_zeros(p.shape[:1]))

    def direction(self, g: Tensor, s: AdaGradState) -> tuple[Tensor, AdaGradState]:
        """One step of the equations above."""
        inside = tuple(range(s.h.dim(), g.dim()))  # the dimensions of a row
        h = s.h + ((g * g).mean(inside) if inside else g * g)
        root = _root(h, self.eps, self.eps_inside).reshape(h.shape + (1,) * len(inside))
        return quotient(g, root.expand_as(g), self.eps), AdaGradState(h)
