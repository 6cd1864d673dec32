"""Automatic mixed precision: forward and backward passes in half precision, weights and updates in single precision."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from descend.graph import AutomaticMixedPrecision, DataType, Layer, traverse_layer_graph

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from descend.graph import Model

__all__ = ["AmpOptions", "enable_amp", "set_layer_datatypes"]


@dataclass
class AmpOptions:
    """Options of the loss scale.

    Args:
        enabled: Whether mixed precision is used.
        init_scale: The first scale.
        growth_factor: What it is multiplied by after `growth_interval` steps without overflow.
        backoff_factor: What it is multiplied by on overflow.
        growth_interval: Number of steps.
    """

    enabled: bool = True
    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


def enable_amp(model: Model, options: AmpOptions | argparse.Namespace | None = None) -> None:
    """Let a model be trained in mixed precision; nothing is done where the options leave it off.

    Args:
        model: The model.
        options: Options, or the arguments of `lbann.contrib.args.add_amp_arguments`.
    """
    if options is None:
        options = AmpOptions()
    if not isinstance(options, AmpOptions):
        names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
        given: dict[str, Any] = {name: getattr(options, f"amp_{name}") for name in names}
        options = AmpOptions(enabled=options.amp, **given)
    if options.enabled:
        model.amp = AutomaticMixedPrecision(**asdict(options))


def set_layer_datatypes(
    layers: Layer | Iterable[Layer], datatype: DataType | int = DataType.FP16, kinds: tuple[type[Layer], ...] = (Layer,)
) -> None:
    """Set the format of the numbers of layers.

    Args:
        layers: Layers of the graph; all that are connected with them are meant.
        datatype: The format.
        kinds: Only layers of these kinds.
    """
    for layer in traverse_layer_graph(layers):
        if isinstance(layer, kinds):
            layer.datatype = DataType(datatype)
