"""Loss and metrics on fixed samples, in evaluation mode: the same numbers for training and validation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from descend.experiment.losses import loss_of
from descend.experiment.metrics import build_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from descend.study.task import StudyTask

__all__ = ["Scorer", "parts_of"]

_ROWS = 4096  # samples that go through a module at once
_ROWS_OF_A_STACK = 128  # and through each module of a stack on a CPU, so that what lies between layers stays in caches


def parts_of(rows: Sequence[Tensor], *, stacked: bool) -> Iterator[tuple[Tensor, ...]]:
    """Samples as they go through a module.

    Those of a stack are divided so that samples of all splits come in parts of one length, and what is left, since each
    length has a trace of its own; others in parts of equal length but for the last one.

    Args:
        rows: Inputs and target.
        stacked: Whether through each module of a stack.
    """
    count = len(rows[0])
    if stacked and rows[0].device.type == "cpu":
        length = _ROWS_OF_A_STACK
    else:
        length = math.ceil(count / math.ceil(count / _ROWS)) if count else 1
    for start in range(0, count, length):
        yield tuple(part[start : start + length] for part in rows)


class Scorer:
    """Takes scores of one task.

    Args:
        task: A prepared task.
    """

    def __init__(self, task: StudyTask) -> None:
        self.loss = loss_of(task.loss)
        self.metrics = {"loss": self.loss, **build_metrics(task.metrics, task.loss)}
        self.splits = task.measured()
        self.test = task.test

    def ratios(self, output: Any, target: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Numerator and denominator of each metric over a part of the samples."""
        count = len(target)
        found = {name: metric.ratio(output, [target], count) for name, metric in self.metrics.items()}
        return {
            name: (one.numerator.double(), torch.as_tensor(one.denominator).double()) for name, one in found.items()
        }

    def take(
        self, call: Callable[..., dict[str, tuple[Tensor, Tensor]]], rows: Sequence[Tensor], *, stacked: bool = False
    ) -> dict[str, Tensor]:
        """Scores of some samples.

        Args:
            call: From inputs and target of some samples to `ratios`; with leading dimensions if several modules are
                looked at.
            rows: Inputs and, last, the target.
            stacked: Whether several modules are looked at.
        """
        totals: dict[str, tuple[Tensor, Tensor]] = {}
        with torch.no_grad():
            for part in parts_of(rows, stacked=stacked):
                for name, (above, below) in call(*part).items():
                    old = totals.get(name)
                    totals[name] = (above, below) if old is None else (old[0] + above, old[1] + below)
        return {name: above / below for name, (above, below) in totals.items()}

    def take_all(
        self, call: Callable[..., dict[str, tuple[Tensor, Tensor]]], *, stacked: bool = False
    ) -> dict[str, dict[str, Tensor]]:
        """Scores of training and validation samples."""
        return {split: self.take(call, rows, stacked=stacked) for split, rows in self.splits.items()}

    def take_test(
        self, call: Callable[..., dict[str, tuple[Tensor, Tensor]]], *, stacked: bool = False
    ) -> dict[str, dict[str, Tensor]]:
        """Scores of the test samples, for confirmed winners at their end; nothing where the task has none."""
        return {} if self.test is None else {"test": self.take(call, self.test, stacked=stacked)}
