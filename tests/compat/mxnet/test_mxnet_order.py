"""Where MXNet puts the decay, and what its multipliers mean, against gradients prepared by hand."""

import numpy as np
import pytest
import torch

from descend.optim import from_library

AFTER = ("sgd", "nag", "signum")  # clip(r g) + λ w
OLD = {**dict.fromkeys(AFTER, "A"), **dict.fromkeys(("adam", "adamax", "nadam", "rmsprop", "ftml"), "B")}
NEW = {
    **dict.fromkeys((*AFTER, "adam", "adamax", "nadam", "rmsprop", "ftml", "adagrad", "adadelta", "dcasgd"), "A"),
    "adabelief": "B",
}
TABLE = [("mxnet-1.9", *item) for item in OLD.items()] + [("mxnet-2.0", *item) for item in NEW.items()]
R, C, WD, LR = 0.25, 0.3, 0.2, 0.02


def gradients(steps: int = 12) -> torch.Tensor:
    return 3 * torch.randn(steps, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def start() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


@pytest.mark.parametrize(("library", "name", "order"), TABLE)
def test_order_of_rescaling_clipping_and_decay(library, name, order):
    given, by_hand = start(), start()
    ours = from_library(library, name, [given], learning_rate=LR, rescale_grad=R, clip_gradient=C, wd=WD)
    plain = from_library(library, name, [by_hand], learning_rate=LR)
    for g in gradients():
        given.grad = g.clone()
        decayed = R * g + (WD * by_hand.detach() if order == "B" else 0.0)
        by_hand.grad = decayed.clamp(-C, C) + (WD * by_hand.detach() if order == "A" else 0.0)
        ours.step()
        plain.step()
        torch.testing.assert_close(given, by_hand, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("library", "name", "order"), TABLE)
def test_multipliers_are_a_rate_and_a_decay_of_ones_own(library, name, order):
    together, apart = [start(), start()], [start(), start()]
    ours = from_library(library, name, together, learning_rate=LR, wd=WD, lr_mult=[1.0, 0.5], wd_mult={1: 3.0})
    alone = [
        from_library(library, name, [p], learning_rate=LR * rate, wd=WD * decay)
        for p, rate, decay in zip(apart, (1.0, 0.5), (1.0, 3.0), strict=True)
    ]
    for g in gradients():
        for p in (*together, *apart):
            p.grad = g.clone()
        ours.step()
        for optimizer in alone:
            optimizer.step()
    for left, right in zip(together, apart, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("library", ["mxnet-1.9", "mxnet-2.0"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad", "ftrl"])
def test_a_negative_factor_turns_the_gradient_round(library, name):
    """clip(−|r| g) is −clip(|r| g), and the decay keeps its sign."""
    g = torch.tensor([3.0, -0.1, 0.0], dtype=torch.float64)
    ends = []
    for sign in (1.0, -1.0):
        w = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
        made = from_library(library, name, [w], learning_rate=0.1, rescale_grad=sign * 0.5, clip_gradient=1.0, wd=0.1)
        w.grad = sign * g
        made.step()
        ends.append(w.detach().clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize("library", ["mxnet-1.9", "mxnet-2.0"])
@pytest.mark.parametrize("given", [{"rescale_grad": -2.0}, {"rescale_grad": 0.0}, {"clip_gradient": 0}])
def test_signsgd_takes_the_sign_of_the_gradient_as_it_comes(library, given):
    w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    made = from_library(library, "signum", [w], momentum=0, learning_rate=0.1, **given)
    w.grad = torch.tensor([3.0, -0.1, 0.0], dtype=torch.float64)
    made.step()
    np.testing.assert_allclose(w.detach().numpy(), [-0.1, 0.1, 0.0])


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"upper_bound": 0}, (None, None)),
        ({"upper_bound": 0, "use_fused_step": False}, (None, 0)),
        ({"lower_bound": 2.0, "upper_bound": 1.0}, (1.0, 1.0)),
    ],
)
@pytest.mark.parametrize("name", ["lamb", "lans"])
def test_bounds_of_a_norm(name, given, limits):
    rule = from_library("mxnet-2.0", name, [torch.nn.Parameter(torch.ones(3))], **given).param_groups[0]["rule"]
    assert (rule.lower_bound, rule.upper_bound) == limits
