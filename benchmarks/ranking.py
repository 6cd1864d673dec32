"""How often the ranking rule errs, and what it finds: its operating characteristics, by simulation.

    python benchmarks/ranking.py [--replicates N] [--seed S] [--write]

A study is simulated as arms of searches of re-runs: a search ends at its own level, and a re-run scatters about that.
`descend.study.analysis.rank` is applied to it as it is. Printed are four tables of Markdown, and `--write` puts them
into docs/ranking.md:

- false positives: how often any arm is ranked where all are the same, in percent, the largest over the shares of the
  variance that lie between searches, for each shape of noise;
- power: how often one of two arms is found to be better, by the difference in standard deviations of one re-run;
- the detectable difference: how often a difference of the size that studies state is found;
- equivalence: how often two arms are called equivalent within a margin of 2 standard deviations of a re-run, where they
  are equal, differ by half of the margin, and by the margin, which is an error.

A rate over N replicates has a standard error of at most 50/sqrt(N) points (1.1 at 5 % with the default of 400).
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from descend.study.analysis import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ranking.md"
SEEDS = 10  # re-runs of a winner
SEARCHES = (2, 3, 5, 8, 12)
ARMS = (2, 3, 8)
SHARES = (0.0, 0.2, 0.5, 0.8)  # of the variance of a re-run that lies between searches
MARGIN = 2.0  # of equivalence, in standard deviations of a re-run
DIFFERENCES = (0.5, 1.0, 2.0, 4.0)  # in standard deviations of a re-run


def normal(draw: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Of variance 1."""
    return draw.normal(size=shape)


def heavy(draw: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Student's t with 3 degrees of freedom, scaled to variance 1."""
    return draw.standard_t(3, size=shape) / math.sqrt(3)


def skewed(draw: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """An exponential variable, of variance 1 about its mean: some runs are much worse."""
    return 1 - draw.exponential(size=shape)


SHAPES: dict[str, tuple[Noise, float, float]] = {  # noise, step of rounding, and how much wider the last arm scatters
    "normal": (normal, 0.0, 1.0),
    "heavy tails": (heavy, 0.0, 1.0),
    "skewed": (skewed, 0.0, 1.0),
    "rounded to 1 sd": (normal, 1.0, 1.0),
    "rounded to 4 sd": (normal, 4.0, 1.0),
    "one arm 4 x wider": (normal, 0.0, 4.0),
}


def study(
    draw: np.random.Generator, shape: str, means: Sequence[float], searches: int, share: float
) -> dict[str, list[list[float]]]:
    """Re-runs of arms with these means, in standard deviations of a re-run."""
    noise, step, wider = SHAPES[shape]
    arms: dict[str, list[list[float]]] = {}
    offset = draw.uniform()  # where the step of rounding lies
    for number, mean in enumerate(means):
        scale = wider if number == len(means) - 1 else 1.0
        between = math.sqrt(share) * noise(draw, (searches, 1))
        values = mean + scale * (between + math.sqrt(1 - share) * noise(draw, (searches, SEEDS)))
        if step:
            values = step * np.round(values / step + offset)
        arms[f"arm {number}"] = values.tolist()
    return arms


def false_positives(replicates: int, seed: int) -> list[str]:
    """The first table."""
    lines = ["| noise | arms | " + " | ".join(f"{count} searches" for count in SEARCHES) + " |"]
    lines.append("|---|---|" + "---|" * len(SEARCHES))
    for shape in SHAPES:
        for arms in ARMS:
            cells: list[str] = []
            for searches in SEARCHES:
                rates: list[float] = []
                for share in SHARES:
                    draw = np.random.default_rng([seed, [*SHAPES].index(shape), arms, searches, int(100 * share)])
                    some = (rank(study(draw, shape, [0.0] * arms, searches, share)) for _ in range(replicates))
                    rates.append(100 * sum(ranking.ranked for ranking in some) / replicates)
                cells.append(f"{np.mean(rates):.1f} (at most {max(rates):.1f})")
            lines.append(f"| {shape} | {arms} | " + " | ".join(cells) + " |")
    return lines


def power(replicates: int, seed: int) -> list[str]:
    """The second table."""
    lines = ["| variance between searches | difference | " + " | ".join(f"{n} searches" for n in SEARCHES) + " |"]
    lines.append("|---|---|" + "---|" * len(SEARCHES))
    for share in (0.2, 0.5, 0.8):
        for difference in DIFFERENCES:
            cells: list[str] = []
            for searches in SEARCHES:
                draw = np.random.default_rng([seed, int(100 * share), int(10 * difference), searches])
                some = (rank(study(draw, "normal", [0.0, difference], searches, share)) for _ in range(replicates))
                found = sum(ranking.ranked and ranking.pairs[0].better == "arm 1" for ranking in some)
                cells.append(f"{100 * found / replicates:.0f}")
            lines.append(f"| {100 * share:.0f} % | {difference:g} sd | " + " | ".join(cells) + " |")
    return lines


def detectable(replicates: int, seed: int) -> list[str]:
    """The third table."""
    lines = ["| arms | searches | stated, in sd of a re-run | found |", "|---|---|---|---|"]
    for arms in ARMS:
        for searches in SEARCHES:
            draw = np.random.default_rng([seed, arms, searches])
            stated = [rank(study(draw, "normal", [0.0] * arms, searches, 0.5)).detectable for _ in range(replicates)]
            size = math.sqrt(float(np.mean([value**2 for value in stated if value is not None])))
            low, high = np.quantile([value for value in stated if value is not None], [0.1, 0.9])
            found = 0
            for _ in range(replicates):
                ranking = rank(study(draw, "normal", [0.0] * (arms - 1) + [size], searches, 0.5))
                (pair,) = [one for one in ranking.pairs if {one.better, one.worse} == {"arm 0", f"arm {arms - 1}"}]
                found += pair.ranked
            shown = f"{size:.2f} ({low:.2f} to {high:.2f})"
            lines.append(f"| {arms} | {searches} | {shown} | {100 * found / replicates:.0f} % |")
    return lines


def equivalent(replicates: int, seed: int) -> list[str]:
    """The fourth table."""
    lines = ["| noise | difference / margin | " + " | ".join(f"{n} searches" for n in SEARCHES) + " |"]
    lines.append("|---|---|" + "---|" * len(SEARCHES))
    for shape in ("normal", "heavy tails", "skewed", "rounded to 1 sd"):
        for ratio in (0.0, 0.5, 1.0):
            cells: list[str] = []
            for searches in SEARCHES:
                draw = np.random.default_rng([seed, [*SHAPES].index(shape), int(10 * ratio), searches])
                arms = (study(draw, shape, [0.0, ratio * MARGIN], searches, 0.5) for _ in range(replicates))
                found = sum(rank(some, margin=MARGIN).pairs[0].equivalent for some in arms)
                cells.append(f"{100 * found / replicates:.1f}")
            lines.append(f"| {shape} | {ratio:g} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Print the tables; see the top of this file."""
    parser = argparse.ArgumentParser(description="Operating characteristics of the ranking rule.")
    parser.add_argument("--replicates", type=int, default=400, help="simulated studies of each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/ranking.md")
    given = parser.parse_args()
    tables = {  # by their marks in the page
        "false positives": false_positives,
        "power": power,
        "detectable": detectable,
        "equivalent": equivalent,
    }
    for name, make in tables.items():
        text = "\n".join(make(given.replicates, given.seed))
        sys.stdout.write(f"{name}\n\n{text}\n\n")
        sys.stdout.flush()
        if given.write:
            mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
            PAGE.write_text(mark.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
