"""What is known of an ONNX graph while it becomes layers, and the table of functions that read an operator.

A value of the graph is one of three things: an output of a layer, which has the samples for its first dimension; an
array that is the same in every run; or a shape, in which the number of samples is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from descend.errors import ConfigurationError
from descend.graph import Incoming, Layer, Reshape, Select, Tessellate, Weights, WeightsLayer
from descend.graph.layer import shown
from descend.graph.optimizers import NoOptimizer
from descend.graph.weights import ArrayInitializer

if TYPE_CHECKING:
    from collections import Counter

    from numpy.typing import NDArray

__all__ = [
    "MULTIPLE",
    "ConstantValue",
    "GraphImporter",
    "Groups",
    "Node",
    "Permuted",
    "Reading",
    "ShapeValue",
    "Tensor",
    "UnsupportedNode",
    "Value",
    "importer",
    "imports",
]

MULTIPLE = -2  # in Sizes: so many times the number of samples; −1 stands there as the file has it

Shape = tuple[int, ...]
Groups = tuple[tuple[int | None, ...], ...]


class UnsupportedNode(Exception):
    """Why a node cannot be had; completes "node 'n' (Op) ..."."""


@dataclass(frozen=True)
class Tensor:
    """An output of a layer: (samples, *shape). A shape of () is one number a sample, which the layer gives as (1,).

    Where `joined` is not 0, the file's tensor has so many dimensions of the sample within its first one, as attention
    has that takes samples · heads for one dimension.
    """

    layer: Layer
    shape: Shape
    joined: int = 0


@dataclass(frozen=True)
class Permuted:
    """An output of a layer whose samples are not the first dimension of the file's tensor.

    `groups` has for each dimension of the file's tensor the sizes that it is made of, None for the samples; the layer
    gives (samples, *all other sizes in their order).
    """

    layer: Layer
    groups: Groups


@dataclass(frozen=True)
class ConstantValue:
    """An array. A name is that of the file's own tensor, which is trained if it holds fractions.

    Where it is the transposed form of a matrix that has other uses too, `base` is that matrix's name.
    """

    array: NDArray[Any]
    name: str | None = None
    base: str | None = None


@dataclass(frozen=True)
class ShapeValue:
    """A list of sizes, or one, of which None is the number of samples and MULTIPLE a multiple of it."""

    sizes: tuple[int | None, ...]
    single: bool = False


Value = Tensor | Permuted | ConstantValue | ShapeValue
Reading = Callable[["GraphImporter", "Node"], "Value | tuple[Value | None, ...]"]  # None: an output that nothing takes

_READINGS: dict[str, Reading] = {}


def imports(*kinds: str) -> Callable[[Reading], Reading]:
    """Say that the decorated function reads these operators."""

    def keep(function: Reading) -> Reading:
        _READINGS.update(dict.fromkeys(kinds, function))
        return function

    return keep


def importer(kind: str) -> Reading | None:
    """What reads an operator; None where nothing does."""
    return _READINGS.get(kind)


@dataclass(frozen=True)
class Node:
    """One node with its inputs found.

    Attributes:
        name: Its name, or one made of its operator and its place.
        kind: Its operator.
        inputs: Values; None where one is left out.
        attributes: By name.
        taken: Whether something takes each output.
    """

    name: str
    kind: str
    inputs: tuple[Value | None, ...]
    attributes: dict[str, Any]
    taken: tuple[bool, ...]

    @property
    def outputs(self) -> int:
        """How many outputs there are up to the last that something takes."""
        return max((place for place, taken in enumerate(self.taken, 1) if taken), default=1)

    def takes(self, place: int) -> bool:
        """Whether something takes an output."""
        return place < len(self.taken) and self.taken[place]

    def get(self, name: str, default: Any) -> Any:
        """An attribute, or what stands for it where it is not set."""
        return self.attributes.get(name, default)

    def given(self, place: int) -> Value | None:
        """An input, or None where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def tensor(self, place: int = 0, dims: int | None = None) -> Tensor:
        """An input that differs between samples.

        Raises:
            Refused: it does not, or has another number of dimensions.
        """
        value = self.given(place)
        if isinstance(value, Permuted):
            raise UnsupportedNode("is given a tensor whose samples are not its first dimension")
        if not isinstance(value, Tensor):
            raise UnsupportedNode(f"takes a constant as input {place + 1}, where a layer's output is needed")
        if value.joined:
            raise UnsupportedNode("is given samples joined with other dimensions")
        if not value.shape or (dims is not None and len(value.shape) != dims):
            raise UnsupportedNode(f"is given (samples, {', '.join(map(str, value.shape))}), which no layer here takes")
        return value

    def fixed(self, place: int) -> ConstantValue:
        """An input that is constant.

        Raises:
            Refused: it is computed from the data.
        """
        value = self.given(place)
        if not isinstance(value, ConstantValue):
            raise UnsupportedNode(f"computes its input {place + 1} from the data, and a constant is needed")
        return value

    def ints(self, place: int, attribute: str) -> tuple[int, ...] | None:
        """Whole numbers that are an input in newer files and an attribute in older ones; None where not given."""
        if self.given(place) is not None:
            return tuple(int(one) for one in np.atleast_1d(self.fixed(place).array))
        found = self.attributes.get(attribute)
        return None if found is None else tuple(np.atleast_1d(found).tolist())

    def float(self, place: int, attribute: str, default: float) -> float:
        """A number that is an input in newer files and an attribute in older ones."""
        if self.given(place) is not None:
            return float(self.fixed(place).array.reshape(()))
        return self.get(attribute, default)


