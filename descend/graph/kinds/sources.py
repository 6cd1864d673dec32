"""Layers without parents: constants, random numbers, weights, and the position of a sample in the mini-batch.

Random numbers are functions of the run's seed, the step, the layer's name and the sample's position in the whole
mini-batch, so they are the same however the mini-batch is cut into parts or shared among ranks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from descend.errors import GraphError
from descend.graph.layer import Incoming, Layer, Shape, WeightSlot, shown
from descend.graph.weights import ConstantInitializer

if TYPE_CHECKING:
    from descend.graph.layer import Incoming, Shape

__all__ = [
    "Bernoulli",
    "CategoricalRandom",
    "Constant",
    "DiscreteRandom",
    "External",
    "Gaussian",
    "Input",
    "MiniBatchIndex",
    "MiniBatchSize",
    "Uniform",
    "Unpooling",
    "WeightsLayer",
]


def _dims(name: str, dims: tuple[int, ...]) -> Shape:
    if not dims or min(dims) < 1:
        raise GraphError(f"has {name} {shown(dims)}; expected one or more sizes of at least 1")
    return dims


class _Source(Layer):
    num_parents: ClassVar[int | None] = 0


class Constant(_Source):
    """A tensor of dimensions num_neurons whose entries are all `value`."""

    message: ClassVar[str] = "Layer.Constant"
    sized_by: ClassVar[str] = "num_neurons"

    value: float = 0.0
    num_neurons: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """num_neurons."""
        return _dims("num_neurons", self.num_neurons)


class Gaussian(_Source):
    """Random numbers of N(mean, stdev²); of N(0, 1) when both are 0. With training_only, mean outside training."""

    message: ClassVar[str] = "Layer.Gaussian"
    sized_by: ClassVar[str] = "neuron_dims"

    mean: float = 0.0
    stdev: float = 0.0
    neuron_dims: tuple[int, ...] = ()
    training_only: bool = False

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation with the rule for zeros applied."""
        return (0.0, 1.0) if self.mean == self.stdev == 0.0 else (self.mean, self.stdev)

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """neuron_dims."""
        if not 0 <= self.stdev < math.inf:
            raise GraphError(f"has stdev {self.stdev!r}; expected a finite number of at least 0")
        return _dims("neuron_dims", self.neuron_dims)


class Bernoulli(_Source):
    """In training 1 with probability `prob` and else 0; outside training 0 everywhere."""

    message: ClassVar[str] = "Layer.Bernoulli"
    sized_by: ClassVar[str] = "neuron_dims"

    prob: float = 0.0
    neuron_dims: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """neuron_dims."""
        if not 0 <= self.prob <= 1:
            raise GraphError(f"has prob {self.prob!r}; expected 0 to 1")
        return _dims("neuron_dims", self.neuron_dims)


class Uniform(_Source):
    """Random numbers in [min, max); in [0, 1) when both are 0.

    With training_only they are (min + max) / 2 outside training.
    """

    message: ClassVar[str] = "Layer.Uniform"
    sized_by: ClassVar[str] = "neuron_dims"

    min: float = 0.0
    max: float = 0.0
    neuron_dims: tuple[int, ...] = ()
    training_only: bool = False

    def bounds(self) -> tuple[float, float]:
        """min and max with the rule for zeros applied."""
        return (0.0, 1.0) if self.min == self.max == 0.0 else (self.min, self.max)

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """neuron_dims."""
        if not (self.min <= self.max and math.isfinite(self.max - self.min)):
            raise GraphError(f"has min {self.min!r} and max {self.max!r}; expected finite numbers, the smaller first")
        return _dims("neuron_dims", self.neuron_dims)


class MiniBatchIndex(_Source):
    """The position of the sample in the whole mini-batch, from 0 up. One entry."""

    message: ClassVar[str] = "Layer.MiniBatchIndex"

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        return (1,)


class MiniBatchSize(_Source):
    """The number of samples of the whole mini-batch. One entry."""

    message: ClassVar[str] = "Layer.MiniBatchSize"

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        return (1,)


class WeightsLayer(_Source):
    """A tensor of weights of dimensions `dims`, the same for every sample; from zero unless it is given weights.

    Its gradient is the sum over the samples.
    """

    message: ClassVar[str] = "Layer.WeightsLayer"
    sized_by: ClassVar[str] = "dims"

    dims: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """dims."""
        return _dims("dims", self.dims)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The tensor."""
        return (WeightSlot("weights", self.dims, ConstantInitializer()),)


# ---- where data enter the graph


class Input(Layer):
    """One field of the reader, `data_field`: samples, labels, responses or any other that it offers.

    Several Inputs may name the same field. The check hands the field's shape in as if it came from a parent.
    """

    message: ClassVar[str] = "Layer.Input"
    num_parents: ClassVar[int | None] = 0

    data_field: str = ""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the field. A single number is a tensor of one entry."""
        return inputs[0].shape or (1,)


# ---- kinds of the format that are read and written and cannot be had; each says why and what to use


class CategoricalRandom(Layer):
    """Obsolete in LBANN: a one-hot vector of an index drawn from a vector of probabilities."""

    message: ClassVar[str] = "Layer.CategoricalRandom"
    refusal: ClassVar[str | None] = "is obsolete in LBANN; compare a Uniform with cumulated probabilities instead"


class DiscreteRandom(Layer):
    """Obsolete in LBANN: one of `values`, drawn by a vector of probabilities."""

    message: ClassVar[str] = "Layer.DiscreteRandom"
    refusal: ClassVar[str | None] = "is obsolete in LBANN; compare a Uniform with cumulated probabilities instead"

    values: tuple[float, ...] = ()
    dims: tuple[int, ...] = ()


class External(Layer):
    """A layer from a shared library."""

    message: ClassVar[str] = "Layer.External"
    num_parents: ClassVar[int | None] = None
    refusal: ClassVar[str | None] = (
        "runs code from a shared library, and loading a description never runs code; write it as a kind of its own"
    )

    filename: str = ""
    layer_name: str = ""


class Unpooling(Layer):
    """Inverse of the max pooling that hint_layer names."""

    message: ClassVar[str] = "Layer.Unpooling"
    refusal: ClassVar[str | None] = "is broken in LBANN, so no result could be right; use Upsample or Deconvolution"

    num_dims: int = 0
