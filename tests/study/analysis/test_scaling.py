"""Steps to a target and the hyperbola, against published points and planted truth."""

import math

import numpy as np
import pytest

from descend.errors import ConfigurationError, Refused
from descend.study.analysis import (
    critical_batch_size_interval,
    efficiency,
    fit_critical_batch_size,
    largest_efficient_batch,
    steps_to_target,
)

# ResNet-50 and BERT of MLPerf's reference convergence points (mlcommons/logging, training_4.0.0): median epochs, or
# million samples, to the target at each batch size, tuned by the vendors.
RESNET = {
    1632: 35,
    3264: 35,
    4096: 40,
    8192: 42,
    13056: 45.5,
    32768: 56,
    49152: 68,
    58880: 80,
    65536: 85,
    67840: 86,
}
BERT = {256: 2.55, 1536: 2.79, 4096: 2.84, 8192: 4.18, 16384: 5.49}


def hyperbola(sizes, critical=1000, least=50_000):
    return [least * (1 + size / critical) for size in sizes]


def test_mlperfs_resnet():
    fit = fit_critical_batch_size(list(RESNET), list(RESNET.values()))
    assert fit.critical_batch_size == pytest.approx(47_000, rel=0.02)
    assert fit.minimum_examples == pytest.approx(34.6, abs=0.05)
    assert fit.rms_log_error == pytest.approx(0.038, abs=0.0005)
    assert fit.minimum_steps * 1_281_167 == pytest.approx(950, rel=0.01)
    assert fit.steps(32768) * 1_281_167 == pytest.approx(2189, rel=0.06)


def test_mlperfs_resnet_is_a_hyperbola():
    fit = fit_critical_batch_size(list(RESNET), list(RESNET.values()), free_exponent=True)
    assert fit.exponent == pytest.approx(1.02, abs=0.005)


def test_mlperfs_bert():
    fit = fit_critical_batch_size(list(BERT), list(BERT.values()))
    assert fit.critical_batch_size == pytest.approx(13_000, rel=0.02)


def test_efficiency_of_mlperfs_resnet():
    parts = efficiency(list(RESNET), list(RESNET.values()))
    assert [round(part, 2) for part in parts[:6]] == [1.00, 1.00, 0.88, 0.83, 0.77, 0.62]
    assert largest_efficient_batch(list(RESNET), list(RESNET.values())) == 8192


def test_exact_points_give_exact_numbers_in_any_order():
    sizes = [4096, 16, 256, 64, 1024]
    fit = fit_critical_batch_size(sizes, hyperbola(sizes))
    assert fit.critical_batch_size == pytest.approx(1000, rel=1e-6)
    assert fit.minimum_examples == pytest.approx(50_000, rel=1e-6)
    assert fit.minimum_steps == pytest.approx(50, rel=1e-6)
    assert fit.rms_log_error < 1e-6


def test_a_planted_exponent_is_found():
    sizes = np.geomspace(8, 1e5, 12)
    examples = 3 * (1 + (sizes / 500) ** 1.7)
    assert fit_critical_batch_size(sizes, examples, free_exponent=True).exponent == pytest.approx(1.7, abs=0.005)


@pytest.mark.parametrize(
    ("sizes", "examples", "reason"),
    [
        ([8, 16, 32], hyperbola([8, 16, 32]), "at least 4"),
        ([8, 64, 512, 4096], [1, 1, 1, math.inf], "not reached at batch size 4096"),
        ([8, 16, 32, 64], hyperbola([8, 16, 32, 64]), "beyond what was measured"),
        ([8, 16, 32, 64], [5, 5, 5, 5], "do not grow"),
        ([8000, 16000, 32000, 64000], hyperbola([8000, 16000, 32000, 64000]), "measure smaller batches"),
        ([8, 64, 512, 4096, 32768], [1, 9, 1, 9, 30], "lie on no hyperbola"),
    ],
)
def test_thin_evidence_is_refused_with_the_reason(sizes, examples, reason):
    with pytest.raises(Refused, match=reason):
        fit_critical_batch_size(sizes, examples)


