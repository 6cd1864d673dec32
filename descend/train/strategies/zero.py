"""Data parallelism with ZeRO stage 1: each rank gets the gradients of the parameters whose optimizer state it keeps.

    backward        gradients go to their owners bucket by bucket, as soon as they are complete: `reduce_scatter.py`
    transforms      each rank looks at and clips the gradients of its own parameters; norms are those of all
    optimizer_step  each rank updates its own parameters and gives them to all: `descend.train.optimizers.zero`

Where something reads all gradients, they are all-reduced as without sharding: `after_backward` of a callback, K-FAC,
the loss scale of float16. Ranks tell each other in one step whether they do so in the next, so the first has all.

Rajbhandari et al. 2020, section 5.1 and 7.2, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, cast

import torch

from descend.train.events import Event
from descend.train.strategies.data_parallel import DataParallel, all_gather_names
from descend.train.strategies.reduce_scatter import ReduceScatter

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from descend.data import Batch
    from descend.train.optimizers.zero import ZeroRedundancyOptimizer
    from descend.train.run import Run

__all__ = ["ZeroDataParallel"]


class ZeroDataParallel(DataParallel):
    """One rank among several, whose optimizer is a `ZeroRedundancyOptimizer`."""

    def setup(self, run: Run) -> None:
        """See `Strategy.setup`."""
        super().setup(run)
        optimizer = cast("ZeroRedundancyOptimizer", run.optimizer)
        self._own = {name: p for name, p in self.parameters.items() if name in optimizer.local_names}
        self.reducer = self._sums = ReduceScatter(
            self.parameters, run.communicator, say=run.say, owners=optimizer.owners, reads_all=self._reads_all
        )

    def _reads_all(self) -> bool:
        run = self._run
        return (
            run.callbacks.wants(Event.AFTER_BACKWARD)
            or run.precision.checks_for_overflow
            or any(transform.needs_all_gradients for transform in run.transforms.after_reduce)
        )

    @contextlib.contextmanager
    def accumulating(self, batch: Batch) -> Generator[None]:
        """See `Strategy.accumulating`."""
        with super().accumulating(batch):
            self.is_sharded = not self._sums.everywhere
            yield

    def local_parameters(self) -> Mapping[str, torch.Tensor]:
        """See `Strategy.local_parameters`: those that this rank updates, where it has no other gradients."""
        return self._own if self.is_sharded else self.parameters

    def gradient_norms(self, parameters: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """See `Strategy.gradient_norms`; the joint norm is that of all norms in their order, as without sharding."""
        own, total = super().gradient_norms(parameters)
        if not self.is_sharded:
            return own, total
        names = self._sums.present
        place = {name: i for i, name in enumerate(names)}
        norms = torch.zeros(len(names), dtype=torch.float64, device=self._communicator.device)
        for name, norm in zip((name for name, p in parameters.items() if p.grad is not None), own, strict=True):
            norms[place[name]] = norm
        kinds = [self.parameters[name].dtype for name in names]
        kind = functools.reduce(torch.promote_types, kinds) if kinds else torch.float32
        return own, torch.linalg.vector_norm(self._communicator.all_reduce(norms).to(kind))

    def union(self, names: Sequence[str]) -> list[str]:
        """See `Strategy.union`."""
        return all_gather_names(names, self._communicator) if self.is_sharded else list(names)
