"""Variants of a checked graph: another activation, or a convolution of another kernel and other channels, in a place.

    replaceable     what can stand in the place of which layers
    variant         the graph with some of them replaced

A replaced convolution keeps its stride, dilation and groups, and has the padding that leaves its places as they are.
Where its channels differ, a convolution with a kernel of one entry behind it, the shim, restores their number. Their
weights are new: of the shapes that they need, with the update rule of the weights that they replace, and started as a
convolution starts its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count, product
from typing import TYPE_CHECKING, Any, cast

from descend.errors import ConfigurationError
from descend.graph import Convolution, Elu, Input, LeakyRelu, Relu, Sigmoid, Tanh
from descend.graph.layer import Incoming

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from descend.graph.layer import Layer, Shape
    from descend.graph.plan import Plan, PlannedLayer, PlannedWeights

__all__ = ["ACTIVATIONS", "Form", "Replaceable", "origins", "replaceable", "shown_kind", "variant"]

# What stands in the place of layers, by name: an activation, or a kernel size and a number of channels.
Form = dict[str, "str | dict[str, int]"]

ACTIVATIONS: Mapping[str, Callable[..., Layer]] = {
    "relu": Relu,
    "tanh": Tanh,
    "elu": Elu,
    "sigmoid": Sigmoid,
    "leaky relu": LeakyRelu,
}
KERNELS = (3, 5, 7, 9)
CHANNELS = (6, 16, 32)


@dataclass(frozen=True)
class Replaceable:
    """What may be replaced in a graph.

    Attributes:
        activations: The kind of each activation, by the name of its layer.
        convolutions: What may stand in the place of each convolution, by the name of its layer.
    """

    activations: Mapping[str, str]
    convolutions: Mapping[str, tuple[dict[str, int], ...]]


def replaceable(plan: Plan) -> Replaceable:
    """The layers of a graph that may be replaced.

    A convolution may be where all its weights are trained, and there is a padding that leaves its places as they are.
    """
    activations = {planned.name: kind for planned in plan.layers if (kind := _activation(planned))}
    found = {planned.name: _choices(plan, planned) for planned in plan.layers if isinstance(planned.layer, Convolution)}
    return Replaceable(activations, {name: choices for name, choices in found.items() if choices})


def shown_kind(plan: Plan, form: Form, name: str) -> str:
    """What stands in the place of a layer, in words."""
    now = form.get(name)
    planned = next(planned for planned in plan.layers if planned.name == name)
    if isinstance(now, str):
        return now
    if now is not None:
        return f"kernel {now['kernel']}, {now['channels']} channels"
    if isinstance(planned.layer, Convolution):
        sizes = dict.fromkeys(planned.layer.window().size)
        return f"kernel {'x'.join(map(str, sizes))}, {planned.layer.out_channels} channels"
    return _activation(planned) or planned.kind


def variant(plan: Plan, form: Form) -> Plan:
    """A graph with other layers in some places.

    Args:
        plan: The graph as it was described.
        form: What stands where; a name that is not in it has what was described.

    Raises:
        ConfigurationError: the graph has no such layer, or that cannot stand there.
    """
    possible = replaceable(plan)
    for name, now in form.items():
        allowed: Collection[Any] = possible.convolutions.get(name, ACTIVATIONS if name in possible.activations else ())
        if now not in allowed:
            raise ConfigurationError(f"model '{plan.name}': {now!r} cannot stand in the place of layer '{name}'")
    for name, now in form.items():
        plan = _with_activation(plan, name, now) if isinstance(now, str) else _with_convolution(plan, name, now)
    return plan


def origins(plan: Plan, changed: Plan) -> dict[str, str]:
    """For weights that a variant of a graph has more: those in whose place, or behind which, they stand."""
    described = {planned.name: planned for planned in plan.layers}
    found: dict[str, str] = {}
    for planned in changed.layers:
        before = described.get(planned.name) or described[planned.parents[0]]
        own = {new: old for new, old in zip(planned.weights, before.weights, strict=False) if new not in plan.weights}
        found.update(own)
    return found


def _activation(planned: PlannedLayer) -> str | None:
    """The kind of a layer among the replaceable activations; None for any other layer."""
    return next((name for name, kind in ACTIVATIONS.items() if kind.__name__ == planned.kind), None)


def _with_activation(plan: Plan, name: str, kind: str) -> Plan:
    layers = (
        replace(one, layer=ACTIVATIONS[kind](Input(), name=name)) if one.name == name else one for one in plan.layers
    )
    return replace(plan, layers=tuple(layers))


# ---- convolutions


def _choices(plan: Plan, planned: PlannedLayer) -> tuple[dict[str, int], ...]:
    layer = cast("Convolution", planned.layer)
    if not all(plan.weights[name].trainable for name in planned.weights):
        return ()
    here = (set(layer.window().size), layer.out_channels)
    return tuple(
        {"kernel": kernel, "channels": channels}
        for kernel, channels in product(KERNELS, CHANNELS)
        if ({kernel}, channels) != here
        and channels % int(layer.setting("groups")) == 0
        and _padding(planned, kernel) is not None
    )


def _padding(planned: PlannedLayer, kernel: int) -> tuple[int, ...] | None:
    """The smallest padding with which a kernel has as many places as now in each dimension; None where none has."""
    window = cast("Convolution", planned.layer).window()
    sizes, places = planned.input_shapes[0][1:], planned.output_shape[1:]
    found: list[int] = []
    for size, wanted, stride, dilation in zip(sizes, places, window.stride, window.dilation, strict=True):
        reach = dilation * (kernel - 1) + 1
        padding = max(0, -(-(stride * (wanted - 1) + reach - size) // 2))
        if (size + 2 * padding - reach) // stride + 1 != wanted:
            return None
        found.append(padding)
    return tuple(found)


def _with_convolution(plan: Plan, name: str, now: Mapping[str, int]) -> Plan:
    """The graph with another convolution in the place of one, and a shim behind it where its channels differ."""
    old = next(planned for planned in plan.layers if planned.name == name)
    layer = cast("Convolution", old.layer)
    kernel, channels, wanted = now["kernel"], now["channels"], layer.out_channels
    names = {planned.name for planned in plan.layers}
    uses = Counter(weights for planned in plan.layers for weights in planned.weights)
    taken = set(plan.weights)
    settings: dict[str, Any] = {
        "num_dims": layer.num_dims,
        "has_bias": layer.setting("has_bias"),
        "conv_tensor_op_mode": layer.conv_tensor_op_mode,
    }
    made = Convolution(
        Input(),
        name=name,
        out_channels=channels,
        kernel_size=(kernel,) * layer.num_dims,
        stride=layer.stride,
        padding=_padding(old, kernel) or (),
        dilation=layer.dilation,
        groups=layer.groups,
        **settings,
    )
    new = replace(old, layer=made, output_shapes=((channels, *old.output_shape[1:]),))
    suffixes = [slot.suffix for slot in made.weight_slots(_incoming(new))]
    own = [
        weights if uses[weights] == 1 else _free(f"{name}_{suffix}", taken)
        for weights, suffix in zip(old.weights, suffixes, strict=True)
    ]
    added = [_new_weights(plan, old, new, own)]
    placed = [new]
    if channels != wanted:
        title = _free(f"{name}_shim", names)
        behind = Convolution(Input(), name=title, out_channels=wanted, kernel_size=(1,) * layer.num_dims, **settings)
        shim = replace(
            new,
            layer=behind,
            name=title,
            parents=(name,),
            parent_outputs=(0,),
            input_shapes=new.output_shapes,
            output_shapes=old.output_shapes,
        )
        added.append(_new_weights(plan, old, shim, [_free(f"{title}_{suffix}", taken) for suffix in suffixes]))
        placed.append(shim)
    placed = [
        replace(one, weights=tuple(weights.name for weights in some)) for one, some in zip(placed, added, strict=True)
    ]
    following = placed[-1].name
    layers: list[PlannedLayer] = []
    for planned in plan.layers:
        parents = tuple(following if parent == name else parent for parent in planned.parents)
        layers += placed if planned is old else [replace(planned, parents=parents)]
    return _with_weights(replace(plan, layers=tuple(layers)), old, added)


def _new_weights(plan: Plan, old: PlannedLayer, new: PlannedLayer, names: Iterable[str]) -> list[PlannedWeights]:
    """The weights of a convolution in the place of `old`, each with the update rule of the one that it replaces."""
    slots = cast("Convolution", new.layer).weight_slots(_incoming(new))
    return [
        replace(
            plan.weights[before],
            name=name,
            shape=slot.shape,
            initializer=slot.initializer,
            fan_in=slot.fan_in,
            fan_out=slot.fan_out,
            layer=new.name,
            column_major=slot.column_major,
        )
        for before, name, slot in zip(old.weights, names, slots, strict=True)
    ]


def _incoming(planned: PlannedLayer) -> tuple[Incoming, ...]:
    shape: Shape = planned.input_shapes[0]
    return (Incoming(planned.parents[0], shape),)


def _with_weights(plan: Plan, old: PlannedLayer, added: Iterable[Iterable[PlannedWeights]]) -> Plan:
    """The graph with the table and the regularization of its weights brought up to date."""
    by_old: dict[str, list[PlannedWeights]] = {name: [] for name in old.weights}
    for some in added:
        for before, weights in zip(old.weights, some, strict=True):
            by_old[before].append(weights)
    used = {name for planned in plan.layers for name in planned.weights}
    table: dict[str, PlannedWeights] = {}
    for name, weights in plan.weights.items():
        if name in used or name not in by_old:
            table[name] = weights
        table.update({new.name: new for new in by_old.get(name, ())})
    own = {before: [weights.name for weights in some] for before, some in by_old.items()}
    l2 = tuple(
        replace(
            term,
            weights=tuple(dict.fromkeys(new for name in term.weights for new in (name, *own.get(name, ())))),
        )
        for term in plan.objective.l2
    )
    return replace(plan, weights=table, objective=replace(plan.objective, l2=l2))


def _free(name: str, taken: set[str]) -> str:
    """A name that is not taken, with a number behind it where it is; it is taken from now on."""
    found = next(title for number in count(1) if (title := name if number == 1 else f"{name}{number}") not in taken)
    taken.add(found)
    return found
