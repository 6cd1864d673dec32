"""Patches of a module's layers while it is trained: reproducible dropout and synchronized batch norm."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from descend.torch_private import dynamo_is_imported

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


# ---- a `forward` of one layer that copies of the layer do not have


class ReplacedForward:
    """Stands in the place of a layer's `forward`: set as its attribute, and deleted when it is to have its own again.

    A module may be copied or saved while it is trained. The layers of a copy have the `forward` of their class: the
    replacement is about this training, and knows the first layer alone. In a module that torch.compile compiles it is
    called as it is, between two graphs.

    Args:
        layer: The layer.
        call: What is called.
    """

    def __init__(self, layer: nn.Module, call: Callable[..., Any]) -> None:
        self._layer = layer
        self._call = torch.compiler.disable(call) if dynamo_is_imported() else call

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The output for the inputs of the layer."""
        return self._call(*inputs, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> MethodType:
        copied = memo.get(id(self._layer), self._layer)
        return MethodType(type(copied).forward, copied)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[nn.Module, str]]:
        return getattr, (self._layer, "forward")
