"""What all layers have in common: their place in the graph, and what a kind says of itself.

A kind is one class in `graph/kinds/`. It gives its fields as annotated class attributes whose defaults are the
format's zeros, the values that stand for zeros (`defaults`), the number of parents, the shape of its output, and its
weights; and nothing of how it is computed.

    class LeakyRelu(Entrywise):
        message: ClassVar[str] = "Layer.LeakyRelu"
        defaults: ClassVar[Mapping[str, Any]] = {"negative_slope": 0.01}

        negative_slope: float = 0.0

Shapes are those of one sample, without the mini-batch.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, ClassVar

from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError, WrongType, nearest
from descend.graph.enums import DataType, Exported
from descend.graph.fields import FieldType, annotation_of, described, field_types, refuse_unknown, take_all
from descend.graph.layer_kind import Incoming, LayerKind, Shape, WeightSlot, shown
from descend.graph.weights import Weights

__all__ = ["Incoming", "Layer", "ParallelStrategy", "Setting", "Shape", "WeightSlot", "check_layer", "refuses", "shown"]


@described
class ParallelStrategy:
    """How the work of a layer is divided over processes. The arithmetic is the same either way."""

    message: ClassVar[str] = "ParallelStrategy"

    sample_groups: int = 0
    sample_splits: int = 0
    height_groups: int = 0
    height_splits: int = 0
    width_groups: int = 0
    width_splits: int = 0
    channel_groups: int = 0
    channel_splits: int = 0
    filter_groups: int = 0
    filter_splits: int = 0
    replications: int = 0
    procs_per_replica: int = 0
    depth_groups: int = 0
    depth_splits: int = 0
    grid_tag: int | None = None


@described
class Setting:
    """A field of a layer whose kind has no message; one of the lists holds its value or values."""

    message: ClassVar[str] = "OwnKind.Setting"

    name: str = ""
    integers: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    truths: tuple[bool, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, kind: FieldType, value: Any) -> Setting:
        """The setting of a field.

        Raises:
            ConfigurationError: the field is of a type that has no list.
        """
        lists = {int: "integers", float: "numbers", bool: "truths", str: "texts"}
        base = int if issubclass(kind.base, IntEnum) else kind.base
        if base not in lists:
            raise ConfigurationError(f"field '{name}' holds a {kind.base.__name__}; a kind needs a message for that")
        return cls(name, **{lists[base]: value})

    def value(self, kind: type[Layer]) -> Any:
        """What the class is given: one value, or all where its field has many."""
        values = self.integers or self.numbers or self.truths or self.texts
        field = kind.own_fields().get(self.name)
        return values if field is None or field.many or len(values) != 1 else values[0]


_COMMON: Mapping[str, FieldType] = {
    "name": FieldType(str, optional=True),
    "device": FieldType(str, optional=True),
    "data_layout": FieldType(str, optional=True),
    "datatype": FieldType(DataType, optional=True),
    "grid_tag": FieldType(int, optional=True),
    "freeze": FieldType(bool),
}
_LINKS = ("parents", "children", "weights", "hint_layer", "parallel_strategy")


class _Signature:
    """What `inspect.signature`, help() and editors show of a kind of layers: its own fields and their defaults."""

    def __get__(self, layer: Layer | None, kind: type[Layer]) -> inspect.Signature:
        if layer is not None:
            raise AttributeError  # a layer is called with a parent; that signature is the one of `__call__`
        _, *taken = inspect.signature(kind.__init__).parameters.values()
        shown = {one.name: one for one in taken if one.kind is not one.VAR_KEYWORD}
        if len(shown) < len(taken):  # it passes fields on
            own = [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in kind.options().items()
            ]
            _, parents, *common = inspect.signature(Layer.__init__).parameters.values()
            common = [one for one in common if one.kind is one.KEYWORD_ONLY]
            shown = {parents.name: parents} | {one.name: one for one in (*own, *common)} | shown
            shown[parents.name] = parents
        return inspect.Signature(sorted(shown.values(), key=lambda one: one.kind))


class Layer(LayerKind, Exported, envelope="Layer"):
    """One operation of the graph. A layer is itself and equal to no other.

    Args:
        args: Parents, or lists of parents, in order.
        parents: More parents.
        children: Layers that this one becomes a parent of.
        weights: Weights to use, in the order of the kind's table; missing ones are made.
        name: `layer<N>` without one, N counting up from 1.
        device: "CPU" or "GPU"; a hint.
        data_layout: "data_parallel" or "model_parallel"; the arithmetic is the same.
        datatype: Format of its numbers.
        hint_layer: A layer that some kinds refer to.
        grid_tag: Sub-grid of processes.
        parallel_strategy: A ParallelStrategy, or a dictionary of its fields.
        freeze: Whether its weights are not trained.
        fields: The fields of the kind.

    Raises:
        ConfigurationError: unknown keywords or values of a wrong type, each with what was expected.

    Attributes:
        parents: Layers; from a text also names that no layer has, which the check reports.
        children: Layers in the order in which they were attached, the order of the outputs of a kind with several.
    """

    message: ClassVar[str] = "OwnKind"  # in the text; each of LBANN's kinds has a message of its own
    global_count: ClassVar[int] = 0  # of layers without a name
    where: str | None = None  # file:line:column of a layer that came from a text
    __signature__ = _Signature()
    _serials: ClassVar[Iterator[int]] = itertools.count()

    def __init__(
        self,
        *args: Layer | str | Iterable[Layer | str],
        parents: Layer | str | Iterable[Layer | str] = (),
        children: Layer | str | Iterable[Layer | str] = (),
        weights: Weights | str | Iterable[Weights | str] = (),
        name: str | None = None,
        device: str | None = None,
        data_layout: str | None = None,
        datatype: DataType | int | str | None = None,
        hint_layer: Layer | str | None = None,
        grid_tag: int | None = None,
        parallel_strategy: ParallelStrategy | Mapping[str, Any] | None = None,
        freeze: bool = False,
        where: str | None = None,
        **fields: Any,
    ) -> None:
        kind = type(self).__name__
        types = self.own_fields()
        if not fields.keys() <= types.keys():
            refuse_unknown(kind, fields, [*types, *_COMMON, *_LINKS])
        common = {
            "name": name,
            "device": device,
            "data_layout": data_layout,
            "datatype": datatype,
            "grid_tag": grid_tag,
            "freeze": freeze,
        }
        said = {key: value for key, value in common.items() if value is not None or key == "freeze"}
        taken = take_all(kind, _COMMON, said)
        self.__dict__.update(take_all(kind, types, fields))
        if name is None:
            Layer.global_count += 1
            taken["name"] = f"layer{Layer.global_count}"
        self.name: str = taken["name"]
        self.device: str | None = taken.get("device")
        self.data_layout: str | None = taken.get("data_layout")
        self.datatype: DataType | None = taken.get("datatype") or None
        self.grid_tag: int | None = taken.get("grid_tag")
        self.freeze: bool = taken["freeze"]
        self.hint_layer = hint_layer
        self.parallel_strategy = (
            ParallelStrategy(**parallel_strategy) if isinstance(parallel_strategy, Mapping) else parallel_strategy
        )
        self.where = where
        self.serial: int = next(Layer._serials)
        self.parents: list[Layer | str] = []
        self.children: list[Layer | str] = []
        self.weights: list[Weights | str] = []
        for given in (*args, parents):
            for parent in _each(kind, "parents", Layer, given):
                self.add_parent(parent)
        for child in _each(kind, "children", Layer, children):
            self.add_child(child)
        self.weights += _each(kind, "weights", Weights, weights)

    @classmethod
    def options(cls) -> Mapping[str, tuple[str, Any]]:
        """The annotation and the default of each keyword argument of this kind, beside those of all layers."""
        return {
            name: (annotation_of(cls, name), cls.defaults.get(name, getattr(cls, name))) for name in cls.own_fields()
        }

    @classmethod
    def own_fields(cls) -> Mapping[str, FieldType]:
        """The fields of this kind and the values they take."""
        return field_types(cls, Layer)

    def formats(self) -> tuple[DataType | None, DataType | None]:
        """The formats that it asks for, of its inputs and of its outputs."""
        return (self.datatype, self.datatype)

    def add_parent(self, parent: Layer | str | Iterable[Layer | str]) -> None:
        """Attach a parent, or several; this layer becomes the last child of each."""
        for one in _each_linked(parent):
            self.parents.append(one)
            if isinstance(one, Layer):
                one.children.append(self)

    def add_child(self, child: Layer | str | Iterable[Layer | str]) -> None:
        """Attach a child, or several; this layer becomes the last parent of each."""
        for one in _each_linked(child):
            self.children.append(one)
            if isinstance(one, Layer):
                one.parents.append(self)

    def add_weights(self, weights: Weights | Iterable[Weights]) -> None:
        """Attach weights after those that are there."""
        self.weights += _each(type(self).__name__, "weights", Weights, weights)

    def __call__(self, parent: Layer) -> None:
        """Attach a parent."""
        self.add_parent(parent)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them. Children are written where their order matters."""
        fields: dict[str, Any] = {
            "name": self.name,
            "parents": _names(self.parents),
            "children": _names(self.children) if len(self.children) > 1 else None,
            "weights": _names(self.weights),
            "device_allocation": self.device,
            "data_layout": self.data_layout,
            "datatype": self.datatype,
            "hint_layer": self.hint_layer.name if isinstance(self.hint_layer, Layer) else self.hint_layer,
            "grid_tag": self.grid_tag,
            "parallel_strategy": self.parallel_strategy,
            "freeze": self.freeze,
        }
        if self.message == Layer.message:
            return fields | {"kind": type(self).__name__, "setting": self._settings()}
        return fields | {name: getattr(self, name) for name in self.own_fields()}

    def _settings(self) -> list[Setting]:
        """The fields that are set, for kinds without a message."""
        return [
            Setting.of(name, kind, value)
            for name, kind in self.own_fields().items()
            if (value := getattr(self, name)) != getattr(type(self), name)
        ]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Layer:
        """A layer from the fields of a text. Names of layers and weights stay names until the model joins them."""
        given: dict[str, Any] = {"name": "", **fields}
        if cls is Layer:
            kind = _own_kind(given.pop("kind", ""))
            settings: Iterable[Setting] = given.pop("setting", ())
            return kind.from_fields(given | {one.name: one.value(kind) for one in settings})
        links = {link: given.pop(link, ()) for link in ("parents", "children", "weights")}
        given["device"] = given.pop("device_allocation", None)
        layer = cls(**given)
        layer.parents, layer.children, layer.weights = (list(names) for names in links.values())
        return layer


