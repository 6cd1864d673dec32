"""Graph neural networks: message passing between neighbouring nodes.

Sparse modules are given edges as two lines of E node numbers, sources j and targets i; an edge with a number out of
range in both is left out, so samples with fewer edges are filled up with −1. Dense modules are given a matrix A of
(nodes, nodes), A_ij being the weight of the edge from j to i. Features are (nodes, channels), and so the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    Concatenation,
    Constant,
    Gather,
    Layer,
    MatMul,
    MultiDimReduction,
    Multiply,
    OperatorLayer,
    Reshape,
    Scale,
    Scatter,
    Tessellate,
    ops,
)
from descend.zoo.modules.dense import ChannelwiseFullyConnectedModule
from descend.zoo.modules.module import Module, activated
from descend.zoo.modules.recurrent import ChannelwiseGRU

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from descend.zoo.modules.module import Activation

__all__ = [
    "DenseGCNConv",
    "DenseGraphConv",
    "DenseNNConv",
    "GCNConv",
    "GINConv",
    "GatedGraphConv",
    "GraphConv",
    "GraphExpand",
    "GraphReduce",
    "NNConv",
]


def GraphExpand(features: Layer, indices: Layer, name: str | None = None) -> Layer:  # noqa: N802  # LBANN's name
    """(E, channels) the features of the node at the end of each edge; 0 for a number out of range."""
    return Gather(features, indices, axis=0, name=name)


def GraphReduce(  # noqa: N802  # LBANN's name
    features: Layer, indices: Layer, dims: Sequence[int], name: str | None = None
) -> Layer:
    """(nodes, channels) = dims: the sum of the features of all edges that end at each node."""
    return Scatter(features, indices, axis=0, dims=dims, name=name)


class _GraphModule(Module):
    """What all of these have: numbers of channels, an activation, and maps of each node's features.

    Args:
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `<prefix><N>` without one.
    """

    parallel_strategy: Mapping[str, Any] | None = None

    def __init__(
        self, input_channels: int, output_channels: int, activation: Activation | Layer | None, name: str | None
    ) -> None:
        super().__init__(name)
        self.input_channels, self.output_channels, self.activation = input_channels, output_channels, activation

    def _linear(self, part: str, bias: bool = False, size: int | None = None) -> ChannelwiseFullyConnectedModule:
        size = self.output_channels if size is None else size
        return ChannelwiseFullyConnectedModule(
            size, bias=bias, name=f"{self.name}_{part}", parallel_strategy=self.parallel_strategy
        )

    def _neighbours(self, x: Layer, sources: Layer, targets: Layer, dims: Sequence[int], part: str = "") -> Layer:
        """Σ_j x_j over the edges that end at each node."""
        edges = GraphExpand(x, sources, self.label(f"sources{part}"))
        return GraphReduce(edges, targets, dims, self.label(f"neighbours_sum{part}"))


class _NormalizedGraph(_GraphModule):
    """Y = D^(−½) (A + 1) D^(−½) X W + b, D the diagonal of the sums of rows of A + 1.

    Args:
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        bias: Whether there is b.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `<prefix><N>` without one.
    """

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        bias: bool = True,
        activation: Activation | Layer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(input_channels, output_channels, activation, name)
        self.linear = self._linear("linear", bias)

    def _normalized(self, x: Layer, degrees: Layer, neighbours: Callable[[Layer], Layer]) -> Layer:
        """The result from X, the number of neighbours of each node (nodes,), and the sum over neighbours."""
        chain = [ops.AddConstant(constant=1.0), ops.Rsqrt()]
        factor = OperatorLayer(degrees, ops=chain, name=self.label("factor"))
        column = Reshape(factor, dims=[-1, 1], name=self.label("factor_column"))
        ones = Constant(value=1.0, num_neurons=[1, self.input_channels], name=self.label("ones"))
        factors = MatMul(column, ones, name=self.label("factors"))
        scaled = Multiply(x, factors, name=self.label("scaled"))
        total = Add(neighbours(scaled), scaled, name=self.label("sum"))
        y = self.linear(Multiply(total, factors, name=self.label("mean")))
        return activated(self, y, self.activation)


class GCNConv(_NormalizedGraph):
    """Graph convolution: each node takes a mean of itself and of its neighbours, weighted by their degrees.

        y_i = W Σ_j x_j / √(d_i d_j) + b      over j = i and the sources j of edges to i;  d_i = 1 + edges to i

    Args:
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        num_nodes: Number of nodes.
        bias: Whether there is b.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `gcnconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.

    Source: Kipf and Welling 2017, equation 2, https://arxiv.org/abs/1609.02907
    """

    prefix: ClassVar[str] = "gcnconv"

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        num_nodes: int,
        bias: bool = True,
        activation: Activation | Layer | None = None,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        self.parallel_strategy = parallel_strategy  # before the maps are made
        super().__init__(input_channels, output_channels, bias, activation, name)
        self.num_nodes = num_nodes

    def forward(self, x: Layer, sources: Layer, targets: Layer) -> Layer:
        """Shapes: x (nodes, input_channels), sources and targets (E,); result (nodes, output_channels)."""
        chain = [ops.Scale(constant=0.0), ops.AddConstant(constant=1.0)]
        ones = OperatorLayer(targets, ops=chain, name=self.label("each_edge"))
        degrees = Scatter(ones, targets, dims=[self.num_nodes], name=self.label("degrees"))
        dims = [self.num_nodes, self.input_channels]
        return self._normalized(x, degrees, lambda scaled: self._neighbours(scaled, sources, targets, dims))


class DenseGCNConv(_NormalizedGraph):
    """Graph convolution by a matrix: Y = D^(−½) (A + 1) D^(−½) X W + b, D the sums of rows of A + 1.

    Args:
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        bias: Whether there is b.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        normalized: Whether A is given as D^(−½) (A + 1) D^(−½) already, so that Y = A X W + b.
        name: `densegcnconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.

    Source: as GCNConv.
    """

    prefix: ClassVar[str] = "densegcnconv"

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        bias: bool = True,
        activation: Activation | Layer | None = None,
        normalized: bool = False,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        self.parallel_strategy = parallel_strategy  # before the maps are made
        super().__init__(input_channels, output_channels, bias, activation, name)
        self.normalized = normalized

    def forward(self, x: Layer, matrix: Layer) -> Layer:
        """Shapes: x (nodes, input_channels), matrix (nodes, nodes); result (nodes, output_channels)."""
        if self.normalized:
            return activated(self, self.linear(MatMul(matrix, x, name=self.label("mean"))), self.activation)
        degrees = MultiDimReduction(matrix, mode="sum", axes=[1], name=self.label("degrees"))
        return self._normalized(x, degrees, lambda scaled: MatMul(matrix, scaled, name=self.label("neighbours")))


class _TwoMaps(_GraphModule):
    """y_i = W₁ x_i + W₂ Σ_j x_j + b."""

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        bias: bool,
        activation: Activation | Layer | None,
        name: str | None,
    ) -> None:
        super().__init__(input_channels, output_channels, activation, name)
        self.own, self.other = self._linear("own", bias), self._linear("neighbours")

    def _mixed(self, x: Layer, neighbours: Layer) -> Layer:
        y = Add(self.own(x), self.other(neighbours), name=self.label())
        return activated(self, y, self.activation)


class GraphConv(_TwoMaps):
    """y_i = W₁ x_i + W₂ Σ_j x_j + b over the sources j of edges to i.

    Args:
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        num_nodes: Number of nodes.
        num_edges: LBANN's argument; the edges are counted from what is given to the module.
        bias: Whether there is b.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `graphconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.

    Source: Morris et al. 2019, equation 5, https://arxiv.org/abs/1810.02244
    """

    prefix: ClassVar[str] = "graphconv"

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        num_nodes: int,
        num_edges: int | None = None,
        bias: bool = True,
        activation: Activation | Layer | None = None,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        self.parallel_strategy = parallel_strategy  # before the maps are made
        super().__init__(input_channels, output_channels, bias, activation, name)
        self.num_nodes = num_nodes

    def forward(self, x: Layer, sources: Layer, targets: Layer) -> Layer:
        """Shapes: x (nodes, input_channels), sources and targets (E,); result (nodes, output_channels)."""
        return self._mixed(x, self._neighbours(x, sources, targets, [self.num_nodes, self.input_channels]))


class DenseGraphConv(_TwoMaps):
    """Y = X W₁ + A X W₂ + b.

    Args:
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        bias: Whether there is b.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `densegraphconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.

    Source: as GraphConv.
    """

    prefix: ClassVar[str] = "densegraphconv"

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        bias: bool = True,
        activation: Activation | Layer | None = None,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        self.parallel_strategy = parallel_strategy  # before the maps are made
        super().__init__(input_channels, output_channels, bias, activation, name)

    def forward(self, x: Layer, matrix: Layer) -> Layer:
        """Shapes: x (nodes, input_channels), matrix (nodes, nodes); result (nodes, output_channels)."""
        return self._mixed(x, MatMul(matrix, x, name=self.label("neighbours_sum")))


def _applied(module: Module, layers: Sequence[Any], x: Layer, part: str) -> Layer:
    """x behind modules and kinds of layers, one after the other."""
    for i, one in enumerate(layers, 1):
        x = one(x, name=module.label(f"{part}{i}")) if isinstance(one, type) else one(x)
    return x


class GINConv(_GraphModule):
    """y_i = f((1 + ε) x_i + Σ_j x_j) over the sources j of edges to i.

    Args:
        sequential_nn: f: modules and kinds of layers for (nodes, channels), one after the other.
        input_channels: Features of each node.
        output_channels: Features of each node behind f.
        num_nodes: Number of nodes.
        num_edges: LBANN's argument; the edges are counted from what is given to the module.
        eps: ε.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `ginconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.

    Source: Xu et al. 2019, equation 4.1, https://arxiv.org/abs/1810.00826
    """

    prefix: ClassVar[str] = "ginconv"

    def __init__(
        self,
        sequential_nn: Sequence[Any],
        input_channels: int,
        output_channels: int,
        num_nodes: int,
        num_edges: int | None = None,
        eps: float = 1e-6,
        activation: Activation | Layer | None = None,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        self.parallel_strategy = parallel_strategy  # before the maps are made
        super().__init__(input_channels, output_channels, activation, name)
        self.layers, self.num_nodes, self.eps = list(sequential_nn), num_nodes, eps

    def forward(self, x: Layer, sources: Layer, targets: Layer) -> Layer:
        """Shapes: x (nodes, input_channels), sources and targets (E,); result (nodes, output_channels)."""
        neighbours = self._neighbours(x, sources, targets, [self.num_nodes, self.input_channels])
        total = Add(Scale(x, constant=1.0 + self.eps, name=self.label("own")), neighbours, name=self.label("sum"))
        return activated(self, _applied(self, self.layers, total, "nn"), self.activation)


class GatedGraphConv(_GraphModule):
    """A GRU at each node that is fed what its neighbours send: h ← gru(Σ_j Θ_l h_j, h) for l = 1, ..., num_layers.

    h begins as x with zeros up to output_channels.

    Args:
        input_channels: Features of each node.
        output_channels: Size of h; at least input_channels.
        num_nodes: Number of nodes.
        num_edges: LBANN's argument; the edges are counted from what is given to the module.
        num_layers: How often h is renewed, each time with a Θ of its own and the same GRU.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `gatedgraphconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.

    Source: Li et al. 2016, https://arxiv.org/abs/1511.05493
    """

    prefix: ClassVar[str] = "gatedgraphconv"

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        num_nodes: int,
        num_edges: int | None = None,
        num_layers: int = 1,
        activation: Activation | Layer | None = None,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        self.parallel_strategy = parallel_strategy  # before the maps are made
        super().__init__(input_channels, output_channels, activation, name)
        if output_channels < input_channels:
            raise ConfigurationError(
                f"GatedGraphConv '{self.name}' has {input_channels} input_channels and {output_channels} "
                "output_channels; it pads, so it cannot have fewer"
            )
        self.num_nodes = num_nodes
        self.linears = [self._linear(f"linear{i + 1}") for i in range(num_layers)]
        self.gru = ChannelwiseGRU(num_nodes, output_channels, name=f"{self.name}_gru")

    def forward(self, x: Layer, sources: Layer, targets: Layer) -> Layer:
        """Shapes: x (nodes, input_channels), sources and targets (E,); result (nodes, output_channels)."""
        missing = self.output_channels - self.input_channels
        if missing:
            zeros = Constant(value=0.0, num_neurons=[self.num_nodes, missing], name=self.label("zeros"))
            x = Concatenation(x, zeros, axis=1, name=self.label("padded"))
        dims = [self.num_nodes, self.output_channels]
        for i, linear in enumerate(self.linears, 1):
            message = self._neighbours(linear(x), sources, targets, dims, part=str(i))
            x, _ = self.gru(message, x)
        return activated(self, x, self.activation)


class _EdgeMaps(_GraphModule):
    """y_i = W x_i + Σ_j f(e_ij) x_j + b, f giving a matrix for the features of each edge.

    Args:
        sequential_nn: f: modules and kinds of layers from (edges, features) to (edges, input_channels ·
            output_channels); row by row a matrix (input_channels, output_channels) for each edge.
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        bias: Whether there is b.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `<prefix><N>` without one.
    """

    def __init__(
        self,
        sequential_nn: Sequence[Any],
        input_channels: int,
        output_channels: int,
        bias: bool,
        activation: Activation | Layer | None,
        name: str | None,
    ) -> None:
        super().__init__(input_channels, output_channels, activation, name)
        self.layers = list(sequential_nn)
        self.own = self._linear("own", bias)

    def _messages(self, edges: Layer, neighbours: Layer) -> Layer:
        """(edges, output_channels) from features of edges and of the nodes that they come from."""
        flat = _applied(self, self.layers, edges, "nn")
        maps = Reshape(flat, dims=[-1, self.input_channels, self.output_channels], name=self.label("maps"))
        rows = Reshape(neighbours, dims=[-1, 1, self.input_channels], name=self.label("rows"))
        products = MatMul(rows, maps, name=self.label("products"))
        return Reshape(products, dims=[-1, self.output_channels], name=self.label("messages"))

    def _mixed(self, x: Layer, messages: Layer) -> Layer:
        return activated(self, Add(self.own(x), messages, name=self.label()), self.activation)


class NNConv(_EdgeMaps):
    """y_i = W x_i + Σ_j f(e_ij) x_j + b over the edges from j to i, f giving a matrix for the features of each edge.

    Args:
        sequential_nn: f: modules and kinds of layers from (E, features) to (E, input_channels · output_channels); row
            by row a matrix (input_channels, output_channels) for each edge.
        num_nodes: Number of nodes.
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        bias: Whether there is b.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `nnconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.

    Source: Gilmer et al. 2017, https://arxiv.org/abs/1704.01212
    """

    prefix: ClassVar[str] = "nnconv"

    def __init__(
        self,
        sequential_nn: Sequence[Any],
        num_nodes: int,
        input_channels: int,
        output_channels: int,
        bias: bool = True,
        activation: Activation | Layer | None = None,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        self.parallel_strategy = parallel_strategy  # before the maps are made
        super().__init__(sequential_nn, input_channels, output_channels, bias, activation, name)
        self.num_nodes = num_nodes

    def forward(self, x: Layer, sources: Layer, targets: Layer, edges: Layer) -> Layer:
        """Shapes: x (nodes, input_channels), sources and targets (E,), edges (E, features)."""
        messages = self._messages(edges, GraphExpand(x, sources, self.label("sources")))
        total = GraphReduce(messages, targets, [self.num_nodes, self.output_channels], self.label("neighbours"))
        return self._mixed(x, total)


class DenseNNConv(_EdgeMaps):
    """y_i = W x_i + Σ_j A_ij f(e_ij) x_j + b, f giving a matrix for the features of each pair of nodes.

    Args:
        sequential_nn: f: modules and kinds of layers from (nodes², features) to (nodes², input_channels ·
            output_channels); row by row a matrix (input_channels, output_channels) for each pair.
        num_nodes: Number of nodes.
        input_channels: Features of each node.
        output_channels: Features of each node behind it.
        bias: Whether there is b.
        activation: Kind of the layer behind it, or a function of a layer and `name`.
        name: `densennconv<N>` without one.
        parallel_strategy: As in a layer; that of the maps of features.

    Source: as NNConv.
    """

    prefix: ClassVar[str] = "densennconv"

    def __init__(
        self,
        sequential_nn: Sequence[Any],
        num_nodes: int,
        input_channels: int,
        output_channels: int,
        bias: bool = True,
        activation: Activation | Layer | None = None,
        name: str | None = None,
        parallel_strategy: Mapping[str, Any] | None = None,
    ) -> None:
        self.parallel_strategy = parallel_strategy  # before the maps are made
        super().__init__(sequential_nn, input_channels, output_channels, bias, activation, name)
        self.num_nodes = num_nodes

    def forward(self, x: Layer, matrix: Layer, edges: Layer) -> Layer:
        """Shapes: x (nodes, input_channels), matrix (nodes, nodes), edges (nodes², features), row by row."""
        n = self.num_nodes
        copies = Tessellate(x, dims=[n * n, self.input_channels], name=self.label("sources"))  # row i · n + j is x_j
        pairs = Reshape(self._messages(edges, copies), dims=[n, n, self.output_channels], name=self.label("pairs"))
        rows = Reshape(matrix, dims=[n, 1, n], name=self.label("matrix_rows"))
        sums = MatMul(rows, pairs, name=self.label("sums"))
        return self._mixed(x, Reshape(sums, dims=[n, self.output_channels], name=self.label("neighbours")))
