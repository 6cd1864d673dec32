"""Activations as kinds of layers: shapes, defaults of LBANN, and what they refuse."""

import inspect

import pytest
import torch

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of

KINDS = [g.ChannelwiseSoftmax, g.Elu, g.Identity, g.LeakyRelu, g.LogSoftmax, g.Relu, g.Softmax]


@pytest.mark.parametrize("activation", KINDS)
def test_the_output_has_the_shape_of_the_input_and_no_weights(activation):
    assert shape_of(activation(), (2, 3)) == (2, 3)
    assert activation().weight_slots(()) == ()
    assert activation.num_parents == 1


@pytest.mark.parametrize(
    ("activation", "field", "function", "argument"),
    [
        (g.Elu, "alpha", torch.nn.functional.elu, "alpha"),
        (g.LeakyRelu, "negative_slope", torch.nn.functional.leaky_relu, "negative_slope"),
    ],
)
def test_an_unset_coefficient_is_torchs_and_the_field_itself_stays_zero(activation, field, function, argument):
    """In the text an unset field and a written 0 are one, so both mean the default."""
    usual = inspect.signature(function).parameters[argument].default
    for layer in (activation(), activation(**{field: 0.0})):
        assert layer.setting(field) == usual
        assert layer.to_fields()[field] == 0.0
    assert activation(**{field: 0.25}).setting(field) == 0.25


def test_an_unset_softmax_mode_is_over_the_whole_sample():
    assert g.Softmax().setting("softmax_mode") == "instance"
    assert shape_of(g.Softmax(softmax_mode="instance"), (2, 3)) == (2, 3)
    assert shape_of(g.Softmax(softmax_mode="channel"), (2, 3)) == (2, 3)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_channelwise_softmax_takes_the_dimensions_that_torch_takes(rank):
    """With single_dim_mode every dimension that torch.softmax has; without it the first and the last of them."""
    shape = (2, 3, 4, 5)[:rank]
    for dim in range(-6, 6):
        try:
            torch.softmax(torch.zeros(shape), dim)
        except IndexError:
            for single in (False, True):
                assert f"has dim {dim}, and 'p0' gives" in refusal(
                    g.ChannelwiseSoftmax(dim=dim, single_dim_mode=single), shape
                )
            continue
        assert shape_of(g.ChannelwiseSoftmax(dim=dim, single_dim_mode=True), shape) == shape
        if dim in (0, -rank, rank - 1, -1):
            assert shape_of(g.ChannelwiseSoftmax(dim=dim), shape) == shape
        else:
            assert "it is the first or the last" in refusal(g.ChannelwiseSoftmax(dim=dim), shape)


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.ChannelwiseSoftmax(dim=3), [(2, 3, 4)], "has dim 3, and 'p0' gives 2 x 3 x 4: expected -3 to 2"),
        (g.ChannelwiseSoftmax(dim=-4), [(2, 3, 4)], "has dim -4"),
        (g.ChannelwiseSoftmax(dim=1), [(2, 3, 4)], "without single_dim_mode it is the first or the last"),
        (g.Softmax(softmax_mode="x"), [(2, 3, 4)], "has softmax_mode 'x'"),
        (g.Softmax(softmax_mode="row"), [(3,)], "has softmax_mode 'row'; expected instance (or unset) or channel"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
