"""Checks gradients against finite differences of the objective function."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from descend.callbacks.console import say
from descend.callbacks.name_fields import at_least, modes_of
from descend.errors import NumericalError, warn
from descend.graph.fields import described_openly
from descend.train import Callback, Mode

if TYPE_CHECKING:
    import torch

    from descend.data import Batch
    from descend.train import EvaluationView, RunView

__all__ = ["CheckGradients"]

_EPSILON = 2.0**-23  # of float32
_SHOWN = 20


class _Difference(NamedTuple):
    """One entry of a parameter; `str` is its line in the report."""

    weights: str
    entry: int
    gradient: float
    numerical: float
    allowed: float

    @property
    def error(self) -> float:
        return abs(self.gradient - self.numerical)

    @property
    def bad(self) -> bool:
        return not self.error <= self.allowed

    def __str__(self) -> str:
        largest = max(abs(self.gradient), abs(self.numerical))
        return (
            f"weights {self.weights}, entry {self.entry}: gradient {self.gradient:g}, numerical {self.numerical:g}, "
            f"error {self.error:g} (allowed {self.allowed:g}), relative {self.error / largest if largest else 0.0:g}"
        )


@described_openly
class CheckGradients(Callback):
    """Compares the gradient of every trained entry with a difference of the objective on the last mini-batch.

    Where there was none, as in a run of 0 epochs, or where it was a smaller rest of the samples, it is on the first
    mini-batch of the data: a remainder of one sample, whose objective may be close to 0, would make the step too small.

        (f(w − 2h) − 8 f(w − h) + 8 f(w + h) − f(w + 2h)) / 12 h,    allowed error ((ε |f| / h) + h⁴ / 18)^0.9

    with ε = (2⁻²³)^0.9 and, unless `step_size` is given, h = |f| √ε. Of an objective that is 0, as of layers whose
    outputs equal their reference, |f| counts as 1 then, so that the error that rounding makes is allowed.

    Runs:  after_training, after_evaluation of validation and test samples.
    Reads: weights and a mini-batch. Changes nothing: weights and running statistics are put back.
    Costs: four forward passes for each number that is trained, so it is for small models. Layers that draw random
        numbers draw the same ones each time.

    Args:
        step_size: h; 0 takes it from the objective.
        verbose: Print every entry.
        error_on_failure: End the run with an error (exit code 4) instead of a warning.
        execution_modes: When to check; always where none is named.

    Raises:
        ConfigurationError: an unknown mode or a negative step.
        NumericalError: from a hook, when an entry is wrong and `error_on_failure` is set.

    Source: LBANN's CallbackCheckGradients; a negative objective makes its allowed error NaN, here its magnitude counts.
    """

    message: ClassVar[str] = "Callback.CallbackCheckGradients"

    step_size: float = 0.0
    verbose: bool = False
    error_on_failure: bool = False
    execution_modes: str = ""

    def __post_init__(self) -> None:
        modes_of(self.execution_modes)
        at_least(self, 0, "step_size")

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        self._check(run, Mode.TRAIN)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        self._check(evaluation.run, evaluation.mode)

    def _check(self, run: RunView, mode: Mode) -> None:
        if mode not in modes_of(self.execution_modes):
            return
        batch = run.control.probe.last_batch(mode, or_first=True)
        if batch is None:
            return
        differences = self._differences(run, batch)
        say(f"checking gradients on a {mode} mini-batch of {batch.size} samples: {len(differences):,} entries")
        bad = [difference for difference in differences if difference.bad]
        for difference in differences if self.verbose else bad[:_SHOWN]:
            say(str(difference))
        if not bad:
            return
        worst = max(bad, key=lambda difference: difference.error)
        problem = f"CheckGradients: {len(bad):,} of {len(differences):,} entries are wrong; the worst: {worst}"
        if self.error_on_failure:
            raise NumericalError(problem)
        warn(problem)

    def _differences(self, run: RunView, batch: Batch) -> list[_Difference]:
        objective = run.control.probe.objective(batch)
        epsilon = _EPSILON**0.9
        size = abs(objective) or (0.0 if self.step_size else 1.0)
        h = self.step_size or size * math.sqrt(epsilon)
        allowed = (epsilon * size / h + h**4 / 18) ** 0.9
        gradients, trained = run.control.probe.gradients(batch), run.control.trained
        return [
            _Difference(name, i, float(gradient), _numerical(run, batch, trained[name], i, h), allowed)
            for name, of_weights in gradients.items()
            for i, gradient in enumerate(of_weights.reshape(-1).tolist())
        ]


def _numerical(run: RunView, batch: Batch, weights: torch.Tensor, i: int, h: float) -> float:
    """The fourth-order central difference for entry i of one parameter, which is restored exactly."""
    entry = weights.detach()[tuple(map(int, np.unravel_index(i, weights.shape)))]
    before = entry.clone()

    def f(offset: float) -> float:
        entry.copy_(before + offset)
        return run.control.probe.objective(batch)

    try:
        return (f(-2 * h) - 8 * f(-h) + 8 * f(h) - f(2 * h)) / (12 * h)
    finally:
        entry.copy_(before)
