"""Graph networks against dense sums over nodes, written out."""

import pytest
import torch

import descend
from descend.errors import ConfigurationError
from descend.zoo import modules
from tests.zoo.lowered import agree, random

NODES, INTO, OUT = 4, 3, 5
# Two samples with edges of their own; −1 fills up. Node 3 of the first has none, and an edge may occur twice.
SOURCES = torch.tensor([[0, 1, 2, 0, 0, -1], [3, 3, 2, 1, 0, 2]], dtype=torch.float64)
TARGETS = torch.tensor([[1, 0, 1, 2, 2, -1], [2, 1, 3, 3, 0, 2]], dtype=torch.float64)


def adjacency():
    a = torch.zeros(2, NODES, NODES, dtype=torch.float64)
    for sample, (sources, targets) in enumerate(zip(SOURCES.long(), TARGETS.long(), strict=True)):
        for j, i in zip(sources, targets, strict=True):
            if j >= 0:
                a[sample, i, j] += 1
    return a


def linear(get, part):
    return get(f"g_{part}_matrix").T


def kipf(get, a, x):
    a = a + torch.eye(NODES, dtype=torch.float64)
    d = a.sum(2).rsqrt()
    return (d[:, :, None] * a * d[:, None, :]) @ x @ linear(get, "linear") + get("g_linear_bias")


def test_gcn_is_kipfs():
    x = random(2, NODES, INTO)
    sparse = lambda x, s, t: modules.GCNConv(INTO, OUT, NODES, name="g")(x, s, t)  # noqa: E731
    agree(sparse, lambda get, x, s, t: kipf(get, adjacency(), x), x, SOURCES, TARGETS)
    dense = lambda x, a: modules.DenseGCNConv(INTO, OUT, activation=descend.Relu, name="g")(x, a)  # noqa: E731
    agree(dense, lambda get, x, a: torch.relu(kipf(get, a, x)), x, random(2, NODES, NODES).abs())
    given = lambda x, a: modules.DenseGCNConv(INTO, OUT, bias=False, normalized=True, name="g")(x, a)  # noqa: E731
    agree(given, lambda get, x, a: a @ x @ linear(get, "linear"), x, random(2, NODES, NODES))


def test_graph_conv_has_a_map_for_itself_and_one_for_its_neighbours():
    def twin(get, a, x):
        return x @ linear(get, "own") + a @ x @ linear(get, "neighbours") + get("g_own_bias")

    x = random(2, NODES, INTO)
    sparse = lambda x, s, t: modules.GraphConv(INTO, OUT, NODES, name="g")(x, s, t)  # noqa: E731
    agree(sparse, lambda get, x, s, t: twin(get, adjacency(), x), x, SOURCES, TARGETS)
    dense = lambda x, a: modules.DenseGraphConv(INTO, OUT, name="g")(x, a)  # noqa: E731
    agree(dense, lambda get, x, a: twin(get, a, x), x, random(2, NODES, NODES))


def test_gin_maps_the_sum():
    nn = [modules.ChannelwiseFullyConnectedModule(OUT, name="g_first"), descend.Tanh]
    make = lambda x, s, t: modules.GINConv(nn, INTO, OUT, NODES, eps=0.3, name="g")(x, s, t)  # noqa: E731
    twin = lambda get, x, s, t: torch.tanh((1.3 * x + adjacency() @ x) @ linear(get, "first"))  # noqa: E731
    agree(make, twin, random(2, NODES, INTO), SOURCES, TARGETS)


@pytest.mark.parametrize(("into", "layers"), [(INTO, 1), (INTO, 3), (OUT, 2)])
def test_gated_graph_conv_is_a_gru_on_messages(into, layers):
    def twin(get, x, s, t):
        h = torch.nn.functional.pad(x, (0, OUT - into))
        weights = [get(f"g_gru_{part}_fc_{kind}") for kind in ("matrix", "bias") for part in ("ih", "hh")]
        for i in range(layers):
            message = adjacency() @ h @ linear(get, f"linear{i + 1}")
            h = torch.gru_cell(message.flatten(0, 1), h.flatten(0, 1), *weights).view(2, NODES, OUT)
        return h

    make = lambda x, s, t: modules.GatedGraphConv(into, OUT, NODES, num_layers=layers, name="g")(x, s, t)  # noqa: E731
    agree(make, twin, random(2, NODES, into), SOURCES, TARGETS)


def test_nn_conv_has_a_matrix_for_each_edge():
    def nn():
        return [modules.ChannelwiseFullyConnectedModule(INTO * OUT, bias=True, activation=descend.Tanh, name="g_nn")]

    def maps(get, edges):
        return torch.tanh(edges @ linear(get, "nn") + get("g_nn_bias")).unflatten(-1, (INTO, OUT))

    def sparse_twin(get, x, s, t, edges):
        y = x @ linear(get, "own") + get("g_own_bias")
        terms = torch.einsum(
            "bei,beio->beo", x.gather(1, s.long().clamp_min(0)[..., None].expand(-1, -1, INTO)), maps(get, edges)
        )
        ends = torch.nn.functional.one_hot(t.long().clamp_min(0), NODES).double() * (t >= 0)[..., None]
        return y + ends.mT @ terms

    sparse = lambda x, s, t, e: modules.NNConv(nn(), NODES, INTO, OUT, name="g")(x, s, t, e)  # noqa: E731
    agree(sparse, sparse_twin, random(2, NODES, INTO), SOURCES, TARGETS, random(2, 6, 2, seed=3))

    def dense_twin(get, x, a, edges):
        pairs = maps(get, edges.unflatten(1, (NODES, NODES)))
        return x @ linear(get, "own") + get("g_own_bias") + torch.einsum("bnj,bjc,bnjco->bno", a, x, pairs)

    dense = lambda x, a, e: modules.DenseNNConv(nn(), NODES, INTO, OUT, name="g")(x, a, e)  # noqa: E731
    agree(dense, dense_twin, random(2, NODES, INTO), random(2, NODES, NODES), random(2, NODES**2, 2, seed=3))


def test_a_state_cannot_be_smaller_than_the_features():
    with pytest.raises(ConfigurationError, match="has 3 input_channels and 2 output_channels; it pads"):
        modules.GatedGraphConv(3, 2, 4)
