"""Scores of all trials of a stack at once, from operations that are traced where there are many steps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call, vmap

from descend.optim.rules.base import Rule
from descend.study.running import trace_files
from descend.study.running.scores import parts_of
from descend.study.running.stack_layout import trace_key
from descend.study.running.stacked_update import state_of, with_constants
from descend.study.running.traced import traced
from descend.torch_private import quick_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from descend.study.running.scores import Scorer
    from descend.study.running.stack_layout import StackLayout

__all__ = ["StackScores"]


class StackScores:
    """Takes the scores of a stack.

    Args:
        scorer: Of the task.
        template: A module of the architecture, whose own weights are not used.
        layout: Of the tensors that a step changes.
        frozen: Stacked parameters that no step changes, by name.
        traces: Where traces are kept; None to trace nothing.
        code: The identity of the code under which they are kept on disk.
        worth_a_trace: Whether a trace pays where a look takes so many parts of one length.
    """

    def __init__(
        self,
        scorer: Scorer,
        template: nn.Module,
        layout: StackLayout,
        frozen: Mapping[str, Tensor],
        traces: dict[Any, Any] | None,
        code: Callable[[], str | None] = lambda: None,
        worth_a_trace: Callable[[int], bool] = lambda parts: True,
    ) -> None:
        self.scorer = scorer
        self._template = template
        self._layout = layout
        self._frozen = frozen
        self._traces = traces
        self._code = code
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
            self._traces[form] = traced(plainly, *given, file=trace_files.path_of(self._code(), form))
        return self._traces[form]

    def _averaged(self, place: int, weights: Tensor, entries: dict[str, Tensor]) -> Tensor:
        """The weights to evaluate: for most rules those that are trained."""
        update, kind = self._layout.updates[place], self._layout.state_types[place]
        if type(update.rule).averaged is Rule.averaged:
            return weights

        def one(p: Tensor, state: dict[str, Tensor], constants: dict[str, Tensor]) -> Tensor:
            return with_constants(update.rule, constants).averaged(p, state_of(kind, state))

        return vmap(one)(weights, entries, update.constants)
