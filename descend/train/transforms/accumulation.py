"""Gradient accumulation across steps: one update by the mean gradient of several mini-batches.

    g = (Σᵢ nᵢ gᵢ) / (Σᵢ nᵢ)        gᵢ: the mean gradient of mini-batch i, nᵢ: what its loss counts

So k mini-batches of n samples make the update of one mini-batch of k n. How many there are may change on the way, which
is a schedule of the batch size that costs no memory. At the end of an epoch the window goes on; mini-batches that are
left at the end of training make no update. A checkpoint keeps the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.arguments import check_integer, require
from descend.strict_keywords import StrictKeywords
from descend.train.strategies.base import StrategyDescription, divisor_of
from descend.train.transforms.base import GradientTransform, Withheld
from descend.train.transforms.check_finite import CheckFinite

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from descend.runtime import Communicator
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients

__all__ = ["AccumulateGradients", "GradientAccumulation"]


@dataclass(frozen=True)
class GradientAccumulation(StrategyDescription, metaclass=StrictKeywords):
    """An update after every so many mini-batches; for `fit(strategy=...)`.

    Args:
        every: Mini-batches of an update: an integer above 0, or a function of the number of the update, from 0.

    Raises:
        ConfigurationError: it is neither.
    """

    every: int | Callable[[int], int] = 1

    def __post_init__(self) -> None:
        if not callable(self.every):
            require(check_integer("every", self.every, 1), where="GradientAccumulation")

    def prepare(self, run: Run, world: Communicator) -> None:
        """See `StrategyDescription.prepare`: after the finite check, so that the sum has no bad mini-batch."""
        transform = AccumulateGradients(self.every)
        transform.setup(run)
        run.transforms.insert(transform, after=CheckFinite)


class AccumulateGradients(GradientTransform):
    """Keeps gradients until there are enough for an update.

    Args:
        every: As in `GradientAccumulation`.
    """

    def __init__(self, every: int | Callable[[int], int]) -> None:
        self._every = every
        self._sums: dict[str, torch.Tensor] = {}  # Σ n g by parameter
        self._count, self._taken = 0.0, 0

    def setup(self, run: Run) -> None:
        """See `GradientTransform.setup`."""
        self._run = run

    def __call__(self, gradients: Gradients) -> Withheld | None:
        """See `GradientTransform`; the mean takes the place of the gradient once it is complete."""
        count = float(divisor_of(gradients.count))
        for name, p in self._run.strategy.local_parameters().items():
            if p.grad is not None:
                weighted = p.grad.detach() * count
                self._sums[name] = self._sums[name] + weighted if name in self._sums else weighted
        self._count, self._taken = self._count + count, self._taken + 1
        every = self._wanted()
        if self._taken < every:
            return Withheld(f"{self._taken} of {every} mini-batches of the update", skipped=False)
        for name, p in self._run.strategy.local_parameters().items():
            if name in self._sums:
                p.grad = self._sums[name].div_(self._count)
        self._sums, self._count, self._taken = {}, 0.0, 0
        return None

    def _wanted(self) -> int:
        every = self._every(self._run.state.step) if callable(self._every) else self._every
        require(check_integer("every", every, 1), where=f"GradientAccumulation: at update {self._run.state.step}")
        return int(every)

    def state_dict(self) -> dict[str, Any]:
        """See `GradientTransform.state_dict`."""
        return {"sums": dict(self._sums), "count": self._count, "taken": self._taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `GradientTransform.load_state_dict`."""
        device = self._run.communicator.device
        self._sums = {name: value.to(device).clone() for name, value in state_dict.get("sums", {}).items()}
        self._count, self._taken = state_dict.get("count", 0.0), state_dict.get("taken", 0)
