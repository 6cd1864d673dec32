"""Whether a model fits together, from its description alone: one pass that finds every problem.

    names        layers and weights have one each; parents, objective, metrics and regularization name what exists
    order        there are no cycles
    insertion    an Evaluation behind what objective and metrics read, a Dummy behind an output that no layer reads, a
                 Split behind an output that several layers read                           (checking/nodes.py)
    shapes       every layer's inputs fit it; of layers behind one that does not fit, only what is wrong for any input
                 is reported, so that a mistake is reported once                           (checking/shapes.py)
    weights      each layer's table is filled with what it was given and with what it makes itself
                                                                                           (checking/weight_table.py)
    objective    scales, regularized weights, metrics                                      (checking/nodes.py)

Nothing here recurses, and the time is linear in the graph (but for a heap), so 100,000 layers in a chain are as good
as ten.
"""

from __future__ import annotations

from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from descend.arguments.leniency import Deviation
from descend.errors import GraphError
from descend.graph.checking.nodes import NodeGraph, planned_metrics, planned_objective
from descend.graph.checking.problems import ProblemList
from descend.graph.checking.shapes import ShapeInference
from descend.graph.checking.weight_table import WeightTable
from descend.graph.enums import DataType
from descend.graph.metrics import Metric
from descend.graph.order import cycles, topological
from descend.graph.plan import Plan, PlannedLayer
from descend.machine import gc_paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.graph.checking.nodes import LayerNode
    from descend.graph.layer import Layer, Shape
    from descend.graph.model import Model
    from descend.graph.weights import Weights

__all__ = ["check"]

_MAX_PROBLEMS = 100


def check(model: Model, fields: Mapping[str, Shape], pieces: Mapping[str, Shape] = MappingProxyType({})) -> Plan:
    """Work out every tensor of a model.

    Args:
        model: The description.
        fields: Shape for each sample of every field that the readers offer.
        pieces: Sizes of the arrays that a reader has joined to a field, for those that are joined.

    Raises:
        GraphError: everything that does not fit, each problem with the layer, its place in the text, and what to do.
    """
    problems = ProblemList()
    with gc_paused():
        plan = _plan(model, fields, pieces, problems)
    found = problems.found
    if len(found) > _MAX_PROBLEMS:
        found = [*found[:_MAX_PROBLEMS], f"and {len(found) - _MAX_PROBLEMS} more problems"]
    if found:
        raise GraphError(found)
    return plan


def _plan(model: Model, fields: Mapping[str, Shape], pieces: Mapping[str, Shape], problems: ProblemList) -> Plan:
    graph, weights = NodeGraph(model.layers, problems), WeightTable(problems)
    _check_model(model, problems)
    _check_names(model, graph.names, problems)
    ordered, on_cycles = topological(model.layers)
    for cycle in cycles(on_cycles):
        names = " -> ".join(layer.name for layer in cycle)
        problems.add(cycle[0].where, f"the layers form a cycle: {names}; remove one of these parents")
    graph.add_layers(ordered)
    graph.add_readers(model)
    nodes = graph.placed()
    ShapeInference(fields, graph, weights, problems, pieces).run(nodes)
    weights.check(model)
    notes = [f"{name} of model '{model.name}' is part of the format and read by nothing" for name in model.unread]
    mixed = any(any(layer.formats()) for layer in model.layers) or any(one.datatype for one in model.weights)
    return Plan(
        name=model.name,
        layers=tuple(_planned_layer(node, node in graph.inserted, mixed) for node in nodes if node.outputs is not None),
        weights=weights.planned,
        objective=planned_objective(model.objective_function, graph, weights, problems),
        metrics=planned_metrics(model, graph),
        other_metrics=tuple(metric for metric in model.metrics if not isinstance(metric, Metric)),
        notes=(*notes, *graph.notes()),
        batch_norm_group_size=model.batch_norm_group_size,
    )


