"""The GRU as a kind of layer, against torch's module of the same sizes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of, slots_of

# The names of one layer's weights here and in torch.nn.GRU.
NAMES = {"ih_matrix": "weight_ih", "hh_matrix": "weight_hh", "ih_bias": "bias_ih", "hh_bias": "bias_hh"}


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_weights_and_output_are_shaped_as_those_of_torchs_module(inputs, hidden, layers, length):
    layer = g.GRU(hidden_size=hidden, num_layers=layers)
    twin = torch.nn.GRU(inputs, hidden, layers, batch_first=True)
    shapes = ((length, inputs), (layers, hidden))
    output, _ = twin(torch.zeros(1, length, inputs))
    assert shape_of(layer, *shapes) == tuple(output.shape[1:])
    slots = slots_of(layer, *shapes)
    assert list(slots) == [f"{own}_l{below}" for below in range(layers) for own in NAMES]
    for suffix, slot in slots.items():
        own, _, below = suffix.rpartition("_l")
        assert slot.shape == tuple(getattr(twin, f"{NAMES[own]}_l{below}").shape)
        assert slot.column_major == (len(slot.shape) == 2)
        assert (slot.fan_out, slot.fan_in) == (slot.shape if len(slot.shape) == 2 else (0, 0))
    entries = sum(p.numel() for name, p in twin.named_parameters() if name.startswith("weight"))
    assert layer.multiply_adds(shapes, (length, hidden)) == length * entries


@pytest.mark.parametrize("hidden", [1, 4, 9])
def test_weights_start_as_those_of_torchs_module(hidden):
    """torch draws all of them from U(±1/√hidden)."""
    for slot in slots_of(g.GRU(hidden_size=hidden), (3, 2), (1, hidden)).values():
        assert slot.initializer.bounds == pytest.approx((-1 / hidden**0.5, 1 / hidden**0.5), rel=1e-15)
        assert slot.trainable


def test_one_layer_takes_a_first_hidden_state_of_one_dimension_too():
    assert shape_of(g.GRU(hidden_size=4), (5, 2), (4,)) == (5, 4)
    assert shape_of(g.GRU(hidden_size=4, num_layers=1), (5, 2), (4,)) == (5, 4)


def test_an_unset_number_of_layers_is_1_and_a_written_0_is_refused():
    assert g.GRU().setting("num_layers") == 1
    assert refusal(g.GRU(hidden_size=4, num_layers=0), (5, 2), (0, 4)) == (
        "has hidden_size 4 and num_layers 0; both must be at least 1"
    )


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.GRU(), [(5, 2), (1, 4)], "has hidden_size 0 and num_layers 1; both must be at least 1"),
        (g.GRU(hidden_size=4), [(5,), (1, 4)], "needs a sequence (length, input size), and 'p0' gives 5"),
        (g.GRU(hidden_size=4), [(5, 2), (1, 3)], "needs first hidden states of 1 x 4, and 'p1' gives 1 x 3"),
        (g.GRU(hidden_size=4, num_layers=2), [(5, 2), (4,)], "needs first hidden states of 2 x 4"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
