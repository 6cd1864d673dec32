"""Gated recurrent units against their equations, step by step."""

import numpy as np
import pytest
import torch
from scipy.special import expit

import descend
from tests.lower.single import Single, random


def cells(x, hidden, weights, layers):
    """The top layer at every step; x (samples, length, inputs), hidden (samples, layers, size)."""
    below = x
    for layer in range(layers):
        w, u, b, c = (weights[f"g_{name}_l{layer}"] for name in ("ih_matrix", "hh_matrix", "ih_bias", "hh_bias"))
        h, steps = hidden[:, layer], []
        for t in range(x.shape[1]):
            into, back = below[:, t] @ w.T + b, h @ u.T + c
            (ri, zi, ni), (rb, zb, nb) = np.split(into, 3, 1), np.split(back, 3, 1)
            r, z = expit(ri + rb), expit(zi + zb)
            h = (1 - z) * np.tanh(ni + r * nb) + z * h
            steps.append(h)
        below = np.stack(steps, 1)
    return below


@pytest.mark.parametrize(("fields", "layers"), [({}, 1), ({"num_layers": 1}, 1), ({"num_layers": 3}, 3)])
def test_a_gru_is_its_equations(fields, layers):
    layer = Single(lambda x, h: descend.GRU(x, h, hidden_size=4, name="g", **fields), (5, 2), (layers, 4))
    x, hidden = random(3, 5, 2), random(3, layers, 4, seed=1)
    weights = {name: tensor.detach().numpy() for name, tensor in layer.weights.items()}
    want = cells(x.detach().numpy(), hidden.detach().numpy(), weights, layers)
    np.testing.assert_allclose(layer(x, hidden).detach(), want, rtol=1e-11, atol=1e-12)
    assert torch.autograd.gradcheck(lambda *z: layer(z[0], z[1]), (x, hidden, *layer.weights.values()))


def test_the_weights_of_a_cell_have_the_formats_names_and_start():
    layer = Single(lambda x, h: descend.GRU(x, h, hidden_size=4, num_layers=2, name="g"), (5, 2), (2, 4))
    assert [(name, tuple(w.shape)) for name, w in layer.weights.items()] == [
        ("g_ih_matrix_l0", (12, 2)),
        ("g_hh_matrix_l0", (12, 4)),
        ("g_ih_bias_l0", (12,)),
        ("g_hh_bias_l0", (12,)),
        ("g_ih_matrix_l1", (12, 4)),
        ("g_hh_matrix_l1", (12, 4)),
        ("g_ih_bias_l1", (12,)),
        ("g_hh_bias_l1", (12,)),
    ]
    entries = torch.cat([w.detach().flatten() for w in layer.weights.values()])
    assert 0.45 < entries.abs().max() <= 0.5


def test_listed_values_fill_a_gates_matrix_column_by_column():
    listed = descend.Weights(descend.ValueInitializer(values=range(6)), name="w")
    layer = Single(lambda x, h: descend.GRU(x, h, hidden_size=1, weights=[listed]), (5, 2), (1, 1))
    assert layer.weights["w"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_one_layer_takes_a_line_of_hidden_states_too():
    layer = Single(lambda x, h: descend.GRU(x, h, hidden_size=4, name="g"), (5, 2), (4,))
    assert layer(random(3, 5, 2), random(3, 4)).shape == (3, 5, 4)
