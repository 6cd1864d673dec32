"""Lowered layers against expressions written out in NumPy, in float64, with their gradients."""

import numpy as np
import pytest
import torch

import descend
from descend.graph import check
from descend.lower import lower
from descend.runtime import generator


def lowered(result, extra=(), fields=None, dtype=torch.float64):
    """A module whose outputs are `result` and `extra`, for float64 fields of the given shapes."""
    scalar = descend.MeanSquaredError(result, result, name="objective")
    metrics = [descend.Metric(descend.MeanSquaredError(layer, layer), name=layer.name) for layer in extra]
    model = descend.Model(1, objective_function=scalar, metrics=metrics)
    plan = check(model, fields or {"x": (3, 6, 5)})
    return lower(plan, lambda name: generator(1, name), [result.name]).to(dtype), plan


def apply(layer_of, x, **fields):
    """Output of the layer that `layer_of(input)` makes, and the module."""
    source = descend.Input(data_field="x", name="source")
    layer = layer_of(source)
    module, _ = lowered(layer, fields={"x": tuple(x.shape[1:])})
    return module({"x": x})[layer.name], module


@pytest.fixture
def x():
    return torch.randn(4, 3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"stride": 1, "padding": 0}, (2, 4, 3)),
        ({"stride": 2, "padding": 1}, (2, 3, 3)),
        ({"stride": [2, 1], "padding": [0, 1], "dilation": [2, 1]}, (2, 1, 5)),
    ],
)
def test_convolution_is_a_cross_correlation(x, settings, expected):
    y, module = apply(
        lambda s: descend.Convolution(s, name="c", num_dims=2, out_channels=2, kernel_size=3, **settings), x
    )
    assert tuple(y.shape[1:]) == expected
    kernel = module.named_weights()["c_kernel"].detach().numpy()
    pair = lambda name, unset: np.broadcast_to(settings.get(name, unset), 2)  # noqa: E731
    stride, padding, dilation = pair("stride", 1), pair("padding", 0), pair("dilation", 1)
    padded = np.pad(x.detach().numpy(), ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    for place in np.ndindex(expected[1:]):
        rows = place[0] * stride[0] + dilation[0] * np.arange(3)
        columns = place[1] * stride[1] + dilation[1] * np.arange(3)
        window = padded[:, :, rows[:, None], columns]
        want = np.einsum("nchw,kchw->nk", window, kernel)
        np.testing.assert_allclose(y.detach().numpy()[:, :, place[0], place[1]], want, rtol=1e-12, atol=1e-12)


def test_convolution_has_a_bias_unless_switched_off_and_knows_groups(x):
    six = torch.cat([x, 2 * x], 1).detach()
    y, module = apply(
        lambda s: descend.Convolution(s, name="c", num_dims=2, out_channels=4, kernel_size=1, groups=2), six
    )
    weights = module.named_weights()
    with torch.no_grad():
        weights["c_bias"].copy_(torch.arange(4.0))
    y = module({"x": six})["c"].detach()
    halves = [
        torch.einsum("nchw,kc->nkhw", part, w[:, :, 0, 0])
        for part, w in zip(six.chunk(2, 1), weights["c_kernel"].chunk(2), strict=True)
    ]
    want = torch.cat(halves, 1) + torch.arange(4.0, dtype=torch.float64).view(1, 4, 1, 1)
    torch.testing.assert_close(y, want.detach(), rtol=1e-12, atol=1e-12)
    _, without = apply(
        lambda s: descend.Convolution(s, name="c", num_dims=2, out_channels=4, kernel_size=1, has_bias=False), six
    )
    assert set(without.named_weights()) == {"c_kernel"}


@pytest.mark.parametrize("transpose", [False, True])
def test_fully_connected_flattens_and_has_no_bias_unless_asked(x, transpose):
    y, module = apply(lambda s: descend.FullyConnected(s, name="f", num_neurons=7, transpose=transpose), x)
    (matrix,) = module.named_weights().values()
    want = x.flatten(1) @ (matrix if transpose else matrix.T)
    torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)


def test_listed_values_fill_a_matrix_column_by_column():
    values = descend.Weights(descend.ValueInitializer(values=range(6)), name="w")
    x = torch.eye(3, dtype=torch.float64)
    y, _ = apply(lambda s: descend.FullyConnected(s, num_neurons=2, weights=[values]), x)
    torch.testing.assert_close(y, torch.tensor([[0.0, 1], [2, 3], [4, 5]], dtype=torch.float64))


@pytest.mark.parametrize(("mode", "reduce"), [("max", np.max), ("average", np.mean)])
def test_pooling_takes_the_largest_or_the_mean(x, mode, reduce):
    pool = {"num_dims": 2, "pool_mode": mode, "pool_dims_i": 2, "pool_strides_i": 2, "pool_pads_i": 0}
    y, _ = apply(lambda s: descend.Pooling(s, **pool), x)
    want = reduce(x.detach().numpy()[:, :, :, :4].reshape(4, 3, 3, 2, 2, 2), axis=(3, 5))
    np.testing.assert_allclose(y.detach().numpy(), want, rtol=1e-12)


