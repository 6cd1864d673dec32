"""Gradient accumulation across steps: one update by the mean gradient of several mini-batches.

    g = (Σᵢ nᵢ gᵢ) / (Σᵢ nᵢ)        gᵢ: the mean gradient of mini-batch i, nᵢ: what its loss counts

So k mini-batches of n samples make the update of one mini-batch of k n. How many there are may change on the way, which
is a schedule of the batch size that costs no memory. At the end of an epoch the window continues; mini-batches that are
left at the end of training make no update, which one line says. A checkpoint keeps the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from descend.arguments import check_integer, require
from descend.arguments.strict_keywords import StrictKeywords
from descend.runtime.dtensor import shard_like
from descend.train.optimizers.state import unsharded
from descend.train.strategies.base import StrategyDescription, divisor_of
from descend.train.strategies.zero import ZeroRedundancyOptimizer
from descend.train.transforms.base import GradientTransform, UpdateWindow, Withheld
from descend.train.transforms.check_finite import CheckFinite
from descend.train.transforms.kfac import KFAC

if TYPE_CHECKING:
    from collections.abc import Callable

    from descend.runtime import Communicator
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients

__all__ = ["AccumulateGradients", "GradientAccumulation"]


@dataclass(frozen=True)
class GradientAccumulation(StrategyDescription, metaclass=StrictKeywords):
    """An update after every so many mini-batches; for `fit(strategy=...)`.

    It is used on a single device, with data parallelism and with FSDP, and with a sharded optimizer. It takes the place
    of other strategies: local SGD and majority vote have windows of their own, and a parameter server applies each
    gradient as it arrives. K-FAC is refused.

    Args:
        every: Mini-batches of an update: an integer above 0, or a function of the number of the update, from 0.

    Raises:
        ConfigurationError: it is neither.
    """

    takes_phases: ClassVar[bool] = True
    every: int | Callable[[int], int] = 1

    def __post_init__(self) -> None:
        if not callable(self.every):
            require(check_integer("every", self.every, 1), where="GradientAccumulation")

    def problems(self, run: Run, world: Communicator, trainers: int) -> list[str]:
        """See `StrategyDescription.problems`."""
        if any(isinstance(algorithm, KFAC) for algorithm in run.config.algorithm.nested()):
            return [
                f"{self.written} does not go with K-FAC, which preconditions the gradient of each mini-batch before it "
                "is added: set a larger batch_size, and micro_batch_size where memory is short"
            ]
        return []

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
        count, own = float(divisor_of(gradients.count)), self._run.strategy.local_parameters()
        for name, p in self._run.parameters.items():
            if name in own and p.grad is not None:
                self._sums[name] = _sum(self._sums.get(name), p.grad.detach() * count)
        self._count, self._taken = self._count + count, self._taken + 1
        every = self._wanted()
        if self._taken < every:
            return Withheld(f"{self._taken} of {every} mini-batches of the update", skipped=False)
        for name, p in self._run.parameters.items():
            if name in self._sums:
                p.grad = self._sums[name].div_(self._count)
        self._sums, self._count, self._taken = {}, 0.0, 0
        return None

    def window(self) -> UpdateWindow:
        """See `GradientTransform.window`."""
        first = self._wanted()
        return UpdateWindow(
            first, None if callable(self._every) else first, f"GradientAccumulation(every={self._every!r})"
        )

    def kept(self) -> str:
        """See `GradientTransform.kept`."""
        if not self._taken:
            return ""
        return (
            f"{self._taken:,} of the {self._wanted():,} mini-batches of the next update by GradientAccumulation, "
            f"{self._run.state.samples_kept:,} samples, are left over"
        )

    def _wanted(self) -> int:
        every = self._every(self._run.state.step) if callable(self._every) else self._every
        require(check_integer("every", every, 1), where=f"GradientAccumulation: at update {self._run.state.step}")
        return int(every)

    def state_dict(self) -> dict[str, Any]:
        """See `GradientTransform.state_dict`; sums of sharded parameters are gathered, so any world size takes them."""
        sums = {name: _as_plain(value) for name, value in unsharded(self._sums).items()}
        if isinstance(self._run.optimizer, ZeroRedundancyOptimizer):
            sums = self._run.optimizer.consolidate({"weights": sums})["weights"]
        return {"sums": sums, "count": self._count, "taken": self._taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `GradientTransform.load_state_dict`."""
        device, parameters = self._run.communicator.device, self._run.parameters
        sums = state_dict.get("sums", {})
        self._sums = {name: shard_like(_as_tensor(value, device), parameters[name]) for name, value in sums.items()}
        self._count, self._taken = state_dict.get("count", 0.0), state_dict.get("taken", 0)


def _sum(a: torch.Tensor | None, b: torch.Tensor) -> torch.Tensor:
    """a + b; rows of sparse gradients are added up at once, so a window that is saved and resumed has the same bits."""
    if a is not None:
        b = b + a if b.layout == torch.strided else a + b
    return b.coalesce() if b.is_sparse else b


def _as_plain(value: torch.Tensor) -> Any:
    """What a checkpoint can keep of a tensor: its rows and their places, where it is sparse."""
    if not value.is_sparse:
        return value
    return {"indices": value.indices(), "values": value.values(), "shape": list(value.shape)}


def _as_tensor(value: Any, device: torch.device) -> torch.Tensor:
    """The tensor of which `_as_plain` gave `value`, on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device).clone()
    rows = torch.sparse_coo_tensor(value["indices"], value["values"], value["shape"], is_coalesced=True)
    return rows.to(device)
