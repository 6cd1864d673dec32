"""The base of a script's own modules, and the modules of fully connected and convolution layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.graph import Layer, Relu
from descend.zoo import modules
from descend.zoo.modules import (
    ChannelwiseFullyConnectedModule,
    Convolution2dModule,
    Convolution3dModule,
    ConvolutionModule,
    FullyConnectedModule,
    GraphReduce,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.zoo.modules.module import Activation

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


class NNConv(modules.NNConv):
    """`descend.modules.NNConv` with LBANN's arguments: the features of each edge's other node come as a layer.

    Args:
        sequential_nn: Modules and kinds of layers from features of edges to matrices.
        num_nodes: Number of nodes.
        num_edges: Number of edges.
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        edge_input_channels: Features of each edge.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `nnconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.
    """

    def __init__(
        self,
        sequential_nn: Sequence[Any],
        num_nodes: int,
        num_edges: int,
        input_channels: int,
        output_channels: int,
        edge_input_channels: int,
        activation: Activation | Layer | None = Relu,
        name: str | None = None,
        parallel_strategy: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(
            sequential_nn, num_nodes, input_channels, output_channels, False, activation, name, parallel_strategy
        )
        del num_edges, edge_input_channels  # the layers that are given have these

    def forward(self, x: Layer, sources: Layer, targets: Layer, edges: Layer) -> Layer:
        """The layers of a call, in LBANN's order of arguments.

        Args:
            x: Features of the nodes, (nodes, input_channels).
            sources: Features of the other node of each edge, (E, input_channels) or (E, 1, input_channels).
            targets: Features of the edges, (E, features).
            edges: For each edge the node that it goes to, (E,).
        """
        neighbours, edge_features, ends = sources, targets, edges
        messages = self._messages(edge_features, neighbours)
        dims = [self.num_nodes, self.output_channels]
        return self._mixed(x, GraphReduce(messages, ends, dims, self.label("neighbours")))