def _own_kind(name: str) -> type[Layer]:
    """The class of this name whose kind has no message.

    Raises:
        ConfigurationError: there is none.
    """
    waiting, known = [Layer], dict[str, type[Layer]]()
    while waiting:
        found = waiting.pop()
        known |= {found.__name__: found} if found.message == Layer.message else {}
        waiting += found.__subclasses__()
    if name not in known or name == Layer.__name__:
        raise ConfigurationError(
            f"there is no kind of layers '{name}'{nearest(name, known) or ';'} import the module that defines it first"
        )
    return known[name]


def _each_linked(given: Layer | str | Iterable[Layer | str]) -> list[Layer | str]:
    return [given] if isinstance(given, (Layer, str)) else list(given)


def refuses(layer: Layer, deviation: Deviation, problem: str) -> bool:
    """Whether something that LBANN runs is an error of a layer; where it is allowed, a warning says so.

    Args:
        layer: The layer.
        deviation: What is deviated from.
        problem: Continues a sentence that begins with the layer's name and kind.
    """
    place = f"{layer.where}: " if layer.where else ""
    return refused(deviation, f"{place}layer '{layer.name}' ({type(layer).__name__}) {problem}")


def check_layer(owner: str, given: Any) -> None:
    """Refuse what is neither a layer nor a layer's name.

    Raises:
        WrongType: it is neither.
    """
    if not isinstance(given, (Layer, str)):
        raise WrongType(f"{owner}.layer is {given!r}; expected a layer")


def _names(things: Iterable[Layer | Weights | str]) -> tuple[str, ...]:
    return tuple(thing if isinstance(thing, str) else thing.name for thing in things)


def _each(kind: str, what: str, base: type, given: Any) -> list[Any]:
    """One thing or an iterable of them as a list."""
    if isinstance(given, tuple) and not given:
        return []
    things = [given] if isinstance(given, (base, str)) or not isinstance(given, Iterable) else list(given)
    wrong = [thing for thing in things if not isinstance(thing, (base, str))]
    if wrong:
        raise WrongType(f"{kind}: {wrong[0]!r} is given in {what}; expected a {base.__name__}")
    return things
