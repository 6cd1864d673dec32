"""AdaGrad and GroupAdaGrad against their equations and torch."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError
from descend.optim.rules import AdaGrad, GroupAdaGrad


def reference(eps=1e-6, inside=False, lr_decay=0.0, initial=0.0):
    def make():
        h = initial

        def step(w, g, t, lr, decay):
            nonlocal h
            h = h + g**2
            root = np.sqrt(h + eps) if inside else np.sqrt(h) + eps
            return w - lr / (1 + (t - 1) * lr_decay) * g / root

        return step

    return make


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("initial", [0.0, 0.1])
def test_adagrad(agree, inside, initial):
    agree(AdaGrad(1e-3, inside, 0.2, initial), reference(1e-3, inside, 0.2, initial))


def test_without_eps_an_entry_that_saw_no_gradient_stays(path):
    w, g = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, 2.0], dtype=torch.float64)
    moved = path(AdaGrad(eps=0.0), w, [g, g], [1.0, 1.0], 0.0)
    # by hand: the moving entry takes 1/√1 and 1/√2 of the rate
    np.testing.assert_allclose(moved[-1].numpy(), [1.0, 1 - 1 - 1 / np.sqrt(2)], rtol=1e-12)


def test_torch(as_torch):
    kwargs = {"lr_decay": 0.1, "eps": 1e-3}
    theirs = lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.1, **kwargs)  # noqa: E731
    as_torch(AdaGrad(initial=0.1, **kwargs), theirs, lr=0.1, weight_decay=0.1)


@pytest.mark.parametrize("inside", [False, True])
def test_group_adagrad_keeps_one_number_a_row(agree, inside):
    def make():
        h = 0.0

        def step(w, g, t, lr, decay):
            nonlocal h
            rows = g.reshape(g.shape[0], -1) if g.ndim > 1 else g.reshape(-1, 1)
            h = h + (rows**2).mean(1)
            root = (np.sqrt(h + 1e-3) if inside else np.sqrt(h) + 1e-3)[:, None]
            return w - lr * (rows / root).reshape(g.shape)

        return step

    agree(GroupAdaGrad(1e-3, inside), make)


def test_group_adagrads_state_has_one_number_a_row():
    assert GroupAdaGrad().init(torch.zeros(6, 5)).h.shape == (6,)


def test_negative_eps_is_refused():
    with pytest.raises(RuleError, match="eps must be a finite number >= 0"):
        AdaGrad(eps=-1.0)
