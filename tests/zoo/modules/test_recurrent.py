"""Recurrent cells against torch's, with the same weights."""

import pytest
import torch

import descend
from descend.zoo import modules
from tests.zoo.lowered import agree, lowered, random


def steps(cell, length):
    """A cell along a sequence; the last output."""

    def make(sequence):
        points = range(length + 1)
        cut = descend.Slice(sequence, slice_points=points)
        state = None
        for x in [descend.Reshape(cut, dims=[2]) for _ in range(length)]:
            y, state = cell(x, state)
        return y

    return make


@pytest.mark.parametrize("bias", [True, False])
def test_the_lstm_cell_is_torchs(bias):
    cell = modules.LSTMCell(3, bias=bias)
    lower, call, _ = lowered(steps(cell, 4), (4, 2))
    twin = torch.nn.LSTM(2, 3, bias=bias, batch_first=True, dtype=torch.float64)
    f, i, o, u = lower.get_parameter("lstmcell1_fc_matrix").detach().chunk(4)
    with torch.no_grad():
        rows = torch.cat([i, f, u, o])  # torch's order
        twin.weight_ih_l0.copy_(rows[:, :2])
        twin.weight_hh_l0.copy_(rows[:, 2:])
        if bias:
            own = lower.get_parameter("lstmcell1_fc_bias").normal_()
            f, i, o, u = own.chunk(4)
            twin.bias_ih_l0.copy_(torch.cat([i, f, u, o]))
            twin.bias_hh_l0.zero_()
    x = random(5, 4, 2)
    torch.testing.assert_close(call(x), twin(x)[0][:, -1], rtol=1e-10, atol=1e-12)


def test_the_gru_cell_is_the_gru_layer():
    cell = modules.GRU(3)
    lower, call, _ = lowered(steps(cell, 4), (4, 2))
    twin = torch.nn.GRU(2, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for ours, theirs in (("ih", "ih"), ("hh", "hh")):
            getattr(twin, f"weight_{theirs}_l0").copy_(lower.get_parameter(f"gru1_{ours}_fc_matrix"))
            getattr(twin, f"bias_{theirs}_l0").copy_(lower.get_parameter(f"gru1_{ours}_fc_bias").normal_())
    x = random(5, 4, 2)
    torch.testing.assert_close(call(x), twin(x)[0][:, -1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_a_channelwise_gru_is_a_gru_for_each_channel(bias):
    cell = modules.ChannelwiseGRU(4, 3, bias=bias, name="g")

    def make(x, h):
        return cell(x, cell(x, h)[0])[0]

    def twin(get, x, h):
        kinds = ("matrix", "bias") if bias else ("matrix",)
        weights = [get(f"g_{part}_fc_{kind}") for kind in kinds for part in ("ih", "hh")]
        for _ in range(2):
            h = torch.gru_cell(x.flatten(0, 1), h.flatten(0, 1), *weights).view(-1, 4, 3)
        return h

    agree(make, twin, random(2, 4, 5), random(2, 4, 3, seed=1))
    agree(lambda x: cell(x)[0], lambda get, x: twin_of_zero(get, x, bias), random(2, 4, 5))


def twin_of_zero(get, x, bias):
    kinds = ("matrix", "bias") if bias else ("matrix",)
    weights = [get(f"g_{part}_fc_{kind}") for kind in kinds for part in ("ih", "hh")]
    return torch.gru_cell(x.flatten(0, 1), x.new_zeros(8, 3), *weights).view(2, 4, 3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("make", [modules.GRU, lambda *a, **k: modules.ChannelwiseGRU(2, *a, **k)], ids=["gru", "each"])
def test_weights_that_are_given_to_a_gru_are_those_of_both_maps_in_turn(make, bias):
    """W and its bias come first, then U and its bias, so without biases the second is U."""
    own = [descend.Weights(name=f"own{i}") for i in range(4 if bias else 2)]
    cell = make(3, bias=bias, weights=own)
    each = 2 if bias else 1
    assert cell.ih.weights == own[:each]
    assert cell.hh.weights == own[each:]


def test_a_single_matrix_of_a_gru_is_that_of_the_input():
    own = descend.Weights(name="own")
    cell = modules.GRU(3, weights=own, name="g")
    assert [w.name for w in cell.ih.weights] == ["own", "g_ih_fc_bias"]
    assert [w.name for w in cell.hh.weights] == ["g_hh_fc_matrix", "g_hh_fc_bias"]


def test_the_lstm_cell_gives_its_output_and_the_new_state():
    """h is the output and part of the state; c is not bounded by 1, as h is."""
    cell = modules.LSTMCell(2, name="l")
    x = descend.Input(name="x")
    y, (hidden, memory) = cell(x)
    assert y is hidden
    assert y.name == "l"
    assert memory.name == "l_cell"
    again, _ = cell(x, (hidden, memory))
    assert again.name == "l_instance2"


def test_an_lstm_step_from_a_given_state_is_torchs_cell():
    cell = modules.LSTMCell(3, name="l")

    def twin(get, x, h, c):
        f, i, o, u = get("l_fc_matrix").chunk(4)
        rows = torch.cat([i, f, u, o])  # torch's order
        bf, bi, bo, bu = get("l_fc_bias").chunk(4)
        bias = torch.cat([bi, bf, bu, bo])
        return torch.lstm_cell(x, (h, c), rows[:, :2], rows[:, 2:], bias, torch.zeros_like(bias))[1]

    agree(lambda x, h, c: cell(x, (h, c))[1][1], twin, *(random(4, n, seed=i) for i, n in enumerate((2, 3, 3))))
