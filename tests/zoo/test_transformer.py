"""The transformer's layers against torch's own, with the same weights."""

import numpy as np
import pytest
import torch
from torch import nn

import descend
from descend import zoo
from descend.errors import ConfigurationError
from tests.zoo.lowered import lowered, random


def copy_attention(theirs, get, name):
    parts = [get(f"{name}_{part}_matrix") for part in ("query", "key", "value")]
    theirs.in_proj_weight.copy_(torch.cat(parts))
    theirs.in_proj_bias.copy_(torch.cat([get(f"{name}_{part}_bias") for part in ("query", "key", "value")]))
    theirs.out_proj.weight.copy_(get(f"{name}_output_matrix"))
    theirs.out_proj.bias.copy_(get(f"{name}_output_bias"))


def copy_rest(theirs, get, shortcuts):
    for i, linear in enumerate((theirs.linear1, theirs.linear2), 1):
        linear.weight.copy_(get(f"t_feedforward_fc{i}_matrix"))
        linear.bias.copy_(get(f"t_feedforward_fc{i}_bias"))
    for i in range(1, shortcuts + 1):
        norm = getattr(theirs, f"norm{i}")
        norm.weight.copy_(get(f"t_shortcut{i}_norm_scale"))
        norm.bias.copy_(get(f"t_shortcut{i}_norm_bias"))


def drawn(module):
    """Every weights object with new values; given by name."""
    with torch.no_grad():
        for tensor in module.named_weights().values():
            tensor.normal_(generator=torch.Generator().manual_seed(tensor.numel()))
    return lambda name: module.named_weights()[name].detach()


def test_the_encoder_layer_is_torchs():
    module, call, _ = lowered(lambda x: zoo.TransformerEncoderLayer(8, 2, 12, name="t")(x), (5, 8))
    twin = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dtype=torch.float64).eval()
    get = drawn(module)
    module.eval()
    with torch.no_grad():
        copy_attention(twin.self_attn, get, "t_attention")
        copy_rest(twin, get, 2)
    x = random(3, 5, 8)
    torch.testing.assert_close(call(x), twin(x), rtol=1e-8, atol=1e-9)


def test_the_decoder_layer_is_torchs():
    make = lambda x, m, mask: zoo.TransformerDecoderLayer(8, 2, 12, name="t")(x, m, target_mask=mask)  # noqa: E731
    module, call, _ = lowered(make, (5, 8), (4, 8), (2, 5, 5))
    twin = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, dtype=torch.float64).eval()
    get = drawn(module)
    module.eval()
    with torch.no_grad():
        copy_attention(twin.self_attn, get, "t_attention1")
        copy_attention(twin.multihead_attn, get, "t_attention2")
        copy_rest(twin, get, 3)
    x, memory = random(3, 5, 8), random(3, 4, 8, seed=1)
    mask = torch.full((5, 5), -1e9, dtype=torch.float64).triu(1)
    want = twin(x, memory, tgt_mask=mask)
    torch.testing.assert_close(call(x, memory, mask.expand(3, 2, 5, 5)), want, rtol=1e-8, atol=1e-9)


def test_places_are_waves_that_are_not_trained():
    encoding = zoo.PositionalEncoding(6, name="p")
    module, call, plan = lowered(lambda x: encoding(x, 4), (4, 6))
    places, i = np.meshgrid(np.arange(4), np.arange(6), indexing="ij")
    angle = places / 10000 ** (i // 2 * 2 / 6)
    np.testing.assert_allclose(
        call(torch.zeros(1, 4, 6, dtype=torch.float64))[0], np.where(i % 2, np.cos(angle), np.sin(angle)), atol=1e-7
    )  # weights start in float32
    assert not plan.weights["p_waves4"].trainable
    assert list(module.named_parameters()) == []


def test_a_length_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="has length 0; it must be at least 1"):
        zoo.PositionalEncoding(6)(descend.Input(), 0)
