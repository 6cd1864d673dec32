"""Gradients reduced to the ranks that update their parameters, while the backward pass is still running.

    owner         the rank that updates a parameter
    bucket        gradients of parameters of one owner, last layers first
    reduce        the sum of a bucket goes to its owner alone; together they are a reduce-scatter by whole parameters

On a ring that is half of what an all-reduce sends; the other half is sent when owners give the new parameters to all
(`descend.train.optimizers.zero`). `everywhere` makes it an all-reduce, for steps in which something reads all sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from descend.runtime.shared_memory import reduce_shared
from descend.train.strategies.buckets import Bucket, BucketAllocator, GradientReducer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OwnerBuckets", "ReduceScatter"]


class OwnerBuckets(BucketAllocator):
    """Divides parameters into buckets of one owner each.

    Args:
        owners: The rank that updates each parameter.
        given: As for `BucketAllocator`.
    """

    def __init__(self, owners: Mapping[str, int], *given: Any) -> None:
        super().__init__(*given)
        self._owners = owners

    def divide(self, trained: list[str]) -> list[list[str]]:
        """See `BucketAllocator.divide`. A bucket comes after those whose gradients are complete before its own."""
        by_owner: dict[int, list[str]] = {}
        for name in trained:
            by_owner.setdefault(self._owners[name], []).append(name)
        found = [names for some in by_owner.values() for names in super(OwnerBuckets, self).divide(some)]
        place = {name: i for i, name in enumerate(trained)}
        return sorted(found, key=lambda names: -place[names[-1]])  # the first parameter is the last to be complete


@dataclass
class ReduceScatter(GradientReducer):
    """What gives each rank the sums of the gradients of its parameters.

    Args:
        owners: The rank that updates each parameter.
        reads_all: Says whether something on this rank reads all sums; then all ranks get them from the next step on.

    Attributes:
        everywhere: Whether all ranks get all sums in the step under way.
        present: Names of the parameters that had a gradient on some rank in the newest step.
    """

    owners: Mapping[str, int] = field(default_factory=dict[str, int])
    reads_all: Callable[[], bool] = lambda: False
    everywhere: bool = True
    present: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.allocator = OwnerBuckets(self.owners, self.weights, self.process, self.bucket_bytes, self.say)
        self._agreed = self.everywhere

    @property
    def room(self) -> int:
        """See `GradientReducer.room`."""
        return super().room + 1

    def begin(self, divisor: float = 1.0) -> None:
        """See `GradientReducer.begin`."""
        self.everywhere = self._agreed
        super().begin(divisor)

    def counts(self) -> torch.Tensor:
        """See `GradientReducer.counts`; and whether this rank reads all sums."""
        return torch.cat([super().counts(), torch.tensor([float(self.reads_all())], dtype=torch.float64)])

    def begin_sum(self, bucket: Bucket) -> Any:
        """See `GradientReducer.begin_sum`."""
        if self.everywhere:
            return super().begin_sum(bucket)
        owner = self.owners[bucket.names[0]]
        return distributed.reduce(bucket.buffer, group=self.process.group, group_dst=owner, async_op=True)

    def sum_shared(self, bucket: Bucket) -> None:
        """See `GradientReducer.sum_shared`."""
        if self.everywhere:
            super().sum_shared(bucket)
        elif self.owners[bucket.names[0]] == self.process.rank:
            reduce_shared(bucket.of_each, self.process.rank)

    def send_bucket(self, bucket: Bucket) -> None:
        """See `GradientReducer.send_bucket`."""
        super().send_bucket(bucket)
        if not self.everywhere and self.owners[bucket.names[0]] == self.process.rank:
            self.sent_bytes -= bucket.buffer.nbytes  # an owner keeps its own

    def scatter(self, counts: torch.Tensor) -> None:
        """See `GradientReducer.scatter`; parameters of other ranks have no gradient afterwards, unless `everywhere`."""
        self._agreed, counts = bool(counts[-1] > 0), counts[:-1]
        super().scatter(counts)
        self.present = [name for name, count in zip(self.weights, counts.tolist(), strict=True) if count]
        if not self.everywhere:
            for name, p in self.weights.items():
                if self.owners[name] != self.process.rank:
                    p.grad = None
