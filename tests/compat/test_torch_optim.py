"""torch's optimizers and schedulers by their own names and arguments, against torch itself."""

import functools

import numpy as np
import pytest
import torch
from optimizer_inputs import one_step, weights

from descend.errors import RuleError, Unsupported
from descend.optim import from_library, schedule_from_library
from descend.optim.rules import Adam


def test_torchs_muon_takes_matrices_only():
    with pytest.raises(Unsupported, match=r"weights b .* matrices only and this one is \(3,\)"):
        from_library("torch", "Muon", list(zip("ab", weights((2, 2), (3,)), strict=True)))


def test_flags_may_be_numbers_and_rates_tensors_of_one():
    one_step(from_library("torch", "SGD", weights((2, 2)), lr=torch.tensor(0.1), momentum=0.9, nesterov=np.bool_(True)))
    one_step(from_library("torch", "SGD", weights((2, 2)), lr=np.float32(0.1), momentum=0.9, nesterov=1))


def test_groups_carry_torchs_own_arguments():
    a, b = weights((2,), (2,))
    groups = [{"params": [a], "betas": (0.5, 0.6), "lr": 0.5}, {"params": b}]
    optimizer = from_library("torch", "AdamW", groups, lr=0.1, weight_decay=0.2, fused=True)
    first, second = optimizer.param_groups
    assert (first["rule"].beta1, first["lr"], first["weight_decay"]) == (0.5, 0.5, 0.2)
    assert (second["rule"], second["lr"], second["decay"]) == (Adam(), 0.1, "decoupled")


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Rprop", "Muon"])
def test_a_rate_that_is_a_tensor_is_read_again_at_each_step(name):
    """Scripts and torch's schedulers write into it, and hold on to it."""
    ends = []
    for build in (functools.partial(from_library, "torch", name), getattr(torch.optim, name)):
        p = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
        rate = torch.tensor(0.5, dtype=torch.float64)
        optimizer = build([p], lr=rate)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(4):
            p.grad = torch.arange(6, dtype=torch.float64).reshape(3, 2) - step
            optimizer.step()
            schedule.step() if step < 2 else rate.fill_(0.01)
        ends.append(p.detach())
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def test_maximize_ascends():
    ours, theirs = weights((3,)), weights((3,))
    left = from_library("torch", "SGD", ours, lr=0.1, momentum=0.9, weight_decay=0.1, maximize=True)
    right = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=0.1, maximize=True)
    for _ in range(3):
        one_step(left)
        one_step(right)
    torch.testing.assert_close(ours[0], theirs[0])


STATES = [
    ("SGD", {"momentum": 0.9}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RMSprop", {"centered": True, "momentum": 0.9, "eps": 1e-3}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("Adadelta", {}),
    ("Rprop", {}),
    ("Adafactor", {}),
]


@pytest.mark.parametrize(("name", "kwargs"), STATES, ids=lambda value: str(value))
def test_a_run_begun_by_torch_goes_on(name, kwargs):
    """Three steps by torch, its state taken over, three steps by ours: as six steps by torch."""
    shapes = ((3, 4), (5,))
    theirs, ours = weights(*shapes), weights(*shapes)
    other = getattr(torch.optim, name)(theirs, lr=0.02, **kwargs)
    random = torch.Generator().manual_seed(3)
    for t in range(6):
        if t == 3:
            for mine, p in zip(ours, theirs, strict=True):
                mine.data.copy_(p.data)
            optimizer = from_library("torch", name, ours, lr=0.02, **kwargs)
            optimizer.load_torch_state(other.state_dict())
        for mine, p in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=random, dtype=torch.float64)
            mine.grad = p.grad.clone()
        other.step()
        if t >= 3:
            optimizer.step()
    for mine, p in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, p, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("SGD", {"weight_decay": 0.1, "momentum": 0.9, "maximize": True}),
        ("AdamW", {"weight_decay": 0.1, "betas": (0.7, 0.9)}),
        ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
        ("Adafactor", {"weight_decay": 0.1}),
    ],
)
def test_a_group_that_comes_later_has_the_arguments_of_the_call(name, kwargs):
    ours, theirs = weights((3, 2), (4,)), weights((3, 2), (4,))
    optimizers = [
        from_library("torch", name, ours[:1], lr=0.02, **kwargs),
        getattr(torch.optim, name)(theirs[:1], lr=0.02, **kwargs),
    ]
    for optimizer, w in zip(optimizers, (ours, theirs), strict=True):
        one_step(optimizer)
        optimizer.add_param_group({"params": w[1:]})
        one_step(optimizer, -0.5)
    for mine, p in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, p, rtol=1e-9, atol=1e-11)


SCHEDULERS = [
    ("StepLR", {"step_size": 3}),
    ("MultiStepLR", {"milestones": [2, 7]}),
    ("ConstantLR", {"factor": 0.5, "total_iters": 4}),
    ("LinearLR", {"start_factor": 0.2, "total_iters": 6}),
    ("ExponentialLR", {"gamma": 0.8}),
    ("PolynomialLR", {"total_iters": 8, "power": 2.0}),
    ("CosineAnnealingLR", {"T_max": 6, "eta_min": 0.01}),
    # arguments at their edges
    ("MultiStepLR", {"milestones": [2.5, -1, 4, 4]}),
    ("ConstantLR", {"factor": 0.5, "total_iters": -1}),
    ("LinearLR", {"start_factor": 0.2, "total_iters": 0}),
    ("PolynomialLR", {"total_iters": 0}),
    ("PolynomialLR", {"total_iters": 4, "power": 0.0}),
    ("ExponentialLR", {"gamma": 0.0, "last_epoch": -1}),
]


@pytest.mark.parametrize(("name", "kwargs"), SCHEDULERS, ids=lambda value: str(value))
def test_torchs_schedulers(name, kwargs):
    optimizer = torch.optim.SGD(weights((1,)), lr=0.4)
    theirs = getattr(torch.optim.lr_scheduler, name)(optimizer, **kwargs)
    ours = schedule_from_library("torch", name, lr=0.4, **kwargs)
    for step in range(15):
        assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("LinearLR", {"start_factor": 0.0}, "wants start_factor above 0 to 1 and it is 0.0"),
        ("LinearLR", {"end_factor": 2.0}, "wants end_factor from 0 to 1 and it is 2.0"),
        ("ConstantLR", {"factor": 1.5}, "wants factor from 0 to 1"),
        ("ConstantLR", {"factor": 0.0}, "divides by its factor at step 5"),
        ("CosineAnnealingLR", {"T_max": 0}, "T_max must be an integer >= 1"),
    ],
)
def test_what_torchs_schedulers_refuse(name, kwargs, words):
    def theirs():
        optimizer = torch.optim.SGD(weights((1,)), lr=0.4)
        scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **kwargs)
        for _ in range(6):
            optimizer.step()
            scheduler.step()

    with pytest.raises((ValueError, ZeroDivisionError)):
        theirs()
    with pytest.raises(RuleError, match=words):
        schedule_from_library("torch", name, lr=0.4, **kwargs)


def test_a_scheduler_that_goes_on_is_a_shifted_one():
    with pytest.raises(Unsupported, match=r"leave last_epoch out and take schedule.shifted\(4 \+ 1\)"):
        schedule_from_library("torch", "StepLR", lr=0.4, step_size=3, last_epoch=4)
