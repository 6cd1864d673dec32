"""Whether a model fits together, from its description alone: one pass that finds every problem.

    names        layers and weights have one each; parents, objective, metrics and regularization name what exists
    order        there are no cycles
    insertion    an Evaluation behind what objective and metrics read, a Dummy behind an output that nobody takes, a
                 Split where one output has several takers
    shapes       every layer's inputs fit it; of layers behind one that does not fit only what is wrong whatever comes
                 in is reported, so that a mistake is reported once
    weights      each layer's table is filled with what it was given and with what it makes itself

Nothing here recurses, and the time is linear in the graph (but for a heap), so 100,000 layers in a chain are as good
as ten.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, GraphError, nearest
from descend.graph.bulk import gc_paused
from descend.graph.enums import DataType
from descend.graph.initializer_checks import initializer_problems
from descend.graph.kinds import Dummy, Evaluation, Input, Split
from descend.graph.layer import Incoming, Layer, Shape, WeightSlot, shown
from descend.graph.metrics import Metric
from descend.graph.optimizers import NoOptimizer
from descend.graph.order import cycles, parents_of, topological
from descend.graph.plan import (
    Plan,
    PlannedL2,
    PlannedLayer,
    PlannedMetric,
    PlannedObjective,
    PlannedTerm,
    PlannedWeights,
)
from descend.graph.weights import ConstantInitializer, Weights
from descend.parameter_filter import ParameterInfo, matches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from descend.graph.model import Model
    from descend.graph.objective import L2WeightRegularization, LayerTerm

__all__ = ["check"]

_MAX_PROBLEMS = 100
_MAX_COMPARED = 100_000  # names that are compared for suggestions in one check; each takes some 10 microseconds
_MAX_RANK = 5  # of what stands in for inputs that are not known
_STANDING_IN = (840, 1260)  # sizes that many numbers divide, so that groups and pieces fit
_UNKNOWN = "an input that is not known"
_MAX_ENTRIES = 10**12  # of an output for one sample: 4 TB in float32
_SHOWN_NAMES = 8  # a note lists as many names and counts the rest


def check(model: Model, fields: Mapping[str, Shape]) -> Plan:
    """Work out every tensor of a model.

    Args:
        model: The description.
        fields: Shape for each sample of every field that the readers offer.

    Raises:
        GraphError: everything that does not fit, each problem with the layer, its place in the text, and what to do.
    """
    checker = _Checker(model, fields)
    with gc_paused():
        plan = checker.plan()
    found = checker.problems
    if len(found) > _MAX_PROBLEMS:
        found = [*found[:_MAX_PROBLEMS], f"and {len(found) - _MAX_PROBLEMS} more problems"]
    if found:
        raise GraphError(found)
    return plan


class _Node:
    """A layer of the plan while it is made."""

    __slots__ = ("inputs", "layer", "outputs", "parents", "taken", "takers", "weights")

    def __init__(self, layer: Layer, parents: list[_Node], taken: list[int]) -> None:
        self.layer = layer
        self.parents = parents
        self.taken = taken  # which output of each parent
        self.takers: list[tuple[_Node, int]] = []  # who takes an output, and as which of its parents
        self.inputs: tuple[Incoming, ...] | None = None  # None until they are known
        self.outputs: tuple[Shape, ...] | None = None
        self.weights: tuple[str, ...] = ()


class _Checker:
    def __init__(self, model: Model, fields: Mapping[str, Shape]) -> None:
        self.model = model
        self.fields = fields
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.names = {layer.name: layer for layer in reversed(model.layers)}
        self.nodes: dict[int, _Node] = {}
        self.evaluations: dict[int, _Node] = {}  # by id of the term or metric that reads it
        self.readers: dict[_Node, tuple[str | None, str]] = {}  # whom an inserted Evaluation serves, for errors
        self.inserted: set[_Node] = set()
        self.weights: dict[str, PlannedWeights] = {}
        self.biases: set[str] = set()  # whom the rules "bias" and "norm" mean
        self.norms: set[str] = set()
        self.compared = 0
        self.formats = any(any(layer.formats()) for layer in model.layers) or any(w.datatype for w in model.weights)

    def plan(self) -> Plan:
        self._check_model()
        self._check_names()
        ordered, on_cycles = topological(self.model.layers)
        self._check_cycles(on_cycles)
        self._make_nodes(ordered)
        self._check_readers_of_layers()
        nodes = self._with_insertions()
        self._find_shapes(nodes)
        self._check_weights()
        return Plan(
            name=self.model.name,
            layers=tuple(self._planned(node) for node in nodes if node.outputs is not None),
            weights=self.weights,
            objective=self._objective(),
            metrics=self._metrics(),
            other_metrics=tuple(metric for metric in self.model.metrics if not isinstance(metric, Metric)),
            notes=tuple(self.notes),
            batch_norm_group_size=self.model.batch_norm_group_size,
        )

    # Names and order

    def _check_model(self) -> None:
        model = self.model
        if model.epochs < 0:
            self._say(model.where, f"model '{model.name}' has {model.epochs} epochs; expected at least 0")
        if not model.layers:
            self._say(model.where, f"model '{model.name}' has no layers")
        if model.epochs and (model.objective_function is None or not model.objective_function.terms):
            self._say(
                model.where,
                f"model '{model.name}' has no objective: give it objective_function, a layer of one number a sample, "
                "or 0 epochs if it is only evaluated",
            )
        self.notes += [
            f"{name} of model '{model.name}' is part of the format and read by nothing" for name in model.unread
        ]

    def _check_names(self) -> None:
        self._refuse_twins("layers", self.model.layers)
        self._refuse_twins("weights", self.model.weights)
        self._refuse_twins("metrics", self.model.metrics)
        for weights in self.model.weights:
            self._refuse_datatype(weights, f"weights '{weights.name}'")
        for metric in self.model.metrics:
            kind = type(metric).__name__
            missing = [name for name in metric.needs if not getattr(metric, name)]
            self._say(metric.where, *(f"metric '{metric.name}' ({kind}) needs {name}=" for name in missing))
        for layer in self.model.layers:
            for link, word in ((layer.parents, "parent"), (layer.children, "child")):
                for name in link:
                    if isinstance(name, str):
                        self._say_of(
                            layer, f"names a {word} '{name}' that does not exist{self._near(name, self.names)}"
                        )
            if isinstance(layer.hint_layer, str):
                hint = layer.hint_layer
                self._say_of(layer, f"names a hint_layer '{hint}' that does not exist{self._near(hint, self.names)}")
            if layer.device is not None and layer.device.upper() not in ("CPU", "GPU", ""):
                self._say_of(layer, f"has device '{layer.device}'; expected CPU or GPU")
            self._refuse_datatype(layer, f"layer '{layer.name}'")
            if layer.data_layout not in (None, "", "data_parallel", "model_parallel"):
                self._say_of(layer, f"has data_layout '{layer.data_layout}'; expected data_parallel or model_parallel")

    def _refuse_datatype(self, thing: Layer | Weights, what: str) -> None:
        asked = thing.datatype
        if asked is not None and asked.is_complex:
            self._say(
                thing.where, f"{what} has datatype {asked.name}, which is not supported: expected FLOAT, DOUBLE or FP16"
            )

    def _refuse_twins(self, what: str, things: Iterable[Any]) -> None:
        groups: dict[str, list[Any]] = defaultdict(list)
        for thing in things:
            groups[thing.name].append(thing)
        for name, group in groups.items():
            if len(group) > 1:
                which = ", ".join(
                    type(thing).__name__ + (f" at {thing.where}" if thing.where else "") for thing in group
                )
                self._say(
                    group[1].where, f"{len(group)} {what} are named '{name}' ({which}); each needs a name of its own"
                )

    def _check_cycles(self, on_cycles: list[Layer]) -> None:
        for cycle in cycles(on_cycles):
            names = " -> ".join(layer.name for layer in cycle)
            self._say(cycle[0].where, f"the layers form a cycle: {names}; remove one of these parents")

    # The plan's own layers

    def _make_nodes(self, ordered: list[Layer]) -> None:
        """A node for each layer, with its parents' nodes, but for parents that are missing or on a cycle."""
        positions = {layer.serial: _positions(layer) for layer in ordered if layer.num_children is None}
        for layer in ordered:
            above = [self.nodes[parent.serial] for parent in parents_of(layer) if parent.serial in self.nodes]
            taken = [_next_position(positions.get(node.layer.serial), layer) for node in above]
            node = _Node(layer, above, taken)
            self.nodes[layer.serial] = node
            for index, parent in enumerate(above):
                parent.takers.append((node, index))
            if layer.num_children == 0 and layer.children:
                self._say_of(layer, f"takes no children and has {_listed(_name(child) for child in layer.children)}")

    def _check_readers_of_layers(self) -> None:
        """Give each objective term and each metric the node that it reads, behind an Evaluation of its own."""
        objective = self.model.objective_function
        for term in objective.layer_terms if objective else ():
            self._evaluate(term, "an objective term")
        for metric in self.model.metrics:
            if isinstance(metric, Metric):
                self._evaluate(metric, f"metric '{metric.name}'")

    def _evaluate(self, reader: LayerTerm | Metric, what: str) -> None:
        layer = reader.layer
        if isinstance(layer, str):
            self._say(
                reader.where, f"{what} names a layer '{layer}' that does not exist{self._near(layer, self.names)}"
            )
            return
        node = self.nodes.get(layer.serial)
        if node is None:  # on a cycle, which is reported
            return
        if isinstance(layer, Evaluation):
            self.evaluations[id(reader)] = node
            return
        evaluation = self._insert(Evaluation, f"{layer.name}_eval", node)
        self.evaluations[id(reader)] = evaluation
        self.readers[evaluation] = (reader.where, what)

    def _insert(self, kind: type[Layer], name: str, parent: _Node) -> _Node:
        unique = next(candidate for candidate in _numbered(name) if candidate not in self.names)
        layer = kind(name=unique)
        self.names[unique] = layer
        node = _Node(layer, [parent], [len(parent.takers) if parent.layer.num_children is None else 0])
        parent.takers.append((node, 0))
        self.inserted.add(node)
        return node

    def _with_insertions(self) -> list[_Node]:
        """All nodes in order, each followed by what is inserted behind it."""
        placed: list[_Node] = []
        for node in list(self.nodes.values()):
            placed.append(node)
            if not node.takers and node.layer.num_children != 0:
                self._insert(Dummy, f"{node.layer.name}_dummy", node)
            last = node
            if len(node.takers) > 1 and node.layer.num_children == 1:
                last = self._split(node)
                placed.append(last)
            placed += [taker for taker, _ in last.takers if taker in self.inserted]
        self._note_insertions()
        return placed

    def _split(self, node: _Node) -> _Node:
        takers, node.takers = node.takers, []
        split = self._insert(Split, f"{node.layer.name}_split", node)
        split.takers = takers
        for output, (taker, index) in enumerate(takers):
            taker.parents[index] = split
            taker.taken[index] = output
        return split

    def _note_insertions(self) -> None:
        for kind, reason in (
            (Evaluation, "to be read"),
            (Split, "behind outputs with several takers"),
            (Dummy, "behind outputs that nobody takes"),
        ):
            names = sorted(node.layer.name for node in self.inserted if isinstance(node.layer, kind))
            if names:
                self.notes.append(f"inserted {kind.__name__} {_listed(names)}, {reason}")

    # Shapes

    def _find_shapes(self, nodes: list[_Node]) -> None:
        """Shapes and weights of all nodes: first of those that need no other layer's weights, then of the rest."""
        borrowers = {node for node in nodes if node.layer.borrows_weights}
        waiting = set(borrowers)
        for node in nodes if borrowers else ():
            if not waiting.isdisjoint(node.parents):
                waiting.add(node)
        for sweep in (False, True) if borrowers else (False,):
            for node in nodes:
                if (node in waiting) is sweep:
                    self._find_shape(node)
                    self._fill_weights(node)

    def _find_shape(self, node: _Node) -> None:
        layer = node.layer
        if layer.refusal is not None:
            self._say(layer.where, f"layer '{layer.name}': kind {type(layer).__name__} {layer.refusal}")
            return
        if not self._count_fits(layer, node):
            return
        if isinstance(layer, Input):
            inputs = self._field(layer)
        elif layer.borrows_weights:
            inputs = self._borrowed(node)
        elif len(node.parents) == len(layer.parents) or node in self.inserted:
            inputs = _incoming(node)
        else:
            inputs = None
        if inputs is None:
            if node not in self.inserted and layer.num_parents in (1, None):
                self._say_of(layer, *_problems_of_fields(layer, len(layer.parents), len(node.takers)))
            return
        try:
            node.outputs = layer.output_shapes(inputs, len(node.takers))
            node.inputs = inputs
            self._refuse_size(layer, node.outputs)
        except ConfigurationError as error:
            reader = self.readers.get(node)
            if reader is None:
                self._say_of(layer, *error.problems)
            else:
                where, what = reader
                self._say(where, *(f"{what} {problem}" for problem in error.problems))

    def _refuse_size(self, layer: Layer, outputs: tuple[Shape, ...]) -> None:
        """Of a layer whose output for one sample is beyond any memory, whatever the mini-batch is."""
        entries = max(map(prod, outputs), default=0)
        if entries > _MAX_ENTRIES:
            self._say_of(
                layer, f"gives {entries:,} numbers for each sample, more than any memory holds ({_MAX_ENTRIES:,})"
            )

    def _count_fits(self, layer: Layer, node: _Node) -> bool:
        if node in self.inserted:
            return True
        needed, given = layer.num_parents, len(layer.parents)
        if (needed is None and given) or needed == given:
            return True
        expected = "at least 1 parent" if needed is None else f"{needed or 'no'} parent{'' if needed == 1 else 's'}"
        has = _listed(map(_name, layer.parents)) if given else "none"
        self._say_of(layer, f"needs {expected} and has {given}: {has}" if given else f"needs {expected} and has none")
        return False

    def _field(self, layer: Input) -> tuple[Incoming, ...] | None:
        offered = ", ".join(self.fields) or "none"
        if layer.data_field in self.fields:
            return (Incoming(layer.data_field, self.fields[layer.data_field]),)
        near = self._near(layer.data_field, self.fields) or ";"
        asked = f"reads a field '{layer.data_field}' that no reader offers{near}"
        self._say_of(layer, f"{asked if layer.data_field else 'has no data_field;'} the fields are {offered}")
        return None

    # Weights

    def _borrowed(self, node: _Node) -> tuple[Incoming, ...] | None:
        """The weights of a layer that reads those of another, as if they came from a parent."""
        layer = node.layer
        if len(layer.weights) != 1:
            self._say_of(layer, f"reads one parameter of another layer and is given {len(layer.weights)}")
            return None
        name = _name(layer.weights[0])
        if name not in self.weights:
            if isinstance(layer.weights[0], Weights) and not self.problems:
                self._say_of(layer, f"reads weights '{name}', which no other layer uses; give them to one")
            return None
        node.weights = (name,)
        return (Incoming(name, self.weights[name].shape),)

    def _fill_weights(self, node: _Node) -> None:
        if node.inputs is None or node.layer.borrows_weights:
            return
        layer = node.layer
        slots = layer.weight_slots(node.inputs)
        if len(layer.weights) > len(slots):
            table = _listed(slot.suffix for slot in slots) if slots else "none"
            self._say_of(layer, f"is given {len(layer.weights)} weights and takes {len(slots)}: {table}")
        node.weights = tuple(self._fill(layer, index, slot) for index, slot in enumerate(slots))

    def _fill(self, layer: Layer, index: int, slot: WeightSlot) -> str:
        """Bind one slot of a layer to weights that were given, or to new ones."""
        given = layer.weights[index] if index < len(layer.weights) else None
        if isinstance(given, str):
            return given  # reported as missing
        own = given or Weights(slot.initializer, name=f"{layer.name}_{slot.suffix}")
        before = self.weights.get(own.name)
        if not slot.trainable and own.datatype and own.datatype != (layer.datatype or DataType.FLOAT):
            self._say_of(layer, f"follows running values in weights '{own.name}' of another datatype; give both one")
        if "bias" in slot.suffix:
            self.biases.add(own.name)
        if layer.normalizes:
            self.norms.add(own.name)
        planned = PlannedWeights(
            name=own.name,
            shape=slot.shape,
            initializer=own.initializer or ConstantInitializer(),
            fan_in=slot.fan_in,
            fan_out=slot.fan_out,
            optimizer=own.optimizer or slot.optimizer,
            trainable=slot.trainable and not layer.freeze and not isinstance(own.optimizer, NoOptimizer),
            layer=layer.name,
            column_major=slot.column_major,
            datatype=own.datatype or layer.datatype,
        )
        if before is None:
            self.weights[own.name] = planned
        elif given is None:
            self._say_of(
                layer,
                f"would make weights '{own.name}', a name that layer '{before.layer}' uses; rename one layer",
            )
        elif before.shape != slot.shape:
            self._say_of(
                layer,
                f"needs weights '{own.name}' of {shown(slot.shape)} and shares them with layer '{before.layer}', "
                f"where they are {shown(before.shape)}: layers that share weights need one shape",
            )
        else:
            self.weights[own.name] = _shared(before, planned)
        return own.name

    def _check_weights(self) -> None:
        """Weights that nothing uses, names that nothing has, and update rules with numbers that no rule can use."""
        known = {weights.name for weights in self.model.weights} | self.weights.keys()
        used = {id(one) for layer in self.model.layers for one in layer.weights}
        filled_by_callbacks = {getattr(callback, "output_name", "") for callback in self.model.callbacks}
        for layer in self.model.layers:
            for name in layer.weights:
                if isinstance(name, str):
                    self._say_of(layer, f"names weights '{name}' that do not exist{self._near(name, known)}")
        for weights in self.model.weights:
            if id(weights) not in used and weights.name in filled_by_callbacks:
                self._fill_alone(weights)
            elif id(weights) not in used:
                self._say(
                    weights.where, f"weights '{weights.name}' are used by no layer; give them to one, or take them out"
                )
            if weights.optimizer is not None:
                place = weights.optimizer.where or weights.where
                self._say(place, *(f"weights '{weights.name}': {problem}" for problem in weights.optimizer.problems()))

        places = {weights.name: weights.where for weights in self.model.weights}
        for planned in self.weights.values():
            self._say(
                places.get(planned.name),
                *(f"weights '{planned.name}' {problem}" for problem in initializer_problems(planned)),
            )

    def _fill_alone(self, weights: Weights) -> None:
        """Weights that a callback writes and no layer reads: one number, which is not trained."""
        self.weights[weights.name] = PlannedWeights(
            name=weights.name,
            shape=(1,),
            initializer=weights.initializer or ConstantInitializer(),
            fan_in=0,
            fan_out=0,
            optimizer=weights.optimizer,
            trainable=False,
            layer="",
            column_major=False,
            datatype=weights.datatype,
        )

    # Objective and metrics

    def _objective(self) -> PlannedObjective:
        objective = self.model.objective_function
        if objective is None:
            return PlannedObjective((), ())
        terms = [(term, self.evaluations[id(term)]) for term in objective.layer_terms if id(term) in self.evaluations]
        for term in objective.terms:
            if not math.isfinite(term.scale):
                self._say(term.where, f"an objective term has scale_factor {term.scale!r}; expected a finite number")
            elif term.scale == 0:
                self._say(
                    term.where,
                    f"the objective term {term!r} has scale_factor 0, as one that is not set has: "
                    "write scale_factor: 1, or take the term out",
                )
        return PlannedObjective(
            terms=tuple(PlannedTerm(_name(term.layer), term.scale, node.layer.name) for term, node in terms),
            l2=tuple(PlannedL2(self._regularized(term), term.scale) for term in objective.l2_terms),
        )

    def _regularized(self, term: L2WeightRegularization) -> tuple[str, ...]:
        names = tuple(map(_name, term.weights)) or tuple(name for name, one in self.weights.items() if one.trainable)
        chosen = [
            ParameterInfo(name, len(self.weights[name].shape), name in self.biases, name in self.norms)
            for name in names
            if term.exclude and name in self.weights
        ]
        for rule in term.exclude if chosen else ():
            if not any(matches(rule, one) for one in chosen):
                near = nearest(rule, ["bias", "norm", *names])
                self._say(term.where, f"the regularization leaves out '{rule}', which none of its weights is{near}")
        for name in names:
            if name not in self.weights and not self.problems:  # a layer that does not fit has made no weights yet
                self._say(
                    term.where,
                    f"the regularization names weights '{name}' that no layer uses{self._near(name, self.weights)}",
                )
        left_out = {one.name for one in chosen if any(matches(rule, one) for rule in term.exclude)}
        return tuple(name for name in names if name not in left_out)

    def _metrics(self) -> tuple[PlannedMetric, ...]:
        return tuple(
            PlannedMetric(metric.name, _name(metric.layer), metric.unit, self.evaluations[id(metric)].layer.name)
            for metric in self.model.metrics
            if isinstance(metric, Metric) and id(metric) in self.evaluations
        )

    def _planned(self, node: _Node) -> PlannedLayer:
        return PlannedLayer(
            layer=node.layer,
            name=node.layer.name,
            parents=tuple(parent.layer.name for parent in node.parents),
            parent_outputs=tuple(node.taken),
            input_shapes=tuple(one.shape for one in node.inputs or ()),
            output_shapes=node.outputs or (),
            weights=node.weights,
            inserted=node in self.inserted,
            formats=_formats(node.layer) if self.formats else None,
        )

    # Saying what is wrong

    def _near(self, name: str, options: Collection[str]) -> str:
        """The nearest good name, as long as looking for it does not take longer than everything else."""
        self.compared += len(options)
        return nearest(name, options) if self.compared <= _MAX_COMPARED else ""

    def _say(self, where: str | None, *problems: str) -> None:
        self.problems += [f"{where}: {problem}" if where else problem for problem in problems]

    def _say_of(self, layer: Layer, *problems: str) -> None:
        self._say(layer.where, *(f"layer '{layer.name}' ({type(layer).__name__}) {problem}" for problem in problems))


