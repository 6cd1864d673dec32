"""What a weight is to its layer, so that an arm can say which rule it gets.

    matrix         weights of linear layers and everything else of two dimensions or more
    convolution    kernels
    embedding      tables
    head           the last layer that maps to the output; it is also the matrix or convolution that it is
    bias           offsets of layers that are no normalization
    norm           scales and offsets of normalization

An arm writes `roles.bias+norm.optimizer = "SGD"`, `roles.head.lr_mult = 0.1`; a later, narrower entry holds over an
earlier one. `weights` stands for matrix, convolution, embedding and head; `vectors` for bias and norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend import torch_private
from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

__all__ = ["ROLES", "check_roles", "roles_of", "split_roles", "unmatched"]

ROLES = ("matrix", "convolution", "embedding", "head", "bias", "norm")
GROUPS = {"weights": ("matrix", "convolution", "embedding", "head"), "vectors": ("bias", "norm")}


def split_roles(text: str) -> tuple[str, ...]:
    """The roles that `bias+norm` or `vectors` stands for.

    Raises:
        ConfigurationError: one of them is unknown.
    """
    found: list[str] = []
    for part in text.split("+"):
        if part not in ROLES and part not in GROUPS:
            known = (*ROLES, *GROUPS)
            raise ConfigurationError(
                f"there is no role '{part}'{nearest(part, known) or ';'} there are {', '.join(known)}"
            )
        found.extend(GROUPS.get(part, (part,)))
    return tuple(found)


def check_roles(names: list[str]) -> list[str]:
    """Problems of settings of the form `roles.WHICH.OPTION`."""
    problems: list[str] = []
    for name in names:
        parts = name.split(".")
        if parts[0] != "roles":
            continue
        if len(parts) != 3:
            problems.append(f"'{name}' must be of the form roles.WHICH.OPTION, such as roles.bias+norm.lr_mult")
            continue
        try:
            split_roles(parts[1])
        except ConfigurationError as error:
            problems.extend(f"'{name}': {problem}" for problem in error.problems)
    return problems


def unmatched(names: Iterable[str], module: torch.nn.Module) -> list[str]:
    """Problems of settings `roles.WHICH.OPTION` for which the module has no trained weight."""
    there = roles_of(module)
    trained = {there[name] for name, p in module.named_parameters() if p.requires_grad}
    return [
        f"'{name}' is for weights of a role that the module has none of; its trained weights are of the roles "
        f"{', '.join(role for role in ROLES if role in trained)}"
        for name in names
        if name.startswith("roles.") and not trained & set(split_roles(name.split(".")[1]))
    ]


def roles_of(module: torch.nn.Module) -> dict[str, str]:
    """The role of every trained weight, by its name.

    The head is the last module with weights of its own of two dimensions or more in the order of `named_modules`. A
    module can say the roles of its weights itself, in a mapping `weight_roles`.
    """
    from torch import nn

    norms: Any = (
        torch_private.norm_class(),
        nn.LayerNorm,
        nn.GroupNorm,
        nn.RMSNorm,
    )
    convolutions = torch_private.convolution_class()
    found: dict[str, str] = {}
    owners = dict(module.named_modules())
    said: dict[str, str] = getattr(module, "weight_roles", {})
    for name, p in module.named_parameters():
        if name in said:
            found[name] = said[name]
            continue
        owner = owners[name.rpartition(".")[0]]
        if isinstance(owner, norms) or "norm" in type(owner).__name__.lower():
            found[name] = "norm"
        elif p.ndim < 2:
            found[name] = "bias"
        elif isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
            found[name] = "embedding"
        else:
            found[name] = "convolution" if isinstance(owner, convolutions) else "matrix"
    wide = [name for name, role in found.items() if role in ("matrix", "convolution")]
    if len(wide) > 1:
        found[wide[-1]] = "head"
    return found
