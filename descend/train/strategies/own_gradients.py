"""Base of strategies in which each rank keeps the mean gradient of its own samples: majority vote and local SGD.

The ranks still synchronize in each step, and skip one together; what they send of their gradients, if anything, is up
to the strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.runtime.dtensor import is_sharded
from descend.train.strategies.base import StrategyDescription
from descend.train.strategies.data_parallel import DataParallel, all_gather_names
from descend.train.strategies.zero import ZeroRedundancyOptimizer
from descend.train.transforms.kfac import KFAC

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from descend.runtime import Communicator
    from descend.train.run import Run

__all__ = ["OwnGradients", "OwnGradientsDescription"]


class OwnGradients(DataParallel):
    """Base of strategies in which each rank keeps the mean gradient of its own samples."""

    reduces_gradients = divides_early = overlaps = False

    def divisor(self, own: torch.Tensor | float, joint: torch.Tensor | float) -> torch.Tensor | float:
        """See `DataParallel.divisor`."""
        return own

    def union(self, names: Sequence[str]) -> list[str]:
        """See `Strategy.union`: a step is skipped on all ranks or on none."""
        return all_gather_names(names, self._communicator)


class OwnGradientsDescription(StrategyDescription):
    """Base of the descriptions of such strategies.

    Attributes:
        why_whole: Why the optimizer's state cannot be sharded, a clause.
        has_own_weights: Whether the weights of the ranks differ between synchronizations, as their gradients do.
    """

    why_whole: ClassVar[str]
    has_own_weights: ClassVar[bool] = True

    def problems(self, run: Run, world: Communicator, trainers: int) -> list[str]:
        """See `StrategyDescription.problems`."""
        problems: list[str] = []
        if isinstance(run.optimizer, ZeroRedundancyOptimizer):
            problems.append(f"shard_optimizer: {self.why_whole}")
        if any(isinstance(algorithm, KFAC) for algorithm in run.config.algorithm.nested()):
            problems.append("K-FAC, which needs the mean gradient of all ranks: leave one of them out")
        if any(is_sharded(p) for p in run.parameters.values()):
            problems.append("sharded parameters: no rank has the gradient of its own samples; do not call fully_shard")
        averages = [type(callback).__name__ for callback in run.callbacks.all if callback.replaces_weights]
        if averages and self.has_own_weights and world.world_size > 1:
            problems.append(
                f"{', '.join(averages)} on several ranks: each has weights of its own between synchronizations, and a "
                "checkpoint keeps one average; use outer_momentum, which averages over steps too"
            )
        return [f"{self.written} does not go with {problem}" for problem in problems]

    def prepare(self, run: Run, world: Communicator) -> None:
        """See `StrategyDescription.prepare`."""
        run.checks.replicas.has_copies = not self.has_own_weights
