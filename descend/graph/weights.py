"""Weights and how they start.

A tensor's shape comes from the layer that uses it, and so do its fan-in and fan-out. Without an initializer it starts
at zero; without an optimizer it takes the experiment's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from descend.graph.enums import DataType, Exported, ShardingStrategy
from descend.graph.fields import FieldType, described, refuse_unknown, shows_options, take_all
from descend.graph.optimizers import Optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = [
    "ArrayInitializer",
    "ColumnsInitializer",
    "ConstantInitializer",
    "GlorotNormalInitializer",
    "GlorotUniformInitializer",
    "HeNormalInitializer",
    "HeUniformInitializer",
    "Initializer",
    "LeCunNormalInitializer",
    "LeCunUniformInitializer",
    "NormalInitializer",
    "NumpyInitializer",
    "UniformInitializer",
    "ValueInitializer",
    "Weights",
]


class Initializer(Exported):
    """What all initializers have in common."""

    message: ClassVar[str]
    envelope: ClassVar[str | None] = "Initializer"
    where: str | None = None


@described
class ConstantInitializer(Initializer):
    """All entries are `value`."""

    message: ClassVar[str] = "Initializer.ConstantInitializer"

    value: float = 0.0


@described
class ValueInitializer(Initializer):
    """Listed values; as many as the tensor has entries.

    They are in row-major order, and in column-major order for the matrices of FullyConnected,
    ChannelwiseFullyConnected, Embedding and GRU (`PlannedWeights.column_major`). `values` are rounded to float32 in a
    text and `values_d` are not; one of the two is given.
    """

    message: ClassVar[str] = "Initializer.ValueInitializer"

    values: tuple[float, ...] = ()
    values_d: tuple[float, ...] = ()

    @property
    def listed(self) -> tuple[float, ...]:
        """Whichever of the two is given."""
        return self.values_d or self.values


class ArrayInitializer(ValueInitializer):
    """The values of an array that has the tensor's shape; a text lists them as a ValueInitializer does.

    Args:
        array: A NumPy array of float32 or float64.
        column_major: Whether listed values fill these weights column by column (`PlannedWeights.column_major`).
    """

    def __init__(self, array: NDArray[Any], column_major: bool = False) -> None:
        super().__init__()
        object.__setattr__(self, "array", array)
        object.__setattr__(self, "_order", "F" if column_major else "C")

    if TYPE_CHECKING:
        array: NDArray[Any]
        _order: Literal["C", "F"]

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        field = "values_d" if self.array.dtype.itemsize == 8 else "values"
        return {field: tuple(self.array.ravel(self._order).tolist())}

    def __eq__(self, other: object) -> bool:
        """Whether the other holds the same values in the same shape."""
        if not isinstance(other, ArrayInitializer) or self.array.shape != other.array.shape:
            return False
        return bool((self.array == other.array).all())

    def __hash__(self) -> int:
        return hash((self.array.shape, self._order))

    def __repr__(self) -> str:
        return f"ArrayInitializer({self.array.dtype} {self.array.shape})"


@described
class ColumnsInitializer(Initializer):
    """Each column of a matrix has a value of its own. Kinds of layers ask for it; it has no place in a text."""

    values: tuple[float, ...] = ()


@described
class NumpyInitializer(Initializer):
    """A .npy file of float32 or float64 that has the tensor's shape."""

    message: ClassVar[str] = "Initializer.NumpyInitializer"

    file: str = ""


@described
class UniformInitializer(Initializer):
    """Random in [min, max); in [0, 1) when both are 0."""

    message: ClassVar[str] = "Initializer.UniformInitializer"

    min: float = 0.0
    max: float = 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """min and max with the rule for zeros applied."""
        return (0.0, 1.0) if self.min == self.max == 0.0 else (self.min, self.max)


