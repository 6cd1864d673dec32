"""How often the ranking rule errs, and what it finds: its operating characteristics, by simulation.

    python benchmarks/ranking.py [--replicates N] [--seed S] [--only TABLE] [--noise NAME] [--write]

A study is simulated as arms of searches of re-runs: a search ends at its own level, and a re-run scatters about that.
`descend.study.analysis.rank` is applied to it as it is. Printed are six tables of Markdown, and `--write` puts them
into docs/ranking.md, where rows that were not made stay:

- false positives: how often any arm is ranked where all are the same, in percent, the largest over the shares of the
  variance that lie between searches, for each shape of noise;
- paired searches, which have a part of their luck in common: false positives, and how often one of two arms is found,
  by the test in pairs and by the test that takes them for independent;
- power: how often one of two arms is found to be better, by the difference in standard deviations of one re-run;
- the detectable difference: how often a difference of the size that studies state is found;
- equivalence: how often two arms are called equivalent within a margin of 2 standard deviations of a re-run, where they
  are equal, differ by half of the margin, and by the margin, which is an error;
- floors: what other floors under the variances between searches would do.

A rate over N replicates has a standard error of at most 50/sqrt(N) points (1.1 at 5 % with the default of 400).
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np

from descend.study.analysis import detectable_by_searches, rank, ranking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ranking.md"
SEEDS = 10  # re-runs of a winner, where nothing else is said
SEARCHES = (2, 3, 5, 8, 12)
ARMS = (2, 3, 8)
SHARES = {0.0: 10, 0.2: 5, 0.5: 3, 0.8: 10}  # of the variance that lies between searches, and re-runs of a winner
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


def lognormal(draw: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """As a loss that is a product of many factors, of variance 1 about its mean."""
    return (math.exp(0.5) - np.exp(draw.normal(size=shape))) / math.sqrt((math.e - 1) * math.e)


def modes(draw: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Either one of two levels, with a fifth of their distance between them and the mean as noise."""
    return (np.where(draw.random(shape) < 0.5, -1.0, 1.0) + 0.2 * draw.normal(size=shape)) / math.sqrt(1.04)


