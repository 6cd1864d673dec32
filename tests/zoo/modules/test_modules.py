"""Modules against torch's own, with the same weights."""

import pytest
import torch

import descend
from descend.errors import ConfigurationError
from descend.zoo import modules
from tests.zoo.lowered import lowered, random


@pytest.fixture(autouse=True)
def from_one(monkeypatch):
    for cls in vars(modules).values():
        if isinstance(cls, type) and issubclass(cls, modules.Module):
            monkeypatch.setattr(cls, "global_count", 0)


def names(layer):
    return [one.name for one in descend.graph.traverse_layer_graph(layer)]


def test_modules_and_their_calls_are_counted():
    x = descend.Input(name="x")
    first, second = modules.FullyConnectedModule(3), modules.FullyConnectedModule(4, activation=descend.Relu)
    named = modules.ConvolutionModule(2, 4, 3, name="stem")
    again = first(first(x))
    assert names(second(again)) == ["x", "fc1", "fc1_instance2", "fc2", "fc2_activation"]
    assert [w.name for w in first.weights] == ["fc1_matrix", "fc1_bias"]
    assert named(x).name == "stem"
    assert [w.name for w in named.weights] == ["stem_kernel", "stem_bias"]
    assert modules.Convolution2dModule(4, 3)(x).name == "conv1"
    assert again.weights == again.parents[0].weights == first.weights


def test_too_many_weights_are_refused():
    with pytest.raises(ConfigurationError, match="FullyConnectedModule 'fc1' is given 2 weights and takes 1: matrix"):
        modules.FullyConnectedModule(3, bias=False, weights=[descend.Weights(), descend.Weights()])


@pytest.mark.parametrize("transpose", [False, True])
def test_dense_and_convolution_modules_are_their_layers(transpose):
    module = modules.ConvolutionModule(2, 3, 3, stride=2, padding=1, transpose=transpose, activation=descend.Relu)
    lower, call, _ = lowered(lambda x: module(x), (2, 5, 5))
    kernel, bias = (lower.get_parameter(w.name) for w in module.weights)
    torch.nn.init.normal_(bias)
    x = random(2, 2, 5, 5)
    convolve = torch.conv_transpose2d if transpose else torch.conv2d
    torch.testing.assert_close(call(x), convolve(x, kernel, bias, stride=2, padding=1).relu())
    dense = modules.ChannelwiseFullyConnectedModule([2, 3], bias=True)
    lower, call, _ = lowered(lambda x: dense(x), (4, 5))
    matrix, bias = (lower.get_parameter(w.name) for w in dense.weights)
    x = random(2, 4, 5)
    torch.testing.assert_close(call(x), (x @ matrix.T + bias).view(2, 4, 2, 3))


def steps(cell, length):
    """A cell along a sequence; the last output."""

    def make(sequence):
        points = range(length + 1)
        cut = descend.Slice(sequence, slice_points=points)
        state = None
        for x in [descend.Reshape(cut, dims=[2]) for _ in range(length)]:
            y, state = cell(x, state)
        return y

    return make


@pytest.mark.parametrize("bias", [True, False])
def test_the_lstm_cell_is_torchs(bias):
    cell = modules.LSTMCell(3, bias=bias)
    lower, call, _ = lowered(steps(cell, 4), (4, 2))
    twin = torch.nn.LSTM(2, 3, bias=bias, batch_first=True, dtype=torch.float64)
    f, i, o, u = lower.get_parameter("lstmcell1_fc_matrix").detach().chunk(4)
    with torch.no_grad():
        rows = torch.cat([i, f, u, o])  # torch's order
        twin.weight_ih_l0.copy_(rows[:, :2])
        twin.weight_hh_l0.copy_(rows[:, 2:])
        if bias:
            own = lower.get_parameter("lstmcell1_fc_bias").normal_()
            f, i, o, u = own.chunk(4)
            twin.bias_ih_l0.copy_(torch.cat([i, f, u, o]))
            twin.bias_hh_l0.zero_()
    x = random(5, 4, 2)
    torch.testing.assert_close(call(x), twin(x)[0][:, -1], rtol=1e-10, atol=1e-12)


def test_the_gru_cell_is_the_gru_layer():
    cell = modules.GRU(3)
    lower, call, _ = lowered(steps(cell, 4), (4, 2))
    twin = torch.nn.GRU(2, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for ours, theirs in (("ih", "ih"), ("hh", "hh")):
            getattr(twin, f"weight_{theirs}_l0").copy_(lower.get_parameter(f"gru1_{ours}_fc_matrix"))
            getattr(twin, f"bias_{theirs}_l0").copy_(lower.get_parameter(f"gru1_{ours}_fc_bias").normal_())
    x = random(5, 4, 2)
    torch.testing.assert_close(call(x), twin(x)[0][:, -1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_multihead_attention_is_torchs(masked):
    attention = modules.MultiheadAttention(6, 2)
    shapes = [(4, 6), (5, 6), (5, 6)] + ([(2, 4, 5)] if masked else [])
    lower, call, plan = lowered(lambda *x: attention(*x), *shapes)
    twin = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
    own = lambda part, kind: lower.get_parameter(f"multiheadattention1_{part}_{kind}")  # noqa: E731
    with torch.no_grad():
        for kind in ("matrix", "bias"):
            for part in ("query", "key", "value", "output"):
                own(part, kind).normal_()
        parts = ("query", "key", "value")
        twin.in_proj_weight.copy_(torch.cat([own(part, "matrix") for part in parts]))
        twin.in_proj_bias.copy_(torch.cat([own(part, "bias") for part in parts]))
        twin.out_proj.weight.copy_(own("output", "matrix"))
        twin.out_proj.bias.copy_(own("output", "bias"))
    xs = [random(3, *shape, seed=i) for i, shape in enumerate(shapes)]
    mask = xs[3].flatten(0, 1) if masked else None
    want = twin(*xs[:3], attn_mask=mask, need_weights=False)[0]
    torch.testing.assert_close(call(*xs), want, rtol=1e-9, atol=1e-11)
    assert plan.weights["multiheadattention1_query_matrix"].shape == (6, 6)


def test_attention_in_training_drops_a_part_of_the_mean():
    attention = modules.MultiheadAttention(4, 2, dropout=0.5, bias=False)
    _, _, plan = lowered(lambda x: attention(x, x, x), (3, 4))
    kinds = {layer.name: layer.layer for layer in plan.layers}
    assert kinds["multiheadattention1_dropout"].keep_prob == 0.5
    assert not any(name.endswith("bias") for name in plan.weights)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"embed_dim": 5, "num_heads": 2}, "the heads must divide it"),
        ({"embed_dim": 4, "num_heads": 0}, "the heads must divide it"),
        ({"embed_dim": 4, "num_heads": 2, "dropout": 1.0}, "has dropout 1.0; expected 0 to below 1"),
    ],
)
def test_attention_that_does_not_fit_is_refused(options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        modules.MultiheadAttention(**options)
