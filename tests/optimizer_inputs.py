"""Parameters and gradients for tests of optimizers."""

import torch

from descend.optim.engine.settings import GroupSettings


def weights(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)) for shape in shapes]


def one_step(optimizer: torch.optim.Optimizer, g: float = 1.0) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.full_like(p, g)
    optimizer.step()


def group_settings(rule, **options):
    """The settings of a group with this rule and a learning rate of 0.5, and nothing else set."""
    nothing = {"lr": 0.5, "decay": 0.0, "decay_form": "coupled", "rescale": 1.0, "clip": None, "scaled": True}
    return GroupSettings(rule=rule, **{**nothing, **options})
