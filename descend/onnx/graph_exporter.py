"""An ONNX graph while it is written, and the table of functions that write a kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from descend.graph import PlannedLayer

__all__ = ["OPSET", "GraphExporter", "Writing", "exporter", "exports"]

OPSET = 20

# Writes the nodes of one layer. It is given the names of the layer's inputs, then of its weights, and returns the name
# of its output, or one for each child where the kind has several.
Writing = Callable[..., "str | tuple[str, ...]"]

_WRITINGS: dict[type[Any], Writing] = {}


def exports(*kinds: type[Any]) -> Callable[[Writing], Writing]:
    """Say that the decorated function writes these kinds; their subclasses are written alike."""

    def keep(function: Writing) -> Writing:
        _WRITINGS.update(dict.fromkeys(kinds, function))
        return function

    return keep


def exporter(planned: PlannedLayer) -> Writing | None:
    """What writes a layer; None where nothing does."""
    return next((_WRITINGS[kind] for kind in type(planned.layer).__mro__ if kind in _WRITINGS), None)


class GraphExporter:
    """Collects nodes and constants; `w("Relu", x)` writes a node and gives the name of its output.

    Args:
        taken: Names that values must not have.

    Attributes:
        layer: Name of the layer under way; names of its nodes begin with it.
        batch: Name of a graph input, from which the number of samples is read.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.layer = ""
        self.batch = ""
        self._taken = set(taken)
        self._constants: dict[tuple[Any, ...], str] = {}

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Write a node with one output; an input that is left out is an empty text."""
        name = self.fresh(f"{self.layer}/{kind}")
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def fresh(self, wish: str) -> str:
        """A name that nothing has yet."""
        name, number = wish, 1
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        return name

    def finish(self, value: str, begun: int) -> str:
        """Give the output of a layer the layer's name, and its last node too.

        Args:
            value: The output as it is called now.
            begun: How many nodes there were before the layer.
        """
        name = self.fresh(self.layer)
        own = len(self.nodes) > begun and self.nodes[-1].output[0] == value
        if own:
            self.nodes[-1].output[0] = name
            self.nodes[-1].name = name
        else:
            self.nodes.append(helper.make_node("Identity", [value], [name], name=name))
        return name

    def array(self, values: NDArray[Any]) -> str:
        """A constant tensor."""
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._constants:
            name = self.fresh(f"constant_{len(self._constants) + 1}")
            self._constants[key] = name
            self.initializers[name] = numpy_helper.from_array(values, name)
        return self._constants[key]

    def number(self, value: float) -> str:
        """A constant float."""
        return self.array(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        """A constant list of integers."""
        return self.array(np.array(values, np.int64))

    def reshaped(self, x: str, *shape: int) -> str:
        """x as (samples, *shape)."""
        return self("Reshape", x, self.ints(-1, *shape))

    def flat(self, x: str) -> str:
        """x as (samples, entries)."""
        return self("Flatten", x, axis=1)

    def numbers(self, truth: str) -> str:
        """Truths as 1 and 0."""
        return self("Cast", truth, to=onnx.TensorProto.FLOAT)

    def per_sample(self, x: str, shape: tuple[int, ...]) -> str:
        """x of `shape`, the same for every sample."""
        return self("Expand", x, self("Concat", self.samples(), self.ints(*shape), axis=0))

    def samples(self) -> str:
        """The number of samples, a list of one integer."""
        return self("Shape", self.batch, start=0, end=1)

    def weights(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Keep weights under their names."""
        for name, array in values.items():
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
