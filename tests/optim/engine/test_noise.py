"""Noise is a function of seed, name and update, and is standard normal."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from descend.optim.engine.noise import PIECE, draw, noise_for

SOURCE = (7, "layer.weight", 3)


def drawn(count: int, offset: int = 0, source: tuple[int, str, int] = SOURCE, call: int = 0) -> Tensor:
    room = torch.empty(count, dtype=torch.float64)
    draw(room, source, call, offset)
    return room


def test_a_piece_is_the_same_however_it_is_come_by() -> None:
    whole = drawn(2 * PIECE + 100)
    assert torch.equal(drawn(PIECE, offset=PIECE), whole[PIECE : 2 * PIECE])
    assert torch.equal(drawn(100, offset=2 * PIECE), whole[2 * PIECE :])


def test_everything_that_names_it_changes_it() -> None:
    sources = [SOURCE, (8, "layer.weight", 3), (7, "layer.bias", 3), (7, "layer.weight", 4)]
    found = [drawn(50, source=source) for source in sources] + [drawn(50, call=1), drawn(50, offset=PIECE)]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_it_is_standard_normal() -> None:
    x = drawn(200_000)
    assert x.mean().item() == pytest.approx(0.0, abs=4 / 200_000**0.5)
    assert x.var().item() == pytest.approx(1.0, abs=4 * (2 / 200_000) ** 0.5)
    assert (x.abs() < 1).double().mean().item() == pytest.approx(0.6827, abs=0.005)


def test_it_leaves_the_generator_of_others_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    drawn(10)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_rule_gets_other_numbers_at_each_call_shaped_like_its_weights() -> None:
    noise = noise_for(torch.zeros(4, 5), *SOURCE)
    one, two = noise(), noise()
    assert one.shape == two.shape == (4, 5)
    assert not torch.equal(one, two)
    assert torch.equal(one.flatten(), noise_for(torch.zeros(20), *SOURCE)())
