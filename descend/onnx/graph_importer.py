"""Makes the layers of an ONNX graph: names, weights, reshapes and broadcasts that all importers share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np

from descend.errors import ConfigurationError
from descend.graph import DataType, Incoming, Layer, Reshape, Select, Tessellate, Weights, WeightsLayer
from descend.graph.kinds.integers import CheckedIndex, IntegerConstant, ToFormat
from descend.graph.layer import shown
from descend.graph.optimizers import NoOptimizer
from descend.graph.weights import ArrayInitializer
from descend.onnx.values import Budget, ConstantValue, Node, Permuted, Shape, Tensor, UnsupportedNode, Value

if TYPE_CHECKING:
    from collections import Counter

    from numpy.typing import NDArray

__all__ = ["LARGEST_EXACT", "GraphImporter", "NodeImporter", "importer", "imports", "integers_of"]

_Layered = TypeVar("_Layered", bound=Tensor | Permuted)

LARGEST_EXACT = 2**24  # every integer up to it is a float32
_MAX_INTEGERS = 65_536  # that a layer holds itself


class GraphImporter:
    """Makes layers; names are those of the nodes.

    Args:
        uses: How many nodes and outputs take each value, by its name in the file.
        batch: The number of samples that a file without a free one was made for.
        budget: What the file may ask for.

    Attributes:
        datatype: The format that the layers of the node under way ask for; None: that of the run.
    """

    def __init__(self, uses: Counter[str], batch: int | None, budget: Budget | None = None) -> None:
        self.uses = uses
        self.batch = batch
        self.budget = budget or Budget()
        self.layers: list[Layer] = []
        self.datatype: DataType | None = None
        self._weights: dict[tuple[str | None, bool], Weights] = {}
        self._formats: dict[int, str] = {}  # of layers that give integers, by serial number
        self._names: dict[str, int] = {}
        self._weights_names: dict[str, int] = {}

    def name(self, wish: str) -> str:
        """A name for a layer that no other has."""
        return _unique(re.sub(r"[^\w./-]", "_", wish).strip("/") or "layer", self._names)

    def layer(self, kind: type[Layer], node: Node | str, *parents: Tensor, **fields: Any) -> Tensor:
        """One more layer.

        Raises:
            UnsupportedNode: the kind does not take what it is given.
        """
        name = node if isinstance(node, str) else node.name
        if self.datatype is not None:
            fields.setdefault("datatype", self.datatype)
        try:
            layer = kind(*(parent.layer for parent in parents), name=self.name(name), **fields)
            inputs = tuple(Incoming(parent.layer.name, parent.shape or (1,)) for parent in parents)
            (shape,) = layer.output_shapes(inputs, 1)
        except ConfigurationError as error:
            raise UnsupportedNode("; ".join(error.problems)) from None
        self.budget.layer(shape)
        self.layers.append(layer)
        return Tensor(layer, shape)

    def weights(self, fixed: ConstantValue, owner: str, *, column_major: bool = False, turned: bool = False) -> Weights:
        """A parameter that starts as an array; one for each tensor of the file and each form in which it is used.

        Args:
            fixed: The file's tensor.
            owner: The layer's name, for arrays that have no name in the file.
            column_major: See `PlannedWeights.column_major`.
            turned: Whether the layer takes the transposed matrix.
        """
        key = (fixed.name or owner, turned)
        if fixed.array.dtype.kind in "cOSU":
            raise UnsupportedNode(f"takes a constant of {fixed.array.dtype}")
        if key not in self._weights:
            name = _unique(re.sub(r"[^\w/-]", "_", fixed.name or f"{owner}_values"), self._weights_names)
            trained = fixed.name is not None and _is_fraction(fixed.array)
            wide = self.datatype is DataType.DOUBLE
            if fixed.array.dtype.kind in "iu" and _largest(fixed.array) > LARGEST_EXACT:
                raise UnsupportedNode(f"takes integers beyond {LARGEST_EXACT:,} as weights, which would round them")
            if 0 in fixed.array.strides:  # it was broadcast, so that the array is larger than what the file holds
                self.budget.array(*fixed.array.shape, itemsize=4)
            array = np.ascontiguousarray(fixed.array.T if turned else fixed.array, np.float64 if wide else np.float32)
            start = ArrayInitializer(array, column_major)
            own = None if trained else NoOptimizer()
            self._weights[key] = Weights(start, own, name=name, datatype=self.datatype)
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
            return replace(x, shape=shape)
        name = node if isinstance(node, str) else f"{node.name}/reshaped"
        return Tensor(self.layer(Reshape, name, x, dims=shape or (1,)).layer, shape, type=x.type)

    def as_tensor(self, value: Value | None, node: Node, dims: int) -> Tensor:
        """A value for every sample: a constant becomes a layer of weights.

        Args:
            value: The value.
            node: The node that takes it.
            dims: The dimensions that the result of the node has for each sample, to which a constant is aligned.
        """
        if isinstance(value, Tensor):
            return value
        if value is None:
            raise UnsupportedNode("is given too few inputs")
        if not isinstance(value, ConstantValue):
            raise UnsupportedNode("computes with the number of samples")
        array = value.array
        if array.ndim > dims:
            if array.ndim > dims + 1:
                raise UnsupportedNode("takes a constant of more dimensions than its other inputs have")
            array = self.of_any_sample(array, 0)
        shape = array.shape or (1,)
        array = array.reshape(shape)
        if array.dtype.kind == "V":  # a format that numpy itself does not have, such as bfloat16
            array = array.astype(np.float32)
        if array.dtype.kind not in "fbiu" or array.size == 0 or np.isnan(array).any():
            raise UnsupportedNode(f"takes a constant of {array.dtype} and shape {array.shape}, or one that holds NaN")
        if not np.isfinite(array).all():
            return self._with_infinities(array, node)
        if array.dtype.kind in "iu" and (array.size <= _MAX_INTEGERS or _largest(array) > LARGEST_EXACT):
            return self._integers(array, f"{value.name or node.name}/constant")
        weights = self.weights(ConstantValue(array, value.name), self.name(f"{node.name}/constant"))
        return self.layer(WeightsLayer, f"{value.name or node.name}/constant", dims=shape, weights=[weights])

    def _integers(self, array: NDArray[Any], name: str) -> Tensor:
        """A constant of integers, as such."""
        if array.size > _MAX_INTEGERS:
            raise UnsupportedNode(f"takes a constant of {array.size:,} integers, some of them beyond {LARGEST_EXACT:,}")
        shape, word = array.shape, array.dtype.name
        values = array.reshape(-1)[:1] if (array == array.reshape(-1)[0]).all() else array
        y = self.layer(IntegerConstant, name, values=values.reshape(-1).tolist(), dims=shape, format=word)
        self._formats[y.layer.serial] = word
        return y

    def as_integers(self, value: Value | None, word: str, name: str) -> Value | None:
        """A value whose layer gives integers of a format, whatever format the data come in."""
        if isinstance(value, ConstantValue):
            return ConstantValue(value.array.astype(word), value.name)
        if not isinstance(value, (Tensor, Permuted)) or self._formats.get(value.layer.serial) == word:
            return value
        return self.tensor_of_integers(value, word, name)

    def tensor_of_integers(self, value: _Layered, word: str, name: str) -> _Layered:
        """A tensor whose layer gives integers of a format."""
        y = self.formatted(value, word, name)
        self._formats[y.layer.serial] = word
        return y

    def gives_integers(self, value: Tensor, word: str) -> Tensor:
        """Note that the layer of a value gives integers of a format; the value."""
        self._formats[value.layer.serial] = word
        return value

    def formatted(self, value: _Layered, word: str, name: str) -> _Layered:
        """A value in another format."""
        sizes = value.groups if isinstance(value, Permuted) else (value.shape,)
        shape = tuple(size for group in sizes for size in group if size is not None)
        y = self.layer(ToFormat, name, Tensor(value.layer, shape), format=word)
        return replace(value, layer=y.layer)

    def checked(self, index: Tensor, size: int, node: Node) -> Tensor:
        """Indices from 0 on, of indices that may count from the end; the run stops at one that is outside."""
        reader = f"node '{node.name}' ({node.kind})"
        y = self.layer(CheckedIndex, f"{node.name}/index", index, size=size, reader=reader)
        return replace(index, layer=y.layer)

    def of_any_sample(self, array: NDArray[Any], axis: int) -> NDArray[Any]:
        """A constant without the dimension of the samples, in which it says the same of all of them.

        Raises:
            UnsupportedNode: it does not.
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
        if not tensors:
            raise UnsupportedNode("computes with the number of samples")
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
        if x.shape == shape:
            return x
        return replace(self.layer(Tessellate, f"{node.name}/repeated", x, dims=shape), type=x.type)


