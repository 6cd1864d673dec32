"""How many updates each parameter of an arena has had: `state[param]["step"]`, in one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from descend.torch_private import version_counter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from descend.optim.engine.step_inputs import Entry

__all__ = ["StepCounts"]


class StepCounts:
    """The step counts of the parameters of an arena.

    Attributes:
        values: Of each parameter: (parameters,), float64, on the CPU.
        common: The count where all parameters have the same, else None.
    """

    def __init__(self, count: int) -> None:
        self.values = torch.zeros(count, dtype=torch.float64, device="cpu")
        # The same memory for NumPy: writes through it do not advance torch's version counter, so that the version
        # changes only when a count is written from outside.
        self._numbers = self.values.numpy()
        self.common: int | None = 0
        self._version = version_counter(self.values)

    def adopt(self, i: int, entry: Entry) -> None:
        """Take over the count of parameter i; its entry becomes a view of `values`."""
        self.values[i] = entry["step"]
        entry["step"] = self.values[i]

    def refresh(self) -> None:
        """Follow counts that were written from outside, as by `optimizer.state[p]["step"].fill_(0)`."""
        if version_counter(self.values) != self._version:
            self._recount()

    def _recount(self) -> None:
        first = self.values[0]
        self.common = int(first) if bool((self.values == first).all()) else None
        self._version = version_counter(self.values)

    def advance(self, absent: Sequence[int]) -> None:
        """Count an update of every parameter but those."""
        self._numbers += 1.0
        if absent:
            self._numbers[list(absent)] -= 1.0
            self._recount()
        elif self.common is not None:
            self.common += 1

    def retreat(self, absent: Sequence[int]) -> None:
        """Take back the last `advance`: that update was left out."""
        self._numbers -= 1.0
        self._numbers[list(absent)] += 1.0
        self._recount()

    def take(self, counts: Tensor) -> None:
        """Take over counts that a device kept."""
        self._numbers[:] = counts.cpu().numpy()
        self._recount()
