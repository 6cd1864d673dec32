"""Steps that K-FAC and SGD need to a target on the bundled digits, at batch 512.

    python benchmarks/kfac.py                                    # some minutes on one core
    python benchmarks/kfac.py --bound 0.001 --momentum 0.9       # with the bound on gradients that LBANN has
    python benchmarks/kfac.py --bound 0.001 --decay 0.99 --no-pi # LBANN's own defaults but for the damping
    python benchmarks/kfac.py --model convolutional --limit 300 --seeds 9

Both sides get a grid of the same number of points: SGD of rate and momentum, K-FAC of rate and damping; `--momentum`,
`--bound`, `--decay` and `--no-pi` are K-FAC's, and without them it has no momentum, no bound, a decay of 0.9 and π.
Each point is run with `--tune-seeds` seeds; the best of each side, the one whose median of steps to the target is the
lowest, is run again with `--seeds` fresh seeds. A seed decides first weights and the order of samples, the same for
both sides. Validation accuracy is measured after every step. A run that has not come there after `--limit` steps counts
as the limit and is marked.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import math
import statistics
import time
import warnings
from dataclasses import dataclass
from itertools import product

import torch
from torch import nn

import descend

RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
MOMENTA = (0.0, 0.9, 0.95)
DAMPINGS = (0.1, 0.01, 0.001)


def dense() -> nn.Module:
    """64-128-128-10."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def convolutional() -> nn.Module:
    """Two convolutions, the second with stride 2, and two fully connected layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


MODELS = {"dense": dense, "convolutional": convolutional}


@dataclass(frozen=True)
class Point:
    """Settings of one run; without a damping it is SGD."""

    rate: float
    momentum: float
    damping: float | None = None

    def __str__(self) -> str:
        damping = "" if self.damping is None else f", damping {self.damping:g}"
        return f"rate {self.rate:g}, momentum {self.momentum:g}{damping}"


class EveryStep(descend.Callback):
    """Measures validation accuracy after each update, and stops where the target is reached."""

    def __init__(self, target: float) -> None:
        self.target = target

    def after_step(self, step: descend.train.StepView) -> None:
        """See `Callback.after_step`."""
        if step.run.control.evaluate(descend.train.Mode.VALIDATION)["accuracy"] >= self.target:
            step.run.control.stop("the target is reached")


def steps(point: Point, given: argparse.Namespace, seed: int) -> tuple[int, bool, float]:
    """Steps to the target, whether it was reached, and the seconds."""
    readers = descend.open_readers(descend.zoo.digits())
    torch.manual_seed(seed)
    algorithm = None
    if point.damping is not None:
        algorithm = descend.KFAC(
            damping_act=point.damping,
            damping_err=point.damping,
            kronecker_decay=given.decay,
            gradient_bound=given.bound,
            use_pi=given.pi,
        )
    began = time.perf_counter()
    try:
        result = descend.fit(
            MODELS[given.model](),
            "cross_entropy",
            readers["train"],
            valid=readers["validate"],
            metrics=["accuracy"],
            optimizer=functools.partial(torch.optim.SGD, lr=point.rate, momentum=point.momentum),
            batch_size=512,
            stop=descend.Steps(given.limit),
            algorithm=algorithm,
            seed=seed,
            callbacks=[EveryStep(given.target)],
            verbose=False,
        )
    except descend.errors.NumericalError:
        return given.limit, False, time.perf_counter() - began
    return result.steps, "target" in result.reason, time.perf_counter() - began


def shown(found: tuple[int, bool, float]) -> str:
    """The steps of a run."""
    count, reached, _ = found
    return f"{count:4d}" if reached else f">{count:3d}"


def best(name: str, points: list[Point], given: argparse.Namespace) -> Point:
    """The point of a grid whose median of steps to the target over seeds is the lowest; the grid is printed."""
    seeds = range(1000, 1000 + given.tune_seeds)  # none of those that follow
    print(f"\n{name}: {len(points)} points, {given.tune_seeds} seeds")
    with contextlib.redirect_stdout(io.StringIO()):
        found = {point: [steps(point, given, seed) for seed in seeds] for point in points}
    for point, results in found.items():
        print(f"    {' '.join(map(shown, results))}   {point}")
    return min(points, key=lambda point: statistics.median(count for count, _, _ in found[point]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Steps of K-FAC and SGD to a target on the digits at batch 512.")
    parser.add_argument("--model", choices=MODELS, default="dense")
    parser.add_argument("--target", type=float, default=0.96, help="validation accuracy")
    parser.add_argument("--limit", type=int, default=150, help="steps of a run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tune-seeds", type=int, default=3)
    parser.add_argument("--decay", type=float, default=0.9, help="K-FAC's kronecker_decay")
    parser.add_argument("--bound", type=float, default=math.inf, help="K-FAC's gradient_bound; LBANN's is 0.001")
    parser.add_argument("--momentum", type=float, default=0.0, help="of K-FAC's steps")
    parser.add_argument("--pi", action=argparse.BooleanOptionalAction, default=True, help="K-FAC's use_pi")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "the mini-batch size 512 is more than the 300 samples")
    print(
        f"{given.model}, batch 512, to a validation accuracy of {given.target:g}; > marks runs that did not come there"
    )
    sgd = best("SGD", [Point(rate, momentum) for momentum, rate in product(MOMENTA, RATES)], given)
    grid = [Point(rate, given.momentum, damping) for damping, rate in product(DAMPINGS, RATES)]
    kfac = best("K-FAC", grid, given)
    print(f"\nthe best of each side, {given.seeds} fresh seeds")
    for name, point in (("SGD", sgd), ("K-FAC", kfac)):
        with contextlib.redirect_stdout(io.StringIO()):
            runs = [steps(point, given, seed) for seed in range(1, given.seeds + 1)]
        median = statistics.median(run[0] for run in runs)
        seconds = statistics.median(run[2] / run[0] for run in runs)
        every = " ".join(map(shown, runs))
        print(f"    {name:<6} median {median:g} steps ({every}), {1000 * seconds:.1f} ms a step   {point}")


if __name__ == "__main__":
    main()
