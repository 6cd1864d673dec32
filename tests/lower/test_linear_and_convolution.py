"""Layers with weights that map features to features, against NumPy and by definition."""

import numpy as np
import pytest
import torch

import descend
from tests.lower.single import Single, random


def same(layer, want, *xs):
    np.testing.assert_allclose(layer(*xs).detach(), want, rtol=1e-11, atol=1e-12)
    assert torch.autograd.gradcheck(lambda *z: layer(*z[: len(xs)]), (*xs, *layer.weights.values()))


def numpy(layer):
    return [w.detach().numpy() for w in layer.weights.values()]


def spread(x, kernel, window, groups=1):
    """A transposed convolution by its definition: each entry adds a scaled kernel to a larger output."""
    stride, padding, extra, dilation = window
    n, channels, *space = x.shape
    size = kernel.shape[2:]
    dims = range(len(space))
    full = [(space[i] - 1) * stride[i] + dilation[i] * (size[i] - 1) + 1 + extra[i] for i in dims]
    filters = kernel.shape[1]
    y = np.zeros((n, filters * groups, *full))
    for c in range(channels):
        group = c // (channels // groups)
        own = slice(group * filters, (group + 1) * filters)
        for place in np.ndindex(*space):
            for offset in np.ndindex(*size):
                at = tuple(place[i] * stride[i] + offset[i] * dilation[i] for i in dims)
                y[(slice(None), own, *at)] += x[(slice(None), c, *place)][:, None] * kernel[(c, slice(None), *offset)]
    cut = tuple(slice(padding[i], full[i] - padding[i]) for i in dims)
    return y[(slice(None), slice(None), *cut)]


@pytest.mark.parametrize(
    ("shape", "fields", "window"),
    [
        ((2, 3), {"kernel_size": 2}, ((1,), (0,), (0,), (1,))),
        ((2, 3, 2), {"kernel_size": 3, "stride": 2, "padding": 1}, ((2, 2), (1, 1), (0, 0), (1, 1))),
        (
            (2, 3, 2),
            {"kernel_size": [3, 2], "stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2], "dilation": [2, 1]},
            ((2, 3), (1, 0), (1, 2), (2, 1)),
        ),
        ((2, 2, 1, 2), {"kernel_size": 2, "stride": 2}, ((2, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1))),
    ],
)
def test_deconvolution_is_its_definition(shape, fields, window):
    dims = len(shape) - 1
    layer = Single(lambda s: descend.Deconvolution(s, name="d", num_dims=dims, out_channels=3, **fields), shape)
    assert list(layer.weights) == ["d_kernel", "d_bias"]
    with torch.no_grad():
        layer.weights["d_bias"].copy_(torch.arange(3.0))
    x = random(2, *shape)
    kernel, bias = numpy(layer)
    assert kernel.shape[:2] == (2, 3)
    same(layer, spread(x.detach().numpy(), kernel, window) + bias.reshape(-1, *(1,) * dims), x)


def test_deconvolution_in_groups_without_a_bias():
    fields = {"num_dims": 1, "out_channels": 6, "kernel_size": 2, "groups": 2, "has_bias": False}
    layer = Single(lambda s: descend.Deconvolution(s, **fields), (4, 3))
    (kernel,) = numpy(layer)
    x = random(2, 4, 3)
    same(layer, spread(x.detach().numpy(), kernel, ((1,), (0,), (0,), (1,)), groups=2), x)


@pytest.mark.parametrize("transpose", [None, False, True])
@pytest.mark.parametrize("bias", [None, False, True])
def test_channelwise_fully_connected_maps_every_slice_alike(transpose, bias):
    fields = {"output_channel_dims": [2, 5], "transpose": transpose, "bias": bias}
    layer = Single(lambda s: descend.ChannelwiseFullyConnected(s, name="c", **fields), (3, 2, 2))
    assert list(layer.weights) == ["c_linearity_weights", "c_bias_weights"][: 1 if bias is False else 2]
    matrix, *rest = numpy(layer)
    assert matrix.shape == ((4, 10) if transpose else (10, 4))
    if rest:
        with torch.no_grad():
            layer.weights["c_bias_weights"].copy_(torch.arange(10.0))
    x = random(2, 3, 2, 2)
    y = x.detach().numpy().reshape(2, 3, 4) @ (matrix if transpose else matrix.T)
    same(layer, (y + np.arange(10) if rest else y).reshape(2, 3, 2, 5), x)


def test_listed_values_fill_channelwise_matrices_column_by_column():
    listed = descend.Weights(descend.ValueInitializer(values=range(6)), name="w")
    fields = {"output_channel_dims": [2], "weights": [listed]}
    layer = Single(lambda s: descend.ChannelwiseFullyConnected(s, **fields), (4, 3))
    assert layer.weights["w"].tolist() == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    ("kind", "pairs"), [(descend.ChannelwiseScaleBias, (3, 1, 1)), (descend.EntrywiseScaleBias, (3, 2, 2))]
)
def test_scale_and_bias_stand_in_two_columns(kind, pairs):
    layer = Single(lambda s: kind(s, name="s"), (3, 2, 2))
    (weights,) = layer.weights.values()
    count = int(np.prod(pairs))
    assert list(layer.weights) == ["s_weights"]
    assert weights.tolist() == [[1.0, 0.0]] * count
    x = random(2, 3, 2, 2)
    assert torch.equal(layer(x), x)
    with torch.no_grad():
        weights.copy_(random(count, 2, seed=5))
    scale, bias = (column.reshape(pairs) for column in weights.detach().numpy().T)
    same(layer, x.detach().numpy() * scale + bias, x)


def test_a_fully_connected_layer_with_a_hint_gives_the_shape_of_it():
    x, like = descend.Input(data_field="x"), descend.Input(data_field="like")
    made = descend.FullyConnected(x, hint_layer=like, name="fc")
    values = np.arange(12.0).reshape(6, 2)
    made.add_weights(descend.Weights(descend.ValueInitializer(values=values.flatten(order="F"))))
    module = descend.Model(layers=[made, like]).to_torch(fields={"x": (2,), "like": (2, 3)}, outputs="fc")
    outputs = module(x=torch.tensor([[1.0, 10.0]]))
    assert outputs.tolist() == (values @ [1.0, 10.0]).reshape(1, 2, 3).tolist()