@described
class NormalInitializer(Initializer):
    """N(mean, standard_deviation²); N(0, 1) when both are 0."""

    message: ClassVar[str] = "Initializer.NormalInitializer"

    mean: float = 0.0
    standard_deviation: float = 0.0

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation with the rule for zeros applied."""
        return (0.0, 1.0) if self.mean == self.standard_deviation == 0.0 else (self.mean, self.standard_deviation)


@described
class GlorotNormalInitializer(Initializer):
    """Normal, not truncated, of variance 2 / (fan_in + fan_out)."""

    message: ClassVar[str] = "Initializer.GlorotNormalInitializer"


@described
class GlorotUniformInitializer(Initializer):
    """Uniform in ±√(3 variance), variance 2 / (fan_in + fan_out)."""

    message: ClassVar[str] = "Initializer.GlorotUniformInitializer"


@described
class HeNormalInitializer(Initializer):
    """Normal, not truncated, of variance 2 / fan_in."""

    message: ClassVar[str] = "Initializer.HeNormalInitializer"


@described
class HeUniformInitializer(Initializer):
    """Uniform in ±√(3 variance), variance 2 / fan_in."""

    message: ClassVar[str] = "Initializer.HeUniformInitializer"


@described
class LeCunNormalInitializer(Initializer):
    """Normal, not truncated, of variance 1 / fan_in."""

    message: ClassVar[str] = "Initializer.LeCunNormalInitializer"


@described
class LeCunUniformInitializer(Initializer):
    """Uniform in ±√(3 variance), variance 1 / fan_in."""

    message: ClassVar[str] = "Initializer.LeCunUniformInitializer"


_TYPES: Mapping[str, FieldType] = {
    "name": FieldType(str, optional=True),
    "initializer": FieldType(Initializer, optional=True),
    "optimizer": FieldType(Optimizer, optional=True),
    "datatype": FieldType(DataType, optional=True),
    "sharded": FieldType(bool, optional=True),
    "sharding_strategy": FieldType(ShardingStrategy, optional=True),
}


class Weights(Exported):
    """A tensor that layers use. Layers that are given the same object share it.

    Args:
        initializer: How it starts; zero without one.
        optimizer: Its own update rule; the experiment's default without one.
        name: `weights<N>` without one, N counting up from 1.
        datatype: Format of its numbers.
        sharded: Whether it is divided over processes; the arithmetic is the same.
        sharding_strategy: How it is divided.

    Raises:
        ConfigurationError: an unknown keyword, or a value of a wrong type.
    """

    message: ClassVar[str] = "Weights"
    global_count: ClassVar[int] = 0
    where: str | None = None  # file:line:column of weights that came from a text

    @shows_options
    def __init__(
        self,
        initializer: Initializer | None = None,
        optimizer: Optimizer | None = None,
        name: str | None = None,
        datatype: DataType | int | str | None = None,
        sharded: bool | None = None,
        sharding_strategy: ShardingStrategy | int | str | None = None,
        *,
        where: str | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown("Weights", unknown, _TYPES)
        if name is None:
            Weights.global_count += 1
            name = f"weights{Weights.global_count}"
        given = {
            "name": name,
            "initializer": initializer,
            "optimizer": optimizer,
            "datatype": datatype,
            "sharded": sharded,
            "sharding_strategy": sharding_strategy,
        }
        taken = take_all("Weights", _TYPES, given)
        self.name: str = taken["name"]
        self.initializer: Initializer | None = taken["initializer"]
        self.optimizer: Optimizer | None = taken["optimizer"]
        self.datatype: DataType | None = taken["datatype"] or None
        self.sharded: bool | None = taken["sharded"] or None
        self.sharding_strategy: ShardingStrategy | None = taken["sharding_strategy"] or None
        self.where = where

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {name: getattr(self, name) for name in _TYPES}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Weights:
        """Weights from the fields of a text; one without a name is named by the model."""
        given: dict[str, Any] = {"name": "", **fields}
        return cls(**given)

    def __repr__(self) -> str:
        return f"Weights({self.name!r})"
