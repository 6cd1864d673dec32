"""What random layers draw belongs to the sample, not to the part of the batch that it travels in."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from descend.train.patches.dropout import ReproducibleDropout, advanced, marks_drawn

SHAPES = {
    nn.Dropout(0.3): (12, 5, 3),
    nn.Dropout1d(0.3): (12, 6, 4),
    nn.Dropout2d(0.3): (12, 6, 4, 2),
    nn.Dropout3d(0.3): (12, 6, 4, 2, 2),
    nn.AlphaDropout(0.3): (12, 7),
    nn.FeatureAlphaDropout(0.3): (12, 7, 5),
    nn.RReLU(): (12, 9),
}


def values(shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def forward(layer, x, step=0, seed=1, position=0, name="0"):
    module = nn.ModuleDict({name: layer})
    with ReproducibleDropout(module, seed) as masks:
        masks.begin(step, len(x), position)
        return module[name](x)


@pytest.mark.parametrize("layer", SHAPES, ids=repr)
@pytest.mark.parametrize("sizes", [[12], [5, 7], [1] * 12], ids=str)
def test_parts_draw_what_the_whole_draws(layer, sizes):
    x = values(SHAPES[layer])
    parts, position = [], 0
    for part in x.split(sizes):
        parts.append(forward(layer, part, position=position))
        position += len(part)
    torch.testing.assert_close(torch.cat(parts), forward(layer, x), rtol=0, atol=0)


@pytest.mark.parametrize("layer", SHAPES, ids=repr)
def test_draws_differ_between_steps_seeds_layers_and_calls(layer):
    x = values(SHAPES[layer])
    module = nn.ModuleDict({"0": layer})
    with ReproducibleDropout(module, 1) as masks:
        masks.begin(0, len(x), 0)
        calls = [layer(x), layer(x)]
    torch.testing.assert_close(calls[0], forward(layer, x), rtol=0, atol=0)
    others = [calls[1], forward(layer, x, step=1), forward(layer, x, seed=2), forward(layer, x, name="b")]
    assert all(not torch.equal(other, calls[0]) for other in others)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_dropout_keeps_the_right_share_at_the_right_scale(p):
    x = torch.ones(500, 400, dtype=torch.float64)
    out = forward(nn.Dropout(p), x)
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    kept = (out > 0).double()
    deviation = (p * (1 - p) / x.numel()) ** 0.5
    assert abs(float(kept.mean()) - (1 - p)) < 4 * deviation
    assert float(kept.mean(0).std()) == pytest.approx((p * (1 - p) / 500) ** 0.5, rel=0.2)
    assert float(kept.mean(1).std()) == pytest.approx((p * (1 - p) / 400) ** 0.5, rel=0.2)


def test_features_are_dropped_as_a_whole():
    out = forward(nn.Dropout2d(0.5), torch.ones(50, 8, 3, 3))
    assert torch.equal(out, out[:, :, :1, :1].expand_as(out))


def test_alpha_dropout_gives_torch_s_two_values():
    x = torch.full((1000, 10), 0.7, dtype=torch.float64)
    torch.manual_seed(0)
    expected = nn.functional.alpha_dropout(x, 0.3, training=True).unique()
    torch.testing.assert_close(forward(nn.AlphaDropout(0.3), x).unique(), expected, rtol=1e-7, atol=0)


def test_leaky_slopes_lie_between_their_bounds():
    slopes = forward(nn.RReLU(0.1, 0.3), -torch.ones(500, 40, dtype=torch.float64)).neg()
    assert 0.1 <= float(slopes.min()) < 0.11
    assert 0.29 < float(slopes.max()) < 0.3
    assert float(slopes.mean()) == pytest.approx(0.2, abs=0.002)


def test_gradients_pass_where_the_values_did():
    x = values((6, 4)).requires_grad_()
    out = forward(nn.Dropout(0.5), x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, (out != 0).double() * 2)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_certain_dropout(p):
    x = values((4, 3))
    torch.testing.assert_close(forward(nn.Dropout(p), x), x * (1 - p))


def test_evaluation_draws_nothing_and_nothing_is_left_behind():
    layer = nn.Dropout(0.5).eval()
    x = values((4, 3))
    assert torch.equal(forward(layer, x), x)
    assert "forward" not in vars(layer)


def test_inputs_with_several_rows_a_sample():
    """(samples · words, features), as after a reshape."""
    layer, x = nn.Dropout(0.5), values((12, 4))
    module = nn.Sequential(layer)
    with ReproducibleDropout(module, 1) as masks:
        masks.begin(0, 6, 0)
        whole = module(x)
        masks.begin(0, 4, 2)
        torch.testing.assert_close(module(x[4:]), whole[4:], rtol=0, atol=0)


def test_a_layer_that_is_no_part_of_the_batch_keeps_torch_s_way():
    layer, x = nn.Dropout(0.5), values((5, 4))
    with ReproducibleDropout(nn.Sequential(layer), 1) as masks:
        masks.begin(0, 3, 0)  # 5 rows cannot be those of 3 samples
        torch.manual_seed(0)
        out = layer(x)
    torch.manual_seed(0)
    assert torch.equal(out, layer(x))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_calls_that_checkpointing_repeats_draw_what_they_drew(use_reentrant):
    """The gradient of one layer that is called in three blocks, with the blocks repeated in the backward pass."""

    def gradient(repeated):
        x = values((6, 5)).requires_grad_()
        drop, y = nn.Dropout(0.5), x
        with ReproducibleDropout(nn.Sequential(drop), 1) as masks:
            masks.begin(0, len(x), 0)
            for _ in range(3):
                block = lambda z: drop(z.sin() + z)  # noqa: E731
                y = checkpoint(block, y, use_reentrant=use_reentrant) if repeated else block(y)
            y.sum().backward()
        return x.grad

    assert torch.count_nonzero(gradient(repeated=False))
    torch.testing.assert_close(gradient(repeated=True), gradient(repeated=False), rtol=0, atol=0)


def test_the_generator_is_where_its_marks_say():
    before, drawn = torch.get_rng_state(), marks_drawn()
    forward(nn.Dropout(0.5), values((3, 4)))
    assert marks_drawn() == drawn + 1
    assert torch.equal(torch.get_rng_state(), advanced(before, 1))