def test_all_reasons_come_at_once():
    with pytest.raises(Refused) as refused:
        fit_critical_batch_size([8, 64], [1, math.inf])
    assert len(refused.value.problems) == 2


def test_coarse_evaluations_are_refused():
    sizes = [16, 128, 1024, 8192]
    every = [0.05 * e for e in hyperbola(sizes)]
    assert fit_critical_batch_size(sizes, hyperbola(sizes), evaluated_every=every)
    every[-1] *= 8
    with pytest.raises(Refused, match="batch size 8192 evaluations are 40%"):
        fit_critical_batch_size(sizes, hyperbola(sizes), evaluated_every=every)


@pytest.mark.parametrize(("sizes", "examples"), [([1, 2], [1]), ([1, 1, 2, 3], [1, 1, 1, 1]), ([0, 1], [1, 1])])
def test_numbers_that_make_no_sense_are_mistakes(sizes, examples):
    with pytest.raises(ConfigurationError):
        fit_critical_batch_size(sizes, examples)


@pytest.mark.slow
def test_the_bootstrap_interval_covers_the_planted_critical_batch():
    sizes = [16, 64, 256, 1024, 4096, 16384]
    truth = dict(zip(sizes, hyperbola(sizes), strict=True))
    draw = np.random.default_rng(0)
    held = 0
    for i in range(40):
        seeds = {size: truth[size] * np.exp(draw.normal(scale=0.15, size=20)) for size in sizes}
        held += critical_batch_size_interval(seeds, repeats=100, seed=i).holds(1000)
    assert held >= 33  # 0.95 · 40 less four standard deviations of the binomial count


@pytest.mark.slow
@pytest.mark.parametrize("searches", [2, 4])
def test_the_interval_covers_the_planted_critical_batch_where_searches_scatter(searches):
    """A bootstrap over the seeds of all searches together covered it in 38 of 59 with two searches of this scatter."""
    sizes = [32, 128, 512, 2048]
    held = 0
    for i in range(40):
        draw = np.random.default_rng([i, searches])
        examples = {
            size: 1e4 * (1 + size / 300) * np.exp(0.2 * draw.normal(size=(searches, 1)) + 0.05 * draw.normal(size=8))
            for size in sizes
        }
        held += critical_batch_size_interval(examples, repeats=100, seed=i).holds(300)
    assert held >= 33


def test_the_interval_is_refused_where_many_seeds_miss():
    sizes = [16, 64, 256, 1024, 4096, 16384]
    seeds = {size: [e] * 4 + [math.inf] * 3 for size, e in zip(sizes, hyperbola(sizes), strict=True)}
    with pytest.raises(Refused, match="half of them miss the target"):
        critical_batch_size_interval(seeds, repeats=50)


def test_searches_that_agree_are_one_search_of_more_seeds():
    sizes = [16, 64, 256, 1024, 4096, 16384]
    seeds = {size: [e, e] for size, e in zip(sizes, hyperbola(sizes), strict=True)}
    nested = {size: [[e], [e]] for size, (e, _) in seeds.items()}
    once, twice = (critical_batch_size_interval(one, repeats=20) for one in (seeds, nested))
    assert once == pytest.approx(twice)
    assert once.holds(fit_critical_batch_size(sizes, hyperbola(sizes)).critical_batch_size)
    with pytest.raises(ConfigurationError, match="and not both"):
        critical_batch_size_interval({16: [1.0, [2.0]]}, repeats=20)


def test_steps_to_target_is_the_first_hit():
    steps, values = [10, 20, 30, 40], [0.1, 0.6, 0.4, 0.7]
    assert steps_to_target(steps, values, 0.5) == 20
    assert steps_to_target(steps, values, 0.3, lower_is_better=True) == 10
    assert steps_to_target(steps, values, 0.5, consecutive=2) == math.inf
    assert steps_to_target(steps, [0.1, 0.6, 0.6, 0.7], 0.5, consecutive=2) == 20
    assert steps_to_target(steps, [math.nan, -math.inf, math.inf, 0.2], 0.5) == math.inf


def test_evaluations_out_of_order_are_a_mistake():
    with pytest.raises(ConfigurationError, match="must rise"):
        steps_to_target([10, 10], [1, 2], 0)
