"""From the descriptions of update rules to one torch optimizer: a rule for each weights object over a default."""

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
    """One optimizer over all trained weights, with LBANN's arithmetic.

    Args:
        module: The lowered graph; weights under NoOptimizer are frozen in it.
        plan: Which weights have a rule of their own.
        default: The rule of the others.

    Returns:
        An optimizer with one group for each different description, so that one step is one step of all rules.

    Raises:
        ConfigurationError: nothing is left to train.
    """
    groups: dict[Optimizer, list[tuple[str, torch.nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        description = plan.weights[name].optimizer or default
        if isinstance(description, NoOptimizer):
            parameter.requires_grad_(False)
        else:
            groups.setdefault(description, []).append((name, parameter))
    if not groups:
        raise ConfigurationError("there is nothing to train: the model has no weights, or all are under NoOptimizer")
    settings: list[dict[str, Any]] = [{**_settings(rule), "params": members} for rule, members in groups.items()]
    # The loop looks at the gradients itself and can name the samples, so the optimizer need not look again. Compiled
    # kernels come in at a time that no seed decides: on a CPU they give the bits of the eager ones, which is tested; on
    # other devices it is not, so there a run does without them.
    on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    runner = "auto" if on_cpu else "blocks"
    return TorchOptimizer(settings, settings[0]["rule"], lr=settings[0]["lr"], runner=runner, on_nonfinite="allow")


def _settings(description: Optimizer) -> dict[str, Any]:
    """What a group says to follow a description of LBANN's."""
    values = {field.name: getattr(description, field.name) for field in fields(description)}  # pyright: ignore[reportArgumentType]
    return recipe_from_library("lbann", type(description).__name__, values).options()
