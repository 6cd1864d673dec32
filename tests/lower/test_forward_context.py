"""Random numbers of a forward pass: what they are a function of, and what they look like."""

import numpy as np
import pytest
import torch
from scipy import stats

from descend.data.order import Draws, key_of, mix
from descend.lower.forward_context import ForwardContext, stream_of

CPU = torch.device("cpu")
A, B = stream_of("a"), stream_of("b")


def at(seed=1, position=0, samples=8, batch_size=8, dtype=torch.float64):
    return ForwardContext(True, seed, position, samples, batch_size, dtype, CPU)


def test_a_mini_batch_in_parts_draws_what_it_draws_whole():
    whole = at().uniform(A, (3, 2))
    parts = [at(position=0, samples=3).uniform(A, (3, 2)), at(position=3, samples=5).uniform(A, (3, 2))]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(at(position=6, samples=2).normal(A, (4,)), at().normal(A, (4,))[6:])


def test_numbers_are_splitmix64_of_seed_purpose_and_position():
    key = mix(np.array([key_of("layer", "dropout1")]) + np.uint64(7))[0]
    want = Draws(key, np.arange(3, 7)).uniform(5)
    got = at(seed=7, position=3, samples=4).uniform(stream_of("dropout1"), (5,))
    np.testing.assert_array_equal(got, want)


def test_other_seeds_purposes_samples_and_entries_draw_other_numbers():
    found = [at().uniform(A, (50,)), at(seed=2).uniform(A, (50,)), at().uniform(B, (50,))]
    assert len(torch.cat(found).unique()) == 3 * 8 * 50


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_below_one_in_every_format(dtype):
    x = at(samples=1000, dtype=dtype).uniform(A, (100,))
    assert x.dtype == dtype
    assert x.min() >= 0
    assert x.max() < 1
    exact = at(samples=1000).uniform(A, (100,))
    assert (exact - x.double()).min() >= 0  # cut off, not rounded


def test_a_shape_without_entries_draws_none():
    assert at().uniform(A, (0, 3)).shape == (8, 0, 3)
    assert at(samples=0).uniform(A, (3,)).shape == (0, 3)


def test_uniform_and_normal_numbers_are_distributed_so():
    draw = at(samples=2000)
    assert stats.kstest(draw.uniform(A, (10,)).flatten(), "uniform").pvalue > 1e-3
    assert stats.kstest(draw.normal(A, (10,)).flatten(), "norm").pvalue > 1e-3
    rows = draw.normal(B, (2,))
    assert abs(np.corrcoef(rows.T)[0, 1]) < 0.08  # 1 / √2000 is 0.022


def test_shared_numbers_are_those_of_the_step_and_of_no_sample():
    shared = at(position=5, samples=2).shared_uniform(A, 2)
    assert torch.equal(shared, at().shared_uniform(A, 2))
    assert not torch.isin(shared, at(samples=100).uniform(A, (2,))).any()


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.999, 1.0])
def test_a_chance_has_its_probability_and_its_place(probability):
    whole = at(samples=1000).chance(A, (3, 7), probability)
    assert whole.shape == (1000, 3, 7)
    share = whole.double().mean()
    assert abs(share - probability) <= 4 * (probability * (1 - probability) / 21000) ** 0.5
    assert torch.equal(at(position=990, samples=10).chance(A, (3, 7), probability), whole[990:])
    assert at(samples=0).chance(A, (3,), probability).shape == (0, 3)


def test_chances_of_neighbours_are_unrelated():
    x = at(samples=4000).chance(A, (4,), 0.5).double()
    assert np.abs(np.corrcoef(x.T) - np.eye(4)).max() < 0.065  # four standard deviations
