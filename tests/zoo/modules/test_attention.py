"""Attention against torch's module and against its equations, with the same weights."""

import pytest
import torch

import descend
from descend.errors import ConfigurationError
from descend.zoo import modules
from tests.zoo.lowered import agree, lowered, random


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

    plan = agree(modules.MultiheadAttentionAllsubGraph(6, 3, 3, name="m"), twin, random(2, 4, 5))
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
