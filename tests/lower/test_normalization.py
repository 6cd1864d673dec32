"""Normalization against NumPy and torch: the format's variances, epsilons and running values."""

import numpy as np
import pytest
import torch

import descend
from descend.errors import Unsupported
from descend.lower import normalization
from descend.lower.forward_context import ForwardContext
from tests.lower.single import Single, check_against, f64, random

NAMES = ("scale", "bias", "running_mean", "running_variance")


def batch_norm(shape, **fields):
    layer = Single(lambda s: descend.BatchNormalization(s, name="bn", **fields), shape)
    return layer, [layer.weights[f"bn_{name}"] for name in NAMES]


def normalized(x, lost, eps):
    """x over mini-batch and space of each channel, with ε under the variance and beside it; and the statistics."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axes, keepdims=True)
    variance = np.maximum(((x - mean) ** 2).sum(axes, keepdims=True) / (x.size / x.shape[1] - lost), eps)
    return (x - mean) / np.sqrt(variance + eps), mean.ravel(), variance.ravel()


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 2), (4, 3, 2, 2), (2, 3, 2, 1, 2)])
@pytest.mark.parametrize(
    ("fields", "decay", "eps", "lost"),
    [
        ({}, 0.9, 1e-5, 1),
        ({"decay": 0.5, "epsilon": 0.1}, 0.5, 0.1, 1),
        ({"no_bessel_correction": True}, 0.9, 1e-5, 0),
    ],
)
def test_batch_normalization_in_training(shape, fields, decay, eps, lost):
    layer, (scale, bias, running_mean, running_variance) = batch_norm(shape[1:], **fields)
    x = random(*shape)
    with torch.no_grad():
        scale.copy_(f64(1.5, -2, 0.5))
        bias.copy_(f64(0, 1, 2))
        running_mean.copy_(f64(3, 4, 5))
    hat, mean, variance = normalized(x.detach().numpy(), lost, eps)
    per_channel = (1, 3, *(1,) * (len(shape) - 2))
    want = hat * scale.detach().numpy().reshape(per_channel) + bias.detach().numpy().reshape(per_channel)
    np.testing.assert_allclose(layer(x).detach(), want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(running_mean, decay * np.array([3, 4, 5]) + (1 - decay) * mean, rtol=1e-12)
    np.testing.assert_allclose(running_variance, decay + (1 - decay) * variance, rtol=1e-12)
    assert torch.autograd.gradcheck(lambda *z: layer(z[0]), (x, scale, bias))


def test_a_variance_below_epsilon_is_epsilon_and_epsilon_is_added_again():
    layer, (_, _, _, running) = batch_norm((1,), epsilon=0.25, decay=0.5)
    x = f64([1.0], [1.2]).requires_grad_()
    assert layer(x).flatten().tolist() == pytest.approx([-0.1 / 0.5**0.5, 0.1 / 0.5**0.5])
    assert running.item() == pytest.approx(0.5 + 0.5 * 0.25)
    assert torch.autograd.gradcheck(lambda z: layer(z), x)


def test_batch_normalization_in_evaluation_uses_the_running_values():
    layer, weights = batch_norm((2, 3))
    with torch.no_grad():
        for tensor, values in zip(weights, [f64(2, 3), f64(0, 1), f64(4, 5), f64(1, 0.5)], strict=True):
            tensor.copy_(values)
    x = random(3, 2, 3)
    scale, bias, mean, variance = (w.detach().view(1, 2, 1).clone() for w in weights)
    want = (x.detach() - mean) / (variance + 1e-5).sqrt() * scale + bias
    torch.testing.assert_close(layer(x, training=False).detach(), want, rtol=1e-12, atol=1e-12)
    assert torch.equal(weights[2], f64(4, 5))
    assert torch.autograd.gradcheck(lambda *z: layer(z[0], training=False), (x, *weights[:2]))


def test_one_number_a_channel_has_variance_one_and_leaves_the_running_values():
    layer, (_, _, mean, variance) = batch_norm((3,))
    assert not layer(f64([1, 2, 3])).any()
    assert mean.tolist() == [0, 0, 0]
    assert variance.tolist() == [1, 1, 1]


@pytest.mark.parametrize("correction", [0, 1])
def test_torchs_kernel_gives_what_batch_normalization_means(correction):
    x, scale, bias = random(5, 3, 2), f64(1.5, -2, 0.5).requires_grad_(), f64(0, 1, 2).requires_grad_()
    results = []
    for way in (normalization._normalized, normalization._normalized_by_torch):
        running = normalization._Running(f64(0, 1, 2), f64(3, 2, 1), 0.8)
        y = way(x, scale, bias, running, 0.01, correction)
        results.append((y, *running[:2], *torch.autograd.grad((y**3).sum(), (x, scale, bias))))
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("correction", [0, 1])
def test_torchs_kernel_is_left_alone_where_a_variance_is_below_epsilon(correction):
    x, ones = random(5, 3, 2).detach(), torch.ones(3, dtype=torch.float64)
    smallest = float(x.var((0, 2), correction=correction).min())
    for eps, fits in ((0.999 * smallest, True), (1.001 * smallest, False)):
        running = normalization._Running(f64(0, 1, 2), f64(3, 2, 1), 0.8)
        y = normalization._normalized_by_torch(x, ones, 0 * ones, running, eps, correction)
        assert (y is not None) is fits
        assert (running.mean.tolist() == [0, 1, 2]) is not fits


def test_batch_normalization_works_under_vmap():
    layer, weights = batch_norm((3,))
    x = random(4, 6, 3)
    at = ForwardContext(True, 0, 0, 6, 6, torch.float64, torch.device("cpu"))
    stacked = [w.detach().expand(4, 3).clone() for w in weights]
    got = torch.vmap(lambda z, *w: layer.forward(at, z, *w))(x, *stacked)
    torch.testing.assert_close(got, torch.stack([layer(one) for one in x]), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(stacked[2], 0.1 * x.detach().mean(1), rtol=1e-10, atol=1e-11)


def test_running_values_are_not_trained_and_are_made_with_the_formats_names():
    layer, _ = batch_norm((3, 2))
    planned = [layer.plan.weights[name] for name in layer.planned.weights]
    assert [(w.name, w.shape, w.trainable) for w in planned] == [
        ("bn_scale", (3,), True),
        ("bn_bias", (3,), True),
        ("bn_running_mean", (3,), False),
        ("bn_running_variance", (3,), False),
    ]


@pytest.mark.parametrize("kind", [descend.BatchNormalization, descend.EntrywiseBatchNormalization])
def test_statistics_of_a_part_of_the_mini_batch_are_refused_in_training_alone(kind):
    layer = Single(lambda s: kind(s, name="bn", epsilon=1e-5), (3,))
    x = random(4, 3)
    with pytest.raises(Unsupported, match=r"layer 'bn' .* the whole mini-batch of 8 samples and is given 4 of them"):
        layer(x, batch_size=8)
    layer(x, batch_size=8, training=False)


@pytest.mark.parametrize("size", [0, 1, 4, -1])
def test_every_group_size_is_the_whole_mini_batch_on_one_process(size):
    x = random(4, 3)
    plain, _ = batch_norm((3,))
    grouped, _ = batch_norm((3,), statistics_group_size=size, stats_aggregation="global", scale_init=1.0)
    assert torch.equal(grouped(x), plain(x))


def test_entrywise_batch_normalization_divides_by_n_and_follows_n_minus_1():
    layer = Single(lambda s: descend.EntrywiseBatchNormalization(s, name="e", decay=0.25, epsilon=0.01), (2, 3))
    x = random(4, 2, 3)
    array = x.detach().numpy()
    want = (array - array.mean(0)) / np.sqrt(array.var(0) + 0.01)
    np.testing.assert_allclose(layer(x).detach(), want, rtol=1e-11, atol=1e-12)
    mean, variance = layer.weights["e_running_mean"], layer.weights["e_running_variance"]
    np.testing.assert_allclose(mean, 0.75 * array.mean(0), rtol=1e-12)
    np.testing.assert_allclose(variance, 0.25 + 0.75 * array.var(0, ddof=1), rtol=1e-12)
    want = (array - mean.numpy()) / np.sqrt(variance.numpy() + 0.01)
    np.testing.assert_allclose(layer(x, training=False).detach(), want, rtol=1e-11, atol=1e-12)
    assert torch.autograd.gradcheck(lambda z: layer(z), x)
    before = mean.clone()
    assert not layer(x[:1]).any()
    assert torch.equal(mean, before)


def test_entrywise_batch_normalization_has_no_defaults():
    layer = Single(lambda s: descend.EntrywiseBatchNormalization(s, name="e"), (2,))
    x = random(4, 2)
    array = x.detach().numpy()
    np.testing.assert_allclose(layer(x).detach(), (array - array.mean(0)) / array.std(0), rtol=1e-11)
    np.testing.assert_allclose(layer.weights["e_running_mean"], array.mean(0), rtol=1e-12)


def over(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.mark.parametrize(
    ("make", "expression"),
    [
        (lambda s: descend.LayerNorm(s), lambda x: over(x, (1, 2, 3))),
        (lambda s: descend.LayerNorm(s, epsilon=0.5), lambda x: over(x, (1, 2, 3), 0.5)),
        (lambda s: descend.LayerNorm(s, start_dim=1), lambda x: over(x, (2, 3))),
        (lambda s: descend.LayerNorm(s, start_dim=-1, scale=True, bias=True), lambda x: over(x, (3,))),
        (lambda s: descend.InstanceNorm(s), lambda x: over(x, (2, 3))),
        (lambda s: descend.InstanceNorm(s, epsilon=0.5), lambda x: over(x, (2, 3), 0.5)),
    ],
)
def test_norms_of_a_sample_are_their_expressions(make, expression):
    check_against(make, expression, random(2, 3, 2, 4))


def test_layer_norm_scales_and_moves_each_entry():
    x = random(2, 3, 2)
    for fields in ({"scale": True}, {"bias": True}, {"scale": True, "bias": True}):
        layer = Single(lambda s, fields=fields: descend.LayerNorm(s, name="n", start_dim=1, **fields), (3, 2))
        assert list(layer.weights) == [f"n_{name}" for name in fields]
        want = over(x.detach().numpy(), (2,))
        with torch.no_grad():
            for name, tensor in layer.weights.items():
                tensor.copy_(f64(2, -3))
                want = want * np.array([2, -3]) if name == "n_scale" else want + np.array([2, -3])
        np.testing.assert_allclose(layer(x).detach(), want, rtol=1e-11, atol=1e-12)
        assert torch.autograd.gradcheck(lambda *z, layer=layer: layer(z[0]), (x, *layer.weights.values()))


def test_a_channel_of_one_entry_gives_zero():
    assert not Single(lambda s: descend.InstanceNorm(s), (3,))(random(2, 3)).any()
    assert not Single(lambda s: descend.InstanceNorm(s), (3, 1, 1))(random(2, 3, 1, 1)).any()


@pytest.mark.parametrize("width", [1, 3, 4, 5, 9])
def test_local_response_normalization_sums_whole_windows_of_channels(width):
    def expression(x):
        y = np.empty_like(x)
        for c in range(x.shape[1]):
            near = x[:, max(0, c - width // 2) : c + width // 2 + 1]
            y[:, c] = x[:, c] / (2 + 0.3 * (near**2).sum(1)) ** 0.75
        return y

    fields = {"window_width": width, "lrn_alpha": 0.3, "lrn_beta": 0.75, "lrn_k": 2}
    check_against(lambda s: descend.LocalResponseNormalization(s, **fields), expression, random(2, 5, 2, 2))
    check_against(lambda s: descend.LocalResponseNormalization(s, **fields), expression, random(2, 5))
