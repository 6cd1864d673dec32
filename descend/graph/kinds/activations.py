"""Activations that are layers of their own; the others are operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import GraphError
from descend.graph.kinds.base import Entrywise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph.layer import Incoming, Shape

__all__ = ["ChannelwiseSoftmax", "Elu", "Identity", "LeakyRelu", "LogSoftmax", "Relu", "Softmax"]


class ChannelwiseSoftmax(Entrywise):
    """y = eˣ / Σ eˣ over all entries of each slice along `dim`, or along `dim` alone with single_dim_mode.

    dim is 0 unless set and may be negative. Without single_dim_mode it is the first or the last dimension.
    """

    message: ClassVar[str] = "Layer.ChannelwiseSoftmax"

    dim: int = 0
    single_dim_mode: bool = False

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        (incoming,) = inputs
        dims = len(incoming.shape)
        if not -dims <= self.dim < dims:
            raise GraphError(f"has dim {self.dim}, and {incoming}: expected {-dims} to {dims - 1}")
        if not self.single_dim_mode and self.dim % dims not in (0, dims - 1):
            raise GraphError(f"has dim {self.dim}, and {incoming}: without single_dim_mode it is the first or the last")
        return incoming.shape


class Elu(Entrywise):
    """y = x if x > 0 else alpha (eˣ − 1), alpha 1 unless set. Any shape."""

    message: ClassVar[str] = "Layer.Elu"
    defaults: ClassVar[Mapping[str, Any]] = {"alpha": 1.0}

    alpha: float = 0.0


class Identity(Entrywise):
    """y = x. Any shape."""

    message: ClassVar[str] = "Layer.Identity"


class LeakyRelu(Entrywise):
    """y = x if x > 0 else negative_slope x, slope 0.01 unless set. Any shape."""

    message: ClassVar[str] = "Layer.LeakyRelu"
    defaults: ClassVar[Mapping[str, Any]] = {"negative_slope": 0.01}

    negative_slope: float = 0.0


class LogSoftmax(Entrywise):
    """y = x − log Σ eˣ over the whole sample, whatever its shape."""

    message: ClassVar[str] = "Layer.LogSoftmax"


class Relu(Entrywise):
    """y = max(x, 0); its derivative at 0 is 0. Any shape."""

    message: ClassVar[str] = "Layer.Relu"


class Softmax(Entrywise):
    """y = eˣ / Σ eˣ over the whole sample, or in the mode "channel" over the first dimension at each position.

    LBANN keeps y above the root of the smallest float, so that a later logarithm stays finite, and so do we.
    """

    message: ClassVar[str] = "Layer.Softmax"
    defaults: ClassVar[Mapping[str, Any]] = {"softmax_mode": "instance"}

    softmax_mode: str = ""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        if self.setting("softmax_mode") not in ("instance", "channel"):
            raise GraphError(f"has softmax_mode '{self.softmax_mode}'; expected instance (or unset) or channel")
        return inputs[0].shape
