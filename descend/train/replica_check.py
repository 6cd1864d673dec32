"""Compares the weights of ranks that hold copies of them, now and then, so that none drifts away unseen.

    16, 32, 64, ... 1,024 updates after the run began, then every 1,024, and at the end

A comparison reads the weights once and sends 8 bytes for each parameter. Buffers, such as running statistics, are made
equal by the strategy; sharded parameters have no copies. Copies that differ by rounding, as where ranks have different
processors, are said once; more than that is an error.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from descend.errors import DataError
from descend.runtime.checksums import bits_sum
from descend.runtime.dtensor import is_sharded

if TYPE_CHECKING:
    from descend.train.run import Run

__all__ = ["ReplicaCheck"]

_FIRST, _LONGEST = 16, 1024  # updates between two comparisons
_ROUNDING = 1e-3  # of the largest element: rounding adds up to less in millions of updates of float32
_SHOWN = 3


class ReplicaCheck:
    """Compares the weights of the ranks of a run.

    Args:
        run: The run.

    Attributes:
        due: At how many updates the next comparison is.
        has_copies: Whether ranks hold the same weights after each step, those that are sharded aside; None where it is
            not known, as of a strategy of a user's own, whose ranks are not compared.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._interval, self._said = run, _FIRST, False
        self.due = sys.maxsize
        ours = type(run.strategy).__module__.partition(".")[0] == __name__.partition(".")[0]
        self.has_copies: bool | None = True if ours else None

    def begin(self) -> None:
        """Plan the first comparison, where ranks hold copies and the user has not turned it off."""
        run = self._run
        if run.communicator.world_size > 1 and self.has_copies and run.config.check_ranks:
            self.due = run.state.step + _FIRST

    def compare(self) -> None:
        """Compare the weights of all ranks, and plan the next comparison. All ranks call it together.

        Raises:
            DataError: they differ by more than rounding; with the rank and the parameter.
        """
        self._interval = min(2 * self._interval, _LONGEST)
        self.due = self._run.state.step + self._interval
        copies = {name: p for name, p in self._run.control.weights.items() if name in self._run.parameters}
        copies = {name: p for name, p in copies.items() if not is_sharded(p)}
        if not copies:
            return
        communicator = self._run.communicator
        sums = torch.stack([bits_sum(p).to(communicator.device) for p in copies.values()])
        of_all = communicator.all_gather_cat(sums[None])
        if bool((of_all == of_all[:1]).all()):
            return
        differs = (of_all != of_all[:1]).any(0).tolist()
        self._report({name: p for (name, p), other in zip(copies.items(), differs, strict=True) if other})

    def end(self) -> None:
        """Compare once more, where any rank may have drifted since the last comparison."""
        if self.due < sys.maxsize:
            self.compare()

    def _report(self, copies: dict[str, torch.Tensor]) -> None:
        """Say by how much copies differ from those of rank 0.

        Raises:
            DataError: by more than rounding.
        """
        communicator, step = self._run.communicator, self._run.state.step
        of_first = [p.detach().clone() for p in copies.values()]
        communicator.broadcast(0, of_first)
        own = [_difference(p.detach(), first) for p, first in zip(copies.values(), of_first, strict=True)]
        by_rank = [dict(zip(copies, parts, strict=True)) for parts in communicator.all_gather_object(own)]
        far = {rank: [name for name, by in parts.items() if not by <= _ROUNDING] for rank, parts in enumerate(by_rank)}
        if ranks := [rank for rank, names in far.items() if names]:
            names = far[ranks[0]]
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            also = f" (and so do those of rank {', '.join(map(str, ranks[1:]))})" if ranks[1:] else ""
            raise DataError(
                f"after {step:,} updates the weights of the ranks have drifted apart: "
                f"{', '.join(map(repr, names[:_SHOWN]))}{more} of rank {ranks[0]} differ from those of rank 0{also}; "
                "look for a callback, a hook or a thread that changes weights on one rank alone, or pass "
                "check_ranks=False"
            )
        if not self._said:
            self._said = True
            most = max(max(parts.values()) for parts in by_rank)
            self._run.say(f"the weights of the ranks differ by rounding, up to {most:.1g} of the largest element")


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two tensors as a part of their largest element; NaN where one has a NaN."""
    if not a.numel():
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    largest = torch.maximum(a.abs().max(), b.abs().max())
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    return float(torch.where(same, torch.zeros_like(a.abs()), (a - b).abs()).max() / largest)
