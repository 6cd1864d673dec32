"""What a layer may know of the forward pass that it is part of, and the random numbers that it may draw.

A number is a function of (seed of the step, purpose, position of the sample in the whole mini-batch, entry) and of
nothing else, so a mini-batch that is cut into parts, over time or over ranks, draws what it would draw in one piece. A
number needs no other, so all of a layer's are drawn at once, and none has a state to save.

    key of a sample    k = mix(mix(position) + mix(seed + stream)), the stream being the key of the purpose
    number j           mix(k + j·γ), of which the upper bits are the fraction; a chance takes half of one

Source: SplitMix64, as in `descend.data.order`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor  # the operators' arguments are known by their annotations

from descend.data.order import GOLDEN, key_of

if TYPE_CHECKING:
    from descend.graph import Shape

__all__ = ["ForwardContext", "register_draws", "stream_of"]

# Bits of a fraction below 1 that each format holds exactly.
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def _signed(number: int) -> int:
    """The 64 bits of a number as torch's int64 holds them; its products and sums wrap around."""
    return (number + 2**63) % 2**64 - 2**63


_GOLDEN = _signed(int(GOLDEN))
_NO_SAMPLE = -1  # the position of what a whole mini-batch shares


def stream_of(purpose: str) -> int:
    """What keeps the numbers of one purpose, such as a layer, apart from all others; found once, when it is lowered."""
    return _signed(int(key_of("layer", purpose)))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x ≫ bits with zeros coming in; torch's own shift brings in the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mixed(x: Tensor) -> Tensor:
    """`mix` of each element, in the place of x."""
    x.bitwise_xor_(_shifted(x, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    x.bitwise_xor_(_shifted(x, 27)).mul_(_signed(0x94D049BB133111EB))
    return x.bitwise_xor_(_shifted(x, 31))


def _numbers(seed: Tensor, position: int, samples: int, stream: int, count: int) -> Tensor:
    """(samples, count) integers of 64 random bits; the seed is (1,)."""
    positions = torch.arange(position, position + samples, device=seed.device)
    keys = _mixed(_mixed(positions) + _mixed(seed + stream))
    counters = torch.arange(1, count + 1, device=seed.device) * _GOLDEN
    return _mixed(keys[:, None] + counters)


def _fractions(seed: Tensor, position: int, samples: int, stream: int, count: int, dtype: torch.dtype) -> Tensor:
    """(samples, count) numbers in [0, 1)."""
    bits = _BITS[dtype]
    return _shifted(_numbers(seed, position, samples, stream, count), 64 - bits).to(dtype) * 2.0**-bits


def _chances(seed: Tensor, position: int, samples: int, stream: int, count: int, bound: int) -> Tensor:
    """(samples, count) truths: whether half a number is below a bound."""
    halves = _numbers(seed, position, samples, stream, -(-count // 2)).view(torch.int32)[:, :count]
    return halves < bound if bound < 2**31 else torch.ones_like(halves, dtype=torch.bool)


class _EagerOperators:
    """The operators of `torch.ops.descend` as plain functions, for passes that are not compiled."""

    fractions = staticmethod(_fractions)
    chances = staticmethod(_chances)


@cache
def register_draws() -> None:
    """Make the draws operators that a compiler of torch calls and does not look into.

    What inductor of torch 2.13 makes of integers of 64 bits on a CPU draws other numbers, or writes past the end
    of its buffers. Operators are registered with torch for good, so this is done when the first module that draws is
    made, not on import.
    """
    fractions = torch.library.custom_op("descend::fractions", _fractions, mutates_args=())
    chances = torch.library.custom_op("descend::chances", _chances, mutates_args=())
    fractions.register_fake(
        lambda seed, position, samples, stream, count, dtype: seed.new_empty((samples, count), dtype=dtype)
    )
    chances.register_fake(
        lambda seed, position, samples, stream, count, bound: seed.new_empty((samples, count), dtype=torch.bool)
    )


@dataclass(frozen=True)
class ForwardContext:
    """One forward pass over some samples of a mini-batch.

    Args:
        training: Whether layers act as in training.
        seed: What the random numbers of this step are a function of; a number, or (1,) int64 on the device.
        position: Place of the first of these samples in the whole mini-batch.
        samples: How many samples go through in this pass.
        batch_size: How many the whole mini-batch has, over all parts and ranks.
        dtype: Format of tensors that come from nowhere.
        device: Where they are.
        group_size: Samples that share statistics, counted from the start of the mini-batch; 0 for all of them.
    """

    training: bool
    seed: int | Tensor
    position: int
    samples: int
    batch_size: int
    dtype: torch.dtype
    device: torch.device
    group_size: int = 0

    def positions(self) -> Tensor:
        """(samples,) the places of these samples in the whole mini-batch, from 0 up."""
        return torch.arange(self.position, self.position + self.samples, device=self.device)

    def uniform(self, stream: int, shape: Shape) -> Tensor:
        """(samples, *shape) numbers in [0, 1)."""
        fractions = self._draws().fractions(
            self._key(), self.position, self.samples, stream, math.prod(shape), self.dtype
        )
        return fractions.view(self.samples, *shape)

    def shared_uniform(self, stream: int, count: int) -> Tensor:
        """(count,) numbers in [0, 1) that the whole mini-batch shares."""
        return self._draws().fractions(self._key(), _NO_SAMPLE, 1, stream, count, self.dtype)[0]

    def normal(self, stream: int, shape: Shape) -> Tensor:
        """(samples, *shape) numbers of N(0, 1), by the transform of Box and Muller."""
        radius, angle = self.uniform(stream, (2, *shape)).unbind(1)
        return (-2.0 * torch.log1p(-radius)).sqrt() * torch.cos(2.0 * math.pi * angle)

    def chance(self, stream: int, shape: Shape, probability: float) -> Tensor:
        """(samples, *shape) truths, each true with a probability, which counts to 2⁻³²."""
        bound = round(probability * 2**32) - 2**31  # halves are evenly spread over −2³¹ to 2³¹ − 1
        chances = self._draws().chances(self._key(), self.position, self.samples, stream, math.prod(shape), bound)
        return chances.view(self.samples, *shape)

    def _key(self) -> Tensor:
        """The seed as a tensor."""
        if isinstance(self.seed, Tensor):
            return self.seed
        return torch.full((1,), self.seed, dtype=torch.int64, device=self.device)

    def _draws(self) -> Any:
        return torch.ops.descend if torch.compiler.is_compiling() else _EagerOperators
