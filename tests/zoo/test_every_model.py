"""Properties of every network and module of the zoo: round trip through the text, complete names, and it learns.

A class of the zoo that has no row here fails `test_the_table_has_every_network_and_module`.
"""

import pytest
import torch

import descend
from descend import modules, zoo
from descend.graph import check, from_text, text, to_text
from descend.lower import lower
from descend.runtime import generator

IMAGE, SEQUENCE, TOKENS, LINE = (3, 16, 16), (5, 8), (6,), (12,)
SMALL = {
    "vocab_size": 8,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 9,
    "sequence_length": 6,
}


def line_of(numbers, name):
    start = descend.ValueInitializer(values=numbers)
    weights = descend.Weights(start, descend.NoOptimizer(), name=name)
    return descend.WeightsLayer(dims=[len(numbers)], weights=[weights], name=f"{name}_layer")


def graph_of(make):
    """A sparse graph network on five nodes of eight features in a ring."""
    return lambda x: make()(x, line_of([0, 1, 2, 3, 4], "from"), line_of([1, 2, 3, 4, 0], "to"))


def dense_of(make, *more):
    """A dense one on the same nodes, its matrix made of the features."""

    def built(x):
        matrix = descend.Softmax(descend.MatMul(x, x, transpose_b=True, name="square"), name="matrix")
        return make()(x, matrix, *(one(x) for one in more))

    return built


def pairs(x):
    return descend.Tessellate(x, dims=[25, 8], name="pairs")


def unrolled(cell):
    """A cell along the five places of a sequence."""

    def built(x):
        cut = descend.Slice(x, slice_points=range(6), name="cut")
        places = [descend.Reshape(cut, dims=[8], name=f"place{i}") for i in range(5)]
        module, state = cell(), None
        for place in places:
            y, state = module(place, state)
        return y

    return built


def channel_gru(x):
    cell = modules.ChannelwiseGRU(5, 4)
    return cell(x, cell(x)[1])[0]


def nn(size):
    return [modules.ChannelwiseFullyConnectedModule(size, bias=True), descend.Tanh]


def penalized(penalty):
    def built(x):
        w = descend.Weights(descend.HeNormalInitializer(), name="w")
        y = descend.FullyConnected(x, num_neurons=3, weights=[w], name="fc")
        return descend.Concatenation(y, penalty(w))

    return built


def share(x, name):
    return descend.Sigmoid(descend.FullyConnected(x, num_neurons=4, name=name), name=f"{name}_share")


def counts():
    return line_of([0, 1, 2, 5], "counts")


