"""The weights of a plan: each layer's table is filled with what it was given and with what it makes itself."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from descend.arguments.leniency import Deviation
from descend.graph.checking.problems import listed, name_of
from descend.graph.enums import DataType
from descend.graph.layer import Incoming, shown
from descend.graph.optimizers import NoOptimizer
from descend.graph.plan import PlannedWeights
from descend.graph.weights import (
    ArrayInitializer,
    ConstantInitializer,
    GlorotNormalInitializer,
    GlorotUniformInitializer,
    HeNormalInitializer,
    HeUniformInitializer,
    LeCunNormalInitializer,
    LeCunUniformInitializer,
    NormalInitializer,
    NumpyInitializer,
    UniformInitializer,
    ValueInitializer,
    Weights,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from descend.graph.checking.nodes import LayerNode
    from descend.graph.checking.problems import ProblemList
    from descend.graph.layer import Layer, WeightSlot
    from descend.graph.model import Model

__all__ = ["WeightTable"]


class WeightTable:
    """The planned weights by name, in the order in which layers need them.

    Args:
        problems: Receives what does not fit.

    Attributes:
        planned: The weights.
        biases: Names that the rule "bias" means.
        norms: Names that the rule "norm" means.
    """

    def __init__(self, problems: ProblemList) -> None:
        self.planned: dict[str, PlannedWeights] = {}
        self.biases: set[str] = set()
        self.norms: set[str] = set()
        self._problems = problems

    def fill(self, node: LayerNode) -> None:
        """Bind the weights that a layer uses, once its inputs are known."""
        if node.inputs is None or node.layer.borrows_weights:
            return
        layer = node.layer
        slots = layer.weight_slots(node.inputs)
        if len(layer.weights) > len(slots):
            table = listed(slot.suffix for slot in slots) if slots else "none"
            self._problems.add_to_layer(layer, f"is given {len(layer.weights)} weights and takes {len(slots)}: {table}")
        node.weights = tuple(self._fill_slot(layer, index, slot) for index, slot in enumerate(slots))

    def borrow(self, node: LayerNode) -> tuple[Incoming, ...] | None:
        """The weights of a layer that reads those of another, as if they came from a parent."""
        layer = node.layer
        if len(layer.weights) != 1:
            self._problems.add_to_layer(
                layer, f"reads one parameter of another layer and is given {len(layer.weights)}"
            )
            return None
        name = name_of(layer.weights[0])
        if name not in self.planned:
            if isinstance(layer.weights[0], Weights) and not self._problems:
                self._problems.add_to_layer(
                    layer, f"reads weights '{name}', which no other layer uses; give them to one"
                )
            return None
        node.weights = (name,)
        return (Incoming(name, self.planned[name].shape),)

    def check(self, model: Model) -> None:
        """Report unused weights, names that do not exist, and update rules and initializers with unusable numbers.

        Weights that a callback writes and no layer reads are added to the table.
        """
        known = {weights.name for weights in model.weights} | self.planned.keys()
        used = {id(one) for layer in model.layers for one in layer.weights}
        filled_by_callbacks = {getattr(callback, "output_name", "") for callback in model.callbacks}
        for layer in model.layers:
            for name in layer.weights:
                if isinstance(name, str):
                    near = self._problems.near(name, known)
                    self._problems.add_to_layer(layer, f"names weights '{name}' that do not exist{near}")
        for weights in model.weights:
            if id(weights) not in used and weights.name in filled_by_callbacks:
                self.planned[weights.name] = _written_by_callback(weights)
            elif id(weights) not in used:
                problem = f"weights '{weights.name}' are used by no layer"
                if self._problems.refuses(Deviation.UNUSED_WEIGHTS, weights.where, problem):
                    self._problems.add(weights.where, f"{problem}; give them to one, or take them out")
            if weights.optimizer is not None:
                place = weights.optimizer.where or weights.where
                found = weights.optimizer.problems()
                self._problems.add(place, *(f"weights '{weights.name}': {problem}" for problem in found))

        places = {weights.name: weights.where for weights in model.weights}
        for planned in self.planned.values():
            found = initializer_problems(planned)
            self._problems.add(places.get(planned.name), *(f"weights '{planned.name}' {problem}" for problem in found))

    def _fill_slot(self, layer: Layer, index: int, slot: WeightSlot) -> str:
        """Bind one slot of a layer to weights that were given, or to new ones."""
        given = layer.weights[index] if index < len(layer.weights) else None
        if isinstance(given, str):
            return given  # reported as missing
        own = given or Weights(slot.initializer, name=f"{layer.name}_{slot.suffix}")
        if not slot.trainable and own.datatype and own.datatype != (layer.datatype or DataType.FLOAT):
            self._problems.add_to_layer(
                layer, f"follows running values in weights '{own.name}' of another datatype; give both one"
            )
        if "bias" in slot.suffix:
            self.biases.add(own.name)
        if layer.normalizes:
            self.norms.add(own.name)
        before, planned = self.planned.get(own.name), _planned(layer, slot, own)
        if before is None:
            self.planned[own.name] = planned
        elif given is None:
            self._problems.add_to_layer(
                layer,
                f"would make weights '{own.name}', a name that layer '{before.layer}' uses; rename one layer",
            )
        elif before.shape != slot.shape:
            self._problems.add_to_layer(
                layer,
                f"needs weights '{own.name}' of {shown(slot.shape)} and shares them with layer '{before.layer}', "
                f"where they are {shown(before.shape)}: layers that share weights need one shape",
            )
        else:
            self.planned[own.name] = _shared(before, planned)
        return own.name


def _planned(layer: Layer, slot: WeightSlot, own: Weights) -> PlannedWeights:
    return PlannedWeights(
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
        zero_columns=slot.zero_columns,
    )


def _written_by_callback(weights: Weights) -> PlannedWeights:
    """Weights that a callback writes and no layer reads: one number, which is not trained."""
    return PlannedWeights(
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


def _shared(before: PlannedWeights, again: PlannedWeights) -> PlannedWeights:
    """Weights that several layers use: trained if all train them, with the fans and order of a layer that has some."""
    counted = before if before.fan_in else again
    return replace(
        before,
        trainable=before.trainable and again.trainable,
        fan_in=counted.fan_in,
        fan_out=counted.fan_out,
        column_major=before.column_major or again.column_major,
        zero_columns=(*before.zero_columns, *again.zero_columns),
    )


# ---- whether weights can start as their initializer says

_BY_FANS = (
    GlorotNormalInitializer,
    GlorotUniformInitializer,
    HeNormalInitializer,
    HeUniformInitializer,
    LeCunNormalInitializer,
    LeCunUniformInitializer,
)


def initializer_problems(weights: PlannedWeights) -> Iterator[str]:
    """What is wrong with the initializer for this shape; each text completes "weights 'w' ..."."""
    start = weights.initializer
    if isinstance(start, ConstantInitializer) and not math.isfinite(start.value):
        yield f"start at {start.value!r}; expected a finite number"
    elif isinstance(start, ArrayInitializer):
        yield from _array_problems(start, weights)
    elif isinstance(start, ValueInitializer):
        yield from _value_problems(start, weights)
    elif isinstance(start, NumpyInitializer):
        yield from _file_problems(start, weights)
    elif isinstance(start, UniformInitializer) and not (
        start.min <= start.max and math.isfinite(start.max - start.min)
    ):
        yield f"start between {start.min!r} and {start.max!r}; expected finite numbers, the smaller first"
    elif isinstance(start, NormalInitializer) and not (
        math.isfinite(start.mean) and 0 <= start.standard_deviation < math.inf
    ):
        yield f"start as N({start.mean!r}, {start.standard_deviation!r}²); expected finite numbers, the second >= 0"
    elif isinstance(start, _BY_FANS) and not weights.fan_in:
        kind = type(start).__name__
        yield f"start as {kind}, which counts inputs, and layer '{weights.layer}' counts none for them: use another one"


def _value_problems(start: ValueInitializer, weights: PlannedWeights) -> Iterator[str]:
    if start.values and start.values_d:
        yield "have both values and values_d; expected one of them"
    elif len(start.listed) != prod(weights.shape):
        size = prod(weights.shape)
        yield f"have {size} entries ({shown(weights.shape)}) in layer '{weights.layer}', and {len(start.listed)} values"
    elif not all(map(math.isfinite, start.listed)):
        yield "have a listed value that is not finite"


def _array_problems(start: ArrayInitializer, weights: PlannedWeights) -> Iterator[str]:
    import numpy as np

    array = start.array
    if array.shape != weights.shape:
        yield f"are {shown(weights.shape)} for layer '{weights.layer}', and their array is {shown(array.shape)}"
    elif array.dtype.kind != "f" or not np.isfinite(array).all():
        yield f"start from an array of {array.dtype}; expected finite numbers of float32 or float64"


def _file_problems(start: NumpyInitializer, weights: PlannedWeights) -> Iterator[str]:
    import numpy as np

    try:  # not np.load, which opens archives too
        found: NDArray[Any] = np.lib.format.open_memmap(start.file, mode="r")
    except Exception as error:  # of a damaged header numpy raises the tokenizer's errors too
        yield f"start from '{start.file}', which cannot be read as .npy: {error}"
        return
    if found.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        yield f"start from '{start.file}', which holds {found.dtype}; expected float32 or float64"
    if found.shape != weights.shape:
        yield f"are {shown(weights.shape)} for layer '{weights.layer}', and '{start.file}' holds {shown(found.shape)}"
