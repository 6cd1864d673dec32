"""Predicts the time of a step on many ranks from that on one rank and the speed of the network.

    one rank        s(b) = s₀ + s₁ b                                   seconds of a step of b samples
    an all-reduce   c(N, k, G) = 2 (N − 1) (k α + G / (N β))           k messages around a ring, G bytes in all
                    or, if less, 2 (⌈log₂ N⌉ k α + G / β)              up and down two trees, as NCCL has them
    N ranks         S(B, N) = s(⌈B / N⌉) + c(N, 1, 0) + max(c(N, k, G) − o s₁ ⌈B / N⌉, c(N, 1, G / k))

o is the fraction of the work on samples that overlaps with the all-reduce of gradients; the last bucket is never
hidden. N ranks are faster than one from the batch size B* on at which s(B) = S(B, N).

Source: the α-β model of a ring all-reduce, Patarasuk and Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002, and of
double binary trees, Sanders, Speck and Träff 2009, https://doi.org/10.1016/j.parco.2009.09.001.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.arguments import check_number, require
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Forecast", "Network", "Profile", "fit_network", "forecast", "rank_counts"]

_OVERLAP = 0.5  # the backward pass is two thirds of the work, and the first bucket is sent some way into it


@dataclass(frozen=True)
class Network:
    """Messages between ranks.

    Attributes:
        latency_seconds: α, of one message.
        bytes_per_second: β.
        trees: Whether ranks sum along trees where that takes less time, as NCCL does; gloo has the ring alone.
    """

    latency_seconds: float
    bytes_per_second: float
    trees: bool = False

    def __post_init__(self) -> None:
        require(
            check_number("latency_seconds", self.latency_seconds, at_least=0),
            check_number("bytes_per_second", self.bytes_per_second, above=0, finite=False),
        )

    def sum_seconds(self, ranks: int, messages: int, size_bytes: float) -> float:
        """Seconds of an all-reduce."""
        waits, seconds = messages * self.latency_seconds, size_bytes / self.bytes_per_second
        ring = 2 * (ranks - 1) * (waits + seconds / ranks)
        tree = 2 * (math.ceil(math.log2(ranks)) * waits + seconds)
        return min(ring, tree) if self.trees else ring


@dataclass(frozen=True)
class Profile:
    """A measurement on one rank.

    Attributes:
        fixed_seconds: s₀, the time of a step that does not depend on its size.
        sample_seconds: s₁, the time of each sample.
        weights_bytes: Of all weights.
        gradient_bytes: Of what is trained.
        messages: Pieces that gradients are sent in.
        state_bytes: Of the optimizer's state.
        largest_state_bytes: Of the state of the largest parameter, which is not cut when state is shared out.
    """

    fixed_seconds: float
    sample_seconds: float
    weights_bytes: int
    gradient_bytes: int
    messages: int
    state_bytes: int
    largest_state_bytes: int = 0

    def step_seconds(self, samples: int) -> float:
        """s(b)."""
        return self.fixed_seconds + self.sample_seconds * samples


@dataclass(frozen=True)
class Forecast:
    """A step on so many ranks.

    Attributes:
        ranks: N.
        step_seconds: S(B, N).
        sum_seconds: What the sums take by themselves.
        waiting: Share of the step that ranks wait for sums.
        samples_per_second: Of all ranks.
        efficiency: That over N times that of one rank at the same share of samples.
        least_batch: B*, from which on these ranks are faster than one; math.inf where they never are.
        memory_bytes: Of weights, gradients, their buffers and the optimizer's state on each rank; without activations.
        sharded_bytes: The same with the state shared out by whole parameters (ZeRO stage 1).
        fully_sharded_bytes: Of the shards of weights, gradients and state where all are sharded (FSDP); without the
            weights that are gathered for the layers under way.
    """

    ranks: int
    step_seconds: float
    sum_seconds: float
    waiting: float
    samples_per_second: float
    efficiency: float
    least_batch: float
    memory_bytes: int
    sharded_bytes: int
    fully_sharded_bytes: int


def forecast(profile: Profile, network: Network, batch_size: int, ranks: int) -> Forecast:
    """Work out the model above for one number of ranks."""
    share = math.ceil(batch_size / ranks)
    alone = profile.step_seconds(share)
    total, waiting = _sums(profile, network, ranks, profile.sample_seconds * share)
    seconds = alone + waiting
    buffers = profile.gradient_bytes if ranks > 1 else 0
    fixed = profile.weights_bytes + profile.gradient_bytes + buffers
    return Forecast(
        ranks,
        seconds,
        total,
        waiting / seconds,
        batch_size / seconds,
        (batch_size / seconds) / (ranks * share / alone),
        _least_batch(profile, network, ranks),
        fixed + profile.state_bytes,
        fixed + max(math.ceil(profile.state_bytes / ranks), profile.largest_state_bytes),
        math.ceil((profile.weights_bytes + profile.gradient_bytes + profile.state_bytes) / ranks),
    )


def _sums(profile: Profile, network: Network, ranks: int, work_seconds: float) -> tuple[float, float]:
    """What sums take by themselves, and how much of that ranks wait for."""
    meeting, gradients, last = _parts(profile, network, ranks)
    return meeting + gradients, meeting + max(gradients - _OVERLAP * work_seconds, last)


def _parts(profile: Profile, network: Network, ranks: int) -> tuple[float, float, float]:
    """What a meeting takes, the sum of all gradients, and that of their last piece, which nothing can hide."""
    return (
        network.sum_seconds(ranks, 1, 0),
        network.sum_seconds(ranks, profile.messages, profile.gradient_bytes),
        network.sum_seconds(ranks, 1, profile.gradient_bytes / profile.messages),
    )


def _least_batch(profile: Profile, network: Network, ranks: int) -> float:
    """B*: where s₁ B = s₁ B / N + what is waited for, which is the larger of two."""
    s = profile.sample_seconds
    if ranks == 1:
        return 1.0
    if s <= 0:
        return math.inf
    meeting, gradients, last = _parts(profile, network, ranks)
    saved = s * (1 - 1 / ranks)
    return max((meeting + last) / saved, (meeting + gradients) / (saved + s * _OVERLAP / ranks), 1.0)


def fit_network(samples: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """s₀ and s₁ by least squares, neither below 0."""
    n = len(samples)
    mean_x, mean_y = sum(samples) / n, sum(seconds) / n
    spread = sum((x - mean_x) ** 2 for x in samples)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(samples, seconds, strict=True)) / spread if spread else 0.0
    slope = max(slope, 0.0)
    fixed = mean_y - slope * mean_x
    if fixed < 0:
        return 0.0, sum(x * y for x, y in zip(samples, seconds, strict=True)) / sum(x * x for x in samples)
    return fixed, slope


def rank_counts(text: str) -> list[int]:
    """Numbers of ranks from "8", "1,2,4" or "8..4096", which doubles.

    Raises:
        ConfigurationError: it is none of these.
    """
    first, dots, last = text.partition("..")
    words = [first, last] if dots else first.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words) or (dots and int(first) > int(last)):
        raise ConfigurationError(
            f"--ranks must be a number, several as in 1,2,4, or a range as in 8..4096, got {text!r}"
        )
    if not dots:
        return [int(word) for word in words]
    counts = [int(first)]
    while counts[-1] * 2 <= int(last):
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == int(last) else [*counts, int(last)]
