"""A checked graph with its weights as an ONNX model that says what the module says in evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from descend.errors import Unsupported
from descend.graph import Dummy, Evaluation
from descend.machine import __version__
from descend.onnx import elementwise as numbers
from descend.onnx import linear as dense
from descend.onnx import operators, shapes
from descend.onnx.graph_exporter import OPSET, GraphExporter, exporter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from descend.graph import Plan, PlannedLayer

__all__ = ["export"]

FAMILIES = (dense, numbers, operators, shapes)  # importing them registers their kinds
SAMPLES = "samples"  # the name of the first dimension of every input and output


def export(plan: Plan, outputs: Iterable[str], weights: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Write a graph.

    Args:
        plan: The checked graph.
        outputs: Names of the layers whose outputs the model gives.
        weights: Values by name.

    Raises:
        GraphError: an output is of no layer.
        Unsupported: kinds or operators that cannot be written; every such layer is named.
    """
    outputs = list(outputs)
    layers = plan.needed_for(outputs)
    _refuse(layers)
    used = {name: weights[name].astype(np.float32) for layer in layers for name in layer.weights}
    fields = {_field(layer): layer.input_shapes[0] for layer in layers if _field(layer)}
    w = GraphExporter([*used, *fields])
    w.weights(used)
    w.batch = next(iter(fields), "")
    values: dict[tuple[str, int], str] = {}
    for layer in layers:
        values.update(_written(w, layer, values, outputs))
    shapes_of = {layer.name: layer.output_shape for layer in layers}
    graph = helper.make_graph(
        w.nodes,
        plan.name,
        [_tensor(name, shape) for name, shape in fields.items()],
        [_tensor(values[name, 0], shapes_of[name]) for name in outputs],
        list(w.initializers.values()),
    )
    # The oldest form of file that has this set of operators, so that older runtimes read it.
    opsets = [helper.make_operatorsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="descend")
    model.producer_version = __version__
    return model


def _field(layer: PlannedLayer) -> str:
    return getattr(layer.layer, "data_field", "")


def _tensor(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [SAMPLES, *shape])


def _written(
    w: GraphExporter, layer: PlannedLayer, values: Mapping[tuple[str, int], str], outputs: Iterable[str]
) -> dict[tuple[str, int], str]:
    """Write the nodes of one layer; the names of its outputs."""
    given = [values[parent] for parent in zip(layer.parents, layer.parent_outputs, strict=True)]
    w.layer, begun = layer.name, len(w.nodes)
    if field := _field(layer):
        same = layer.input_shapes[0] == layer.output_shape
        value = field if same else w.reshaped(field, *layer.output_shape)
        return {(layer.name, 0): value if value == layer.name else w.finish(value, begun)}
    if layer.inserted or isinstance(layer.layer, (Dummy, Evaluation)):  # these pass on what they get, and are no steps
        named = w.finish(given[0], begun) if layer.name in outputs else given[0]
        return {(layer.name, i): named for i in range(len(layer.output_shapes))}
    write = exporter(layer)
    assert write is not None  # refused before
    made = write(w, layer, *given, *layer.weights)
    if isinstance(made, str):
        return {(layer.name, 0): w.finish(made, begun)}
    return {(layer.name, i): w.finish(one, len(w.nodes)) for i, one in enumerate(made)}


def _refuse(layers: Iterable[PlannedLayer]) -> None:
    layers = list(layers)
    problems = [
        f"layer '{layer.name}': {type(layer.layer).__name__} has no form in ONNX here"
        for layer in layers
        if not (_field(layer) or layer.inserted or exporter(layer))
    ]
    problems += [
        f"layer '{layer.name}': operator {name} has no form in ONNX here"
        for layer in layers
        for name in operators.missing(layer)
    ]
    if not any(_field(layer) for layer in layers):
        problems.append("no layer reads data, so there is nothing that says how many samples there are")
    if problems:
        raise Unsupported([*problems, "choose outputs that do not need them, or other layers"])
