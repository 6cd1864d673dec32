"""Numbers that are reported and never trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.graph.enums import Exported
from descend.graph.fields import FieldType, described, refuse_unknown, shows_options, take_all
from descend.graph.layer import Layer, check_layer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BaseMetric", "ExecutableMetric", "Metric", "PythonMetric"]

_TYPES: Mapping[str, FieldType] = {"name": FieldType(str, optional=True), "unit": FieldType(str)}


class BaseMetric(Exported):
    """What all metrics have in common."""

    message: ClassVar[str]
    envelope: ClassVar[str | None] = "Metric"
    needs: ClassVar[tuple[str, ...]] = ()  # fields that must be set
    name: str
    where: str | None = None


class Metric(BaseMetric):
    """The mean over the samples of a layer that gives one number for each. The unit "%" multiplies it by 100.

    Args:
        layer: The layer; from a text also a name that no layer has, which the check reports.
        name: What it is called; the layer's name without one.
        unit: Printed after the number.

    Raises:
        ConfigurationError: an unknown keyword or a value of a wrong type.
    """

    message: ClassVar[str] = "Metric.LayerMetric"

    @shows_options
    def __init__(
        self, layer: Layer | str, name: str | None = None, unit: str = "", *, where: str | None = None, **unknown: Any
    ) -> None:
        refuse_unknown("Metric", unknown, ("layer", *_TYPES))
        check_layer("Metric", layer)
        taken = take_all("Metric", _TYPES, {"name": name, "unit": unit})
        self.layer = layer
        self.name: str = taken["name"] or (layer if isinstance(layer, str) else layer.name)
        self.unit: str = taken["unit"]
        self.where = where

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {
            "layer": self.layer if isinstance(self.layer, str) else self.layer.name,
            "name": self.name,
            "unit": self.unit,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Metric:
        """A metric from the fields of a text."""
        given: dict[str, Any] = {"layer": "", **fields}
        return cls(**given)

    def __repr__(self) -> str:
        return f"Metric({self.name!r}, unit={self.unit!r})"


@described
class ExecutableMetric(BaseMetric):
    """The number that a program prints; it is started as `filename other_args EXPERIMENT`."""

    message: ClassVar[str] = "Metric.ExecutableMetric"
    needs: ClassVar[tuple[str, ...]] = ("name", "filename")

    name: str = ""
    filename: str = ""
    other_args: str = ""


@described
class PythonMetric(BaseMetric):
    """What a function of a Python module returns for (experiment, rank); `function` is evaluate unless set."""

    message: ClassVar[str] = "Metric.PythonMetric"
    needs: ClassVar[tuple[str, ...]] = ("name", "module")

    name: str = ""
    module: str = ""
    module_dir: str = ""
    function: str = ""
