"""Modules against torch's own, with the same weights."""

import pytest
import torch

import descend
from descend import modules
from descend.errors import ConfigurationError
from tests.zoo.lowered import agree, lowered, random


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


@pytest.mark.parametrize("bias", [True, False])
def test_a_channelwise_gru_is_a_gru_for_each_channel(bias):
    cell = modules.ChannelwiseGRU(4, 3, bias=bias, name="g")

    def make(x, h):
        return cell(x, cell(x, h)[0])[0]

    def twin(get, x, h):
        kinds = ("matrix", "bias") if bias else ("matrix",)
        weights = [get(f"g_{part}_fc_{kind}") for kind in kinds for part in ("ih", "hh")]
        for _ in range(2):
            h = torch.gru_cell(x.flatten(0, 1), h.flatten(0, 1), *weights).view(-1, 4, 3)
        return h

    agree(make, twin, random(2, 4, 5), random(2, 4, 3, seed=1))
    agree(lambda x: cell(x)[0], lambda get, x: twin_of_zero(get, x, bias), random(2, 4, 5))


def twin_of_zero(get, x, bias):
    kinds = ("matrix", "bias") if bias else ("matrix",)
    weights = [get(f"g_{part}_fc_{kind}") for kind in kinds for part in ("ih", "hh")]
    return torch.gru_cell(x.flatten(0, 1), x.new_zeros(8, 3), *weights).view(2, 4, 3)


def attention_by_hand(q, k, v, heads, mask=None, turn=lambda x: x):
    """Softmax(Q Kᵀ / √d + mask) V of mapped Q, K and V, head by head."""
    size = q.shape[-1] // heads
    means = []
    for h in range(heads):
        qh, kh, vh = (x[..., h * size : (h + 1) * size] for x in (q, k, v))
        match = turn(qh) @ turn(kh).mT / size**0.5
        means.append(torch.softmax(match if mask is None else match + mask[:, h], -1) @ vh)
    return torch.cat(means, -1)


def mapped(get, x, part, bias=True):
    y = x @ get(f"m_{part}_matrix").T
    return y + get(f"m_{part}_bias") if bias else y


@pytest.mark.parametrize("bias", [None, True, False])
@pytest.mark.parametrize("options", [{}, {"batch_heads": False}, {"subgraph_branches": 2}], ids=str)
def test_attention_of_other_sizes_is_its_equations(options, bias):
    biased = bias is not False

    def twin(get, q, k, v, mask):
        maps = [mapped(get, x, part, biased) for x, part in ((q, "query"), (k, "key"), (v, "value"))]
        return mapped(get, attention_by_hand(*maps, 3, mask), "output", biased)

    make = lambda *x: modules.MultiheadAttention(6, 3, bias=bias, name="m", **options)(*x)  # noqa: E731
    xs = random(2, 4, 5), random(2, 7, 3, seed=1), random(2, 7, 2, seed=2), random(2, 3, 4, 7, seed=3)
    plan = agree(make, twin, *xs)
    tags = {layer.layer.grid_tag for layer in plan.layers} - {None}
    assert tags == ({1, 2} if "subgraph_branches" in options else set())


def test_attention_on_grids_has_the_name_of_lbanns_file():
    def twin(get, x):
        return mapped(
            get, attention_by_hand(*[mapped(get, x, part) for part in ("query", "key", "value")], 3), "output"
        )

    plan = agree(modules.attention_allsubgraph.MultiheadAttentionAllsubGraph(6, 3, 3, name="m"), twin, random(2, 4, 5))
    assert {layer.layer.grid_tag for layer in plan.layers} == {None, 1, 2, 3}


@pytest.mark.parametrize("options", [{}, {"batch_heads": False}, {"subgraph_branches": 1}], ids=str)
def test_self_attention_has_one_matrix(options):
    def twin(get, x):
        return mapped(get, attention_by_hand(*mapped(get, x, "qkv").chunk(3, -1), 2), "output")

    attention = modules.MultiheadAttention(4, 2, self_attention=True, name="m", **options)
    plan = agree(lambda x: attention(x, x, x), twin, random(2, 3, 5))
    assert plan.weights["m_qkv_matrix"].shape == (12, 5)
    assert not hasattr(attention, "query_weights")
    agree(attention, twin, random(2, 3, 5))
    with pytest.raises(ConfigurationError, match="its keys or values are other layers than its queries"):
        attention(descend.Input(), descend.Input(), descend.Input())


@pytest.mark.parametrize("options", [{}, {"batch_heads": False}], ids=str)
def test_places_turn_queries_and_keys(options):
    z = torch.polar(
        torch.ones(5, 1, dtype=torch.float64), torch.arange(5, dtype=torch.float64)[:, None]
    )  # heads of size 2 have one pair, which turns by 1 a place

    def turn(x):
        return torch.view_as_real(torch.view_as_complex(x.contiguous())[..., None] * z).flatten(-2)

    def twin(get, x):
        return mapped(get, attention_by_hand(*mapped(get, x, "qkv").chunk(3, -1), 2, turn=turn), "output")

    rotary = modules.RotaryPositionalEmbedding(2, 5)
    make = lambda x: modules.MultiheadAttention(  # noqa: E731
        4, 2, self_attention=True, positional_encoding=rotary, name="m", **options
    )(x)
    agree(make, twin, random(2, 5, 4))


def test_weights_of_attention_may_be_replaced():
    attention = modules.MultiheadAttention(2, 1, name="m")
    eye = descend.ValueInitializer(values=[1, 0, 0, 1])
    own = [descend.Weights(eye, descend.NoOptimizer(), name="eye"), descend.Weights(optimizer=descend.NoOptimizer())]
    attention.query_weights = attention.key_weights = attention.value_weights = attention.output_weights = own
    agree(attention, lambda _, x: attention_by_hand(x, x, x, 1), random(2, 3, 2))


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
        (
            {"embed_dim": 4, "num_heads": 2, "positional_encoding": modules.RotaryPositionalEmbedding(4, 3)},
            "has heads of size 2 and a positional_encoding of size 4; expected one of size 2",
        ),
    ],
)
def test_attention_that_does_not_fit_is_refused(options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        modules.MultiheadAttention(**options)
