"""MXNet 2.0's optimizers: what differs from the equations and from 1.9."""

import pytest
import torch
from optimizer_inputs import weights

from descend.optim import from_library
from descend.optim.rules import SignSGD


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (0.0, [0.9999899864196777, 1.9999799728393555, -2.999969959259033]),
        (-1.0, [0.9994905591011047, 1.999880075454712, -2.9979724884033203]),
    ],
)
def test_the_kernel_of_lars_takes_zero_at_its_word(bound, expected):
    # Recorded with MXNet 2.0.0b1: three steps, learning_rate 0.1, momentum 0.9, wd 0.01.
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0, -3.0]))
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01, "clip_gradient": bound}
    optimizer = from_library("mxnet-2.0", "lars", [w], **options)
    for _ in range(3):
        w.grad = torch.tensor([0.5, 0.1, -2.0])
        optimizer.step()
    torch.testing.assert_close(w.detach(), torch.tensor(expected), rtol=2e-7, atol=0)


def test_signsgd_is_signum_without_momentum():
    optimizer = from_library("mxnet-2.0", "signum", weights((1,)), momentum=0, wd=0.2, wd_lh=0.1)
    group = optimizer.param_groups[0]
    assert isinstance(group["rule"], SignSGD)
    assert (group["weight_decay"], group["decay"]) == (pytest.approx(0.3), "decoupled")
