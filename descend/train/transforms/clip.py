"""Clipping: bounds on elements, on the norm of each parameter's gradient, and on the norm of all gradients together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_

from descend.arguments import is_number, shown
from descend.errors import ConfigurationError
from descend.train.transforms.base import GradientTransform

if TYPE_CHECKING:
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients

__all__ = ["Clip"]


class Clip(GradientTransform):
    """Bounds gradients; without a bound it does nothing.

    Args:
        value: Bound on the magnitude of each element of a gradient.
        norm: Bound on the Euclidean norm of each parameter's gradient.
        global_norm: Bound on the Euclidean norm of all gradients together.

    Raises:
        ConfigurationError: a bound is not above 0.
    """

    is_stateless: ClassVar[bool] = True

    def __init__(self, value: float | None = None, norm: float | None = None, global_norm: float | None = None) -> None:
        problems = [
            f"{name} must be a number above 0, or None for no bound, got {shown(bound)}"
            for name, bound in (("clip_value", value), ("clip_norm", norm), ("clip_global_norm", global_norm))
            if bound is not None and not (is_number(bound) and bound > 0)
        ]
        if problems:
            raise ConfigurationError(problems)
        self.value, self.norm, self.global_norm = value, norm, global_norm

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._strategy = run.strategy

    def __call__(self, gradients: Gradients) -> None:
        """Clip, in the order of the arguments of the class."""
        if self.value is self.norm is self.global_norm is None:
            return
        named = {name: p for name, p in self._strategy.local_parameters().items() if p.grad is not None}
        if not named and not self._strategy.is_sharded:
            return  # which torch's functions take for an error
        if any(p.grad is not None and p.grad.is_sparse for p in named.values()):
            named = {name: _rows_of(p) for name, p in named.items()}
        parameters = list(named.values())
        if self.value is not None and parameters:
            clip_grad_value_(parameters, min(self.value, *(_largest(p) for p in parameters)))
        if self._strategy.is_sharded:
            self._clip_shards(named)
            return
        if self.norm is not None:
            for p in parameters:
                clip_grad_norm_([p], self.norm)
        if self.global_norm is not None:
            clip_grad_norm_(parameters, self.global_norm)

    def _clip_shards(self, named: dict[str, torch.Tensor]) -> None:
        """Bound norms of parameters of which this rank has a shard."""
        if self.norm is not None:
            norms, _ = self._strategy.gradient_norms(named)
            for p, norm in zip(named.values(), norms, strict=True):
                clip_grads_with_norm_([p], self.norm, norm)
        if self.global_norm is not None:
            _, total = self._strategy.gradient_norms(named)
            clip_grads_with_norm_(list(named.values()), self.global_norm, total)


def _rows_of(p: torch.Tensor) -> torch.Tensor:
    """A stand-in for a parameter with a sparse gradient, whose own gradient is the rows of that, repeated ones summed.

    The values share memory with the gradient, so clipping them clips it.
    """
    if p.grad is None or not p.grad.is_sparse:
        return p
    p.grad = p.grad.coalesce()
    rows = p.grad.values()
    stand_in = torch.empty_like(rows)
    stand_in.grad = rows
    return stand_in


def _largest(p: torch.Tensor) -> float:
    """The greatest number that a gradient of its type can be clipped to."""
    return torch.finfo(p.dtype).max if p.dtype.is_floating_point else math.inf
