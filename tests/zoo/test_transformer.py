"""The transformer's layers against torch's own, with the same weights."""

import numpy as np
import pytest
import torch
from torch import nn

import descend
from descend import models, modules, zoo
from descend.errors import ConfigurationError
from descend.lower.initialize import initial_values
from tests.zoo.lowered import lowered, random


def copy_attention(theirs, get, name):
    parts = [get(f"{name}_{part}_matrix") for part in ("query", "key", "value")]
    theirs.in_proj_weight.copy_(torch.cat(parts))
    theirs.in_proj_bias.copy_(torch.cat([get(f"{name}_{part}_bias") for part in ("query", "key", "value")]))
    theirs.out_proj.weight.copy_(get(f"{name}_output_matrix"))
    theirs.out_proj.bias.copy_(get(f"{name}_output_bias"))


def copy_rest(theirs, get, shortcuts, name="t"):
    for i, linear in enumerate((theirs.linear1, theirs.linear2), 1):
        linear.weight.copy_(get(f"{name}_feedforward_fc{i}_matrix"))
        linear.bias.copy_(get(f"{name}_feedforward_fc{i}_bias"))
    for i in range(1, shortcuts + 1):
        norm = getattr(theirs, f"norm{i}")
        norm.weight.copy_(get(f"{name}_shortcut{i}_norm_scale"))
        norm.bias.copy_(get(f"{name}_shortcut{i}_norm_bias"))


def drawn(module):
    """New values for every parameter, by name."""
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


def torch_layer(kind, **options):
    return kind(8, 2, 12, batch_first=True, dtype=torch.float64, **options).eval()


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_transformer_is_torchs_layers_one_after_the_other(norm_first):
    """torch's own Transformer ends in norms; the paper has them in the layers alone, unless they stand first."""
    make = lambda s, t: zoo.Transformer(  # noqa: E731
        8, 2, 2, 2, 12, name="t", activation=modules.Gelu, norm_first=norm_first, epsilon=1e-4
    )(s, 5, t, 4)
    module, call, plan = lowered(make, (5, 8), (4, 8))
    get = drawn(module)
    with torch.no_grad():  # its waves are no weights that are drawn
        for name in ("t_positions_waves5", "t_positions_waves4", "t_mask_places"):
            tensor = module.named_weights()[name]
            tensor.copy_(initial_values(plan.weights[name], torch.Generator(), torch.float64))
    module.eval()
    options = {"activation": "gelu", "norm_first": norm_first, "layer_norm_eps": 1e-4}
    encoder = [torch_layer(nn.TransformerEncoderLayer, **options) for _ in range(2)]
    decoder = [torch_layer(nn.TransformerDecoderLayer, **options) for _ in range(2)]
    ends = [nn.LayerNorm(8, 1e-4, dtype=torch.float64) if norm_first else nn.Identity() for _ in range(2)]
    with torch.no_grad():
        for i, layer in enumerate(encoder, 1):
            copy_attention(layer.self_attn, get, f"t_encoder{i}_attention")
            copy_rest(layer, get, 2, f"t_encoder{i}")
        for i, layer in enumerate(decoder, 1):
            copy_attention(layer.self_attn, get, f"t_decoder{i}_attention1")
            copy_attention(layer.multihead_attn, get, f"t_decoder{i}_attention2")
            copy_rest(layer, get, 3, f"t_decoder{i}")
        for end, part in zip(ends, ("encoder", "decoder"), strict=True) if norm_first else ():
            end.weight.copy_(get(f"t_{part}_norm_scale"))
            end.bias.copy_(get(f"t_{part}_norm_bias"))
    source, target = random(3, 5, 8), random(3, 4, 8, seed=1)
    memory = source + waves(5)
    for layer in encoder:
        memory = layer(memory)
    x = target + waves(4)
    for layer in decoder:
        x = layer(x, ends[0](memory), tgt_mask=nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64))
    torch.testing.assert_close(call(source, target), ends[1](x), rtol=1e-8, atol=1e-9)


def waves(length):
    places, i = np.meshgrid(np.arange(length), np.arange(8), indexing="ij")
    angle = places / 10000 ** (i // 2 * 2 / 8)
    return torch.tensor(np.where(i % 2, np.cos(angle), np.sin(angle)))


def test_the_transformer_has_the_papers_sizes():
    """65 M with its tables; 44 M in the layers: an encoder's 3.15 M and a decoder's 4.20 M, six times."""
    x = zoo.Transformer()(descend.Input(data_field="s"), 10, descend.Input(data_field="t"), 7)
    plan = descend.graph.check(descend.Model(1, objective_function=descend.L2Norm2(x)), {"s": (10, 512), "t": (7, 512)})
    count = sum(int(np.prod(one.shape)) for one in plan.weights.values() if one.trainable)
    own = sum(p.numel() for p in nn.TransformerEncoderLayer(512, 8).parameters())
    assert count == 6 * (own + sum(p.numel() for p in nn.TransformerDecoderLayer(512, 8).parameters()))


def test_a_position_does_not_see_those_behind_it():
    make = lambda s, t: zoo.Transformer(8, 2, 1, 1, dropout=0.0)(s, 3, t, 4)  # noqa: E731
    _, call, _ = lowered(make, (3, 8), (4, 8))
    source, target = random(1, 3, 8), random(1, 4, 8, seed=1).requires_grad_()
    call(source, target)[0, 1, 0].backward()
    assert target.grad[0, :2].abs().min() > 0
    assert target.grad[0, 2:].eq(0).all()


@pytest.mark.parametrize("lengths", [(0, 3), (3, 0)])
def test_lengths_that_are_none_are_refused(lengths):
    x = descend.Input()
    with pytest.raises(ConfigurationError, match=r"has lengths .*; they must be at least 1"):
        zoo.Transformer(8, 2, 1, 1)(x, lengths[0], x, lengths[1])


def test_branches_lay_heads_on_grids_and_change_nothing():
    make = lambda s, t, n: models.subgraph.Transformer(8, 2, 1, 1, dropout=0.0, name="t", branches=n)(s, 3, t, 4)  # noqa: E731
    whole, call, _ = lowered(lambda s, t: make(s, t, 0), (3, 8), (4, 8))
    parts, call_parts, plan = lowered(lambda s, t: make(s, t, 2), (3, 8), (4, 8))
    parts.load_state_dict(whole.state_dict())
    xs = random(2, 3, 8), random(2, 4, 8, seed=1)
    torch.testing.assert_close(call_parts(*xs), call(*xs), rtol=1e-10, atol=1e-12)
    assert {layer.layer.grid_tag for layer in plan.layers} == {None, 1, 2}
