"""Buffers that a training step changes, made equal on all ranks after it.

Running statistics follow the groups of a mini-batch one after the other, and ranks hold groups that follow each other
in it. Their rule is linear in what was there before, so the result of one rank is put together from the parts:

    s ← d s + (1 − d) x        for each group; k groups of a rank leave  s_r = dᵏ s + c_r
    s ← dᴷ s + Σ_r dᵃ c_r      with K groups in all and a groups on the ranks after r

With a mean over all groups so far, n of them before, s_r = (n s + Σ x) / (n + k) and s ← (n s + Σ_r Σ x) / (n + K).
Any other buffer takes the values of the last rank, which has the last samples of the mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from descend.data import Batch
    from descend.runtime import Communicator

__all__ = ["BufferSynchronizer", "RunningStatistics"]


@dataclass(frozen=True)
class RunningStatistics:
    """Buffers of one layer that follow the groups of each mini-batch.

    Attributes:
        names: Of the buffers.
        decay: What is kept of them at each group; None where they are means over all groups so far.
        count: Name of the buffer that counts groups; None where there is none.
        followed: How many groups they have followed in the step under way, given this rank's share.
    """

    names: tuple[str, ...]
    decay: float | None
    count: str | None
    followed: Callable[[Batch], int]


class BufferSynchronizer:
    """Keeps the buffers of a module equal on all ranks.

    Args:
        module: The module.
        running: Which of its buffers are running statistics.
        process: This process among its ranks.
    """

    def __init__(self, module: torch.nn.Module, running: Sequence[RunningStatistics], process: Communicator) -> None:
        self._module, self._running, self._process = module, running, process
        self._known = {name for one in running for name in (*one.names, one.count)}
        self._before: dict[str, torch.Tensor] = {}

    def keep(self) -> None:
        """Remember what the buffers hold before a step."""
        self._before = {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}

    def others_changed(self) -> bool:
        """Whether this rank has changed buffers that are no running statistics."""
        now = dict(self._module.named_buffers())
        return any(not torch.equal(now[name], before) for name, before in self._before.items() if self._other(name))

    @torch.no_grad()
    def settle(self, batch: Batch, others: bool) -> None:
        """Make the buffers what one rank alone would have after the step.

        Args:
            batch: This rank's share.
            others: Whether a rank has changed buffers that are no running statistics.
        """
        buffers = dict(self._module.named_buffers())
        if self._running:
            own = [one.followed(batch) if len(batch.ids) else 0 for one in self._running]
            groups = self._process.all_gather_cat(torch.tensor([own], device=self._process.device)).tolist()
            for one, counts in zip(self._running, zip(*groups, strict=True), strict=True):
                self._weigh(one, buffers, counts)
            self._sum([buffers[name] for one in self._running for name in one.names])
        if others:
            some = [buffer for name, buffer in buffers.items() if self._other(name)]
            self._process.broadcast(self._process.world_size - 1, some)

    def _other(self, name: str) -> bool:
        return name not in self._known

    def _weigh(self, one: RunningStatistics, buffers: Mapping[str, torch.Tensor], counts: tuple[int, ...]) -> None:
        """Leave in the buffers of a layer what this rank adds to the sum over ranks; the first adds what was before."""
        rank, before = self._process.rank, self._before
        own, after, every = counts[rank], sum(counts[rank + 1 :]), sum(counts)
        if one.decay is not None:
            kept, factor, of_before = one.decay**own, one.decay**after, one.decay**every
        else:
            n = int(before[one.count]) if one.count else 0
            kept, factor, of_before = n / max(n + own, 1), (n + own) / max(n + every, 1), n / max(n + every, 1)
        for name in one.names:
            buffer = buffers[name]
            added = buffer.sub_(before[name], alpha=kept).mul_(factor) if own else buffer.zero_()
            if rank == 0:
                added.add_(before[name], alpha=of_before if every else 1.0)
        if one.count:
            buffers[one.count].copy_(before[one.count] + every)

    def _sum(self, buffers: Sequence[torch.Tensor]) -> None:
        flat = self._process.all_reduce(torch.cat([buffer.reshape(-1) for buffer in buffers]))
        for buffer, values in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view(buffer.shape))
