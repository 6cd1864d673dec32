"""What each trial of a stack is given in a step: its samples, learning rate, number of the update and random words.

All of it is what the trial would be given alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from descend.data import orders
from descend.optim.schedules import Constant
from descend.study.running.optimizer import schedule_of
from descend.train.patches.dropout import ReproducibleDropout, philox_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from descend.study.running.trial import Trial

__all__ = ["Draw", "SampleOrder", "SuppliedDropout", "learning_rates", "random_words"]


class Draw(NamedTuple):
    """One draw of a random layer in a forward pass.

    Attributes:
        layer: Its name in the module.
        call: Number of its call in the forward pass.
        rows: Samples.
        width: Words a sample.
    """

    layer: str
    call: int
    rows: int
    width: int


class SuppliedDropout(ReproducibleDropout):
    """Random layers whose words are passed as tensors, so that every trial of a stack has its own.

    Attributes:
        asked: The draws of a forward pass, in its order.
        given: Their words, (rows, width) each; without them words are zeros, and the draw is noted in `asked`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, seed=0)
        self.asked: list[Draw] = []
        self.given: list[Tensor] = []

    def number_of_call(self, name: str) -> int:
        """See `ReproducibleDropout.number_of_call`; torch.vmap allows no draw, and repeats no call."""
        calls = self.calls.setdefault(name, {})
        return calls.setdefault(len(calls), len(calls) + 1)

    def words(self, name: str, call: int, first: int, rows: int, device: torch.device) -> Callable[[int], Tensor]:
        """See `ReproducibleDropout.words`."""

        def drawn(width: int) -> Tensor:
            if self.given:
                return self.given.pop(0)
            self.asked.append(Draw(name, call, rows, width))
            return torch.zeros(rows, width, dtype=torch.int64, device=device)

        return drawn


def random_words(draw: Draw, trials: Sequence[Trial], number: int, device: torch.device) -> Tensor:
    """The words of a draw in update `number`, from 1, of each trial, (trials, rows, width)."""
    layer, call, rows, width = draw
    words = [philox_words(trial.seed, number - 1, layer, call, 0, rows, device, width) for trial in trials]
    return torch.stack([one.to(torch.int64) for one in words])


def learning_rates(trials: Sequence[Trial]) -> np.ndarray[Any, Any]:
    """The learning rate of each trial in each step, (steps, trials)."""
    schedules = [schedule_of(trial.configuration, trial.steps) for trial in trials]
    if all(isinstance(schedule, Constant) for schedule in schedules):
        return np.tile([schedule(0) for schedule in schedules], (trials[0].steps, 1))
    return np.array([[schedule(step) for schedule in schedules] for step in range(trials[0].steps)])


class SampleOrder:
    """Which samples each trial sees in each step: those that it would see alone.

    Args:
        trials: Of one batch size.
        samples: Of the training data.
        device: Where the numbers of samples are put.
    """

    def __init__(self, trials: Sequence[Trial], samples: int, device: torch.device) -> None:
        self._device = device
        self._seeds = [trial.seed for trial in trials]
        self._size = trials[0].batch_size
        self._samples = samples
        self._epoch = -1
        self._batches: list[Tensor] = []

    def rows(self, step: int) -> Tensor:
        """Numbers of the samples of step `step`, from 0; (trials, samples of the batch)."""
        per_epoch = -(-self._samples // self._size)
        epoch, place = divmod(step, per_epoch)
        if epoch != self._epoch:
            drawn = torch.from_numpy(orders(self._seeds, epoch, self._samples)).to(self._device)
            self._epoch, self._batches = epoch, [part.contiguous() for part in drawn.split(self._size, dim=1)]
        return self._batches[place]

    def first_steps(self, steps: int) -> list[int]:
        """The first step of each number of samples among so many steps, from 0."""
        last = -(-self._samples // self._size) - 1
        return [0, last] if self._samples % self._size and 0 < last < steps else [0]

    def count(self, rows: int, steps: int) -> int:
        """How many of the first `steps` steps have so many rows."""
        epochs = steps // -(-self._samples // self._size)
        left = self._samples % self._size
        if rows == left and rows != self._size:
            return epochs
        return steps - (epochs if left else 0)
