"""Encodings of places against their equations."""

import numpy as np
import pytest
import torch

import descend
from descend.errors import ConfigurationError
from descend.zoo import modules
from tests.zoo.lowered import agree, lowered, random


def test_places_are_waves_that_are_not_trained():
    encoding = modules.PositionalEncoding(6, name="p")
    places, i = np.meshgrid(np.arange(4), np.arange(6), indexing="ij")
    angle = places / 10000 ** (i // 2 * 2 / 6)
    waves = torch.tensor(np.where(i % 2, np.cos(angle), np.sin(angle)))
    plan = agree(lambda x: encoding(x, 4), lambda _, x: x + waves, random(2, 4, 6))
    assert not plan.weights["p_waves4"].trainable


def test_learned_places_are_the_first_rows_of_a_table():
    encoding = modules.LearnedInputEncoding(6, 5, name="p")
    agree(lambda x: encoding(x, 3), lambda get, x: x + get("p_places")[:3], random(2, 3, 6))
    plan = agree(lambda x: encoding(x, 5), lambda get, x: x + get("p_places"), random(2, 5, 6))
    assert plan.weights["p_places"].initializer == descend.NormalInitializer(standard_deviation=0.02)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
def test_rotation_is_a_product_of_complex_numbers(halves, heads):
    size, length = 4, 5
    rotary = modules.RotaryPositionalEmbedding(size, length, halves=halves, name="r")
    theta = 10000.0 ** (-2 * torch.arange(size // 2, dtype=torch.float64) / size)
    turn = torch.polar(torch.ones(length, size // 2, dtype=torch.float64), torch.arange(length)[:, None] * theta)

    def twin(_, x):
        pairs = (x[..., : size // 2], x[..., size // 2 :]) if halves else (x[..., ::2], x[..., 1::2])
        z = torch.complex(*pairs) * turn[:, None]
        y = torch.cat([z.real, z.imag], -1) if halves else torch.stack([z.real, z.imag], -1).flatten(-2)
        return y.view_as(x)

    agree(lambda x: rotary(x, heads), twin, random(2, length, heads, size))


def test_turned_queries_and_keys_match_by_their_distance():
    """⟨R_m q, R_n k⟩ is a function of m − n: a shifted sequence attends in the same way."""
    rotary = modules.RotaryPositionalEmbedding(4, 6)
    _, call, _ = lowered(rotary, (6, 4))
    q, k = random(4), random(4, seed=1)
    turned_q, turned_k = call(q.expand(1, 6, 4))[0, :, 0], call(k.expand(1, 6, 4))[0, :, 0]
    match = turned_q @ turned_k.T
    torch.testing.assert_close(match[1:, 1:], match[:-1, :-1])


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda x: modules.PositionalEncoding(6)(x, 0), "has length 0; it must be at least 1"),
        (lambda x: modules.LearnedInputEncoding(6, 5)(x, 6), "has length 6; it must be at least 1 and at most 5"),
        (lambda x: modules.RotaryPositionalEmbedding(3, 4), "has size 3; expected an even one"),
        (lambda x: modules.RotaryPositionalEmbedding(4, 0), "has length 0; it must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(make, problem):
    with pytest.raises(ConfigurationError, match=problem):
        make(descend.Input())
