"""Functions whose gradient is not what calculus, or torch, says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["with_gradient"]


def with_gradient(
    value: Callable[..., Tensor], gradient: Callable[..., Tensor | tuple[Tensor | None, ...]]
) -> Callable[..., Tensor]:
    """A function of tensors with a gradient rule of its own.

    Args:
        value: The function.
        gradient: Takes the gradient of the output, the output, and the inputs; returns the gradient of each input.
    """

    class Ruled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Tensor:
            return value(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(output, *inputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradient(gradients[0], *ctx.saved_tensors)

    return cast("Callable[..., Tensor]", Ruled.apply)
