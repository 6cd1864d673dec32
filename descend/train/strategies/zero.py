"""Data parallelism with ZeRO stage 1: each rank gets the gradients of the parameters whose optimizer state it keeps.

    backward        gradients go to their owners bucket by bucket, as soon as they are complete: `OwnerBuckets`
    transforms      each rank looks at and clips the gradients of its own parameters; norms are those of all
    optimizer_step  each rank updates its own parameters and gives them to all: `descend.train.strategies.zero`

Where something reads all gradients, they are all-reduced as without sharding: `after_backward` of a callback, K-FAC,
the loss scale of float16. Ranks tell each other in one step whether they do so in the next, so the first has all.

Rajbhandari et al. 2020, section 5.1 and 7.2, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed

from descend.errors import Unsupported
from descend.optim import Optimizer
from descend.runtime import flatten, unflatten
from descend.runtime.shared_memory import reduce_shared
from descend.train.events import Event
from descend.train.precision import bare_step
from descend.train.strategies.buckets import Bucket, BucketAllocator, GradientReducer
from descend.train.strategies.data_parallel import DataParallel, all_gather_names

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from descend.data import Batch
    from descend.runtime import Communicator
    from descend.train.run import Run

__all__ = ["ZeroDataParallel", "ZeroRedundancyOptimizer"]


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


# ---- gradients reduced to the ranks that update their parameters, while the backward pass is still running
#
#     owner         the rank that updates a parameter
#     bucket        gradients of parameters of one owner, last layers first
#     reduce        the sum of a bucket goes to its owner alone; together they are a reduce-scatter by whole parameters
#
# On a ring that is half of what an all-reduce sends; the other half is sent when owners give the new parameters to all
# (`descend.train.strategies.zero`). `everywhere` makes it an all-reduce, for steps in which something reads all sums.


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


# ---- an optimizer whose state is shared out among ranks: each keeps that of some weights, and updates these for all
#
#     owners     weights go to the rank that has the least so far, the largest first
#     a step     gradients of other ranks' weights are hidden, the optimizer makes its update, and every rank gives the
#                others the new values of its own weights
#     saving     the first rank gathers the state of all weights, so a checkpoint is the same as without sharing
#
# A parameter stays whole, so its norms (LARS, LAMB) are what they are on one rank. Rajbhandari et al. 2020, stage
# 1, https://arxiv.org/abs/1910.02054


def partition_parameters(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The rank of each parameter, from their sizes."""
    held = [0] * ranks
    found: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = held.index(min(held))
        held[rank] += sizes[name]
        found[name] = rank
    return found


