"""Modules and models by LBANN's names, in graphs with a script's own layers."""

import importlib

import numpy as np
import pytest
import torch

import descend
import descend.lbann as lbann
import descend.zoo.modules
from descend.experiment.text import classes
from descend.graph import text

PATHS = {
    "modules": "FullyConnectedModule ChannelwiseFullyConnectedModule ConvolutionModule Convolution2dModule "
    "Convolution3dModule LSTMCell GRU ChannelwiseGRU MultiheadAttention Gelu Gelu_approx Silu Permute Cumsum "
    "PeriodicPadding2D PeriodicPadding3D PytorchMatmul PytorchLinear PytorchLayerNorm Module GCNConv GINConv GraphConv "
    "GatedGraphConv NNConv DenseGCNConv DenseGraphConv DenseNNConv GraphExpand GraphReduce",
    "modules.graph": "GCNConv DenseGCNConv",
    "modules.graph.sparse": "GINConv NNConv",
    "modules.graph.dense": "DenseGraphConv DenseNNConv",
    "modules.transformer": "MultiheadAttention",
    "modules.transformer.encoding": "PositionalEncoding LearnedInputEncoding RotaryPositionalEmbedding",
    "modules.transformer.attention": "MultiheadAttention",
    "modules.transformer.attention_allsubgraph": "MultiheadAttentionAllsubGraph",
    "modules.subgraph.transformer": "MultiheadAttentionAllsubGraph",
    "modules.activations": "Gelu Silu",
    "modules.transformations": "Permute Cumsum",
    "modules.pytorch": "PytorchLinear",
    "modules.rnn": "LSTMCell",
    "models": "AlexNet LeNet ResNet18 ResNet34 ResNet50 ResNet101 ResNet152 RoBERTa Transformer "
    "TransformerEncoderLayer TransformerDecoderLayer",
    "models.resnet": "ResNet50",
    "models.lenet": "LeNet",
    "models.alexnet": "AlexNet",
    "models.roberta": "RoBERTa",
    "models.transformer": "Transformer",
    "models.subgraph.transformer": "Transformer",
    "contrib.models.wide_resnet": "WideResNet50_2",
    "contrib.modules": "FFTShift RadialProfile CrossEntropyWithUncertainty GroupLasso L1WeightRegularization "
    "GeometricDistributionNegativeLogLikelihood PoissonDistributionNegativeLogLikelihood "
    "PolyaDistributionNegativeLogLikelihood",
    "contrib.modules.fftshift": "FFTShift",
    "contrib.modules.radial_profile": "RadialProfile",
}


@pytest.mark.parametrize("path", PATHS)
def test_names_are_where_lbann_has_them(path):
    module = importlib.import_module(f"descend.lbann.{path}")
    assert [name for name in PATHS[path].split() if name not in module.__all__] == []


def test_the_network_of_the_quick_start_is_a_graph_that_passes_the_check():
    images = lbann.Input(data_field="samples")
    labels = lbann.Input(data_field="labels")
    predicted = lbann.Softmax(lbann.models.LeNet(10)(images))
    loss = lbann.CrossEntropy(predicted, labels)
    accuracy = lbann.CategoricalAccuracy(predicted, labels)
    model = lbann.Model(
        20,
        layers=lbann.traverse_layer_graph([images, labels]),
        objective_function=loss,
        metrics=[lbann.Metric(accuracy, name="accuracy", unit="%")],
        callbacks=[lbann.CallbackPrintModelDescription(), lbann.CallbackPrint(), lbann.CallbackTimer()],
    )
    found = text.to_value(model.export_proto(), classes())
    plan = descend.graph.check(found, {"samples": (1, 28, 28), "labels": (10,)})
    assert sum(np.prod(one.shape) for one in plan.weights.values()) == 44426  # LeNet-5 with 28 x 28 images


def test_layers_of_modules_have_the_modules_name_and_the_calls_number():
    lbann.modules.FullyConnectedModule.global_count = 0
    fc = lbann.modules.FullyConnectedModule(3, activation=lbann.Relu)
    x = lbann.Input(data_field="x")
    first, second = fc(x), fc(x)
    assert [first.parents[0].name, first.name] == ["fc1", "fc1_activation"]
    assert [second.parents[0].name, second.name] == ["fc1_instance2", "fc1_instance2_activation"]
    assert first.parents[0].weights is not second.parents[0].weights
    assert first.parents[0].weights == second.parents[0].weights
    assert (fc.instance, lbann.modules.FullyConnectedModule.global_count) == (2, 1)


