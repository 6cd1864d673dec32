"""Samples of random numbers, for speed measurements and for trying a network without data.

    samples     N(0, 1), of the shape synth_dimensions ("1 28 28")
    labels      one-hot, each of num_labels as likely, when num_labels is set
    responses   N(0, 1), of the shape synth_response_dimensions, when that is set

Sample i is a function of the seed, the role and i, so it is the same in each epoch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from descend.data.counter_rng import Draws, key_of
from descend.data.reader_protocol import Field, Format, one_hot
from descend.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from descend.data.description import Reader
    from descend.data.reader_protocol import Array

__all__ = ["SYNTHETIC", "SyntheticSamples"]


class SyntheticSamples:
    """The samples of the reader "synthetic"."""

    def __init__(self, reader: Reader, seed: int) -> None:
        self._keys = {what: key_of("synthetic", seed, reader.role, what) for what in ("samples", "labels", "responses")}
        self._num_samples = reader.num_samples
        shapes = {"samples": _shape(reader, "synth_dimensions")}
        if reader.num_labels:
            shapes["labels"] = (reader.num_labels,)
        if reader.synth_response_dimensions:
            shapes["responses"] = _shape(reader, "synth_response_dimensions")
        self.fields: Mapping[str, Field] = {name: Field(shape, np.dtype(np.float32)) for name, shape in shapes.items()}

    def __len__(self) -> int:
        return self._num_samples

    def read(self, samples: NDArray[np.int64]) -> dict[str, Array]:
        """Make the samples with these numbers."""
        return {name: self._field(name, samples) for name in self.fields}

    def _field(self, name: str, samples: NDArray[np.int64]) -> NDArray[np.float32]:
        shape = self.fields[name].shape
        draws = Draws(self._keys[name], samples)
        if name == "labels":
            return one_hot(draws.integers(shape[0]), shape[0])
        return draws.normal(math.prod(shape)).astype(np.float32).reshape(len(samples), *shape)


def _shape(reader: Reader, name: str) -> tuple[int, ...]:
    text: str = getattr(reader, name)
    sizes = text.split()
    if not sizes or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ConfigurationError(f"{name} must be sizes >= 1 separated by spaces, such as \"1 28 28\", got '{text}'")
    return tuple(int(size) for size in sizes)


SYNTHETIC = Format(
    SyntheticSamples, frozenset({"num_samples", "num_labels", "synth_dimensions", "synth_response_dimensions"})
)
