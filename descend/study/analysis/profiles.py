"""Several workloads at once: performance profiles and the score that AlgoPerf makes of them.

With t(s, w) the time or the number of steps of arm s to the target of workload w, and inf where it was missed:

    r(s, w) = t(s, w) / minₛ t(s, w)                      ratio to the fastest
    ρₛ(τ) = (1 / n) #{w: r(s, w) ≤ τ}                     profile: part of the workloads within τ times the fastest
    Bₛ = (1 / (τmax − 1)) ∫₁^τmax ρₛ(τ) dτ = (1 / n) Σ_w max(0, τmax − r(s, w)) / (τmax − 1)

A workload whose target no arm met counts for no arm. A ratio depends on the other arms, so that two scores of one
table may change places when a third arm is taken out (Gould and Scott 2016, https://doi.org/10.1145/2950048).

Source: Dolan and Moré 2002, https://doi.org/10.1007/s101070100263; Dahl et al. 2023,
https://arxiv.org/abs/2306.07179, section 4, with τmax = 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.errors import Refused
from descend.study.analysis.intervals import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LIMIT", "PerformanceProfile", "performance_profiles", "time_of_searches"]

LIMIT = 4.0  # τmax of AlgoPerf


@dataclass(frozen=True)
class PerformanceProfile:
    """How an arm does over all workloads.

    Attributes:
        times: To the target of each workload; inf where it was missed.
        ratios: To the fastest arm on each; inf where the target was missed.
        limit: τmax of the score.
    """

    times: Mapping[str, float]
    ratios: Mapping[str, float]
    limit: float

    def fraction(self, ratio: float) -> float:
        """ρ: the part of the workloads on which the arm is within `ratio` times the fastest."""
        return sum(own <= ratio for own in self.ratios.values()) / len(self.ratios)

    @property
    def score(self) -> float:
        """B, from 0 to 1."""
        within = [max(0.0, self.limit - ratio) / (self.limit - 1) for ratio in self.ratios.values()]
        return math.fsum(within) / len(within)


def performance_profiles(
    times: Mapping[str, Mapping[str, float]], limit: float = LIMIT
) -> dict[str, PerformanceProfile]:
    """The profile of each arm.

    Args:
        times: `times[arm][workload]`, above 0 and in the same unit; inf where a target was missed.
        limit: τmax, above 1.

    Raises:
        Refused: every reason: a time is missing, none is above 0, or the limit is no ratio.
    """
    workloads = list(dict.fromkeys(name for own in times.values() for name in own))
    problems = [f"{arm} has no time on {name}" for arm, own in times.items() for name in workloads if name not in own]
    problems += [
        f"the time of {arm} on {name} is {value!r}; expected a number above 0, or inf"
        for arm, own in times.items()
        for name, value in own.items()
        if not value > 0
    ]
    if not times or not workloads:
        problems.append("there are no times")
    if not (math.isfinite(limit) and limit > 1):
        problems.append(f"the limit must be above 1, got {limit!r}")
    if problems:
        raise Refused(problems)
    best = {name: min(own[name] for own in times.values()) for name in workloads}
    return {
        arm: PerformanceProfile(
            {name: own[name] for name in workloads},
            {name: own[name] / best[name] if math.isfinite(own[name]) else math.inf for name in workloads},
            limit,
        )
        for arm, own in times.items()
    }


def time_of_searches(searches: Sequence[Sequence[float]]) -> float:
    """One number of repeated searches: the median over searches of the medians of their re-runs."""
    return median([median(values) for values in searches])
