"""An optimizer whose state is shared out among ranks: each keeps that of some weights, and updates these for all.

    owners     weights go to the rank that has the least so far, the largest first
    a step     gradients of other ranks' weights are hidden, the optimizer makes its update, and every rank gives the
               others the new values of its own weights
    saving     the first rank gathers the state of all weights, so a checkpoint is the same as without sharing

A parameter stays whole, so its norms (LARS, LAMB) are what they are on one rank. Rajbhandari et al. 2020, stage
1, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from descend.errors import Unsupported
from descend.optim import Optimizer
from descend.runtime import flatten, unflatten
from descend.train.precision import bare_step

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from descend.runtime import Communicator

__all__ = ["ZeroRedundancyOptimizer", "partition_parameters"]


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
