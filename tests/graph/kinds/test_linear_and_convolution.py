"""Layers with weights that map features to features: shapes, weights and products against torch's modules."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import descend.graph as g
from descend.errors import GraphError
from tests.graph.kinds.given import incoming, kind, refusal, shape_of, slots_of, windows


@settings(max_examples=50)
@given(windows, st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.booleans())
def test_convolution_is_shaped_as_torch_shapes_it(window, groups, in_per_group, out_per_group, bias):
    dims = len(window["space"])
    channels, filters = groups * in_per_group, groups * out_per_group
    layer = g.Convolution(
        num_dims=dims,
        out_channels=filters,
        kernel_size=window["size"],
        stride=window["stride"],
        padding=window["padding"],
        dilation=window["dilation"],
        groups=groups,
        has_bias=bias,
    )
    convolution = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[dims - 1]
    twin = convolution(
        channels, filters, window["size"], window["stride"], window["padding"], window["dilation"], groups, bias
    )
    given_shape = (channels, *window["space"])
    try:
        expected = tuple(twin(torch.zeros(1, *given_shape)).shape[1:])
    except RuntimeError:  # the window does not fit
        with pytest.raises(GraphError, match="does not fit"):
            shape_of(layer, given_shape)
        return
    assert shape_of(layer, given_shape) == expected
    slots = slots_of(layer, given_shape)
    assert slots["kernel"].shape == tuple(twin.weight.shape)
    assert ("bias" in slots) == bias
    entries = twin.weight.numel()
    assert (slots["kernel"].fan_in, slots["kernel"].fan_out) == (entries // filters, entries // channels)


@settings(max_examples=50)
@given(windows, st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.booleans(), st.data())
def test_deconvolution_is_shaped_as_torch_shapes_it(window, groups, in_per_group, out_per_group, bias, data):
    dims = len(window["space"])
    channels, filters = groups * in_per_group, groups * out_per_group
    extra = [
        data.draw(st.integers(0, max(pair) - 1)) for pair in zip(window["stride"], window["dilation"], strict=True)
    ]
    layer = g.Deconvolution(
        num_dims=dims,
        out_channels=filters,
        kernel_size=window["size"],
        stride=window["stride"],
        padding=window["padding"],
        output_padding=extra,
        dilation=window["dilation"],
        groups=groups,
        has_bias=bias,
    )
    convolution = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)[dims - 1]
    twin = convolution(
        channels,
        filters,
        window["size"],
        window["stride"],
        window["padding"],
        extra,
        groups,
        bias,
        window["dilation"],
    )
    given_shape = (channels, *window["space"])
    try:
        expected = tuple(twin(torch.zeros(1, *given_shape)).shape[1:])
    except RuntimeError:
        expected = (0,)
    if min(expected) < 1:
        assert "nothing is left; make padding smaller" in refusal(layer, given_shape)
        return
    assert shape_of(layer, given_shape) == expected
    slots = slots_of(layer, given_shape)
    assert slots["kernel"].shape == tuple(twin.weight.shape)
    assert list(slots) == (["kernel", "bias"] if bias else ["kernel"])
    entries = twin.weight.numel()
    assert (slots["kernel"].fan_in, slots["kernel"].fan_out) == (entries // filters, entries // channels)


@pytest.mark.parametrize(("stride", "dilation", "most"), [(1, 1, 0), (3, 1, 2), (1, 3, 2), (2, 3, 2)])
def test_output_padding_is_below_the_stride_or_the_dilation(stride, dilation, most):
    fields = {"num_dims": 1, "out_channels": 1, "kernel_size": 2, "stride": stride, "dilation": dilation}
    base = shape_of(g.Deconvolution(**fields), (1, 5))
    assert shape_of(g.Deconvolution(output_padding=most, **fields), (1, 5)) == (1, base[1] + most)
    assert refusal(g.Deconvolution(output_padding=most + 1, **fields), (1, 5)) == (
        f"has output_padding {most + 1}, which must be below the stride {stride} or the dilation {dilation}"
    )


@pytest.mark.parametrize("layer", [g.Convolution, g.Deconvolution])
def test_unset_fields_of_a_window_are_torchs_defaults(layer):
    twin = torch.nn.Conv2d(3, 4, 5)
    made = layer(num_dims=2, out_channels=4, kernel_size=5)
    assert made.window() == (twin.kernel_size, twin.stride, twin.padding, twin.dilation)
    assert made.setting("groups") == twin.groups
    assert made.setting("has_bias") is (twin.bias is not None)


@pytest.mark.parametrize("groups", [1, 2])
def test_products_of_a_convolution_are_those_of_its_unfolded_windows(groups):
    """Each filter multiplies the entries of each window in its own group of channels."""
    fields = {"kernel_size": [3, 2], "stride": [1, 2], "padding": [1, 0]}
    shape = (4, 9, 8)
    columns = torch.nn.Unfold(**fields)(torch.zeros(1, 4 // groups, *shape[1:]))
    layer = g.Convolution(num_dims=2, out_channels=6, groups=groups, **fields)
    assert layer.multiply_adds((shape,), shape_of(layer, shape)) == 6 * columns.numel()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_deconvolution_has_the_products_of_the_convolution_that_it_is_the_gradient_of(groups):
    fields = {"num_dims": 2, "kernel_size": [3, 2], "stride": [1, 2], "groups": groups}
    there, back = g.Convolution(out_channels=6, **fields), g.Deconvolution(out_channels=4, **fields)
    small = shape_of(there, (4, 9, 8))
    assert shape_of(back, small) == (4, 9, 8)
    assert back.multiply_adds((small,), (4, 9, 8)) == there.multiply_adds(((4, 9, 8),), small)


def test_products_of_matrices_are_their_entries_for_each_vector():
    assert g.FullyConnected(num_neurons=5).multiply_adds(((2, 3),), (5,)) == torch.nn.Linear(6, 5).weight.numel()
    layer = g.ChannelwiseFullyConnected(output_channel_dims=[5, 2])  # one matrix for each of four channels
    assert layer.multiply_adds(((4, 3, 2),), (4, 5, 2)) == 4 * torch.nn.Linear(6, 10).weight.numel()


def test_fully_connected_flattens():
    layer = g.FullyConnected(num_neurons=5, has_bias=True)
    given_shape = incoming((2, 3, 4))
    assert layer.output_shape(given_shape) == (5,)
    matrix, bias = layer.weight_slots(given_shape)
    assert (matrix.suffix, matrix.shape, matrix.fan_in, matrix.fan_out, matrix.column_major) == (
        "linearity_weights",
        (5, 24),
        24,
        5,
        True,
    )
    assert (bias.suffix, bias.shape, bias.column_major) == ("bias_weights", (5,), False)
    assert len(g.FullyConnected(num_neurons=5).weight_slots(given_shape)) == 1
    transposed = g.FullyConnected(num_neurons=5, transpose=True).weight_slots(given_shape)[0]
    assert (transposed.shape, transposed.fan_in, transposed.fan_out) == ((24, 5), 24, 5)


@pytest.mark.parametrize("transpose", [None, False, True])
@pytest.mark.parametrize("bias", [None, False, True])
def test_a_channelwise_matrix_maps_one_slice(transpose, bias):
    layer = g.ChannelwiseFullyConnected(output_channel_dims=[2, 5], transpose=transpose, bias=bias)
    assert shape_of(layer, (7, 2, 4)) == (7, 2, 5)
    slots = slots_of(layer, (7, 2, 4))
    matrix = slots["linearity_weights"]
    assert matrix.shape == ((8, 10) if transpose else (10, 8))
    assert (matrix.fan_in, matrix.fan_out, matrix.column_major) == (8, 10, True)
    assert ("bias_weights" in slots) == (bias is not False)
    if bias is not False:
        assert slots["bias_weights"].shape == (10,)


def test_a_slice_without_dimensions_is_one_number():
    assert slots_of(g.ChannelwiseFullyConnected(output_channel_dims=[3]), (7,))["linearity_weights"].shape == (3, 1)


@pytest.mark.parametrize(("layer", "pairs"), [(g.ChannelwiseScaleBias(), 3), (g.EntrywiseScaleBias(), 12)], ids=kind)
def test_scale_and_bias_are_two_columns_of_one_tensor(layer, pairs):
    assert shape_of(layer, (3, 2, 2)) == (3, 2, 2)
    (slot,) = layer.weight_slots(incoming((3, 2, 2)))
    assert (slot.suffix, slot.shape, slot.initializer.values, slot.column_major) == (
        "weights",
        (pairs, 2),
        (1.0, 0.0),
        True,
    )


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (g.FullyConnected(num_neurons=2, has_bias=True), (3,)),
        (g.ChannelwiseFullyConnected(output_channel_dims=[2]), (3, 4)),
        (g.Convolution(num_dims=1, out_channels=2, kernel_size=2), (3, 4)),
        (g.Deconvolution(num_dims=1, out_channels=2, kernel_size=2), (3, 4)),
    ],
    ids=kind,
)
def test_matrices_start_as_hes_normal_distribution_and_biases_at_zero(layer, shape):
    matrix, bias = layer.weight_slots(incoming(shape))
    assert matrix.initializer == g.HeNormalInitializer()
    assert bias.initializer == g.ConstantInitializer(0.0)
    assert matrix.trainable
    assert bias.trainable


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.ChannelwiseFullyConnected(), [(3, 4)], "has output_channel_dims nothing; expected one or more sizes"),
        (g.Deconvolution(), [(3, 4)], "has num_dims 0; it must be 1 to 3"),
        (g.Deconvolution(num_dims=1), [(3, 4)], "has 0 numbers in kernel_size"),
        (g.Deconvolution(num_dims=1, kernel_size=2), [(3, 4)], "has out_channels 0; it must be at least 1"),
        (g.Deconvolution(num_dims=2, kernel_size=2, out_channels=1), [(3, 4)], "works on channels and 2 spatial"),
        (
            g.Deconvolution(num_dims=1, kernel_size=2, out_channels=1, groups=2),
            [(3, 4)],
            "has 2 groups, which must divide its 3 input and 1 output channels",
        ),
        (
            g.Deconvolution(num_dims=1, kernel_size=2, out_channels=1, output_padding=1),
            [(3, 4)],
            "has output_padding 1, which must be below the stride 1 or the dilation 1",
        ),
        (
            g.Deconvolution(num_dims=1, kernel_size=1, out_channels=1, padding=2),
            [(3, 4)],
            "has padding 2 and 'p0' gives 3 x 4: nothing is left",
        ),
        (g.FullyConnected(), [(3,)], "has num_neurons 0; it must be at least 1"),
        (g.Convolution(num_dims=4), [(3, 8, 8)], "has num_dims 4; it must be 1 to 3"),
        (g.Convolution(), [(3, 8, 8)], "has num_dims 0; it must be 1 to 3"),
        (g.Convolution(num_dims=2, out_channels=4), [(3, 8, 8)], "has 0 numbers in kernel_size; it needs 1, or 2"),
        (
            g.Convolution(num_dims=2, out_channels=4, kernel_size=[1, 2, 3]),
            [(3, 8, 8)],
            "has 3 numbers in kernel_size; it needs 1, or 2",
        ),
        (
            g.Convolution(num_dims=2, out_channels=4, kernel_size=3, padding=-1),
            [(3, 8, 8)],
            "has padding -1; every number must be at least 0",
        ),
        (g.Convolution(num_dims=2, kernel_size=3), [(3, 8, 8)], "has out_channels 0; it must be at least 1"),
        (
            g.Convolution(num_dims=2, out_channels=4, kernel_size=3, groups=2),
            [(3, 8, 8)],
            "has 2 groups, which must divide its 3 input and",
        ),
        (
            g.Convolution(num_dims=2, out_channels=4, kernel_size=3),
            [(64,)],
            "and 2 spatial dimensions, and 'p0' gives 64: put a Reshape",
        ),
        (
            g.Convolution(num_dims=2, out_channels=4, kernel_size=9),
            [(3, 8, 8)],
            "'p0' gives 3 x 8 x 8: the window does not fit",
        ),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
