"""Language models against torch's own layers with the same weights, published counts, and a task to learn."""

from math import prod

import numpy as np
import pytest
import torch
from torch import nn

import descend
from descend import zoo
from descend.errors import ConfigurationError, GraphError
from descend.graph import check
from tests.zoo.lowered import agree, lowered, random

SMALL = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 9,
    "sequence_length": 5,
    "layer_norm_eps": 1e-4,
}
TOKENS = torch.tensor([[4, 7, 10, 3, 2], [5, 2, 6, 1, 1]], dtype=torch.float64)  # 1 is RoBERTa's padding


def count(plan):
    return sum(prod(weights.shape) for weights in plan.weights.values() if weights.trainable)


def planned(y, *shapes):
    fields = {f"x{i}": shape for i, shape in enumerate(shapes)}
    return check(descend.Model(1, objective_function=descend.L2Norm2(y)), fields)


# Hugging Face's bert-base-uncased and roberta-base with their poolers; GPT-2's four sizes as published in its code.
def test_the_number_of_parameters_is_the_published_one():
    for kind, config, want in (
        (zoo.BERT, zoo.bert_config(), 109_482_240),
        (zoo.RoBERTa, zoo.EncoderConfig(), 124_645_632),
    ):
        hidden, pooled = kind(config)(descend.Input(data_field="x0"))
        plan = planned(pooled, (512,))
        assert count(plan) == want
        assert next(layer.output_shape for layer in plan.layers if layer.name == hidden.name) == (512, 768)
    for sizes, want in (({}, 124_439_808), ({"hidden_size": 1024, "num_layers": 24, "num_heads": 16}, 354_823_168)):
        assert count(planned(zoo.GPT(**sizes)(descend.Input(data_field="x0")), (1024,))) == want


def norm(get, x, name, eps):
    return nn.functional.layer_norm(x, x.shape[-1:], get(f"{name}_scale"), get(f"{name}_bias"), eps)


def affine(get, x, name):
    return nn.functional.linear(x, get(f"{name}_matrix"), get(f"{name}_bias"))


def attention(get, x, name, mask):
    q, k, v = (affine(get, x, f"{name}_{part}").unflatten(-1, (2, -1)).transpose(1, 2) for part in PARTS)
    y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return affine(get, y.transpose(1, 2).flatten(2), f"{name}_output")


PARTS = ("query", "key", "value")


def encoder_twin(name, eps, kinds=None, places=None, seen=None):
    """The last hidden state, by torch's functions."""

    def twin(get, tokens):
        where = places(tokens.long())
        x = get(f"{name}_tokens_table").T[tokens.long()] * (tokens != SKIP[name])[..., None]
        x = x + get(f"{name}_places_table").T[where] * (where != SKIP_PLACE[name])[..., None]
        x = x + get(f"{name}_kinds_table").T[torch.zeros_like(where) if kinds is None else kinds]
        x = norm(get, x, f"{name}_norm", eps)
        mask = None if seen is None else seen.bool()[:, None, None, :]
        for i in (1, 2):
            part = f"{name}_layer{i}"
            x = norm(get, x + attention(get, x, f"{part}_attention", mask), f"{part}_shortcut1_norm", eps)
            inner = nn.functional.gelu(affine(get, x, f"{part}_feedforward_fc1"))
            x = norm(get, x + affine(get, inner, f"{part}_feedforward_fc2"), f"{part}_shortcut2_norm", eps)
        return x

    return twin


SKIP = {"bert": 0, "roberta": 1}
SKIP_PLACE = {"bert": -1, "roberta": 1}