def test_a_module_of_a_script_counts_its_calls_itself():
    class Twice(lbann.modules.Module):
        def __init__(self):
            super().__init__()
            self.fc = lbann.modules.FullyConnectedModule(2, name="inner")

        def forward(self, x):
            self.instance += 1
            return self.fc(self.fc(x))

    lbann.modules.Module.global_count = 0
    twice = Twice()
    assert (twice.name, lbann.modules.Module.global_count) == ("module1", 1)
    twice(lbann.Input(data_field="x"))
    twice(lbann.Input(data_field="x"))
    assert twice.instance == 2
    assert twice.fc.instance == 4


def test_weights_of_attention_may_be_replaced():
    attention = lbann.modules.MultiheadAttention(4, 2, name="att")
    own = lbann.Weights(initializer=lbann.ConstantInitializer(value=1), name="own")
    attention.query_weights = [own, lbann.Weights(name="own_bias")]
    x = lbann.Input(data_field="x")
    y = attention(x, x, x)
    model = lbann.Model(0, lbann.traverse_layer_graph(y))
    assert own in model.weights
    assert "att_query_matrix" not in [one.name for one in model.weights]
    assert hasattr(lbann.modules.MultiheadAttention(4, 2, self_attention=True), "qkv_weights")


def test_the_edge_network_takes_lbann_s_arguments():
    """The features of an edge's other node come as a layer, and no source indices."""
    nodes, edges, into, out = 4, 6, 3, 2

    def result(make):
        fields = [descend.Input(data_field=name) for name in ("x", "s", "t", "e")]
        nn = [lbann.modules.ChannelwiseFullyConnectedModule(into * out, name="nn"), lbann.Tanh]
        y = make(nn, *fields)
        shapes = {"x": (nodes, into), "s": (edges,), "t": (edges,), "e": (edges, 2)}
        module = descend.Model(0, [y]).to_torch(fields=shapes, outputs=[y.name])
        with torch.no_grad():
            for number, p in enumerate(module.parameters()):
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape) * (number + 1))
        draws = torch.Generator().manual_seed(3)
        x, e = torch.randn(2, nodes, into, generator=draws), torch.randn(2, edges, 2, generator=draws)
        s, t = (torch.randint(0, nodes, (2, edges), generator=draws).float() for _ in range(2))
        return module(x, s, t, e)

    def ours(nn, x, s, t, e):
        return descend.modules.NNConv(nn, nodes, into, out, False, lbann.Relu, name="g")(x, s, t, e)

    def theirs(nn, x, s, t, e):
        return lbann.modules.NNConv(nn, nodes, edges, into, out, 2, name="g")(x, lbann.Gather(x, s, axis=0), e, t)

    found = result(theirs)
    assert found.abs().max() > 0.1
    torch.testing.assert_close(found, result(ours))


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda m, **more: m.GCNConv(3, 2, 4, True, lbann.Relu, "g", **more), "x s t"),
        (lambda m, **more: m.GraphConv(3, 2, 4, 6, True, lbann.Relu, "g", **more), "x s t"),
        (lambda m, **more: m.GatedGraphConv(3, 3, 4, 6, 2, **more), "x s t"),
        (lambda m, **more: m.DenseGCNConv(3, 2, **more), "x a"),
        (lambda m, **more: m.DenseGraphConv(3, 2, **more), "x a"),
        (
            lambda m, **more: m.NNConv([lbann.modules.ChannelwiseFullyConnectedModule(6)], 4, 6, 3, 2, 2, **more),
            "x n e t",
        ),
    ],
)
def test_modules_of_graphs_hand_a_parallel_strategy_to_their_maps(make, fields):
    y = make(lbann.modules.graph, parallel_strategy={"sample_groups": 2})(
        *(lbann.Input(data_field=name) for name in fields.split())
    )
    maps = [one for one in lbann.traverse_layer_graph(y) if type(one).__name__ == "ChannelwiseFullyConnected"]
    found = [one for one in maps if one.parallel_strategy and one.parallel_strategy.sample_groups == 2]
    assert found