class GraphImporter:
    """Makes layers; names are those of the nodes.

    Args:
        uses: How many nodes and outputs take each value, by its name in the file.
        batch: The number of samples that a file without a free one was made for.
    """

    def __init__(self, uses: Counter[str], batch: int | None) -> None:
        self.uses = uses
        self.batch = batch
        self.layers: list[Layer] = []
        self._weights: dict[tuple[str | None, bool], Weights] = {}
        self._names: set[str] = set()
        self._weights_names: set[str] = set()

    def name(self, wish: str) -> str:
        """A name for a layer that no other has."""
        return _unique(re.sub(r"[^\w./-]", "_", wish).strip("/") or "layer", self._names)

    def layer(self, kind: type[Layer], node: Node | str, *parents: Tensor, **fields: Any) -> Tensor:
        """One more layer.

        Raises:
            Refused: the kind does not take what it is given.
        """
        name = node if isinstance(node, str) else node.name
        try:
            layer = kind(*(parent.layer for parent in parents), name=self.name(name), **fields)
            inputs = tuple(Incoming(parent.layer.name, parent.shape or (1,)) for parent in parents)
            (shape,) = layer.output_shapes(inputs, 1)
        except ConfigurationError as error:
            raise UnsupportedNode("; ".join(error.problems)) from None
        self.layers.append(layer)
        return Tensor(layer, shape)

    def weights(self, fixed: ConstantValue, owner: str, *, column_major: bool = False, turned: bool = False) -> Weights:
        """Weights that start as an array; one object for each tensor of the file and each form in which it is used.

        Args:
            fixed: The file's tensor.
            owner: Names weights that have no name in the file.
            column_major: See `PlannedWeights.column_major`.
            turned: Whether the layer takes the transposed matrix.
        """
        key = (fixed.name or owner, turned)
        if key not in self._weights:
            name = _unique(re.sub(r"[^\w/-]", "_", fixed.name or f"{owner}_values"), self._weights_names)
            trained = fixed.name is not None and fixed.array.dtype.kind == "f"
            array = np.ascontiguousarray(fixed.array.T if turned else fixed.array, np.float32)
            start = ArrayInitializer(array, column_major)
            self._weights[key] = Weights(start, None if trained else NoOptimizer(), name=name)
        return self._weights[key]

    def turned(self, fixed: ConstantValue) -> bool:
        """Whether a matrix of the file is in use in its transposed form, such as a table that is a classifier too."""
        return (fixed.name, True) in self._weights

    def reshaped(self, x: Tensor, shape: Shape, node: Node | str) -> Tensor:
        """x with other dimensions."""
        if x.shape == shape:
            return x
        if prod(x.shape) != prod(shape):
            raise UnsupportedNode(f"makes (samples, {shown(shape)}) of (samples, {shown(x.shape)})")
        if (x.shape or (1,)) == (shape or (1,)):
            return Tensor(x.layer, shape)
        name = node if isinstance(node, str) else f"{node.name}/reshaped"
        return Tensor(self.layer(Reshape, name, x, dims=shape or (1,)).layer, shape)

    def as_tensor(self, value: Value | None, node: Node, dims: int) -> Tensor:
        """A value for every sample: a constant becomes a layer of weights.

        Args:
            value: The value.
            node: Who needs it.
            dims: The dimensions that the result of the node has for each sample, to which a constant is aligned.
        """
        if isinstance(value, Tensor):
            return value
        if not isinstance(value, ConstantValue):
            raise UnsupportedNode("computes with the number of samples")
        array = value.array
        if array.ndim > dims:
            if array.ndim > dims + 1:
                raise UnsupportedNode("takes a constant of more dimensions than its other inputs have")
            array = self.of_any_sample(array, 0)
        shape = array.shape or (1,)
        array = array.reshape(shape)
        if array.dtype.kind not in "fbiu" or array.size == 0 or np.isnan(array).any():
            raise UnsupportedNode(f"takes a constant of {array.dtype} and shape {array.shape}, or one that holds NaN")
        if not np.isfinite(array).all():
            return self._with_infinities(array, node)
        weights = self.weights(ConstantValue(array, value.name), self.name(f"{node.name}/constant"))
        return self.layer(WeightsLayer, f"{value.name or node.name}/constant", dims=shape, weights=[weights])

    def of_any_sample(self, array: NDArray[Any], axis: int) -> NDArray[Any]:
        """A constant without the dimension of the samples, in which it says the same of all of them.

        Raises:
            Refused: it does not.
        """
        first = array.take(0, axis)
        if array.shape[axis] != 1 and (array.shape[axis] != self.batch or (array != np.expand_dims(first, axis)).any()):
            raise UnsupportedNode("takes a constant that is another one for each sample")
        return first

    def _with_infinities(self, array: NDArray[Any], node: Node) -> Tensor:
        """A constant such as the mask of an attention; weights are finite."""
        y = self.as_tensor(ConstantValue(np.where(np.isfinite(array), array, 0)), node, array.ndim)
        for infinity in (-np.inf, np.inf):
            there = array == infinity
            if there.any():
                truth = self.as_tensor(ConstantValue(there), node, array.ndim)
                own: dict[str, Any] = {"value": 1.0, "epsilon": 0.5, "constant_if_true": True}
                y = self.layer(Select, f"{node.name}/infinite", truth, y, value_if_true=infinity, **own)
        return y

    def broadcast(self, node: Node, *values: Value | None) -> list[Tensor]:
        """All values in one shape, as ONNX brings them together."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        if any(not one.shape for one in tensors):
            raise UnsupportedNode("takes one number a sample without a dimension of its own")
        dims = max(len(one.shape) for one in tensors)
        each = [self.as_tensor(value, node, dims) for value in values]
        for value, one in zip(values, each, strict=True):
            if isinstance(value, Tensor) and len(one.shape) < dims:
                raise UnsupportedNode("brings together dimensions of samples with others")
        wide = [(1,) * (dims - len(one.shape)) + one.shape for one in each]
        try:
            shape = cast("Shape", np.broadcast_shapes(*wide))
        except ValueError:
            raise UnsupportedNode(
                f"brings together shapes that do not fit: {', '.join(shown(one) for one in wide)}"
            ) from None
        return [self.widened(self.reshaped(one, form, node), shape, node) for one, form in zip(each, wide, strict=True)]

    def widened(self, x: Tensor, shape: Shape, node: Node) -> Tensor:
        """x with each dimension of 1 repeated as often as `shape` says."""
        return x if x.shape == shape else self.layer(Tessellate, f"{node.name}/repeated", x, dims=shape)


def _unique(wish: str, taken: set[str]) -> str:
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    taken.add(name)
    return name
