"""The points of a search, and the seeds of everything: functions of (seed of the study, what it is for, index).

Point i of a search is the same alone, in any order, after a restart, when the search is extended and beside any other
arms. Arms that search over the same names share the coordinates, so that the same arm under two names runs the same
trials.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.errors import MissingExtra, missing_library
from descend.study.design.space import grid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from descend.study.design.space import Dimension

__all__ = ["SAMPLERS", "points", "seed_of"]

SAMPLERS = ("sobol", "random", "grid")


def seed_of(*what: object) -> int:
    """A seed from 0 to 2³¹ − 1 for anything that can be named; other names give unrelated seeds."""
    digest = hashlib.sha256("\0".join(map(str, what)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def points(space: Mapping[str, Dimension], count: int, *, seed: int, search: int, sampler: str) -> list[dict[str, Any]]:
    """The settings of one search of one arm.

    Args:
        space: What the arm searches over.
        count: Trials.
        seed: Of the study.
        search: Number of the search.
        sampler: "sobol" (scrambled), "random" or "grid".

    Returns:
        Names and values of each trial.

    Raises:
        MissingExtra: Sobol points need scipy.
        ConfigurationError: the trials fill no grid.
    """
    if not space:
        return [{} for _ in range(count)]
    if sampler == "grid":
        cells: Sequence[Sequence[float]] = grid(list(space.values()), count)
        columns = range(len(space))
    else:
        names = sorted(space)
        draw = seed_of(seed, "search", search)
        cells = _sobol(len(names), count, draw) if sampler == "sobol" else _random(len(names), count, draw)
        columns = [names.index(name) for name in space]
    return [
        {name: one.at(float(cell[column])) for (name, one), column in zip(space.items(), columns, strict=True)}
        for cell in cells
    ]


@functools.lru_cache(maxsize=256)
def _sobol(dimensions: int, count: int, seed: int) -> Sequence[Sequence[float]]:
    try:
        qmc: Any = importlib.import_module("scipy.stats.qmc")
    except ImportError as error:
        raise MissingExtra(missing_library('sampler="sobol"', "scipy")) from error
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that a number of points is no power of two is a matter of balance, not an error
        drawn: NDArray[np.float64] = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed)).random(count)
    return drawn.tolist()


def _random(dimensions: int, count: int, seed: int) -> Sequence[Sequence[float]]:
    return np.random.default_rng(seed).random((count, dimensions)).tolist()
