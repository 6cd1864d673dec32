"""What training makes small: a sum of terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from descend.arguments.leniency import Deviation, refused
from descend.errors import WrongType
from descend.graph.enums import Exported
from descend.graph.fields import FieldType, refuse_unknown, shows_options, take_all, take_list
from descend.graph.layer import Layer, check_layer
from descend.graph.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["L2WeightRegularization", "LayerTerm", "ObjectiveFunction"]

_SCALE: Mapping[str, FieldType] = {"scale": FieldType(float)}
_REGULARIZATION: Mapping[str, FieldType] = {**_SCALE, "exclude": FieldType(str, many=True)}


class LayerTerm(Exported):
    """`scale` times the mini-batch mean of a layer that gives one number for each sample.

    Args:
        layer: The layer; from a text also a name that no layer has, which the check reports.
        scale: Its factor. In a text an unset factor is 0, as in LBANN.

    Raises:
        ConfigurationError: a value of a wrong type.
    """

    message: ClassVar[str] = "ObjectiveFunction.LayerTerm"
    where: str | None = None

    @shows_options
    def __init__(self, layer: Layer | str, scale: float = 1.0, *, where: str | None = None, **unknown: Any) -> None:
        refuse_unknown("LayerTerm", unknown, ("layer", "scale"))
        check_layer("LayerTerm", layer)
        self.layer = layer
        self.scale: float = take_all("LayerTerm", _SCALE, {"scale": scale})["scale"]
        self.where = where

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {"scale_factor": self.scale, "layer": name_of(self.layer)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> LayerTerm:
        """A term from the fields of a text."""
        return cls(fields.get("layer", ""), fields.get("scale_factor", 0.0), where=fields.get("where"))

    def __repr__(self) -> str:
        return f"LayerTerm({name_of(self.layer)!r}, scale={self.scale!r})"


class L2WeightRegularization(Exported):
    """`scale` · Σ w² / 2 over the listed weights, or over all that are trained when none is listed.

    Args:
        weights: The weights; from a text also names that no weights have, which the check reports.
        scale: Its factor.
        exclude: Rules for weights that are left out: "bias", "norm", "dims<=1" and the like, or a pattern of names with
            * and ?, as in `descend.optim.groups.split`.

    Raises:
        ConfigurationError: a value of a wrong type.
    """

    message: ClassVar[str] = "ObjectiveFunction.L2WeightRegularization"
    where: str | None = None

    @shows_options
    def __init__(
        self,
        weights: Weights | str | Iterable[Weights | str] = (),
        scale: float = 1.0,
        exclude: str | Iterable[str] = (),
        *,
        where: str | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown("L2WeightRegularization", unknown, ("weights", "scale", "exclude"))
        self.weights: list[Weights | str] = take_list(
            "L2WeightRegularization.weights", weights, (Weights, str), "weights or their names"
        )
        taken = take_all("L2WeightRegularization", _REGULARIZATION, {"scale": scale, "exclude": exclude})
        self.scale: float = taken["scale"]
        self.exclude: tuple[str, ...] = taken["exclude"]
        self.where = where

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {"scale_factor": self.scale, "weights": tuple(map(name_of, self.weights)), "exclude": self.exclude}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> L2WeightRegularization:
        """A term from the fields of a text."""
        scale, exclude = fields.get("scale_factor", 0.0), fields.get("exclude", ())
        return cls(fields.get("weights", ()), scale, exclude, where=fields.get("where"))

    def __repr__(self) -> str:
        return f"L2WeightRegularization({list(map(name_of, self.weights))!r}, scale={self.scale!r})"


Term = LayerTerm | L2WeightRegularization


class ObjectiveFunction(Exported):
    """The sum of its terms.

    Args:
        terms: Layers, LayerTerms and L2WeightRegularizations, one or many; a layer is a term of scale 1.

    Raises:
        ConfigurationError: something else is among them.
    """

    message: ClassVar[str] = "ObjectiveFunction"
    where: str | None = None

    def __init__(self, terms: Layer | Term | Iterable[Layer | Term] = (), *, where: str | None = None) -> None:
        self.terms: list[Term] = []
        kinds = (Layer, LayerTerm, L2WeightRegularization)
        for term in take_list("ObjectiveFunction.terms", terms, kinds, "a list of layers and terms", every=False):
            self.add_term(term)
        self.where = where

    def add_term(self, term: Any) -> None:
        """Add a term, or a layer as one of scale 1.

        Raises:
            WrongType: it is neither.
        """
        if isinstance(term, (list, tuple)) and not refused(Deviation.NESTED_TERMS, "an objective term is a list"):
            for one in cast("Iterable[Any]", term):
                self.add_term(one)
            return
        if isinstance(term, Layer):
            term = LayerTerm(term)
        elif not isinstance(term, (LayerTerm, L2WeightRegularization)):
            raise WrongType(
                f"{term!r} is not a term of an objective; expected a layer, LayerTerm or L2WeightRegularization"
            )
        self.terms.append(term)

    @property
    def layer_terms(self) -> list[LayerTerm]:
        """The terms that are layers."""
        return [term for term in self.terms if isinstance(term, LayerTerm)]

    @property
    def l2_terms(self) -> list[L2WeightRegularization]:
        """The terms that are regularizations."""
        return [term for term in self.terms if isinstance(term, L2WeightRegularization)]

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {"layer_term": self.layer_terms, "l2_weight_regularization": self.l2_terms}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ObjectiveFunction:
        """An objective from the fields of a text."""
        return cls(
            [*fields.get("layer_term", ()), *fields.get("l2_weight_regularization", ())], where=fields.get("where")
        )

    def __repr__(self) -> str:
        return f"ObjectiveFunction({self.terms!r})"


def name_of(thing: Layer | Weights | str) -> str:
    """The name of a layer or of weights."""
    return thing if isinstance(thing, str) else thing.name
