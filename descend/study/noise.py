"""The gradient noise scale along the run of a winner, from the parts of batches at the weights that it has reached.

It trains the winner once more with a fresh seed and looks at gradients between updates; the run itself is not touched.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend.callbacks import Sharpness
from descend.errors import Refused, Unsupported
from descend.experiment.fit import fit
from descend.experiment.losses import loss_of
from descend.study.analysis import NoiseScale, noise_scale
from descend.study.design.sampling import seed_of
from descend.study.running.optimizer import is_ours, make
from descend.study.running.trial import evaluation_steps
from descend.study.task import StudyTask, task_of
from descend.train import Callback, Steps

if TYPE_CHECKING:
    from descend.study.results import Comparison, ResultRow
    from descend.train.events import RunView, StepView

__all__ = ["NoisePoint", "measure_noise", "measure_sharpness", "noise_at"]


@dataclass(frozen=True)
class NoisePoint:
    """The noise scale after some updates.

    Attributes:
        step: Updates made.
        found: The scale; None where it is refused.
        refused: Why.
    """

    step: int
    found: NoiseScale | None
    refused: str = ""


def noise_at(
    module: torch.nn.Module, task: StudyTask, *, parts: int, part_size: int, repeats: int, seed: int
) -> NoiseScale:
    """The noise scale at the weights of a module, which is left as it is.

    Args:
        module: In the mode in which it trains.
        task: A prepared task.
        parts: Of a batch, at least 2.
        part_size: Samples of each.
        repeats: Batches that are averaged.
        seed: Of the choice of samples.

    Raises:
        Refused: the gradient does not stand out of its noise.
    """
    mirror = copy.deepcopy(module)
    weights = [p for p in mirror.parameters() if p.requires_grad]
    loss = loss_of(task.loss)
    draw = np.random.default_rng(seed)
    inside: list[float] = []
    whole: list[float] = []
    for _ in range(repeats):
        total, squares = 0.0, 0.0
        for _ in range(parts):
            index = torch.from_numpy(draw.integers(len(task.train[0]), size=part_size))
            rows = tuple(part[index] for part in task.train)
            ratio = loss.ratio(mirror(*rows[:-1]), [rows[-1]], part_size)
            grads = torch.autograd.grad(ratio.numerator / ratio.denominator, weights)
            flat = torch.cat([g.flatten().double() for g in grads])
            total, squares = total + flat / parts, squares + float(flat.square().sum()) / parts
        inside.append(squares)
        whole.append(float(torch.as_tensor(total).square().sum()))
    return noise_scale(inside, whole, parts, part_size)


class _NoiseRecorder(Callback):
    """Measures the noise scale before the first update and after those that are asked for.

    Runs:  before_run and after_step.
    Reads: the module, through a copy. Changes nothing.
    """

    def __init__(self, task: StudyTask, at: tuple[int, ...], options: dict[str, Any]) -> None:
        self.task, self.at, self.options = task, frozenset(at), options
        self.points: list[NoisePoint] = []

    def before_run(self, run: RunView) -> None:
        """At the first weights."""
        self._look(run.module, 0)

    def after_step(self, step: StepView) -> None:
        """Where it is asked for."""
        if step.step in self.at:
            self._look(step.module, step.step)

    def _look(self, module: torch.nn.Module, step: int) -> None:
        try:
            found = noise_at(module, self.task, seed=seed_of("noise", step), **self.options)
        except Refused as refused:
            self.points.append(NoisePoint(step, None, str(refused)))
        else:
            self.points.append(NoisePoint(step, found))


def measure_noise(
    comparison: Comparison, row: ResultRow, *, looks: int = 5, parts: int = 16, part_size: int = 64, repeats: int = 20
) -> tuple[NoisePoint, ...]:
    """The noise scale along the run of a winner.

    Args:
        comparison: The study.
        row: Whose winner.
        looks: At how many places after the first weights, at equal distances.
        parts: Of a batch.
        part_size: Samples of each; for batch norm over groups a multiple of the group.
        repeats: Batches at each place.

    Raises:
        Unsupported: the winner's optimizer is of another library.
        NumericalError: the run diverged.
    """
    task = _followed(comparison, row, "the noise scale")
    options = {"parts": parts, "part_size": part_size, "repeats": repeats}
    watching = _NoiseRecorder(task, evaluation_steps(row.cell.steps, looks), options)
    _train_again(comparison, row, task, "noise", watching)
    return tuple(watching.points)


def measure_sharpness(
    comparison: Comparison, row: ResultRow, *, looks: int = 5, iterations: int = 30
) -> tuple[tuple[int, dict[str, float]], ...]:
    """The largest Hessian eigenvalue along the run of a winner, densely in the first tenth, where a warm-up is.

    Args:
        comparison: The study.
        row: Whose winner.
        looks: At how many places after the first weights, at equal distances, and as many in the first tenth.
        iterations: Of Lanczos' method at each place, at most.

    Returns:
        Updates made, and what `descend.callbacks.Sharpness` records.

    Raises:
        Unsupported: the winner's optimizer is of another library, or an operation has no second derivative.
        NumericalError: the run diverged.
    """
    task = _followed(comparison, row, "sharpness")
    early = evaluation_steps(max(1, row.cell.steps // 10), looks)
    at = tuple(sorted({*early, *evaluation_steps(row.cell.steps, looks)}))
    watching = Sharpness(at=at, iterations=iterations)
    _train_again(comparison, row, task, "sharpness", watching)
    return tuple(watching.found)


def _followed(comparison: Comparison, row: ResultRow, what: str) -> StudyTask:
    """The task of a winner.

    Raises:
        Unsupported: its run cannot be followed.
    """
    if not is_ours(row.winner):
        raise Unsupported(f"{row.cell.arm} runs {row.winner['optimizer']}; {what} is measured with rules of descend")
    task = task_of(comparison.study, row.winner)
    if task.phases:
        raise Unsupported(f"{what} is measured in trials of one phase, and the workload has {len(task.phases) + 1}")
    return task


def _train_again(comparison: Comparison, row: ResultRow, task: StudyTask, what: str, watching: Callback) -> None:
    """Run a winner once more with a fresh seed."""
    cell, seed = row.cell, seed_of(comparison.study.seed, what, row.cell.search)
    module = task.module(seed)
    fit(
        module,
        task.loss,
        tuple(task.train),
        optimizer=make(row.winner, cell.steps, module),
        batch_size=cell.batch_size,
        stop=Steps(cell.steps),
        seed=seed,
        callbacks=[watching],
        verbose=False,
    )
