"""optax's optimizers and schedules, against their equations and recorded values."""

import numpy as np
import pytest
import torch
from optimizer_inputs import weights
from system_needs import library

from descend.compat import OPTIMIZERS
from descend.errors import RuleError
from descend.optim import from_library, schedule_from_library
from descend.optim.rules import LARS, SGD


def test_optax_puts_the_rate_inside_rmsprops_momentum():
    w, grads = weights((4,)), np.random.default_rng(0).normal(size=(6, 4))
    optimizer = from_library("optax", "rmsprop", w, learning_rate=lambda step: 0.1 / (1 + step), momentum=0.9, eps=1e-3)
    p, nu, trace = w[0].detach().numpy().copy(), 0.0, 0.0
    for t, g in enumerate(grads):
        w[0].grad = torch.tensor(g)
        optimizer.step()
        nu = 0.9 * nu + 0.1 * g**2
        trace = 0.1 / (1 + t) * g / np.sqrt(nu + 1e-3) + 0.9 * trace
        p = p - trace
        np.testing.assert_allclose(w[0].detach().numpy(), p, rtol=1e-12)


def test_optax_lars_takes_the_norm_of_gradient_and_decay_together():
    rule = from_library("optax", "lars", weights((2, 2)), learning_rate=1.0, weight_decay=0.1).param_groups[0]["rule"]
    assert rule == LARS(0.9, 1e-3, 0.0, ratio_of="sum")
    assert from_library("optax", "sgd", weights((2,)), learning_rate=0.1).param_groups[0]["rule"] == SGD()


def test_optax_against_itself():
    """Where optax is installed: twenty steps of each rule."""
    optax = library("optax")
    jax = library("jax")
    jax.config.update("jax_enable_x64", True)
    random = np.random.default_rng(0)
    start, grads = random.normal(size=(4, 3)), random.normal(size=(20, 4, 3))
    for name in OPTIMIZERS["optax"][0]:
        theirs, p = getattr(optax, name)(learning_rate=0.02), jax.numpy.array(start)
        state, w = theirs.init(p), torch.nn.Parameter(torch.tensor(start))
        ours = from_library("optax", name, [w], learning_rate=0.02)
        for g in grads:
            updates, state = theirs.update(jax.numpy.array(g), state, p)
            p = optax.apply_updates(p, updates)
            w.grad = torch.tensor(g)
            ours.step()
            np.testing.assert_allclose(w.detach().numpy(), np.array(p), rtol=1e-10, atol=1e-12, err_msg=name)


def test_optax_schedules():
    warm = schedule_from_library(
        "optax", "warmup_cosine_decay_schedule", init_value=0.1, peak_value=1.0, warmup_steps=4, decay_steps=14
    )
    assert [warm(t) for t in (0, 4, 9, 14, 20)] == pytest.approx([0.1, 1.0, 0.5, 0.0, 0.0])
    steps = schedule_from_library(
        "optax", "piecewise_constant_schedule", init_value=1.0, boundaries_and_scales={5: 0.1}
    )
    assert [steps(t) for t in (4, 5)] == pytest.approx([1.0, 0.1])


@pytest.mark.parametrize(
    ("name", "kwargs", "rates"),
    [
        ("linear_schedule", {"init_value": 0.5, "end_value": 0.1, "transition_steps": 0}, (0.5, 0.5, 0.5)),
        ("polynomial_schedule", {"init_value": 0.5, "end_value": 0.1, "power": 2, "transition_steps": 0}
         | {"transition_begin": 2}, (0.5, 0.5, 0.5)),
        ("polynomial_schedule", {"init_value": 0.5, "end_value": 0.1, "power": 0, "transition_steps": 1}, (0.5,) * 3),
        ("linear_schedule", {"init_value": 0.5, "end_value": 0.1, "transition_steps": 2, "transition_begin": -1},
         (0.5, 0.3, 0.1)),
        ("warmup_constant_schedule", {"init_value": 0.1, "peak_value": 0.5, "warmup_steps": 0}, (0.1, 0.1, 0.1)),
        ("exponential_decay", {"init_value": 0.5, "transition_steps": 0, "decay_rate": 0.1}, (0.5, 0.5, 0.5)),
        ("exponential_decay", {"init_value": 0.5, "transition_steps": 1, "decay_rate": 0.0}, (0.5, 0.5, 0.5)),
        ("exponential_decay", {"init_value": 0.1, "transition_steps": 1, "decay_rate": 2.0, "end_value": 0.3},
         (0.1, 0.2, 0.3, 0.3)),
        ("exponential_decay", {"init_value": 0.1, "transition_steps": 1, "decay_rate": 2.0, "end_value": 0.3}
         | {"transition_begin": 1}, (0.1, 0.1, 0.2, 0.3, 0.3)),
        ("exponential_decay", {"init_value": 0.1, "transition_steps": 2, "decay_rate": 2.0, "end_value": 0.3}
         | {"staircase": True}, (0.1, 0.1, 0.2, 0.2, 0.3, 0.3)),
        ("exponential_decay", {"init_value": 0.1, "transition_steps": 1, "decay_rate": 1.0, "end_value": 0.3}, (0.1,)),
        ("exponential_decay", {"init_value": 0.0, "transition_steps": 1, "decay_rate": 2.0, "end_value": 0.3},
         (0.0, 0.0, 0.0)),
        ("exponential_decay", {"init_value": 0.4, "transition_steps": 1, "decay_rate": 2.0, "end_value": 0.3},
         (0.3, 0.3, 0.3)),
        ("exponential_decay", {"init_value": 0.1, "transition_steps": 1, "decay_rate": 0.5, "end_value": 0.3}
         | {"transition_begin": 1}, (0.3, 0.3, 0.3)),
        ("exponential_decay", {"init_value": 0.5, "transition_steps": 1, "decay_rate": 0.8, "end_value": 0.35},
         (0.5, 0.4, 0.35)),
    ],
)  # fmt: skip
def test_optax_schedules_at_the_ends_of_their_arguments(name, kwargs, rates):
    """As optax 0.2.8 answers for counts 0, 1, 2, ..."""
    schedule = schedule_from_library("optax", name, **kwargs)
    assert [schedule(t) for t in range(len(rates))] == pytest.approx(list(rates), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("cosine_decay_schedule", {"init_value": 0.1, "decay_steps": 0}, "at least one step"),
        ("warmup_cosine_decay_schedule", {"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 4, "decay_steps": 4},
         "at least one step after the warm-up"),
        ("piecewise_constant_schedule", {"init_value": 0.1, "boundaries_and_scales": {"3": 0.5}}, "a dict of numbers"),
        ("piecewise_constant_schedule", {"init_value": 0.1, "boundaries_and_scales": [3]}, "a dict of numbers"),
    ],
)  # fmt: skip
def test_schedules_that_optax_refuses(name, kwargs, words):
    with pytest.raises(RuleError, match=words):
        schedule_from_library("optax", name, **kwargs)