def _formats(layer: Layer) -> tuple[DataType, DataType]:
    """Formats of a layer's inputs and outputs where some layer of the graph asks for one."""
    inputs, outputs = layer.formats()
    return (inputs or DataType.FLOAT, outputs or DataType.FLOAT)


def _shared(before: PlannedWeights, again: PlannedWeights) -> PlannedWeights:
    """Weights that several layers use: trained if all train them, with the fans and order of a layer that has some."""
    counted = before if before.fan_in else again
    return replace(
        before,
        trainable=before.trainable and again.trainable,
        fan_in=counted.fan_in,
        fan_out=counted.fan_out,
        column_major=before.column_major or again.column_major,
    )


def _positions(layer: Layer) -> dict[int, deque[int]]:
    """For each child of a layer with several outputs, which it takes; one that stands there twice takes two."""
    found: dict[int, deque[int]] = defaultdict(deque)
    for position, child in enumerate(layer.children):
        if isinstance(child, Layer):
            found[child.serial].append(position)
    return found


def _next_position(positions: dict[int, deque[int]] | None, child: Layer) -> int:
    if positions is None or not positions.get(child.serial):
        return 0
    return positions[child.serial].popleft()


def _incoming(node: _Node) -> tuple[Incoming, ...] | None:
    """What comes into a node, or None if a parent's output is not known."""
    found: list[Incoming] = []
    for parent, output in zip(node.parents, node.taken, strict=True):
        if parent.outputs is None:
            return None
        found.append(Incoming(_shown_name(parent), parent.outputs[min(output, len(parent.outputs) - 1)]))
    return tuple(found)


