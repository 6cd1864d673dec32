"""An optimizer whose state is shared out among ranks: each keeps that of some weights, and updates these for all.

    owners     weights go to the rank that has the least so far, the largest first
    a step     gradients of other ranks' weights are hidden, the optimizer makes its update, and every rank gives the
               others the new values of its own weights
    saving     the first rank gathers the state of all weights, so a checkpoint is the same as without sharing

A weights object stays whole, so norms of one (LARS, LAMB) are what they are on one rank. Rajbhandari et al. 2020, stage
1, https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from descend.runtime import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from descend.runtime import Communicator

__all__ = ["Sharding", "partition_parameters"]


def partition_parameters(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The rank of each weights object, from their sizes."""
    held = [0] * ranks
    found: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = held.index(min(held))
        held[rank] += sizes[name]
        found[name] = rank
    return found


class Sharding:
    """The weights of a run by the rank that keeps their optimizer state.

    Args:
        weights: All of them by name.
        process: This process among its ranks.

    Attributes:
        sent_bytes: What this rank has handed to the others of its weights so far.
    """

    def __init__(self, weights: Mapping[str, torch.nn.Parameter], process: Communicator) -> None:
        self._weights, self._process = weights, process
        self.sent_bytes = 0
        self._owners = partition_parameters({name: p.numel() for name, p in weights.items()}, process.world_size)

    @property
    def own(self) -> set[str]:
        """Names of the weights whose state this rank keeps."""
        return {name for name, rank in self._owners.items() if rank == self._process.rank}

    def step(self, update: Callable[[], None]) -> None:
        """Call `update` with the gradients of this rank's weights alone, and give all ranks the new values."""
        own = self.own
        hidden = {name: p.grad for name, p in self._weights.items() if name not in own}
        for name in hidden:
            self._weights[name].grad = None
        try:
            update()
        finally:
            for name, gradient in hidden.items():
                self._weights[name].grad = gradient
        self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Give every rank the weights that have been updated elsewhere; those of one type go together."""
        kinds = {(p.dtype, p.device): None for p in self._weights.values() if p.requires_grad}
        for kind in kinds:
            named = {name: p for name, p in self._weights.items() if (p.dtype, p.device) == kind and p.requires_grad}
            by_rank = [
                [p for name, p in named.items() if self._owners[name] == r] for r in range(self._process.world_size)
            ]
            mine = [p.reshape(-1) for p in by_rank[self._process.rank]]
            own = torch.cat([torch.empty(0, dtype=kind[0], device=kind[1]), *mine])
            self.sent_bytes += own.numel() * own.element_size()
            flat = self._process.all_gather_cat(own)
            places = flat.split([p.numel() for some in by_rank for p in some])
            for p, values in zip((p for some in by_rank for p in some), places, strict=True):
                p.copy_(values.view(p.shape))

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        """The optimizer's state of all weights, on the first rank; its own on each other.

        Args:
            state: What `descend.runtime.optimizer_state` gives on this rank.
        """
        own = self.own
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

    def kept(self, state: dict[str, Any]) -> dict[str, Any]:
        """Of a saved state, what this rank is to keep."""
        own = self.own
        return {**state, "weights": {name: entry for name, entry in state["weights"].items() if name in own}}
