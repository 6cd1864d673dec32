"""Shapes and weights of each kind, against torch where it has the same layer and by hand elsewhere."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import descend.graph as g
from descend.errors import GraphError
from descend.graph import Incoming


def incoming(*shapes):
    return tuple(Incoming(f"p{index}", shape) for index, shape in enumerate(shapes))


def refusal(layer, *shapes):
    with pytest.raises(GraphError) as caught:
        layer.output_shape(incoming(*shapes))
    return str(caught.value)


windows = st.integers(1, 3).flatmap(
    lambda dims: st.fixed_dictionaries(
        {
            "space": st.lists(st.integers(1, 9), min_size=dims, max_size=dims),
            "size": st.lists(st.integers(1, 3), min_size=dims, max_size=dims),
            "stride": st.lists(st.integers(1, 3), min_size=dims, max_size=dims),
            "padding": st.lists(st.integers(0, 2), min_size=dims, max_size=dims),
            "dilation": st.lists(st.integers(1, 2), min_size=dims, max_size=dims),
        }
    )
)


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
    given_shape = incoming((channels, *window["space"]))
    try:
        expected = tuple(twin(torch.zeros(1, channels, *window["space"])).shape[1:])
    except RuntimeError:  # the window does not fit
        with pytest.raises(GraphError, match="does not fit"):
            layer.output_shape(given_shape)
        return
    assert layer.output_shape(given_shape) == expected
    slots = {slot.suffix: slot for slot in layer.weight_slots(given_shape)}
    assert slots["kernel"].shape == tuple(twin.weight.shape)
    assert ("bias" in slots) == bias
    entries = twin.weight.numel()
    assert (slots["kernel"].fan_in, slots["kernel"].fan_out) == (entries // filters, entries // channels)


@given(windows)
def test_pooling_is_shaped_as_torch_shapes_it(window):
    dims = len(window["space"])
    # torch takes no more padding than half a window, and in three dimensions no window larger than the space.
    space = [max(pair) for pair in zip(window["space"], window["size"], strict=True)]
    padding = [min(p, size // 2) for p, size in zip(window["padding"], window["size"], strict=True)]
    layer = g.Pooling(
        num_dims=dims,
        pool_mode="average",
        has_vectors=True,
        pool_dims=window["size"],
        pool_strides=window["stride"],
        pool_pads=padding,
    )
    pools = (torch.nn.AvgPool1d, torch.nn.AvgPool2d, torch.nn.AvgPool3d)
    pool = pools[dims - 1](window["size"], window["stride"], padding)
    expected = tuple(pool(torch.zeros(1, 2, *space)).shape[1:])
    assert layer.output_shape(incoming((2, *space))) == expected


def test_pooling_takes_single_numbers_for_all_dimensions():
    layer = g.Pooling(num_dims=2, pool_mode="max", pool_dims_i=2, pool_strides_i=2)
    assert layer.output_shape(incoming((6, 28, 14))) == (6, 14, 7)
    assert layer.window() == ((2, 2), (2, 2), (0, 0), (1, 1))


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
    assert (bias.suffix, bias.shape) == ("bias_weights", (5,))
    assert len(g.FullyConnected(num_neurons=5).weight_slots(given_shape)) == 1
    assert g.FullyConnected(num_neurons=5, transpose=True).weight_slots(given_shape)[0].shape == (24, 5)


@pytest.mark.parametrize("kind", [g.Relu, g.Elu, g.LeakyRelu, g.Identity, g.Softmax, g.LogSoftmax, g.Dummy, g.Split])
def test_entrywise_kinds_keep_the_shape(kind):
    assert kind().output_shape(incoming((2, 3))) == (2, 3)


def test_joining_and_reshaping():
    assert g.Sum().output_shape(incoming((2, 3), (2, 3), (2, 3))) == (2, 3)
    assert g.Concatenation().output_shape(incoming((2, 3), (4, 3))) == (6, 3)
    assert g.Concatenation(axis=1).output_shape(incoming((2, 3), (2, 1), (2, 5))) == (2, 9)
    assert g.Reshape(dims=[4, -1]).output_shape(incoming((2, 3, 4))) == (4, 6)
    assert g.Reshape(dims=24).output_shape(incoming((2, 3, 4))) == (24,)


def test_losses_give_one_number():
    for loss in (g.CrossEntropy(), g.MeanSquaredError(), g.CategoricalAccuracy(), g.TopKCategoricalAccuracy(k=5)):
        assert loss.output_shape(incoming((10,), (10,))) == (1,)
    assert g.CrossEntropy(use_labels=True).output_shape(incoming((21, 8, 8), (1, 8, 8))) == (1,)


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.FullyConnected(), [(3,)], "has num_neurons 0; it must be at least 1"),
        (g.Convolution(num_dims=4), [(3, 8, 8)], "has num_dims 4; it must be 1 to 3"),
        (
            g.Pooling(num_dims=1, pool_mode="max", pool_dims_i=2, pool_pads_i=2, pool_strides_i=1),
            [(3, 8)],
            "has windows of 2 and padding 2, so a window would lie in the padding alone; the padding must be smaller",
        ),
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
        (
            g.Pooling(num_dims=2, pool_mode="avg"),
            [(3, 8, 8)],
            "has pool_mode 'avg'; expected max, average or average_no_pad",
        ),
        (g.Pooling(num_dims=2, pool_mode="max", pool_dims=2), [(3, 8, 8)], "which count with has_vectors alone"),
        (
            g.Pooling(num_dims=1, pool_mode="max", has_vectors=True, pool_dims=2, pool_strides=2, pool_pads_i=1),
            [(3, 8)],
            "which count without has_vectors alone",
        ),
        (g.Pooling(num_dims=2, pool_mode="max"), [(3, 8, 8)], "has pool_dims_i 0; every number must be at least 1"),
        (g.Softmax(softmax_mode="row"), [(3,)], "has softmax_mode 'row'; expected instance (or unset) or channel"),
        (g.Dropout(), [(3,)], "has keep_prob 0.0; expected above 0 and up to 1"),
        (g.Dropout(keep_prob=1.5), [(3,)], "has keep_prob 1.5"),
        (g.Dropout(keep_prob=float("nan")), [(3,)], "has keep_prob nan"),
        (g.TopKCategoricalAccuracy(), [(3,), (3,)], "has k 0; it must be at least 1"),
        (g.CrossEntropy(), [(10,), (1,)], "needs parents of one shape; 'p0' gives 10 and 'p1' gives 1"),
        (
            g.CrossEntropy(),
            [(2, 5), (10,)],
            "'p0' gives 2 x 5 and 'p1' gives 10: put a Reshape in front of one of them",
        ),
        (g.CrossEntropy(use_labels=True), [(10,), (10,)], "so the label must be 1; 'p1' gives 10"),
        (g.Sum(), [(2,), (3,)], "needs parents of one shape"),
        (g.Concatenation(axis=1), [(2,), (3,)], "has axis 1, and 'p0' gives 2: expected 0 to 0"),
        (g.Concatenation(axis=-1), [(2,)], "has axis -1"),
        (
            g.Concatenation(),
            [(2, 3), (2, 4)],
            "its parents may differ there alone; 'p0' gives 2 x 3 and 'p1' gives 2 x 4",
        ),
        (g.Reshape(), [(2,)], "has dims nothing; expected sizes of at least 1"),
        (g.Reshape(dims=[-1, -1]), [(4,)], "one of which may be -1"),
        (g.Reshape(dims=[3, -1]), [(4,)], "has dims 3 x -1, and 'p0' gives 4, which has 4 entries"),
        (g.Evaluation(), [(2,)], "needs one number a sample, and 'p0' gives 2"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, g.Layer) else "",
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)


def test_dropout_may_be_turned_off():
    assert g.Dropout(keep_prob=-1).output_shape(incoming((3,))) == (3,)