@pytest.mark.parametrize(("mode", "corner"), [("average", 0.25), ("average_no_pad", 1.0)])
def test_average_pooling_counts_padding_unless_switched_off(mode, corner):
    ones = torch.ones(1, 1, 4, 4, dtype=torch.float64)
    pool = {"num_dims": 2, "pool_mode": mode, "pool_dims_i": 2, "pool_strides_i": 2, "pool_pads_i": 1}
    y, _ = apply(lambda s: descend.Pooling(s, **pool), ones)
    assert float(y[0, 0, 0, 0]) == corner
    assert float(y[0, 0, 1, 1]) == 1.0


def test_softmax_sums_to_one_over_the_sample_or_over_channels(x):
    whole, _ = apply(lambda s: descend.Softmax(s), x)
    torch.testing.assert_close(whole.flatten(1).sum(1), torch.ones(4, dtype=torch.float64), rtol=1e-12, atol=0)
    channels, _ = apply(lambda s: descend.Softmax(s, softmax_mode="channel"), x)
    torch.testing.assert_close(channels, torch.softmax(x, 1), rtol=1e-12, atol=0)
    wanted = torch.softmax(x.flatten(1), 1).view_as(x)
    torch.testing.assert_close(whole, wanted, rtol=1e-12, atol=0)
    assert torch.autograd.gradcheck(lambda z: apply(lambda s: descend.Softmax(s), z)[0], x)


def test_a_sample_whose_own_class_has_no_probability_is_still_learned():
    """Softmax is kept from 0, and the gradient of cross entropy through it is prediction − label even there."""
    logits = torch.tensor([[0.0, 1000.0]], dtype=torch.float64, requires_grad=True)
    label = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    source, target = descend.Input(data_field="x"), descend.Input(data_field="y")
    loss = descend.CrossEntropy(descend.Softmax(source), target, name="loss")
    plan = check(descend.Model(1, objective_function=loss), {"x": (2,), "y": (2,)})
    value = lower(plan, lambda name: generator(1, name))({"x": logits, "y": label})["loss"]
    assert torch.isfinite(value).all()
    value.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 1.0]], dtype=torch.float64), rtol=1e-9, atol=1e-9)


def pair(kind, prediction, label, **settings):
    a, b = descend.Input(data_field="a"), descend.Input(data_field="b")
    layer = kind(a, b, name="loss", **settings)
    plan = check(
        descend.Model(1, objective_function=layer), {"a": tuple(prediction.shape[1:]), "b": tuple(label.shape[1:])}
    )
    return lower(plan, lambda name: generator(1, name))({"a": prediction, "b": label})["loss"]


def test_cross_entropy_leaves_out_labels_of_zero():
    prediction = torch.tensor([[0.2, 0.8, 0.0]], dtype=torch.float64, requires_grad=True)
    label = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    value = pair(descend.CrossEntropy, prediction, label)
    assert value.item() == pytest.approx(-(0.25 * np.log(0.2) + 0.75 * np.log(0.8)), rel=1e-12)
    value.sum().backward()
    torch.testing.assert_close(prediction.grad, torch.tensor([[-1.25, -0.9375, 0.0]], dtype=torch.float64))


def test_mean_squared_error_is_a_mean_over_the_sample(x):
    value = pair(descend.MeanSquaredError, x.detach(), 2 * x.detach())
    np.testing.assert_allclose(value[:, 0].numpy(), (x.detach().numpy() ** 2).mean((1, 2, 3)), rtol=1e-12)


def test_accuracies_let_the_smaller_index_win_a_tie():
    prediction = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.1, 0.2, 0.7]], dtype=torch.float64)
    label = torch.eye(3, dtype=torch.float64)[[0, 1, 1]]
    assert pair(descend.CategoricalAccuracy, prediction, label)[:, 0].tolist() == [1.0, 0.0, 0.0]
    assert pair(descend.TopKCategoricalAccuracy, prediction, label, k=1)[:, 0].tolist() == [1.0, 0.0, 0.0]
    assert pair(descend.TopKCategoricalAccuracy, prediction, label, k=2)[:, 0].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (descend.Relu, lambda x: np.maximum(x, 0)),
        (descend.LeakyRelu, lambda x: np.where(x > 0, x, 0.01 * x)),
        (descend.Elu, lambda x: np.where(x > 0, x, np.expm1(x))),
        (descend.Identity, lambda x: x),
        (descend.LogSoftmax, lambda x: x - np.log(np.exp(x).sum((1, 2, 3), keepdims=True))),
        (lambda s: descend.Sum(s, s, s), lambda x: 3 * x),
        (lambda s: descend.Concatenation(s, s, axis=1), lambda x: np.concatenate([x, x], 2)),
        (lambda s: descend.Reshape(s, dims=[5, -1]), lambda x: x.reshape(4, 5, 18)),
    ],
)
def test_layers_without_weights(x, layer, function):
    y, _ = apply(layer, x)
    np.testing.assert_allclose(y.detach().numpy(), function(x.detach().numpy()), rtol=1e-12, atol=1e-12)


def test_the_module_works_with_other_tensors_in_place_of_its_own(x):
    """torch.func.functional_call, deepcopy and state_dict see the weights."""
    import copy

    y, module = apply(lambda s: descend.FullyConnected(s, name="f", num_neurons=2), x)
    twice = {name: 2 * tensor for name, tensor in module.named_weights().items()}
    torch.testing.assert_close(torch.func.functional_call(module, twice, ({"x": x},))["f"], 2 * y)
    other = copy.deepcopy(module)
    other.load_state_dict(twice)
    torch.testing.assert_close(other({"x": x})["f"], 2 * y)
    torch.testing.assert_close(module({"x": x})["f"], y)
