"""Five studies on the noisy quadratic, whose answers are known, through the whole pipeline.

    python benchmarks/known_truth.py [--replicates N] [--seed S] [--write]

A study searches, repeats its shortlist, re-runs its winners with fresh seeds and ranks, as any other; only the training
is that of `descend.study.quadratic`. What is true comes from another computation: for each arm the median risk of 400
runs, with seeds of their own, at the best of 60 rates on a grid. Printed is how often a study ranks the better arm
above the worse one, how often it ranks them the wrong way round, and what else it must say; `--write` puts the table
into docs/ranking.md. A share of N replicates has a standard error of at most 50/sqrt(N) points.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.study import Arm, Study, log, run_study
from descend.study.quadratic import no_data, quadratic
from descend.study.simulate import Quadratic, sample

if TYPE_CHECKING:
    from descend.study import Comparison
    from descend.study.design.space import Dimension

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ranking.md"
PROBLEM = Quadratic(dimensions=40, bins=0)
SEARCHES, TRIALS, SEEDS = 5, 12, 10
GRID, RUNS = 60, 400  # of what is true


@dataclass(frozen=True)
class Known:
    """A study with a known answer.

    Attributes:
        title: What it asks.
        batch_size: Samples of an update.
        steps: Updates.
        arms: Range of the rate and momentum of each.
        fields: Of the study, where they are its own.
        says: Kinds of lints that it must have.
    """

    title: str
    batch_size: int
    steps: int
    arms: dict[str, tuple[Dimension, float]]
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    says: tuple[str, ...] = ()


STUDIES = (
    Known(
        "the same arm under two names",
        16,
        80,
        {"a": (log(0.02, 1.9), 0.0), "b": (log(0.02, 1.9), 0.0)},
        {"common_random_numbers": False},
    ),
    Known("momentum at a large batch", 256, 60, {"plain": (log(0.02, 1.9), 0.0), "momentum": (log(0.004, 0.38), 0.8)}),
    Known("momentum at batch 1", 1, 400, {"plain": (log(0.02, 1.9), 0.0), "momentum": (log(0.004, 0.38), 0.8)}),
    Known(
        "a range that ends below the best rate",
        256,
        60,
        {"wide": (log(0.02, 1.9), 0.0), "narrow": (log(0.001, 0.095), 0.0)},
        says=("edge",),
    ),
    Known("an arm that always diverges", 16, 80, {"sane": (log(0.02, 1.9), 0.0), "wild": (log(100.0, 9500.0), 0.0)}),
)


def true_risk(known: Known, arm: str) -> float:
    """The median risk at the best rate of an arm's range, by brute force; inf where all diverge."""
    dimension, momentum = known.arms[arm]
    low, high = dimension.ends
    medians: list[float] = []
    for rate in np.geomspace(low, high, GRID):
        with np.errstate(all="ignore"):
            risks = sample(
                "heavy_ball" if momentum else "sgd",
                known.batch_size,
                [float(rate)] * RUNS,
                steps=known.steps,
                seeds=range(10**6, 10**6 + RUNS),
                momenta=[momentum] * RUNS,
                problem=PROBLEM,
                every_steps=known.steps,
            )
        last = risks[-1]
        medians.append(float(np.median(np.where(np.isfinite(last), last, np.inf))))
    return min(medians)


def run(known: Known, seed: int) -> Comparison:
    """One study of its kind."""
    arms = {
        name: Arm("SGD", {"lr": dimension}, {"momentum": momentum} if momentum else {})
        for name, (dimension, momentum) in known.arms.items()
    }
    study = Study(
        workload=no_data,
        batch_sizes=known.batch_size,
        steps=known.steps,
        arms=arms,
        trials=TRIALS,
        searches=SEARCHES,
        shortlist=3,
        shortlist_seeds=3,
        confirmation_seeds=SEEDS,
        metric="loss",
        evaluations=1,
        seed=seed,
        **known.fields,
    )
    with np.errstate(all="ignore"):
        return run_study(study, executor=quadratic(PROBLEM))


def table(replicates: int, seed: int) -> list[str]:
    """The rows of all studies."""
    lines = [
        "| study | median risk at the best rate | ranked rightly | ranked wrongly | must say, and says |",
        "|---|---|---|---|---|",
    ]
    for known in STUDIES:
        truth = {name: true_risk(known, name) for name in known.arms}
        better = min(truth, key=truth.__getitem__)
        alike = known.fields.get("common_random_numbers") is False
        right = wrong = said = 0
        for number in range(replicates):
            found = run(known, seed + number)
            (group,) = found.groups
            assert group.ranking is not None
            (pair,) = group.ranking.pairs
            right += pair.ranked and not alike and pair.better == better
            wrong += pair.ranked and (alike or pair.better != better)
            said += set(known.says) <= {remark.kind for remark in found.remarks}
        shown = ", ".join(f"{name} {'none' if np.isinf(risk) else f'{risk:.3g}'}" for name, risk in truth.items())
        must = f"{', '.join(known.says)}: {100 * said / replicates:.0f} %" if known.says else ""
        rightly = "" if alike else f"{100 * right / replicates:.0f} %"
        lines.append(f"| {known.title} | {shown} | {rightly} | {100 * wrong / replicates:.0f} % | {must} |")
        sys.stdout.write(lines[-1] + "\n")
        sys.stdout.flush()
    return lines


def main() -> None:
    """Print the table; see the top of this file."""
    parser = argparse.ArgumentParser(description="Studies whose answers are known.")
    parser.add_argument("--replicates", type=int, default=40, help="studies of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the table into docs/ranking.md")
    given = parser.parse_args()
    text = "\n".join(table(given.replicates, given.seed))
    if given.write:
        mark = re.compile(r"(<!-- known truth -->\n).*?(<!-- end -->)", re.DOTALL)
        PAGE.write_text(mark.sub(lambda match: f"{match[1]}{text}\n{match[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
