"""Names of a module's layers: those of its graph if it was lowered from one, otherwise its submodules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["layer_names", "plan_of"]


def plan_of(module: torch.nn.Module) -> Any:
    """The checked graph that `module` was lowered from; None for any other module."""
    return getattr(module, "plan", None) if hasattr(module, "on_layer") else None


def layer_names(module: torch.nn.Module) -> list[str]:
    """The names by which `ActivationRecorder` knows the layers of `module`."""
    plan = plan_of(module)
    if plan is not None:
        return [layer.name for layer in plan.layers]
    return [name for name, _ in module.named_modules() if name]
