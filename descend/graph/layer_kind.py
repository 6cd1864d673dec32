"""What an author of a layer kind defines: parents, fields, the shape of the output, weights and products.

    class LeakyRelu(Entrywise):
        message: ClassVar[str] = "Layer.LeakyRelu"
        defaults: ClassVar[Mapping[str, Any]] = {"negative_slope": 0.01}

        negative_slope: float = 0.0

Nothing here depends on the place of a layer in a graph, on its name, or on torch. Shapes are those of one sample,
without the mini-batch.
"""

from __future__ import annotations

import copy
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from descend.graph.optimizers import Optimizer
    from descend.graph.weights import Initializer

__all__ = ["Incoming", "LayerKind", "Shape", "WeightSlot", "shown"]

Shape = tuple[int, ...]


class Incoming(NamedTuple):
    """A tensor that comes into a layer."""

    name: str  # of the layer that it comes from
    shape: Shape

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"'{self.name}' gives {shown(self.shape)}"


class WeightSlot(NamedTuple):
    """One tensor of weights that a layer uses, and how it is made where none is given."""

    suffix: str  # its name is then LAYER_suffix
    shape: Shape
    initializer: Initializer
    fan_in: int = 0
    fan_out: int = 0
    trainable: bool = True  # running statistics are not
    column_major: bool = False  # how listed values fill it
    optimizer: Optimizer | None = None  # an update rule that the kind asks for
    zero_columns: tuple[int, ...] = ()  # of a matrix, those that start at zero, however the others do


def shown(shape: Shape) -> str:
    """A shape as messages write it: 16 x 5 x 5."""
    return " x ".join(map(str, shape)) or "nothing"


class LayerKind:
    """The contract of a kind of layers; a subclass of `Layer` sets and overrides what differs.

    Attributes:
        defaults: Values that stand for fields that are not set.
        num_parents: How many parents a layer has; None: one or more.
        refusal: Why a kind that is part of the format is not supported; None if it is.
        num_children: How many layers read the output; None: any number, each with an output of its own.
        borrows_weights: Whether the layer reads weights that another layer makes.
        normalizes: Whether the rule "norm" means its weights.
        index_parents: Which parents give indices; a narrow number format would change them.
        sized_by: The field with the dimensions, or the number, of the outputs; where it is not set they can be those of
            another layer, the `hint_layer`.
        hinted: The shape that the other layer has given.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    num_parents: ClassVar[int | None] = 1
    refusal: ClassVar[str | None] = None
    num_children: ClassVar[int | None] = 1
    borrows_weights: ClassVar[bool] = False
    normalizes: ClassVar[bool] = False
    index_parents: ClassVar[tuple[int, ...]] = ()
    sized_by: ClassVar[str] = ""
    hinted: Shape | None = None

    def setting(self, name: str) -> Any:
        """A field's value, or what stands for it where it is not set.

        In the format a plain field that is not set is zero, so a zero that was written means the default too.
        """
        value = getattr(self, name)
        return self.defaults.get(name, value) if value == getattr(type(self), name) else value

    def sized_like(self, shape: Shape) -> Self:
        """The same layer with outputs of the shape of another layer's."""
        sized = copy.copy(self)
        many = isinstance(getattr(type(self), self.sized_by), tuple)
        setattr(sized, self.sized_by, shape if many else prod(shape))
        sized.hinted = shape
        return sized

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the output.

        Raises:
            ConfigurationError: the inputs do not fit, or a field does not.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither output_shape() nor refusal")

    def output_shapes(self, inputs: tuple[Incoming, ...], children: int) -> tuple[Shape, ...]:
        """The shape of each output: one for most kinds, one for each child for a few.

        Raises:
            ConfigurationError: as `output_shape`.
        """
        return (self.output_shape(inputs),)

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """The weights that this layer uses, in order."""
        return ()

    def multiply_adds(self, inputs: tuple[Shape, ...], output: Shape) -> int:
        """Products that the forward pass of one sample adds up, for kinds that multiply matrices or slide windows."""
        return 0