class ZeroRedundancyOptimizer(torch.optim.Optimizer):
    """An optimizer of which each rank keeps the state of some parameters and updates these for all.

    Everything but `step` is the inner optimizer's: groups, state, hooks.

    Args:
        inner: The optimizer of all parameters; this rank steps its own share of them.
        parameters: All of them by name.
        communicator: The ranks.

    Attributes:
        inner: As given.
        sent_bytes: What this rank has sent of its parameters so far.
        owners: The rank that updates each parameter.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        parameters: Mapping[str, torch.nn.Parameter],
        communicator: Communicator,
    ) -> None:
        # torch.optim.Optimizer.__init__ would make groups of its own; those of the inner optimizer are the only ones.
        self.inner = inner
        self._weights, self._process = dict(parameters), communicator
        self.sent_bytes = 0
        self.owners = partition_parameters({name: p.numel() for name, p in parameters.items()}, communicator.world_size)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]  # torch has an attribute
        """Those of the inner optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        """That of the inner optimizer, for this rank's parameters."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        """Those of the inner optimizer."""
        return self.inner.defaults

    def state_dict(self) -> dict[str, Any]:
        """That of the inner optimizer: this rank's share. `consolidate` has the state of all parameters."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the inner optimizer this rank's share."""
        self.inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the inner optimizer."""
        self.inner.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"ZeroRedundancyOptimizer({self.inner!r})"

    @contextlib.contextmanager
    def averaged(self) -> Generator[None]:
        """Within this block all ranks hold the parameters to evaluate, where the rule trains at another point."""
        with self.inner.averaged() if isinstance(self.inner, Optimizer) else contextlib.nullcontext():
            self.exchange()
            yield
        self.exchange()

    @property
    def local_names(self) -> set[str]:
        """Names of the parameters whose state this rank keeps."""
        return {name for name, rank in self.owners.items() if rank == self._process.rank}

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # no closure here
        """Update this rank's parameters, and take the new values of the others from their ranks.

        Raises:
            Unsupported: there is a closure.
        """
        if closure is not None:
            raise Unsupported("an optimizer whose state is sharded takes no closure")
        own = self.local_names
        hidden = {name: p.grad for name, p in self._weights.items() if name not in own}
        for name in hidden:
            self._weights[name].grad = None
        try:
            bare_step(self.inner)()
        finally:
            for name, gradient in hidden.items():
                self._weights[name].grad = gradient
        self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Give every rank the weights that have been updated elsewhere; those of one type go together."""
        if self._process.world_size == 1:
            return
        kinds = {(p.dtype, p.device): None for p in self._weights.values() if p.requires_grad}
        for kind in kinds:
            named = {name: p for name, p in self._weights.items() if (p.dtype, p.device) == kind and p.requires_grad}
            by_rank = [
                [p for name, p in named.items() if self.owners[name] == r] for r in range(self._process.world_size)
            ]
            mine = [p.reshape(-1) for p in by_rank[self._process.rank]]
            own = torch.cat([torch.empty(0, dtype=kind[0], device=kind[1]), *mine])
            self.sent_bytes += own.numel() * own.element_size()
            sizes = [[p.numel() for p in some] for some in by_rank]
            found = self._process.all_gather(own, [sum(some) for some in sizes])
            for rank, flat in enumerate(found):
                if rank != self._process.rank:
                    for p, values in zip(by_rank[rank], flat.split(sizes[rank]), strict=True):
                        p.copy_(values.view(p.shape))

    def consolidate(self, state: dict[str, Any]) -> dict[str, Any]:
        """The optimizer's state of all weights, on the first rank; its own on each other.

        Args:
            state: What `descend.runtime.optimizer_state` gives on this rank.
        """
        own = self.local_names
        tensors, plain = flatten({name: entry for name, entry in state["weights"].items() if name in own})
        forms = [[path, list(tensor.shape), str(tensor.dtype)] for path, tensor in tensors.items()]
        weights: dict[str, Any] = {}
        for rank, (forms_there, plain_there) in enumerate(self._process.all_gather_object([forms, plain])):
            there = {path: self._sent(rank, tensors.get(path), shape, kind) for path, shape, kind in forms_there}
            if self._process.is_rank_zero or rank == self._process.rank:
                weights |= unflatten(plain_there, there)
        return {**state, "weights": weights}

    def _sent(self, rank: int, tensor: torch.Tensor | None, shape: list[int], kind: str) -> torch.Tensor:
        """A tensor of another rank, for the first one; this rank's own as it is."""
        if rank == self._process.rank and tensor is not None:
            if not self._process.is_rank_zero:
                whole = tensor.to(self._process.device).contiguous()
                distributed.send(whole, group=self._process.group, group_dst=0)
            return tensor
        received = torch.empty(shape, dtype=getattr(torch, kind.removeprefix("torch.")), device=self._process.device)
        if self._process.is_rank_zero:
            with self._process.status.wait(f"the optimizer's state on rank {rank}"):
                distributed.recv(received, group=self._process.group, group_src=rank)
        return received

    def local_part(self, state: dict[str, Any]) -> dict[str, Any]:
        """Of a saved state, what this rank is to keep."""
        own = self.local_names
        return {**state, "weights": {name: entry for name, entry in state["weights"].items() if name in own}}
