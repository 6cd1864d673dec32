"""Studies on the noisy quadratic, with its noise drawn: the whole of a design on a problem of known answer, in seconds.

    study = Study(workload=no_data, batch_sizes=..., steps=..., arms={"sgd": Arm("SGD", {"lr": log(0.01, 1.9)})}, ...)
    result = run_study(study, executor=quadratic(Quadratic(dimensions=100, bins=0)))

An arm's optimizer is SGD, with `momentum` and `nesterov`. "loss" is the risk, without noise of measurement, on both
splits.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import Unsupported
from descend.study.running.executor_choice import Executor
from descend.study.running.optimizer import schedule_of
from descend.study.running.trial import Record, Trial, evaluation_steps
from descend.study.simulate import Quadratic, sample
from descend.study.task import StudyTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["no_data", "quadratic"]

_AT_ONCE = 256


def no_data() -> StudyTask:
    """The workload of a study on the quadratic, which needs neither module nor samples."""
    nothing = torch.zeros(2, 1)
    return StudyTask(
        lambda: torch.nn.Linear(1, 1), torch.nn.MSELoss(), (nothing, nothing), (nothing, nothing), metrics={}
    )


def quadratic(problem: Quadratic) -> Executor:
    """An executor for `run_study` that runs trials on a sampled quadratic."""
    return Executor("quadratic", functools.partial(_run, problem), _AT_ONCE, "asked for")


def _run(
    problem: Quadratic, task: StudyTask, trials: Sequence[Trial], evaluations: int, kinds: dict[str, Any]
) -> Iterator[Record]:
    steps, first = trials[0].steps, trials[0].configuration
    if str(first["optimizer"]).lower() != "sgd":
        raise Unsupported(f"optimizer '{first['optimizer']}': the quadratic is run by SGD, with momentum or without")
    momenta = [float(trial.configuration.get("momentum", 0.0)) for trial in trials]
    rule = "sgd" if not any(momenta) else "nesterov" if first.get("nesterov") else "heavy_ball"
    rates = [schedule_of(trial.configuration, steps) for trial in trials]
    at = evaluation_steps(steps, evaluations)
    every = math.gcd(*at)
    seeds = [trial.seed for trial in trials]
    risks = sample(
        rule,
        trials[0].batch_size,
        rates,
        steps=steps,
        seeds=seeds,
        momenta=momenta,
        problem=problem,
        every_steps=every,
    )
    for place, trial in enumerate(trials):
        losses = [float(risks[step // every, place]) for step in at]
        scores = {split: {"loss": losses} for split in ("train", "validation")}
        failed = next((step for step, loss in zip(at, losses, strict=True) if not math.isfinite(loss)), None)
        yield Record(trial, "done" if failed is None else "diverged", at, scores, failed)