# Name, layers from an input of the shape to an output, and the shape.
NETWORKS = {
    "AlexNet": (lambda x: zoo.AlexNet(4)(x), (3, 67, 67)),
    "LeNet": (lambda x: zoo.LeNet(4)(x), IMAGE),
    "MLP": (lambda x: zoo.MLP([8, 4], descend.Tanh, dropout=0.1)(x), LINE),
    **{
        name: (
            lambda x, name=name: getattr(zoo, name)(4, zero_init_residual=False, small_images=True)(x),
            (3, 8, 8),
        )
        for name in ("ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152", "WideResNet50_2")
    },
    "ResNet": (lambda x: zoo.ResNet(4, (1, 1, 1, 1), True, gamma_0=0.5)(x), (3, 32, 32)),
    "TransformerEncoderLayer": (lambda x: zoo.TransformerEncoderLayer(8, 2, 16)(x), SEQUENCE),
    "TransformerDecoderLayer": (lambda x: zoo.TransformerDecoderLayer(8, 2, 16)(x, x), SEQUENCE),
    "Transformer": (lambda x: zoo.Transformer(8, 2, 1, 1)(x, 5, x, 5), SEQUENCE),
    "BERT": (lambda x: zoo.BERT(zoo.bert_config(**SMALL))(x)[1], TOKENS),
    "RoBERTa": (lambda x: zoo.RoBERTa(zoo.EncoderConfig(**SMALL))(x)[1], TOKENS),
    "GPT": (lambda x: zoo.GPT(8, 6, 8, 1, 2)(x), TOKENS),
    "lenet": (lambda x: zoo.lenet(x), (1, 28, 28)),
    "small_lenet": (lambda x: zoo.small_lenet(x), (1, 8, 8)),
}
MODULES = {
    "FullyConnectedModule": (lambda x: modules.FullyConnectedModule(3)(x), LINE),
    "ChannelwiseFullyConnectedModule": (lambda x: modules.ChannelwiseFullyConnectedModule([2, 2])(x), SEQUENCE),
    "ConvolutionModule": (lambda x: modules.ConvolutionModule(1, 2, 3, groups=1, padding=1)(x), SEQUENCE),
    "Convolution2dModule": (lambda x: modules.Convolution2dModule(2, [3, 2], dilation=2)(x), IMAGE),
    "Convolution3dModule": (lambda x: modules.Convolution3dModule(2, 2, transpose=True)(x), (1, 3, 4, 2)),
    "LSTMCell": (unrolled(lambda: modules.LSTMCell(3)), SEQUENCE),
    "GRU": (unrolled(lambda: modules.GRU(3)), SEQUENCE),
    "ChannelwiseGRU": (channel_gru, SEQUENCE),
    "MultiheadAttention": (lambda x: modules.MultiheadAttention(4, 2, self_attention=True)(x), SEQUENCE),
    "MultiheadAttentionAllsubGraph": (lambda x: modules.MultiheadAttentionAllsubGraph(4, 2, branches=2)(x), SEQUENCE),
    "PositionalEncoding": (lambda x: modules.MultiheadAttention(4, 2)(modules.PositionalEncoding(8)(x, 5)), SEQUENCE),
    "LearnedInputEncoding": (lambda x: modules.LearnedInputEncoding(8, 9)(x, 5), SEQUENCE),
    "RotaryPositionalEmbedding": (
        lambda x: modules.MultiheadAttention(
            4, 2, positional_encoding=modules.RotaryPositionalEmbedding(2, 5), batch_heads=False
        )(x),
        SEQUENCE,
    ),
    "Gelu": (lambda x: modules.FullyConnectedModule(3, activation=modules.Gelu)(x), LINE),
    "Gelu_approx": (lambda x: modules.FullyConnectedModule(3, activation=modules.Gelu_approx)(x), LINE),
    "Silu": (lambda x: modules.FullyConnectedModule(3, activation=modules.Silu)(x), LINE),
    "Permute": (lambda x: modules.FullyConnectedModule(3)(modules.Permute(x, SEQUENCE)), SEQUENCE),
    "Cumsum": (lambda x: modules.FullyConnectedModule(3)(modules.Cumsum(x, SEQUENCE, 1)), SEQUENCE),
    "PeriodicPadding2D": (lambda x: modules.Convolution2dModule(2, 3)(modules.PeriodicPadding2D(x, 16, 16)), IMAGE),
    "PeriodicPadding3D": (
        lambda x: modules.Convolution3dModule(2, 3)(modules.PeriodicPadding3D(x, 3, 4, 2)),
        (1, 3, 4, 2),
    ),
    "FFTShift": (lambda x: modules.Convolution2dModule(2, 3)(modules.FFTShift()(x, IMAGE)), IMAGE),
    "RadialProfile": (lambda x: modules.FullyConnectedModule(3)(modules.RadialProfile()(x, IMAGE, 5)), IMAGE),
    "PytorchMatmul": (
        lambda x: modules.FullyConnectedModule(3)(modules.PytorchMatmul(x, SEQUENCE, line_of(range(8), "line"), (8,))),
        SEQUENCE,
    ),
    "PytorchLinear": (lambda x: modules.PytorchLinear(x, SEQUENCE, 3), SEQUENCE),
    "PytorchLayerNorm": (lambda x: modules.PytorchLayerNorm(x, 1e-5, SEQUENCE), SEQUENCE),
    "GCNConv": (graph_of(lambda: modules.GCNConv(8, 3, 5)), SEQUENCE),
    "GINConv": (graph_of(lambda: modules.GINConv(nn(3), 8, 3, 5)), SEQUENCE),
    "GraphConv": (graph_of(lambda: modules.GraphConv(8, 3, 5)), SEQUENCE),
    "GatedGraphConv": (graph_of(lambda: modules.GatedGraphConv(8, 9, 5, num_layers=2)), SEQUENCE),
    "NNConv": (
        lambda x: modules.NNConv(nn(24), 5, 8, 3)(
            x, line_of([0, 1, 2, 3, 4], "from"), line_of([1, 2, 3, 4, 0], "to"), x
        ),
        SEQUENCE,
    ),
    "DenseGCNConv": (dense_of(lambda: modules.DenseGCNConv(8, 3)), SEQUENCE),
    "DenseGraphConv": (dense_of(lambda: modules.DenseGraphConv(8, 3)), SEQUENCE),
    "DenseNNConv": (dense_of(lambda: modules.DenseNNConv(nn(24), 5, 8, 3), pairs), SEQUENCE),
    "GraphExpand": (
        lambda x: modules.PytorchLinear(modules.GraphExpand(x, line_of([4, 0], "index")), (2, 8), 3),
        SEQUENCE,
    ),
    "GraphReduce": (
        lambda x: modules.PytorchLinear(modules.GraphReduce(x, line_of([0, 0, 1, 2, 2], "index"), [3, 8]), (3, 8), 3),
        SEQUENCE,
    ),
    "LabelSmoothing": (lambda x: modules.LabelSmoothing(3)(share(x, "a")), LINE),
    "CrossEntropyWithUncertainty": (
        lambda x: modules.CrossEntropyWithUncertainty()(share(x, "a"), line_of([1, 0, 1, 0], "label")),
        LINE,
    ),
    "GeometricDistributionNegativeLogLikelihood": (
        lambda x: modules.GeometricDistributionNegativeLogLikelihood()(share(x, "a"), counts()),
        LINE,
    ),
    "PoissonDistributionNegativeLogLikelihood": (
        lambda x: modules.PoissonDistributionNegativeLogLikelihood()(share(x, "a"), counts()),
        LINE,
    ),
    "PolyaDistributionNegativeLogLikelihood": (
        lambda x: modules.PolyaDistributionNegativeLogLikelihood()(share(x, "a"), share(x, "b"), counts()),
        LINE,
    ),
    "L1WeightRegularization": (penalized(lambda w: modules.L1WeightRegularization(w, [3, 12])()), LINE),
    "GroupLasso": (penalized(lambda w: modules.GroupLasso(w)()), LINE),
}
ALL = {**NETWORKS, **MODULES}
DEEP = ("AlexNet", "ResNet34", "ResNet50", "ResNet101", "ResNet152", "WideResNet50_2")


