"""Local SGD and DiLoCo: each rank takes steps by itself, then an outer optimizer steps by the averaged difference.

    x            the outer parameters, the same on all ranks
    pᵣ ← x       each rank makes `steps` updates of its own with the inner optimizer, on its share of the mini-batches
    Δ = mean over ranks of x − pᵣ
    m ← μ m + Δ                    x ← x − η (Δ + μ m) with Nesterov momentum, x ← x − η m without
    pᵣ ← x

With η = 1 and μ = 0 it is local SGD (averaged parameters); DiLoCo takes AdamW inside, Nesterov momentum 0.9, η = 0.7.
Buffers are averaged with the parameters. Source: Stich 2019, Algorithm 1, https://arxiv.org/abs/1805.09767; Douillard
et al. 2023, Algorithm 1, https://arxiv.org/abs/2311.08105
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from descend.arguments import check_bool, check_integer, check_number, require
from descend.arguments.strict_keywords import StrictKeywords
from descend.runtime import flatten, unflatten
from descend.train.optimizers.state import OptimizerState
from descend.train.strategies.own_gradients import OwnGradients, OwnGradientsDescription

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from descend.data import Batch
    from descend.runtime import Communicator

__all__ = ["LocalSGD", "LocalSteps"]


@dataclass(frozen=True)
class LocalSGD(OwnGradientsDescription, metaclass=StrictKeywords):
    """Each rank takes `steps` updates between two averages; a strategy for `fit`.

    Args:
        steps: H, updates of each rank between two synchronizations.
        outer_lr: η, above 0.
        outer_momentum: μ, in [0, 1); Nesterov's where `nesterov` is set.
    """

    why_whole: ClassVar[str] = "each rank makes updates of its own, so it needs the state of all parameters"
    takes_phases: ClassVar[bool] = True
    steps: int = 8
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    nesterov: bool = True

    def __post_init__(self) -> None:
        numbers = check_integer("steps", self.steps, 1), check_number("outer_lr", self.outer_lr, above=0)
        momentum = check_number("outer_momentum", self.outer_momentum, at_least=0, below=1)
        require(numbers, momentum, check_bool("nesterov", self.nesterov), where="LocalSGD")

    def create(self, world: Communicator) -> LocalSteps:
        """See `StrategyDescription.create`."""
        return LocalSteps(self)


class LocalSteps(OwnGradients):
    """The strategy that `LocalSGD` describes."""

    def __init__(self, rule: LocalSGD) -> None:
        self._rule, self._taken = rule, 0
        self._outer: dict[str, torch.Tensor] = {}  # x and m, by "x NAME" and "m NAME"
        self._loaded: dict[str, Any] = {}

    def optimizer_step(self, batch: Batch) -> None:
        """One inner step, and the outer step after every `steps` of them."""
        if not self._outer:
            self._outer = {f"x {name}": p.detach().clone() for name, p in self.parameters.items()}
        self._run.precision.optimizer_step(self._run.optimizer)
        self._taken += 1
        if self._taken >= self._rule.steps:
            self._synchronize_parameters()

    @torch.no_grad()
    def _synchronize_parameters(self) -> None:
        """The outer step, by the differences of all ranks since the last one."""
        rule, outer, means = self._rule, self._outer, self._means()
        for name in self.parameters:
            x, delta = outer[f"x {name}"], outer[f"x {name}"] - means[name]
            if rule.outer_momentum:
                m = outer[f"m {name}"] = rule.outer_momentum * outer.get(f"m {name}", torch.zeros_like(x)) + delta
                delta = delta + rule.outer_momentum * m if rule.nesterov else m
            means[name] = x.sub_(delta, alpha=rule.outer_lr)
        _copy(means, self._tensors)
        self._taken = 0

    @property
    def _tensors(self) -> dict[str, torch.Tensor]:
        return {**self.parameters, **dict(self._run.task.module.named_buffers())}

    def _means(self) -> dict[str, torch.Tensor]:
        """The mean over ranks of each parameter and buffer; of integers, the values of rank zero."""
        copies, ranks = {name: t.detach().clone() for name, t in self._tensors.items()}, self._communicator.world_size
        self._communicator.broadcast(0, [t for t in copies.values() if not t.is_floating_point()])
        floats = {name: t for name, t in copies.items() if t.is_floating_point()}
        return copies | {name: self._communicator.all_reduce(t).div_(ranks) for name, t in floats.items()}

    @contextmanager
    def evaluating(self) -> Generator[None]:
        """Within this block all ranks hold the mean of their parameters and buffers; nothing else changes."""
        before = {name: t.detach().clone() for name, t in self._tensors.items()}
        _copy(self._means(), self._tensors)
        try:
            yield
        finally:
            _copy(before, self._tensors)

    def end_training(self) -> None:
        """All ranks end with the mean of their parameters; a checkpoint of the end continues without that."""
        _copy(self._means(), self._tensors)

    def own_state(self) -> dict[str, Any]:
        """The outer state, and what differs between ranks: parameters, buffers and inner optimizer, by rank."""
        optimizer = OptimizerState(self._run.optimizer, self._run.task.module).state_dict()
        tensors, plain = flatten({"own": self._tensors, "optimizer": optimizer})
        gather, device = self._communicator.all_gather_cat, self._communicator.device
        by_rank = {name: gather(t.detach()[None].to(device)) for name, t in tensors.items()}
        return {"taken": self._taken, "outer": self._outer, "plain": plain, "ranks": by_rank}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Keep what `restored` continues from."""
        self._outer = {name: t.to(self._communicator.device).clone() for name, t in state["outer"].items()}
        self._loaded, self._taken = state, int(state["taken"])

    def restored(self) -> None:
        """Go on as this rank; with another number of ranks, begin a new window at the outer parameters."""
        if not self._loaded:
            return
        ranks, rank = self._communicator.world_size, self._communicator.rank
        if all(len(of_all) == ranks for of_all in self._loaded["ranks"].values()):
            own = unflatten(self._loaded["plain"], {name: t[rank] for name, t in self._loaded["ranks"].items()})
            OptimizerState(self._run.optimizer, self._run.task.module).load_state_dict(own["optimizer"])
            _copy(own["own"], self._tensors)
        else:
            self._taken = 0
            _copy({name[2:]: x for name, x in self._outer.items() if name.startswith("x ")}, self._tensors)
        self._loaded = {}


@torch.no_grad()
def _copy(values: Mapping[str, torch.Tensor], places: Mapping[str, torch.Tensor]) -> None:
    for name, value in values.items():
        places[name].copy_(value)
