"""Noise is a function of seed, name and update, and is standard normal."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from system_needs import needs_compiler
from torch import Tensor

import descend.optim
from descend.optim.compiler.layout import BLOCK, UNIT
from descend.optim.engine.noise import PIECE, draw, key_of, noise_for, philox

SOURCE = (7, "layer.weight", 3)


def drawn(count: int, offset: int = 0, source: tuple[int, str, int] = SOURCE, call: int = 0) -> Tensor:
    room = torch.empty(count, dtype=torch.float64)
    draw(room, source, call, offset)
    return room


def test_a_piece_is_the_same_however_it_is_come_by() -> None:
    whole = drawn(2 * PIECE + 100)
    assert torch.equal(drawn(PIECE, offset=PIECE), whole[PIECE : 2 * PIECE])
    assert torch.equal(drawn(100, offset=2 * PIECE), whole[2 * PIECE :])
    assert torch.equal(drawn(100, offset=3 * BLOCK), whole[3 * BLOCK : 3 * BLOCK + 100])


# Salmon et al.'s own check of Philox 4x32-10 (kat_vectors of Random123): counter, key and the four words.
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFF_FFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_words_that_its_authors_publish(
    counter: tuple[int, ...], key: int, words: tuple[int, ...]
) -> None:
    place = np.array([counter[1] << 32 | counter[0]], dtype=np.uint64).view(np.int64)
    by_numpy = [int(x[0]) & 0xFFFFFFFF for x in philox(place, counter[2], counter[3], key)]
    by_torch = [int(x[0]) & 0xFFFFFFFF for x in philox(torch.from_numpy(place), counter[2], counter[3], key)]
    assert tuple(by_numpy) == tuple(by_torch) == words


def box_and_muller(block: int, source: tuple[int, str, int]) -> list[float]:
    """The noise of a block from its words by the functions of Python's `math`."""
    found = [0.0] * BLOCK
    for j in range(16):
        words = [int(x[0]) for x in philox(np.array([16 * block + j]), source[2], 0, key_of(*source[:2]))]
        for pair in (0, 2):
            u = ((words[pair] >> 1) + 0.5) / 2**31
            angle = math.pi / 4 + math.pi / 2 * ((words[pair + 1] & 0x3FFFFFFF) / 2**30 - 0.5)
            signs = [1 - 2 * (words[pair + 1] >> bit & 1) for bit in (31, 30)]
            radius = math.sqrt(-2 * math.log(u))
            found[16 * pair + j] = signs[0] * radius * math.cos(angle)
            found[16 * pair + 16 + j] = signs[1] * radius * math.sin(angle)
    return found


def test_it_is_box_and_mullers_transform_of_these_words() -> None:
    whole = drawn(5 * BLOCK).tolist()
    for block in (0, 4):
        found = whole[block * BLOCK : (block + 1) * BLOCK]
        assert found == pytest.approx(box_and_muller(block, SOURCE), rel=3e-6, abs=1e-6)


def test_neighbours_and_updates_are_not_correlated() -> None:
    n = 2**18
    x = drawn(n)
    others = [x.roll(1), x.roll(16), x.roll(32), x.roll(64), drawn(n, source=(7, "layer.weight", 4)), drawn(n, call=1)]
    for other in others:
        assert abs((x * other).mean().item()) < 5 / n**0.5
        assert abs((x.square() * other.square()).mean().item() - 1) < 5 * 3 / n**0.5


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_kernel_draws_the_same_bits(dtype: torch.dtype) -> None:
    def moved(runner: str) -> list[Tensor]:
        params = [torch.nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (3, BLOCK, 2 * UNIT + 5, 40_000)]
        params += [torch.nn.Parameter(torch.zeros(40, 1000, dtype=dtype).t())]
        params += [torch.nn.Parameter(torch.zeros(4, 8, 9, 5, dtype=dtype).to(memory_format=torch.channels_last))]
        optimizer = descend.optim.create("sgld", params, lr=2.0, runner=runner, seed=5)
        for step in range(3):
            for i, p in enumerate(params):
                p.grad = None if (i + step) % 3 == 0 else torch.zeros_like(p)
            optimizer.step()
        return [p.detach() for p in params]

    plain = moved("plain")
    for runner in ("blocks", "compiled"):
        assert all(torch.equal(a, b) for a, b in zip(moved(runner), plain, strict=True))


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
