"""Which function lowers which kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from descend.errors import Unsupported
from descend.lower.formats import WIDE_INSIDE, in_formats, widened

if TYPE_CHECKING:
    from descend.graph import PlannedLayer

__all__ = ["Forward", "Lowering", "lowering", "lowers"]

# A layer's forward pass: its inputs, then its weights in the order of its kind, each input (samples, *shape); it
# returns the output, or one for each child where the kind has several. A kind that asks for the Pass gets it first.
Forward = Callable[..., Any]
Lowering = Callable[["PlannedLayer"], Forward]

_LOWERINGS: dict[type[Any], tuple[Lowering, bool]] = {}


def lowers(kind: type[Any], with_pass: bool = False) -> Callable[[Lowering], Lowering]:
    """Say that the decorated function lowers `kind`. It is called once a layer and returns the layer's forward pass.

    Args:
        kind: The class of the layer; its subclasses are lowered alike.
        with_pass: Whether the forward pass takes a `ForwardContext` before its inputs: for kinds that act differently
            in training, draw random numbers, or have no parent to say how many samples there are.
    """

    def keep(function: Lowering) -> Lowering:
        _LOWERINGS[kind] = (function, with_pass)
        return function

    return keep


def lowering(planned: PlannedLayer) -> tuple[Forward, bool]:
    """The forward pass of a layer, and whether it asks for the Pass.

    Raises:
        Unsupported: its kind is not lowered.
    """
    for kind in type(planned.layer).__mro__:
        if kind in _LOWERINGS:
            function, with_pass = _LOWERINGS[kind]
            forward = function(planned)
            if planned.formats and isinstance(planned.layer, WIDE_INSIDE):
                forward = widened(forward, back=True)
            if planned.formats:
                forward = in_formats(forward, with_pass, *planned.formats, kept=planned.layer.index_parents)
            return forward, with_pass
    raise Unsupported(f"layer '{planned.name}': kind {type(planned.layer).__name__} is not lowered")
