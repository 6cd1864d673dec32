"""LBANN's optimizers: defaults of descriptions and of constructors."""

import numpy as np
import torch
from optimizer_inputs import weights

from descend.optim import from_library
from descend.optim.rules import AdamW


def test_a_description_has_zeros_and_a_constructor_defaults():
    description = from_library("lbann", "Adam", weights((2,)), learn_rate=0.1)
    assert description.param_groups[0]["rule"] == AdamW(0, 0, 0, "uncorrected", skip_nonfinite=True)
    constructed = from_library("lbann", "adam", weights((2,)), learn_rate=0.1)
    assert constructed.param_groups[0]["rule"] == AdamW(0.9, 0.99, 1e-8, "uncorrected", skip_nonfinite=True)


def test_adam_of_zeros_is_the_sign():
    w = weights((3,))
    before = w[0].detach().clone()
    w[0].grad = torch.tensor([2.0, 0.0, -5.0], dtype=torch.float64)
    from_library("lbann", "Adam", w, learn_rate=0.1).step()
    np.testing.assert_allclose((before - w[0].detach()).numpy(), [0.1, 0.0, -0.1], atol=1e-12)
