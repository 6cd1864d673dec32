"""Loss and metrics on fixed samples, in evaluation mode: the same numbers for training and validation."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call, vmap

from descend.experiment.losses import loss_of
from descend.experiment.metrics import build_metrics
from descend.optim.rules.base import Rule
from descend.study.running.stacked_update import state_of, trace_key, with_constants
from descend.study.running.traced import traced
from descend.torch_private import quick_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from descend.study.running.stacked_update import StackLayout
    from descend.study.task import StudyTask

__all__ = ["Scorer", "StackScores", "parts_of"]

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


class StackScores:
    """Takes the scores of a stack.

    Args:
        scorer: Of the task.
        template: A module of the architecture, whose own weights are not used.
        layout: Of the tensors that a step changes.
        frozen: Stacked parameters that no step changes, by name.
        traces: Where traces are kept; None to trace nothing.
        worth_a_trace: Whether a trace pays where a look takes so many parts of one length.
    """

    def __init__(
        self,
        scorer: Scorer,
        template: nn.Module,
        layout: StackLayout,
        frozen: Mapping[str, Tensor],
        traces: dict[Any, Any] | None,
        worth_a_trace: Callable[[int], bool] = lambda parts: True,
    ) -> None:
        self.scorer = scorer
        self._template = template
        self._layout = layout
        self._frozen = frozen
        self._traces = traces
        each = [part for rows in scorer.splits.values() for part in parts_of(rows, stacked=True)]
        self._parts = {count: part for part in each for count in [len(part[0])]}
        counts = Counter(len(part[0]) for part in each)
        self._traced = {count for count in counts if worth_a_trace(counts[count])}

    def take(self, held: Sequence[Tensor], *, test: bool = False) -> dict[str, dict[str, Tensor]]:
        """Scores of all trials, (trials,) each; with `test` those on the test samples alone."""
        params = self._evaluated(held)

        def all_of(*rows: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
            parts = iter(self._ratios(list(params), [*params.values(), *rows]))
            return {name: (next(parts), next(parts)) for name in self.scorer.metrics}

        take = self.scorer.take_test if test else self.scorer.take_all
        return take(all_of, stacked=True)

    def trace(self, held: Sequence[Tensor]) -> None:
        """Have traced what `take` traces for samples of training and validation."""
        params = self._evaluated(held)
        with torch.no_grad():
            for count in self._traced:
                self._call(list(params), [*params.values(), *self._parts[count]])

    def _evaluated(self, held: Sequence[Tensor]) -> dict[str, Tensor]:
        """Weights and buffers by name, as they are evaluated."""
        self._template.eval()
        weights, states, buffers = self._layout.split(held)
        params = self._layout.by_name([self._averaged(i, p, states[i]) for i, p in enumerate(weights)])
        return {**params, **self._frozen, **buffers}

    def _ratios(self, names: list[str], given: list[Tensor]) -> list[Tensor]:
        """Numerators and denominators of all metrics, from weights and buffers with these names, and rows."""
        return self._call(names, given)(*given)

    def _call(self, names: list[str], given: list[Tensor]) -> Callable[..., list[Tensor]]:
        """The function of weights, buffers and rows for tensors of these shapes, traced where that is wanted."""

        def one(given: list[Tensor], *rows: Tensor) -> list[Tensor]:
            output = functional_call(self._template, dict(zip(names, given, strict=True)), rows[:-1])
            ratios = self.scorer.ratios(output, rows[-1]).values()
            return [part for above, below in ratios for part in (above, below + 0 * above)]

        def plainly(*given: Tensor) -> list[Tensor]:
            rows = given[len(names) :]
            with quick_checks():
                return vmap(one, in_dims=(0, *[None] * len(rows)))(list(given[: len(names)]), *rows)

        if self._traces is None or len(given[-1]) not in self._traced:
            return plainly
        form = ("look", repr(self._template), *names, *trace_key(given))
        if form not in self._traces:
            self._traces[form] = traced(plainly, *given)
        return self._traces[form]

    def _averaged(self, place: int, weights: Tensor, entries: dict[str, Tensor]) -> Tensor:
        """The weights to evaluate: for most rules those that are trained."""
        update, kind = self._layout.updates[place], self._layout.state_types[place]
        if type(update.rule).averaged is Rule.averaged:
            return weights

        def one(p: Tensor, state: dict[str, Tensor], constants: dict[str, Tensor]) -> Tensor:
            return with_constants(update.rule, constants).averaged(p, state_of(kind, state))

        return vmap(one)(weights, entries, update.constants)
