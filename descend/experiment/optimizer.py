"""Builds the optimizer of a graph: one torch optimizer for the descriptions of all weights."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError
from descend.graph import NoOptimizer
from descend.optim import Optimizer as TorchOptimizer
from descend.optim.compat import recipe_from_library

if TYPE_CHECKING:
    import torch

    from descend.graph import Optimizer, Plan
    from descend.lower import LoweredModel

__all__ = ["build_optimizer"]


def build_optimizer(module: LoweredModel, plan: Plan, default: Optimizer) -> TorchOptimizer:
    """One optimizer of all trainable weights, with LBANN's arithmetic.

    Args:
        module: The lowered graph; weights with NoOptimizer are frozen in it.
        plan: The checked graph, which has the weights' own optimizers.
        default: The optimizer of all other weights.

    Returns:
        An optimizer with one group per distinct description.

    Raises:
        ConfigurationError: no weights are trainable.
    """
    groups: dict[Optimizer, list[tuple[str, torch.nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        description = plan.weights[name].optimizer or default
        if isinstance(description, NoOptimizer):
            parameter.requires_grad_(False)
        else:
            groups.setdefault(description, []).append((name, parameter))
    if not groups:
        raise ConfigurationError("there is nothing to train: the model has no weights, or all have a NoOptimizer")
    settings: list[dict[str, Any]] = [{**_settings(rule), "params": members} for rule, members in groups.items()]
    # The loop checks the gradients itself and can name the samples, so the optimizer does not check them again.
    # Compiled kernels replace eager ones at a time that no seed determines. On a CPU both give the same bits, which is
    # tested; on other devices that is not known, so kernels are not compiled there.
    on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    runner = "auto" if on_cpu else "blocks"
    return TorchOptimizer(settings, settings[0]["rule"], lr=settings[0]["lr"], runner=runner, on_nonfinite="allow")


def _settings(description: Optimizer) -> dict[str, Any]:
    """The options of a group for a description of LBANN's."""
    values = {field.name: getattr(description, field.name) for field in fields(description)}  # pyright: ignore[reportArgumentType]
    return recipe_from_library("lbann", type(description).__name__, values).options()