def _check_model(model: Model, problems: ProblemList) -> None:
    if model.epochs < 0:
        problems.add(model.where, f"model '{model.name}' has {model.epochs} epochs; expected at least 0")
    if not model.layers:
        problems.add(model.where, f"model '{model.name}' has no layers")
    problem = f"model '{model.name}' has no objective"
    if (
        model.epochs
        and (model.objective_function is None or not model.objective_function.terms)
        and problems.refuses(Deviation.NOTHING_TO_LEARN, model.where, problem)
    ):
        problems.add(
            model.where,
            f"{problem}: give it objective_function, a layer of one number a sample, or 0 epochs if it is only "
            "evaluated",
        )


def _check_names(model: Model, names: Mapping[str, Layer], problems: ProblemList) -> None:
    """Every name once, every link to something that exists, and settings that have one of a few values."""
    _refuse_twins("layers", model.layers, problems)
    _refuse_twins("weights", model.weights, problems)
    _refuse_twin_metrics(model, problems)
    for weights in model.weights:
        _refuse_datatype(weights, f"weights '{weights.name}'", problems)
    for metric in model.metrics:
        kind = type(metric).__name__
        missing = [name for name in metric.needs if not getattr(metric, name)]
        problems.add(metric.where, *(f"metric '{metric.name}' ({kind}) needs {name}=" for name in missing))
    for layer in model.layers:
        for links, word in (
            (layer.parents, "a parent"),
            (layer.children, "a child"),
            ((layer.hint_layer,), "a hint_layer"),
        ):
            for name in links:
                if isinstance(name, str):
                    near = problems.near(name, names)
                    problems.add_to_layer(layer, f"names {word} '{name}' that does not exist{near}")
        if layer.device is not None and layer.device.upper() not in ("CPU", "GPU", ""):
            problems.add_to_layer(layer, f"has device '{layer.device}'; expected CPU or GPU")
        _refuse_datatype(layer, f"layer '{layer.name}'", problems)
        if layer.data_layout not in (None, "", "data_parallel", "model_parallel"):
            problems.add_to_layer(
                layer, f"has data_layout '{layer.data_layout}'; expected data_parallel or model_parallel"
            )


def _refuse_datatype(thing: Layer | Weights, what: str, problems: ProblemList) -> None:
    asked = thing.datatype
    if asked is not None and asked.is_complex:
        problems.add(
            thing.where, f"{what} has datatype {asked.name}, which is not supported: expected FLOAT, DOUBLE or FP16"
        )


def _refuse_twins(what: str, things: Iterable[Any], problems: ProblemList) -> None:
    groups: dict[str, list[Any]] = defaultdict(list)
    for thing in things:
        groups[thing.name].append(thing)
    for name, group in groups.items():
        if len(group) > 1:
            which = ", ".join(type(thing).__name__ + (f" at {thing.where}" if thing.where else "") for thing in group)
            problems.add(
                group[1].where, f"{len(group)} {what} are named '{name}' ({which}); each needs a name of its own"
            )


def _refuse_twin_metrics(model: Model, problems: ProblemList) -> None:
    """Refuse metrics of one name, unless LBANN's leniency holds; `planned_metrics` then numbers them."""
    names = [metric.name for metric in model.metrics]
    twins = [metric for place, metric in enumerate(model.metrics) if metric.name in names[:place]]
    for twin in twins[:1]:
        if problems.refuses(Deviation.TWIN_METRICS, twin.where, f"several metrics are named '{twin.name}'"):
            _refuse_twins("metrics", model.metrics, problems)


def _planned_layer(node: LayerNode, inserted: bool, mixed: bool) -> PlannedLayer:
    """A finished node; `mixed` says whether some layer or weights of the graph ask for a number format."""
    inputs, outputs = node.layer.formats()
    return PlannedLayer(
        layer=node.layer,
        name=node.layer.name,
        parents=tuple(parent.layer.name for parent in node.parents),
        parent_outputs=tuple(node.taken),
        input_shapes=tuple(one.shape for one in node.inputs or ()),
        output_shapes=node.outputs or (),
        weights=node.weights,
        inserted=inserted,
        formats=(inputs or DataType.FLOAT, outputs or DataType.FLOAT) if mixed else None,
    )
