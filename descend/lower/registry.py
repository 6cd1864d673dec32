"""Which function lowers which kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from descend.errors import Unsupported

if TYPE_CHECKING:
    from descend.graph import PlannedLayer

__all__ = ["Forward", "Lowering", "lowering", "lowers"]

# A layer's forward pass: its inputs, then its weights in the order of its kind, each input (samples, *shape); it
# returns the output, or one for each child where the kind has several.
Forward = Callable[..., Any]
Lowering = Callable[["PlannedLayer"], Forward]

_LOWERINGS: dict[type[Any], Lowering] = {}


def lowers(kind: type[Any]) -> Callable[[Lowering], Lowering]:
    """Say that the decorated function lowers `kind`. It is called once a layer and returns the layer's forward pass."""

    def keep(function: Lowering) -> Lowering:
        _LOWERINGS[kind] = function
        return function

    return keep


def lowering(planned: PlannedLayer) -> Forward:
    """The forward pass of a layer.

    Raises:
        Unsupported: its kind is not lowered yet.
    """
    kind = type(planned.layer)
    if kind not in _LOWERINGS:
        raise Unsupported(f"layer '{planned.name}': kind {kind.__name__} is not lowered yet")
    return _LOWERINGS[kind](planned)
