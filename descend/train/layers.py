"""Names of a module's layers: those of its graph if it was lowered from one, otherwise its submodules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    import torch

__all__ = ["layer_names", "plan_of", "weights_of_layer"]


def plan_of(module: torch.nn.Module) -> Any:
    """The checked graph that `module` was lowered from; None for any other module."""
    return getattr(module, "plan", None) if hasattr(module, "on_layer") else None


def layer_names(module: torch.nn.Module) -> list[str]:
    """The names by which `ActivationRecorder` knows the layers of `module`."""
    plan = plan_of(module)
    if plan is not None:
        return [layer.name for layer in plan.layers]
    return [name for name, _ in module.named_modules() if name]


def weights_of_layer(module: torch.nn.Module, layer: str) -> list[str]:
    """Names of the parameters and buffers of a layer.

    Raises:
        ConfigurationError: there is no such layer.
    """
    plan = plan_of(module)
    if plan is not None:
        found = next((planned for planned in plan.layers if planned.name == layer), None)
        names = None if found is None else list(found.weights)
        known = [planned.name for planned in plan.layers]
    else:
        known = [name for name, _ in module.named_modules()]
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        names = [name for name in held if name.startswith(f"{layer}.")] if layer in known else None
    if names is None:
        raise ConfigurationError(f"there is no layer '{layer}'{nearest(layer, known)}")
    return names