@pytest.fixture(autouse=True)
def from_one(monkeypatch):
    """Names that do not depend on the tests before."""
    for cls in [*vars(modules).values(), *vars(zoo).values()]:
        if isinstance(cls, type) and issubclass(cls, modules.Module):
            monkeypatch.setattr(cls, "global_count", 0)


def test_the_table_has_every_network_and_module():
    no_networks = "EncoderConfig PositionalEncoding bert_config demo_experiment digits fashion_mnist models modules"
    no_networks += " next_token_loss python_text"
    assert set(NETWORKS) == set(zoo.__all__) - set(no_networks.split())
    assert set(MODULES) == set(modules.__all__) - {"Module"}


def model_of(name):
    make, shape = ALL[name]
    x = descend.Input(data_field="x", name="x")
    y = make(x)
    loss = descend.L2Norm2(y, name="loss")
    return descend.Model(2, objective_function=loss, metrics=[descend.Metric(loss)]), {"x": shape}


@pytest.mark.parametrize("name", ALL)
def test_text_and_binary_are_mirrors(name):
    model, fields = model_of(name)
    written = to_text(model)
    assert from_text(written) == model
    assert to_text(from_text(written)) == written
    binary = text.parse_binary(text.render_binary(model), message="Model")
    assert text.to_value(binary, descend.graph.CLASSES) == model
    plan, again = check(model, fields), check(from_text(written), fields)
    assert [(p.name, p.parents, p.output_shapes, p.weights) for p in plan.layers] == [
        (p.name, p.parents, p.output_shapes, p.weights) for p in again.layers
    ]
    assert {n: (w.shape, w.initializer) for n, w in plan.weights.items()} == {
        n: (w.shape, w.initializer) for n, w in again.weights.items()
    }


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in DEEP else n for n in ALL])
def test_it_trains(name):
    """A small step against the gradient makes the squared norm of its output smaller; every parameter changes."""
    model, fields = model_of(name)
    module = lower(check(model, fields), lambda weights: generator(1, weights))
    draw = torch.Generator().manual_seed(0)
    shape = (4, *fields["x"])
    x = (
        torch.randint(1, 8, shape, generator=draw).float()
        if fields["x"] == TOKENS
        else torch.randn(shape, generator=draw)
    )
    module, x = module.double(), x.double()  # the deepest have gradients so large that float32 hides such a step
    loss = module({"x": x}, seed=0)["loss"].mean()
    loss.backward()
    weights = list(module.parameters())
    with torch.no_grad():
        square = sum(float(p.grad.double().square().sum()) for p in weights)
        for p in weights:
            p -= 1e-3 * loss / square * p.grad  # to lose a thousandth
        assert module({"x": x}, seed=0)["loss"].mean() < loss
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    descend.optim.Adam(module.named_parameters(), lr=1e-3).step()
    assert all(not torch.equal(p, before[n]) for n, p in module.named_parameters())
