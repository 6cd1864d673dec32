"""Rows of a run: what each epoch, evaluation and callback found, in the history and in the store's `metrics.jsonl`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.train.param_groups import group_learning_rates
from descend.train.progress import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.run import Run

__all__ = ["RunHistory"]


class RunHistory:
    """Adds rows to the history of a run, and removes those that are written again.

    The rows themselves are in `TrainState.history`, since a checkpoint keeps how many there were.

    Args:
        run: The run.

    Attributes:
        nothing_counted: For each mode that this process has measured, whether no sample of its newest pass counted,
            which leaves the objective undefined.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.nothing_counted: dict[Mode, bool] = {}

    def record(self, mode: Mode, values: Mapping[str, float], samples: int, seconds: float, is_empty: bool) -> None:
        """Add the outcome of an epoch, with the learning rates in force at its end, or of an evaluation.

        Args:
            mode: What was measured.
            values: By name.
            samples: How many were seen.
            seconds: How long it took.
            is_empty: Whether none of the samples counted.
        """
        self.nothing_counted[mode] = is_empty
        rates = group_learning_rates(self._run.optimizer) if mode is Mode.TRAIN else {}
        self._append(mode, self._run.state.step, values, {**rates, "samples": samples, "seconds": seconds})

    def record_step(self, values: Mapping[str, float], step: int) -> None:
        """Add what a callback found in a training step; a run that is resumed later does not write it again."""
        self._append(Mode.TRAIN, step, values, {})
        self._run.state.fix_rows()

    def truncate(self, rows: int) -> None:
        """Keep only the first so many rows: the others are written again."""
        run = self._run
        if rows < len(run.state.history):
            run.state.history.cut(rows)
            run.store.rewrite(run)

    def _append(self, mode: Mode, step: int, values: Mapping[str, float], more: Mapping[str, float]) -> None:
        state = self._run.state
        row = {"mode": mode.value, "epoch": state.epochs_done, "step": step, **values, **more}
        state.values.update({f"{mode.value}/{name}": value for name, value in values.items()})
        state.history.append(row)
        self._run.store.append(row)