def test_bert_is_its_equations_with_a_mask_and_two_segments():
    kinds = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    seen = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.float64)
    config = zoo.bert_config(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    places = lambda tokens: torch.arange(5).expand_as(tokens)  # noqa: E731
    twin = encoder_twin("bert", 1e-4, kinds, places, seen)
    make = lambda x, mask, kind: zoo.BERT(config, add_pooling_layer=False, name="bert")(x, mask, kind)  # noqa: E731
    agree(make, lambda get, x, mask, kind: twin(get, x), TOKENS, seen, kinds.double())


def test_roberta_counts_places_behind_its_padding_and_pools_the_first():
    config = zoo.EncoderConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def places(tokens):
        real = tokens != 1
        return real.cumsum(1) * real + 1

    twin = encoder_twin("roberta", 1e-4, places=places)
    make = lambda x: zoo.RoBERTa(config, add_pooling_layer=False, name="roberta")(x)  # noqa: E731
    agree(make, twin, TOKENS)
    pooled = lambda x: zoo.RoBERTa(config, name="roberta")(x)[1]  # noqa: E731
    agree(pooled, lambda get, x: affine(get, twin(get, x)[:, 0], "roberta_pooler").tanh(), TOKENS)


def test_weights_come_from_a_folder(tmp_path):
    config = zoo.EncoderConfig(**SMALL)
    tokens = descend.Input(data_field="x0")
    shapes = planned(zoo.RoBERTa(config, name="r")(tokens)[1], (5,)).weights
    for name, one in shapes.items():
        if one.trainable:
            np.save(tmp_path / f"{name}.npy", random(*one.shape, seed=len(name)).numpy())
    module, _, _ = lowered(lambda x: zoo.RoBERTa(config, load_weights=tmp_path, name="r")(x)[1], (5,))
    for name, p in module.named_parameters():
        expected = random(*p.shape, seed=len(name))
        if name in ("r_tokens_table", "r_places_table"):
            expected[:, config.pad_token_id] = 0  # the vector of padding, as in LBANN
        assert torch.equal(p.detach(), expected)
    with pytest.raises(GraphError, match=r"start from .*nowhere.*\.npy', which cannot be read"):
        lowered(lambda x: zoo.RoBERTa(config, load_weights=tmp_path / "nowhere", name="r")(x)[1], (5,))


def test_gpt_is_its_equations():
    def twin(get, tokens):
        table = get("g_tokens_table").T
        x = table[tokens.long()] + get("g_places_places")
        causal = torch.ones(5, 5, dtype=torch.bool).tril()
        for i in (1, 2):
            part = f"g_layer{i}"
            x = x + attention(get, norm(get, x, f"{part}_shortcut1_norm", 1e-5), f"{part}_attention", causal)
            inner = affine(get, norm(get, x, f"{part}_shortcut2_norm", 1e-5), f"{part}_feedforward_fc1")
            x = x + affine(get, nn.functional.gelu(inner, approximate="tanh"), f"{part}_feedforward_fc2")
        return norm(get, x, "g_norm", 1e-5) @ table.T

    make = lambda x: zoo.GPT(11, 5, 8, 2, 2, dropout=0.0, name="g")(x)  # noqa: E731
    agree(make, twin, TOKENS)


def test_the_loss_is_torchs_cross_entropy():
    make = lambda x, y: zoo.next_token_loss(x, y, 5)  # noqa: E731
    twin = lambda _, x, y: nn.functional.cross_entropy(x.mT, y.long(), reduction="none").mean(1, True)  # noqa: E731
    agree(make, twin, random(2, 5, 11), TOKENS)


@pytest.mark.slow
def test_gpt_learns_to_repeat_what_it_saw():
    """Each text is a random line twice: half of it cannot be known and costs log 8, and the other half can."""
    half, vocabulary = 6, 8
    gpt = zoo.GPT(vocabulary, 2 * half - 1, 32, 2, 4, dropout=0.0, name="g")
    make = lambda x, y: zoo.next_token_loss(gpt(x), y, 2 * half - 1)  # noqa: E731
    module, call, _ = lowered(make, (2 * half - 1,), (2 * half - 1,))
    module = module.float()
    optimizer = descend.optim.Adam(module.named_parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(250):
        line = torch.randint(vocabulary, (64, half), generator=draw).float()
        text = torch.cat([line, line], 1)
        loss = call(text[:, :-1], text[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    floor = np.log(vocabulary) * (half - 1) / (2 * half - 1)
    assert losses[0] == pytest.approx(np.log(vocabulary), rel=0.02)
    assert losses[-1] < floor + 0.15


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: zoo.GPT(0, name="g"), "GPT 'g' has vocab_size 0, length 1024 and num_layers 12"),
        (
            lambda: zoo.BERT(zoo.bert_config(hidden_act="mish"), name="b"),
            "BERT 'b' has hidden_act 'mish'; expected one",
        ),
    ],
)
def test_sizes_that_are_none_are_refused(make, problem):
    with pytest.raises(ConfigurationError, match=problem):
        make()