def outliers(draw: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """One value in ten lies far below the others."""
    return np.where(draw.random(shape) < 0.1, -3.0, 1 / 3) + 0.3 * draw.normal(size=shape)


def diverging(draw: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """One value in ten is a failure: of the runs of a search, or all of them."""
    return np.where(draw.random(shape) < 0.1, -math.inf, draw.normal(size=shape))


SHAPES: dict[str, tuple[Noise, float, float]] = {  # noise, step of rounding, and how much wider the last arm scatters
    "normal": (normal, 0.0, 1.0),
    "heavy tails": (heavy, 0.0, 1.0),
    "skewed": (skewed, 0.0, 1.0),
    "rounded to 1 sd": (normal, 1.0, 1.0),
    "rounded to 4 sd": (normal, 4.0, 1.0),
    "one arm 4 x wider": (normal, 0.0, 4.0),
    "lognormal": (lognormal, 0.0, 1.0),
    "outliers": (outliers, 0.0, 1.0),
    "two modes": (modes, 0.0, 1.0),
    "skewed, one arm 4 x wider": (skewed, 0.0, 4.0),
    "a tenth diverges": (diverging, 0.0, 1.0),
}


def study(
    draw: np.random.Generator,
    shape: str,
    means: Sequence[float],
    searches: int,
    share: float,
    *,
    seeds: int = SEEDS,
    alike: float = 0.0,
) -> dict[str, list[list[float]]]:
    """Re-runs of arms with these means, in standard deviations of a re-run; of their noise a share is alike."""
    noise, step, wider = SHAPES[shape]
    arms: dict[str, list[list[float]]] = {}
    offset = draw.uniform()  # where the step of rounding lies
    common = [noise(draw, (searches, count)) for count in (1, seeds)] if alike else None
    for number, mean in enumerate(means):
        scale = wider if number == len(means) - 1 else 1.0
        between, within = (noise(draw, (searches, count)) for count in (1, seeds))
        if common is not None:
            between, within = (
                math.sqrt(alike) * same + math.sqrt(1 - alike) * own
                for same, own in zip(common, (between, within), strict=True)
            )
        spread = math.sqrt(1 - share) * within + (math.sqrt(share) * between if share else 0.0)  # infinities times 0
        values = mean + scale * spread
        if step:
            values = step * np.round(values / step + offset)
        arms[f"arm {number}"] = values.tolist()
    return arms


def false_positives(replicates: int, seed: int, shapes: Sequence[str]) -> list[str]:
    """The first table."""
    lines = ["| noise | arms | " + " | ".join(f"{count} searches" for count in SEARCHES) + " |"]
    lines.append("|---|---|" + "---|" * len(SEARCHES))
    for shape in shapes:
        for arms in ARMS:
            cells: list[str] = []
            for searches in SEARCHES:
                rates: list[float] = []
                for share, seeds in SHARES.items():
                    draw = np.random.default_rng([seed, [*SHAPES].index(shape), arms, searches, int(100 * share)])
                    same = [0.0] * arms
                    some = (rank(study(draw, shape, same, searches, share, seeds=seeds)) for _ in range(replicates))
                    rates.append(100 * sum(ranking.ranked for ranking in some) / replicates)
                cells.append(f"{np.mean(rates):.1f} (at most {max(rates):.1f})")
            lines.append(f"| {shape} | {arms} | " + " | ".join(cells) + " |")
    return lines


def paired(replicates: int, seed: int, shapes: Sequence[str]) -> list[str]:
    """Searches that share their seeds, by how much of their noise is alike."""
    lines = ["| noise | alike | " + " | ".join(f"{count} searches" for count in SEARCHES) + " |"]
    lines.append("|---|---|" + "---|" * len(SEARCHES))
    for shape in shapes:
        for alike in (0.0, 0.3, 0.6):
            cells: list[str] = []
            for searches in SEARCHES:
                size = detectable_by_searches(searches, 0.05) * math.sqrt(0.5 + 0.5 * math.pi / 2 / SEEDS)
                rates: list[float] = []
                for means, pairs in (([0.0, 0.0], True), ([0.0, size], True), ([0.0, size], False)):
                    draw = np.random.default_rng([seed, [*SHAPES].index(shape), int(10 * alike), searches])
                    arms = (study(draw, shape, means, searches, 0.5, alike=alike) for _ in range(replicates))
                    rates.append(100 * sum(rank(some, paired=pairs).ranked for some in arms) / replicates)
                cells.append(f"{rates[0]:.1f}; {rates[1]:.0f} ({rates[2]:.0f})")
            lines.append(f"| {shape} | {100 * alike:.0f} % | " + " | ".join(cells) + " |")
    return lines


def power(replicates: int, seed: int, shapes: Sequence[str]) -> list[str]:
    """The power of the rule."""
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


def detectable(replicates: int, seed: int, shapes: Sequence[str]) -> list[str]:
    """Whether what is stated is found."""
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


def equivalent(replicates: int, seed: int, shapes: Sequence[str]) -> list[str]:
    """Two one-sided tests."""
    lines = ["| noise | difference / margin | " + " | ".join(f"{n} searches" for n in SEARCHES) + " |"]
    lines.append("|---|---|" + "---|" * len(SEARCHES))
    for shape in [one for one in ("normal", "heavy tails", "skewed", "rounded to 1 sd") if one in shapes]:
        for ratio in (0.0, 0.5, 1.0):
            cells: list[str] = []
            for searches in SEARCHES:
                draw = np.random.default_rng([seed, [*SHAPES].index(shape), int(10 * ratio), searches])
                arms = (study(draw, shape, [0.0, ratio * MARGIN], searches, 0.5) for _ in range(replicates))
                found = sum(rank(some, margin=MARGIN).pairs[0].equivalent for some in arms)
                cells.append(f"{100 * found / replicates:.1f}")
            lines.append(f"| {shape} | {ratio:g} | " + " | ".join(cells) + " |")
    return lines


FLOORS = ((0.0, 0.0), (0.1, 0.25), (0.3, 0.0), (0.3, 0.25), (0.3, 1.0), (0.5, 0.25))  # shares of arms and of seeds
QUESTIONS = {  # noise, arms, searches, share of variance between them, and how far the last arm is ahead
    "normal, 2 arms, 2 searches, errs": ("normal", 2, 2, 0.2, 0.0),
    "finds 4 sd": ("normal", 2, 2, 0.2, 4.0),
    "wider, 2 arms, 3 searches, errs": ("one arm 4 x wider", 2, 3, 0.8, 0.0),
    "two modes, 8 arms, 3 searches, errs": ("two modes", 8, 3, 0.2, 0.0),
    "heavy tails, 3 arms, 8 searches, finds 0.5 sd": ("heavy tails", 3, 8, 0.0, 0.5),
}


def floors(replicates: int, seed: int, shapes: Sequence[str]) -> list[str]:
    """What becomes of errors and power with other floors."""
    lines = ["| of arms | of seeds | " + " | ".join(QUESTIONS) + " |", "|---|---|" + "---|" * len(QUESTIONS)]
    for of_arms, of_seeds in FLOORS:
        cells: list[str] = []
        for shape, arms, searches, share, ahead in QUESTIONS.values():
            draw = np.random.default_rng([seed, arms, searches, int(ahead)])
            means = [0.0] * (arms - 1) + [ahead]
            with mock.patch.multiple(ranking, SHARE_OF_ARMS=of_arms, SHARE_OF_SEEDS=of_seeds):
                some = [
                    rank(study(draw, shape, means, searches, share, seeds=SHARES[share])) for _ in range(replicates)
                ]
            if ahead:
                named = [(pair, {pair.better, pair.worse}) for one in some for pair in one.pairs]
                found = sum(pair.ranked for pair, names in named if names == {"arm 0", f"arm {arms - 1}"})
            else:
                found = sum(one.ranked for one in some)
            cells.append(f"{100 * found / replicates:.1f}")
        lines.append(f"| {of_arms:g} | {of_seeds:g} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Print the tables; see the top of this file."""
    parser = argparse.ArgumentParser(description="Operating characteristics of the ranking rule.")
    parser.add_argument("--replicates", type=int, default=400, help="simulated studies of each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*TABLES], help="one table")
    parser.add_argument("--noise", choices=[*SHAPES], action="append", help="rows of these noises alone")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/ranking.md")
    given = parser.parse_args()
    for name, make in TABLES.items():
        if given.only not in (None, name):
            continue
        rows = make(given.replicates, given.seed, given.noise or [*SHAPES])
        sys.stdout.write(f"{name}\n\n" + "\n".join(rows) + "\n\n")
        sys.stdout.flush()
        if given.write:
            write(name, rows)


TABLES = {  # by their marks in the page
    "false positives": false_positives,
    "paired": paired,
    "power": power,
    "detectable": detectable,
    "equivalent": equivalent,
    "floors": floors,
}


def write(name: str, rows: Sequence[str]) -> None:
    """Put rows into a table of the page; rows of the same columns with other first cells stay."""
    page = PAGE.read_text()
    mark = re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    match = mark.search(page)
    assert match is not None, f"{PAGE} has no place for '{name}'"
    kept = {} if not match[2].startswith(rows[0]) else {_key(row): row for row in match[2].splitlines()}
    merged = kept | {_key(row): row for row in rows}
    PAGE.write_text(
        page[: match.start()] + match[1] + "\n".join(merged.values()) + "\n" + match[3] + page[match.end() :]
    )


def _key(row: str) -> str:
    return "|".join(row.split("|")[1:3])


if __name__ == "__main__":
    main()
