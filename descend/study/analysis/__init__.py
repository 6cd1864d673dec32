"""The statistics of a study: pure functions from numbers to numbers, without torch.

    intervals         medians, k of n, differences, Holm
    tuning            best against budget, fraction that reaches a target, rate for each decay, stable width
    scaling           steps to a target, the critical batch size
    ranking           whether an arm is better than another, training beside validation
    configurations    swap test, minimal difference
    power             what a comparison can find, and how many searches or seeds that takes
    gradient_noise    the noise scale
    cost              the bill

A failed run is an infinity and takes part; NaN is refused. Where the evidence is too thin, `Refused` says why.
"""

from descend.errors import Refused
from descend.study.analysis.configurations import (
    MinimalDifference,
    Swapped,
    differences,
    minimal_difference,
    swap,
    swap_table,
)
from descend.study.analysis.cost import Cost, Spent, cost
from descend.study.analysis.gradient_noise import NoiseScale, noise_scale
from descend.study.analysis.intervals import (
    Interval,
    compare_successes,
    difference_interval,
    holm,
    median,
    median_interval,
    success_interval,
)
from descend.study.analysis.power import (
    detectable_by_searches,
    detectable_difference,
    detectable_in_spreads,
    level_of_a_pair,
    searches_needed,
    seeds_needed,
)
from descend.study.analysis.profiles import PerformanceProfile, performance_profiles
from descend.study.analysis.ranking import Pair, Ranking, Tuning, check_budgets, rank, train_beside_validation
from descend.study.analysis.scaling import (
    CriticalBatchSize,
    critical_batch_size_interval,
    efficiency,
    fit_critical_batch_size,
    largest_efficient_batch,
    steps_to_target,
)
from descend.study.analysis.tuning import (
    BestAgainstBudget,
    Fraction,
    Ridge,
    RidgePoint,
    best_against_budget,
    best_rate_by_decay,
    expected_best,
    fraction_curve,
    fraction_reaching,
    probability_best,
    stable_width,
)

__all__ = [
    "BestAgainstBudget",
    "Cost",
    "CriticalBatchSize",
    "Fraction",
    "Interval",
    "MinimalDifference",
    "NoiseScale",
    "Pair",
    "PerformanceProfile",
    "Ranking",
    "Refused",
    "Ridge",
    "RidgePoint",
    "Spent",
    "Swapped",
    "Tuning",
    "best_against_budget",
    "best_rate_by_decay",
    "check_budgets",
    "compare_successes",
    "cost",
    "critical_batch_size_interval",
    "detectable_by_searches",
    "detectable_difference",
    "detectable_in_spreads",
    "difference_interval",
    "differences",
    "efficiency",
    "expected_best",
    "fit_critical_batch_size",
    "fraction_curve",
    "fraction_reaching",
    "holm",
    "largest_efficient_batch",
    "level_of_a_pair",
    "median",
    "median_interval",
    "minimal_difference",
    "noise_scale",
    "performance_profiles",
    "probability_best",
    "rank",
    "searches_needed",
    "seeds_needed",
    "stable_width",
    "steps_to_target",
    "success_interval",
    "swap",
    "swap_table",
    "train_beside_validation",
]
