"""Whatever holds the numbers, a statistic is the same; what holds none is answered in our words."""

import math

import numpy as np
import pytest
import torch

from descend.errors import ConfigurationError
from descend.study import analysis

HOLDERS = [
    list,
    tuple,
    iter,
    np.array,
    lambda values: np.array(values, dtype=np.float32),
    torch.tensor,
    lambda values: torch.tensor(values, dtype=torch.bfloat16, requires_grad=True),
    lambda values: [torch.tensor(value) for value in values],
    lambda values: [np.float64(value) for value in values],
]


@pytest.mark.parametrize("holder", HOLDERS)
def test_lists_arrays_and_tensors_are_the_same(holder):
    values = [6, 1, 2, 5, 4, 3]
    assert analysis.median(holder(values)) == 3.5
    assert analysis.median_interval(holder(values)) == (1.0, 6.0)
    assert analysis.expected_best(holder(values), 6) == 6.0
    assert analysis.fraction_reaching(holder(values), 5) == pytest.approx(1 / 3)


@pytest.mark.parametrize("number", [int, float, np.int64, np.float32, torch.tensor])
def test_counts_of_any_type_are_counts(number):
    assert analysis.success_interval(number(35), number(50)) == analysis.success_interval(35, 50)
    assert analysis.compare_successes(number(35), number(50), number(29), number(50)) == pytest.approx(0.2983, abs=1e-3)
    assert analysis.expected_best([1.0, 2.0, 3.0], number(2)) == pytest.approx(8 / 3)


@pytest.mark.parametrize("wrong", [None, "abc", 5, [[1, 2], [3, 4]], [1, "a"], [None], []])
def test_what_is_no_list_of_numbers_is_refused(wrong):
    for statistic in (analysis.median_interval, analysis.median, lambda v: analysis.fraction_reaching(v, 1)):
        with pytest.raises(ConfigurationError):
            statistic(wrong)


@pytest.mark.parametrize(
    ("k", "n"), [(math.nan, 5), (math.inf, 5), (-1, 5), (6, 5), (0, 0), (2.5, 5), ("3", 5), (None, 5)]
)
def test_what_is_no_count_is_refused(k, n):
    with pytest.raises(ConfigurationError, match=r"k of n|the first"):
        analysis.success_interval(k, n)
    with pytest.raises(ConfigurationError, match="the first"):
        analysis.compare_successes(k, n, 1, 2)


def test_a_target_or_a_number_of_trials_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="target"):
        analysis.fraction_reaching([1.0], math.nan)
    with pytest.raises(ConfigurationError, match="target"):
        analysis.steps_to_target([0, 10], [0.1, 0.9], math.nan)
    with pytest.raises(ConfigurationError, match="batch_sizes must be a list"):
        analysis.fit_critical_batch_size(3, [4])
    for confidence in ("95", None, 95, 1, math.nan):
        with pytest.raises(ConfigurationError, match="confidence"):
            analysis.success_interval(1, 2, confidence)
    for n in (1.5, "2", None, math.nan, 0, 4):
        with pytest.raises(ConfigurationError):
            analysis.expected_best([1.0, 2.0, 3.0], n)


def test_a_failure_of_vanishing_weight_is_still_a_failure():
    """Half of the trials failed; all of 1,500 drawn may be failures, though hardly ever are."""
    values = [-math.inf] * 1500 + [1.0] * 1500
    assert analysis.expected_best(values, 1500) == -math.inf
    assert analysis.expected_best(values, 1501) == 1.0


def test_distances_of_evaluations_belong_to_their_batch_sizes_in_any_order():
    sizes = [2048, 32, 512, 128]
    examples = [1000 * (1 + size / 200) for size in sizes]
    with pytest.raises(analysis.Refused, match=r"at batch size 2048 .* apart") as refused:
        analysis.fit_critical_batch_size(sizes, examples, evaluated_every=[0.3 * examples[0], 1, 1, 1])
    assert len(refused.value.problems) == 1


def test_a_stable_region_is_one_of_rates_above_0():
    with pytest.raises(ConfigurationError, match="above 0"):
        analysis.stable_width([0.0, 1.0], [0.9, 0.9], 0.5)
