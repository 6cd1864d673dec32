"""A graph of layers with its weights, objective, metrics and callbacks; and its text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from descend.errors import ConfigurationError, nearest
from descend.graph.enums import Exported, SubGraphCommunication
from descend.graph.fields import FieldType, described, refuse_unknown, shows_options, take_all, take_list
from descend.graph.layer import Layer
from descend.graph.metrics import BaseMetric, Metric
from descend.graph.objective import LayerTerm, ObjectiveFunction, Term
from descend.graph.order import reached, topological
from descend.graph.weights import Weights
from descend.lazy import hook

if TYPE_CHECKING:
    from descend.graph.layer import Shape
    from descend.graph.torch_model import TorchModel

__all__ = ["AutomaticMixedPrecision", "Model", "Summarizer", "Trained"]


@described
class AutomaticMixedPrecision:
    """Half precision where it is safe; weights, their state and updates keep their format.

    The gradients of float16 are taken of the loss times a scale, and divided by it again: init_scale (65536 unless
    set), times growth_factor (2) after growth_interval (2000) good steps in a row, times backoff_factor (0.5) where a
    gradient overflowed; that step is skipped and counted, and no schedule advances. A checkpoint has the scale.
    bfloat16 has the range of float32 and needs none.

    Args:
        enabled: Whether it is used at all.
        init_scale: At the beginning.
        growth_factor: Above 1.
        backoff_factor: Between 0 and 1.
        growth_interval: In steps.
        format: "float16", which an unset one means too, or "bfloat16".

    Raises:
        ConfigurationError: a number is out of range, the format is unknown, or a scale is set for bfloat16.
    """

    message: ClassVar[str] = "Model.AutomaticMixedPrecision"
    formats: ClassVar[tuple[str, ...]] = ("float16", "bfloat16")

    enabled: bool = False
    init_scale: float = 0.0
    growth_factor: float = 0.0
    backoff_factor: float = 0.0
    growth_interval: int = 0
    format: str = ""

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {getattr(self, name)!r}; expected {expected}, or 0 for {default}"
            for name, good, expected, default in (
                ("init_scale", 0 <= self.init_scale < math.inf, "a number above 0", "65536"),
                ("growth_factor", self.growth_factor == 0 or 1 < self.growth_factor < math.inf, "above 1", "2"),
                ("backoff_factor", 0 <= self.backoff_factor < 1, "between 0 and 1", "0.5"),
                ("growth_interval", self.growth_interval >= 0, "a number of steps", "2000"),
            )
            if not good
        ]
        if self.format not in ("", *self.formats):
            hint = nearest(self.format, self.formats)
            problems.append(f"format is '{self.format}'; expected float16 or bfloat16{hint}")
        scale = [self.init_scale, self.growth_factor, self.backoff_factor, self.growth_interval]
        if self.format == "bfloat16" and any(scale):
            problems.append("a loss scale is set, and bfloat16 needs none: leave it out, or take format='float16'")
        if problems:
            raise ConfigurationError([f"AutomaticMixedPrecision: {problem}" for problem in problems])


@described
class Summarizer:
    """Where TensorBoard files go."""

    message: ClassVar[str] = "Model.Summarizer"

    dir: str = ""


class Trained(NamedTuple):
    """What is known of a model beside its description, from a run or a file."""

    fields: Mapping[str, Shape]  # shape for each sample of the data that it reads
    weights: Mapping[str, Any] | None  # tensors by name, where it was trained


_TYPES: Mapping[str, FieldType] = {
    "epochs": FieldType(int),
    "name": FieldType(str, optional=True),
    "summary_dir": FieldType(str, optional=True),
    "subgraph_communication": FieldType(SubGraphCommunication),
    "subgraph_topology": FieldType(bool),
    "subgraph_num_common_resources": FieldType(int),
    "compile": FieldType(bool),
    "channels_last": FieldType(bool),
    "batch_norm_group_size": FieldType(int),
}
# In the format, and read by nothing: kept so that a file goes through unchanged, and mentioned by the check.
_UNREAD: Mapping[str, FieldType] = {
    "data_layout": FieldType(str),
    "super_steps": FieldType(int),
    "num_batches": FieldType(int),
    "evaluation_frequency": FieldType(int),
    "disable_cuda": FieldType(bool),
}


class Model(Exported):
    """What is trained.

    All layers that are connected with the given ones, the objective's or the metrics', belong to it, and all their
    weights.

    Args:
        epochs: Passes over the data where the trainer has no algorithm that says otherwise; 0 makes no update: the run
            says so, and evaluates validation and test samples.
        layers: Any of its layers.
        weights: Weights in an order of one's own; those of the layers follow.
        objective_function: A layer, a term, a list of them, or an ObjectiveFunction.
        metrics: What is reported.
        callbacks: What watches the run.
        name: model0 without one.
        summary_dir: Where TensorBoard files go.
        subgraph_communication: How sub-graphs exchange tensors.
        subgraph_topology: Whether sub-graphs are placed by the network's topology.
        subgraph_num_common_resources: Processes of the parent grid.
        amp: Automatic mixed precision, or a dictionary of its fields.
        compile: Whether the forward and backward passes go through torch.compile.
        channels_last: Whether images are held with their channels last in memory; the numbers are the same to rounding.
        batch_norm_group_size: Samples that share the statistics of batch normalization, taken in the order of the
            mini-batch; what is left over is a group of its own. 0 is the whole mini-batch.

    Raises:
        ConfigurationError: an unknown keyword, a value of a wrong type, or a negative group size.

    Attributes:
        trained: What the last run of this model made of it, if there was one; no part of the description.
        layers: Its layers, every parent before its children and else in order of creation.
        weights: Its weights in order of first use, the given ones first.
    """

    message: ClassVar[str] = "Model"
    where: str | None = None

    @shows_options
    def __init__(
        self,
        epochs: int = 0,
        layers: Layer | Iterable[Layer] = (),
        weights: Weights | Iterable[Weights] = (),
        objective_function: Layer | Term | Iterable[Layer | Term] | ObjectiveFunction | None = None,
        metrics: BaseMetric | Iterable[BaseMetric] = (),
        callbacks: Iterable[Any] = (),
        name: str | None = None,
        summary_dir: str | None = None,
        subgraph_communication: SubGraphCommunication | int | str = SubGraphCommunication.PT2PT,
        subgraph_topology: bool = False,
        subgraph_num_common_resources: int = 0,
        amp: AutomaticMixedPrecision | Mapping[str, Any] | None = None,
        batch_norm_group_size: int = 0,
        *,
        compile: bool = False,  # noqa: A002  # torch's own word for it
        channels_last: bool = False,
        where: str | None = None,
        **unread: Any,
    ) -> None:
        links = ("layers", "weights", "objective_function", "metrics", "callbacks", "amp")
        refuse_unknown("Model", [key for key in unread if key not in _UNREAD], (*_TYPES, *links))
        given = {
            "epochs": epochs,
            "name": name,
            "summary_dir": summary_dir,
            "subgraph_communication": subgraph_communication,
            "subgraph_topology": subgraph_topology,
            "subgraph_num_common_resources": subgraph_num_common_resources,
            "compile": compile,
            "channels_last": channels_last,
            "batch_norm_group_size": batch_norm_group_size,
        }
        taken = take_all("Model", _TYPES, given)
        self.epochs: int = taken["epochs"]
        self.name: str = taken["name"] or "model0"
        self.summary_dir: str | None = taken["summary_dir"]
        self.subgraph_communication: SubGraphCommunication = taken["subgraph_communication"]
        self.subgraph_topology: bool = taken["subgraph_topology"]
        self.subgraph_num_common_resources: int = taken["subgraph_num_common_resources"]
        self.amp = AutomaticMixedPrecision(**amp) if isinstance(amp, Mapping) else amp
        self.compile: bool = taken["compile"]
        self.channels_last: bool = taken["channels_last"]
        self.trained: Trained | None = None
        self.batch_norm_group_size: int = taken["batch_norm_group_size"]
        if self.batch_norm_group_size < 0:
            raise ConfigurationError(
                f"Model: batch_norm_group_size is {self.batch_norm_group_size}; expected a number of samples such as "
                "64, or 0 for the whole mini-batch"
            )
        self.unread: dict[str, Any] = take_all("Model", _UNREAD, unread)
        self.where = where
        self.objective_function = _objective(objective_function)
        self.metrics: list[BaseMetric] = take_list("Model.metrics", metrics, BaseMetric, "a list of metrics")
        self.callbacks: list[Any] = take_list("Model.callbacks", callbacks, (), "a list of callbacks", every=False)
        self.layers = self._all_layers(take_list("Model.layers", layers, Layer, "a list of layers"))
        self.weights: list[Weights] = self._all_weights(
            take_list("Model.weights", weights, Weights, "a list of weights")
        )

    def _all_layers(self, layers: Iterable[Layer]) -> list[Layer]:
        terms = self.objective_function.layer_terms if self.objective_function else []
        seen = [one.layer for one in (*terms, *(metric for metric in self.metrics if isinstance(metric, Metric)))]
        found = reached([*layers, *(layer for layer in seen if isinstance(layer, Layer))])
        ordered, on_cycles = topological(found)
        return ordered + on_cycles

    def _all_weights(self, first: Iterable[Weights]) -> list[Weights]:
        used = (one for layer in self.layers for one in layer.weights if isinstance(one, Weights))
        return list({id(one): one for one in chain(first, used)}.values())

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {
            "name": self.name,
            "num_epochs": self.epochs,
            "objective_function": self.objective_function,
            "metric": self.metrics,
            "layer": self.layers,
            "weights": self.weights,
            "callback": self.callbacks,
            "summarizer": Summarizer(self.summary_dir) if self.summary_dir else None,
            "subgraph_communication": self.subgraph_communication,
            "enable_subgraph_topology": self.subgraph_topology,
            "subgraph_parent_grid_resources": self.subgraph_num_common_resources,
            "amp": self.amp,
            "compile": self.compile,
            "channels_last": self.channels_last,
            "batch_norm_group_size": self.batch_norm_group_size,
            **self.unread,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Model:
        """A model from the fields of a text, its names joined; the check reports those that join nothing."""
        given = dict(fields)
        layers: list[Layer] = list(given.pop("layer", ()))
        weights: list[Weights] = list(given.pop("weights", ()))
        objective: ObjectiveFunction | None = given.pop("objective_function", None)
        metrics: list[BaseMetric] = list(given.pop("metric", ()))
        summarizer: Summarizer | None = given.pop("summarizer", None)
        _join(layers, weights, objective, metrics)
        return cls(
            epochs=given.pop("num_epochs", 0),
            layers=layers,
            weights=weights,
            objective_function=objective,
            metrics=metrics,
            callbacks=given.pop("callback", ()),
            summary_dir=summarizer.dir if summarizer else None,
            subgraph_topology=given.pop("enable_subgraph_topology", False),
            subgraph_num_common_resources=given.pop("subgraph_parent_grid_resources", 0),
            **given,
        )

    @staticmethod
    def from_torch(
        module: Any,
        loss: Any,
        metrics: Mapping[str, Any] | Iterable[str] = (),
        *,
        epochs: int = 0,
        callbacks: Iterable[Any] = (),
        name: str | None = None,
        targets: int | Iterable[str] | None = None,
        amp: AutomaticMixedPrecision | Mapping[str, Any] | None = None,
        batch_norm_group_size: int = 0,
        compile: bool = False,  # noqa: A002  # torch's own word for it
    ) -> TorchModel:
        """A model of any torch module, which is trained as it is; see `TorchModel`."""
        from descend.graph.torch_model import TorchModel

        options: dict[str, Any] = {"amp": amp, "batch_norm_group_size": batch_norm_group_size, "compile": compile}
        return TorchModel(module, loss, metrics, epochs, callbacks, name, targets, **options)

    def to_torch(
        self,
        weights: Any = None,
        *,
        fields: Mapping[str, Shape] | None = None,
        outputs: str | Layer | Iterable[str | Layer] | None = None,
        seed: int = 0,
    ) -> Any:
        """A plain torch module of this model.

        It is called with the fields that it needs, by position in the order of the Input layers or by name, each
        (samples, *shape), and returns the output, or a tuple of several. Its state has the names of the weights.

            result = descend.run(trainer, model, descend.zoo.digits(), rule)
            probabilities = model.to_torch()(images)

        Args:
            weights: A run's Result, tensors by name, a run's directory, or one of its checkpoints. By default those of
                the last run of this model, or first values where there was none.
            fields: Shape for each sample of every field that the Inputs read; known after a run.
            outputs: Layers whose outputs it returns. By default the predictions that the objective compares: the first
                parents of its losses.
            seed: Where first values are drawn from.

        Raises:
            GraphError: the model does not fit together, or an output is of no layer.
            ConfigurationError: fields are missing, or the weights are those of another model.
        """
        return hook("plain_module")(self, weights, fields, outputs, seed)

    def __eq__(self, other: object) -> bool:
        """Whether both describe the same model: the same fields, layers in the same order, and names of neighbours."""
        if not isinstance(other, Model):
            return NotImplemented
        return _plain(self) == _plain(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it is mutable, so it has no lasting hash

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {len(self.layers)} layers, {len(self.weights)} weights)"


def _objective(given: Layer | Term | Iterable[Layer | Term] | ObjectiveFunction | None) -> ObjectiveFunction | None:
    if given is None or isinstance(given, ObjectiveFunction):
        return given
    return ObjectiveFunction(given)


def _plain(value: Any) -> Any:
    """A description as comparable data: layers and weights, which are equal to none, by their fields."""
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    hook = getattr(value, "to_fields", None)
    if hook is None:
        return value
    return value.message, {name: _plain(entry) for name, entry in hook().items()}


def _join(
    layers: list[Layer], weights: list[Weights], objective: ObjectiveFunction | None, metrics: list[BaseMetric]
) -> None:
    """Put layers and weights where a text has their names. Of two with one name the first counts."""
    _name_the_nameless(layers, "layer")
    _name_the_nameless(weights, "weights")
    by_name = {layer.name: layer for layer in reversed(layers)}
    weights_by_name = {one.name: one for one in reversed(weights)}
    for layer in layers:
        layer.parents = _joined(layer.parents, by_name)
        layer.children = _joined(layer.children, by_name)
        layer.weights = _joined(layer.weights, weights_by_name)
        if isinstance(layer.hint_layer, str):
            layer.hint_layer = by_name.get(layer.hint_layer, layer.hint_layer)
    _make_mutual(layers)
    for term in [*(objective.layer_terms if objective else ()), *metrics]:
        if isinstance(term, (LayerTerm, Metric)) and isinstance(term.layer, str):
            term.layer = by_name.get(term.layer, term.layer)
    for regularization in objective.l2_terms if objective else ():
        regularization.weights = _joined(regularization.weights, weights_by_name)


def _name_the_nameless(things: Iterable[Layer | Weights], what: str) -> None:
    for number, thing in enumerate(things, start=1):
        thing.name = thing.name or f"{what}{number}"


def _joined(names: Iterable[Any], known: Mapping[str, Any]) -> list[Any]:
    """Names replaced by what has them. Older files have several names in one entry, with spaces between."""
    entries = chain.from_iterable(
        [name] if not isinstance(name, str) or name in known else name.split() for name in names
    )
    return [known.get(name, name) if isinstance(name, str) else name for name in entries]


def _make_mutual(layers: Iterable[Layer]) -> None:
    """Give each link at both ends; a text may give it at one. Added in the order of the layers."""
    layers = list(layers)
    up = Counter(
        (parent.serial, layer.serial) for layer in layers for parent in layer.parents if isinstance(parent, Layer)
    )
    down = Counter(
        (layer.serial, child.serial) for layer in layers for child in layer.children if isinstance(child, Layer)
    )
    for layer in layers:
        for child in list(layer.children):
            if isinstance(child, Layer) and up[layer.serial, child.serial] < down[layer.serial, child.serial]:
                child.parents.append(layer)
                up[layer.serial, child.serial] += 1
    for layer in layers:
        for parent in layer.parents:
            if isinstance(parent, Layer) and down[parent.serial, layer.serial] < up[parent.serial, layer.serial]:
                parent.children.append(layer)
                down[parent.serial, layer.serial] += 1


def to_text(model: Model) -> str:
    """The text of a model."""
    from descend.graph import text

    return text.render(model)


def from_text(source: str | bytes, file: str = "<text>", classes: Mapping[str, type] | None = None) -> Model:
    """The model of a text, such as `to_text` writes.

    Args:
        source: The text.
        file: What errors call it.
        classes: Classes of messages that the package does not know.

    Raises:
        TextError: everything that is wrong with the text, with file:line:column.
    """
    from descend.graph import text

    known: Mapping[str, type] = hook("message_classes")()
    model = text.to_value(text.parse(source, file, "Model"), {**known, **(classes or {})})
    if not isinstance(model, Model):
        raise ConfigurationError(f"{file}: no model could be made of this text")
    return model
