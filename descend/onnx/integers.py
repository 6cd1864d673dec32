"""Layers that compute integers, written out: a file that is written holds floats, so each node casts there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import onnx

from descend.errors import Unsupported
from descend.graph.kinds.integers import CheckedIndex, IntegerConstant, IntegerOperator, IntegerReduction, ToFormat
from descend.onnx.graph_exporter import exports
from descend.onnx.graph_importer import LARGEST_EXACT
from descend.onnx.types import HALVES, INTEGERS

if TYPE_CHECKING:
    from descend.graph import PlannedLayer
    from descend.onnx.graph_exporter import GraphExporter

_TYPES = {word: number for table in (INTEGERS, HALVES) for number, word in table.items()}
_OPERATORS = {"divide": ("Div", {}), "modulo": ("Mod", {}), "remainder": ("Mod", {"fmod": 1}), "power": ("Pow", {})}
_REDUCTIONS = {
    "magnitudes": "ReduceL1",
    "mean": "ReduceMean",
    "norm": "ReduceL2",
    "product": "ReduceProd",
    "squares": "ReduceSumSquare",
    "sum": "ReduceSum",
}


def _integers(w: GraphExporter, x: str) -> str:
    return w("Cast", x, to=onnx.TensorProto.INT64)


@exports(ToFormat)
def to_format(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """A Cast, and one back."""
    word = cast("ToFormat", planned.layer).format
    return x if word == "float" else w.numbers(w("Cast", x, to=_TYPES[word]))


@exports(IntegerConstant)
def integer_constant(w: GraphExporter, planned: PlannedLayer) -> str:
    """The integers, for every sample."""
    layer = cast("IntegerConstant", planned.layer)
    if max(map(abs, layer.values)) > LARGEST_EXACT:
        raise Unsupported(f"layer '{planned.name}' holds integers beyond {LARGEST_EXACT:,}, which are no float32")
    values = np.array(layer.values, np.float32)
    whole = values.reshape(()) if len(values) == 1 else values.reshape(layer.dims)
    return w.per_sample(w.array(whole), planned.output_shape)


@exports(IntegerOperator)
def integer_operator(w: GraphExporter, planned: PlannedLayer, a: str, b: str) -> str:
    """Div, Mod or Pow of INT64."""
    kind, own = _OPERATORS[cast("IntegerOperator", planned.layer).operation]
    return w.numbers(w(kind, _integers(w, a), _integers(w, b), **own))


@exports(IntegerReduction)
def integer_reduction(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """A reduction of INT64."""
    layer = cast("IntegerReduction", planned.layer)
    kind, axes = _REDUCTIONS[layer.operation], [axis + 1 for axis in layer.axes]
    y = w.numbers(w(kind, _integers(w, x), w.ints(*axes), keepdims=0))
    return y if len(axes) < len(planned.input_shapes[0]) else w.reshaped(y, 1)


@exports(CheckedIndex)
def checked_index(w: GraphExporter, planned: PlannedLayer, x: str) -> str:
    """Indices below 0 counted from the end; what reads them decides about those that are outside."""
    size = w.number(cast("CheckedIndex", planned.layer).size)
    return w("Where", w("Less", x, w.number(0)), w("Add", x, size), x)