def _is_fraction(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "fV"


def _largest(array: NDArray[Any]) -> int:
    return max(abs(int(array.min())), abs(int(array.max()))) if array.size else 0


def _unique(wish: str, taken: dict[str, int]) -> str:
    """The wish, or the wish with the first number that no other name has; numbers that were tried are not again."""
    name = wish
    while name in taken:
        taken[wish] += 1
        name = f"{wish}_{taken[wish]}"
    taken[name] = 1
    return name


# ---- the table of functions that make layers of an operator's nodes

NodeImporter = Callable[[GraphImporter, Node], Value | tuple[Value | None, ...]]  # None: an output that nothing takes

# What an operator does with integers: its layers compute fractions, and integers in them would be rounded; it moves
# entries and computes nothing; or its importer has layers that compute integers.
Integers = Literal["refused", "moved", "computed"]

_IMPORTERS: dict[str, NodeImporter] = {}
_INTEGERS: dict[str, Integers] = {}


def imports(*kinds: str, integers: Integers = "refused") -> Callable[[NodeImporter], NodeImporter]:
    """Register the decorated function for these operators, and what they do with integers."""

    def keep(function: NodeImporter) -> NodeImporter:
        _IMPORTERS.update(dict.fromkeys(kinds, function))
        _INTEGERS.update(dict.fromkeys(kinds, integers))
        return function

    return keep


def importer(kind: str) -> NodeImporter | None:
    """The function for an operator; None where there is none."""
    return _IMPORTERS.get(kind)


def integers_of(kind: str) -> Integers:
    """How an operator treats integers."""
    return _INTEGERS.get(kind, "refused")
