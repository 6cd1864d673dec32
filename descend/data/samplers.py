"""Samplers: which sample is at each position of an epoch, where that is not a permutation of all samples.

    WeightedSampler        in proportion to a weight of each sample, with or without replacement
    ClassBalancedSampler   every class equally often
    Sampler                the base class of your own; a function (seed, epoch, positions) does as well

The sample at a position is a function of (seed, epoch, position) and of nothing else: not of the batch size, the number
of ranks or workers, nor of what was drawn before. So a run that is resumed within an epoch reads no skipped sample.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.arguments import called, check_bool, check_integer, require, shown, takes_arguments
from descend.arguments.strict_keywords import StrictKeywords
from descend.data.order import Draws, key_of, order, permute
from descend.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["ClassBalancedSampler", "Sampler", "WeightedSampler", "as_sampler", "checked_ids"]


_FUNCTION = (
    "a descend.data.Sampler, such as descend.WeightedSampler(weights), or a function (seed, epoch, positions) that "
    "returns numbers of samples"
)


class Sampler(metaclass=StrictKeywords):
    """The base class of samplers: override `ids`, and `size` where an epoch has another number of samples."""

    def size(self, num_samples: int) -> int:
        """Positions of an epoch.

        Args:
            num_samples: Size of the data set.

        Raises:
            ConfigurationError: the sampler is not for a data set of this size.
        """
        return num_samples

    def ids(self, seed: int, epoch: int, positions: NDArray[np.int64], num_samples: int) -> NDArray[np.int64]:
        """The numbers of the samples at some positions of an epoch.

        Args:
            seed: Of the run.
            epoch: From 0 up.
            positions: (n,) integers in [0, size), in any order.
            num_samples: Size of the data set.

        Returns:
            (n,) integers in [0, num_samples).
        """
        raise ConfigurationError(f"sampler must override Sampler.ids, got {shown(self)}: define ids in its class")


class WeightedSampler(Sampler):
    """Draws samples in proportion to their weights, again for each epoch.

        descend.fit(..., sampler=descend.WeightedSampler(weights))

    With replacement, the sample at a position is that in whose part of the sum of all weights a uniform number of this
    position falls; this is torch's WeightedRandomSampler. Without, samples are in the order of −ln(u)/w, u being a
    uniform number of the epoch and the sample.

    Args:
        weights: (samples,) numbers of at least 0, not all 0; their scale plays no part.
        size: Positions of an epoch; None is the number of samples.
        replacement: Whether a sample may come several times in an epoch.

    Raises:
        ConfigurationError: weights are not as above, or `size` is below 1 or, without replacement, above the number of
            weights that are not 0.

    Source: Efraimidis and Spirakis 2006, https://doi.org/10.1016/j.ipl.2005.11.003 (without replacement)
    """

    def __init__(self, weights: Any, size: int | None = None, replacement: bool = True) -> None:
        found = _row(weights, "WeightedSampler: weights").astype(np.float64)
        problems = [
            check_integer("size", size, 1, also=(None,)),
            check_bool("replacement", replacement),
            None if np.isfinite(found).all() and (found >= 0).all() else "weights must be finite and at least 0",
            "weights must not be all 0" if not found.any() else None,
        ]
        positive = int((found > 0).sum())
        if not replacement and (size or len(found)) > positive:
            problems.append(
                f"without replacement an epoch has at most the {positive:,} samples whose weight is not 0, and size is "
                f"{size or len(found):,}"
            )
        require(*problems, where="WeightedSampler")
        self._weights, self._size, self._replacement = found, size, replacement
        sums = np.cumsum(found)
        self._edges = sums / sums[-1]
        self._edges[np.flatnonzero(found)[-1] :] = 1.0  # no weight of 0 stands where the sum is rounded down
        self._of_epoch: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def size(self, num_samples: int) -> int:
        """See `Sampler.size`."""
        _check_length("WeightedSampler", "weights", len(self._weights), num_samples)
        return num_samples if self._size is None else self._size

    def ids(self, seed: int, epoch: int, positions: NDArray[np.int64], num_samples: int) -> NDArray[np.int64]:
        """See `Sampler.ids`."""
        if self._replacement:
            uniform = Draws(key_of("weighted", seed, epoch), positions).uniform(1)[:, 0]
            return np.searchsorted(self._edges, uniform, side="right")
        if self._of_epoch is None or self._of_epoch[0] != (seed, epoch):
            self._of_epoch = (seed, epoch), self._ordered(seed, epoch)
        return self._of_epoch[1][positions]

    def _ordered(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """All samples whose weight is not 0, in the order of an epoch without replacement."""
        some = np.flatnonzero(self._weights)
        uniform = Draws(key_of("weighted", seed, epoch), some).uniform(1)[:, 0]
        return some[np.argsort(-np.log1p(-uniform) / self._weights[some], kind="stable")]

    def __repr__(self) -> str:
        more = "" if self._replacement else ", replacement=False"
        return f"WeightedSampler({_digest(self._weights)}, size={self._size}{more})"


class ClassBalancedSampler(Sampler):
    """Gives every class equally often: of `size` positions each class has ⌊size / classes⌋ or one more.

    Positions of an epoch are divided among the classes at random. The samples of a class come in a shuffled order, each
    once, before one of them comes again, so within a class no sample comes twice as often as another.

    Args:
        labels: (samples,) the class of each sample: integers or text. Classes without samples do not count.
        size: Positions of an epoch; None is the number of samples.

    Raises:
        ConfigurationError: labels are no row of integers or text, or `size` is below 1.
    """

    def __init__(self, labels: Any, size: int | None = None) -> None:
        found = _row(labels, "ClassBalancedSampler: labels")
        if found.dtype.kind not in "iubUS":
            raise ConfigurationError(
                f"ClassBalancedSampler: labels must be integers or text, a class for each sample, got numbers of type "
                f"{found.dtype}"
            )
        require(check_integer("size", size, 1, also=(None,)), where="ClassBalancedSampler")
        _, classes = np.unique(found, return_inverse=True)
        self._classes, self._size = classes, size
        self._members = [np.flatnonzero(classes == number) for number in range(int(classes.max()) + 1)]

    def size(self, num_samples: int) -> int:
        """See `Sampler.size`."""
        _check_length("ClassBalancedSampler", "labels", len(self._classes), num_samples)
        return num_samples if self._size is None else self._size

    def ids(self, seed: int, epoch: int, positions: NDArray[np.int64], num_samples: int) -> NDArray[np.int64]:
        """See `Sampler.ids`."""
        places = order(seed, epoch, positions, self.size(num_samples))
        turns, classes = np.divmod(places, len(self._members))
        found = np.empty_like(positions)
        for number in np.unique(classes):
            members, mine = self._members[number], classes == number
            rounds, places_within = np.divmod(turns[mine], len(members))
            chosen = np.empty_like(rounds)
            for one in np.unique(rounds):
                key = key_of("class", seed, epoch, int(number), int(one))
                chosen[rounds == one] = permute(places_within[rounds == one], len(members), key)
            found[mine] = members[chosen]
        return found

    def __repr__(self) -> str:
        return f"ClassBalancedSampler({_digest(self._classes)}, size={self._size})"


class _FunctionSampler(Sampler):
    """A user's function as a sampler.

    Args:
        function: Takes seed, epoch and positions (n,), and returns numbers of samples (n,).
    """

    def __init__(self, function: Callable[[int, int, NDArray[np.int64]], Any]) -> None:
        self._function = function

    def ids(self, seed: int, epoch: int, positions: NDArray[np.int64], num_samples: int) -> NDArray[np.int64]:
        """See `Sampler.ids`."""
        return called("sampler", _FUNCTION, self._function, seed, epoch, positions)

    def __repr__(self) -> str:
        return f"sampler {getattr(self._function, '__qualname__', type(self._function).__qualname__)}"


def as_sampler(given: Any) -> Sampler | None:
    """The sampler that a user gave: one, a function, or None.

    Raises:
        ConfigurationError: it is something else, such as a sampler of torch, which says nothing of (seed, epoch).
    """
    from torch.nn import Module

    if given is None or isinstance(given, Sampler):
        return given
    if callable(given) and not isinstance(given, (type, Module)) and takes_arguments(given, 3):
        return _FunctionSampler(given)
    raise ConfigurationError(f"sampler must be {_FUNCTION}, got {shown(given)}")


def checked_ids(sampler: Sampler, ids: Any, positions: NDArray[np.int64], num_samples: int) -> NDArray[np.int64]:
    """What a sampler returned, which must be numbers of samples.

    Raises:
        DataError: it is something else.
    """
    found = np.asarray(ids)
    if found.shape != positions.shape or found.dtype.kind not in "iu":
        raise DataError(
            f"{sampler!r} must return {len(positions)} integers, one for each position, got an array of shape "
            f"{found.shape} and type {found.dtype}"
        )
    if found.size and (found.min() < 0 or found.max() >= num_samples):
        wrong = int(found[(found < 0) | (found >= num_samples)][0])
        raise DataError(f"{sampler!r} returned sample {wrong:,} of a data set of {num_samples:,} samples")
    return found.astype(np.int64)


def _row(values: Any, what: str) -> NDArray[Any]:
    """Values of a list, an array or a tensor as an array of one dimension."""
    found = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if found.ndim != 1 or found.dtype.kind not in "iubfUS" or not len(found):
        raise ConfigurationError(
            f"{what} must be a row with one entry for each sample, got shape {found.shape} of type {found.dtype}"
        )
    return found


def _check_length(title: str, what: str, length: int, num_samples: int) -> None:
    if length != num_samples:
        raise ConfigurationError(f"{title}: there are {length:,} {what}, and the data set has {num_samples:,} samples")


def _digest(values: NDArray[Any]) -> str:
    """A digest of many numbers for comparing settings."""
    content = np.ascontiguousarray(values).tobytes()
    return f"{len(values):,} values {hashlib.blake2b(content, digest_size=4).hexdigest()}"