def _problems_of_fields(layer: Layer, parents: int, children: int) -> list[str]:
    """What is wrong with a layer whatever comes in, for one behind a layer that does not fit.

    These are the problems that inputs of all ranks and of two sizes have in common and that do not name the inputs.
    """
    found: list[set[str]] = []
    for size in _STANDING_IN:
        problems: set[str] = set()
        for rank in range(1, _MAX_RANK + 1):
            inputs = (Incoming(_UNKNOWN, (size,) * rank),) * parents
            try:
                layer.output_shapes(inputs, children)
            except ConfigurationError as error:
                problems.update(problem for problem in error.problems if _UNKNOWN not in problem)
            else:
                return []
        found.append(problems)
    return sorted(set.intersection(*found))


def _shown_name(node: _Node) -> str:
    """The layer that the user knows: what stands in front of an inserted Split."""
    inserted_split = isinstance(node.layer, Split) and not node.layer.parents and bool(node.parents)
    return node.parents[0].layer.name if inserted_split else node.layer.name


def _numbered(name: str) -> Iterable[str]:
    yield name
    number = 2
    while True:
        yield f"{name}{number}"
        number += 1


def _name(thing: Layer | Weights | str) -> str:
    return thing if isinstance(thing, str) else thing.name


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(f"'{name}'" for name in names[:_SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")
