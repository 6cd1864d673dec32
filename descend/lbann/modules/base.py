"""The base of a script's own modules, and the modules of fully connected and convolution layers."""

from __future__ import annotations

from typing import Any, ClassVar

from descend.zoo import modules
from descend.zoo.modules import (
    ChannelwiseFullyConnectedModule,
    Convolution2dModule,
    Convolution3dModule,
    ConvolutionModule,
    FullyConnectedModule,
)

__all__ = [
    "ChannelwiseFullyConnectedModule",
    "Convolution2dModule",
    "Convolution3dModule",
    "ConvolutionModule",
    "FullyConnectedModule",
    "Module",
]


class Module(modules.Module):
    """Base of a script's own modules: a call is `forward`. As in LBANN, `forward` itself counts `instance` up."""

    prefix: ClassVar[str] = "module"  # counted here, where scripts set `global_count` back

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Make the layers of one more call; see `forward`."""
        return self.forward(*args, **options)
