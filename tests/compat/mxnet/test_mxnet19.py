"""MXNet 1.9's optimizers: the calls of MXNet's guide, and defaults that 2.0 changed."""

import numpy as np
import torch
from optimizer_inputs import one_step, weights

from descend.errors import RuleError, Unsupported
from descend.optim import from_library


def test_adadelta_has_no_rate():
    """w ← w − δ, whatever learning_rate says: by hand, g = 1, δ = √ε / √(0.1 + ε) in the first step."""
    moves = []
    for given in ({}, {"learning_rate": 7.0}):
        w = weights((3,))
        before = w[0].detach().clone()
        one_step(from_library("mxnet-1.9", "adadelta", w, **given))
        moves.append(before - w[0].detach())
    assert torch.equal(*moves)
    np.testing.assert_allclose(moves[0].numpy(), np.sqrt(1e-5) / np.sqrt(0.1 + 1e-5), rtol=1e-12)


def test_defaults_that_2_0_changed():
    """The same calls, other defaults: sgd's rate and lazy rows, nag's momentum, adagrad's ε, dcasgd's rate."""
    old, new = (
        {name: from_library(library, name, weights((2, 2))).param_groups[0] for name in ("sgd", "nag", "adagrad")}
        for library in ("mxnet-1.9", "mxnet-2.0")
    )
    assert (old["sgd"]["lr"], new["sgd"]["lr"]) == (0.01, 0.1)
    assert (old["nag"]["rule"].momentum, new["nag"]["rule"].momentum) == (0.0, 0.9)
    assert (old["adagrad"]["rule"].eps, new["adagrad"]["rule"].eps) == (1e-7, 1e-6)
    assert (old["adagrad"]["decay"], new["adagrad"]["decay"]) == ("decoupled", "coupled")


def test_the_guides_snippets():
    """The constructor calls of MXNet's guide; the three that 2.0 does not have fail there too."""
    snippets = {
        "sgd": {"learning_rate": 0.1, "wd": 0.0, "momentum": 0.8},
        "nag": {"learning_rate": 0.1, "momentum": 0.8},
        "adagrad": {"learning_rate": 0.1, "eps": 1e-7},
        "rmsprop": {"learning_rate": 0.001, "gamma1": 0.9, "gamma2": 0.9, "epsilon": 1e-7, "centered": False},
        "adadelta": {"rho": 0.9, "epsilon": 1e-7},
        "adam": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        "adamax": {"learning_rate": 0.002, "beta1": 0.9, "beta2": 0.999},
        "nadam": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        "signum": {"learning_rate": 0.01, "momentum": 0.9, "wd_lh": 0.0},
        "lbsgd": {"momentum": 0.0, "multi_precision": False, "warmup_strategy": "linear", "warmup_epochs": 5},
        "dcasgd": {"momentum": 0.0, "lamda": 0.04},
        "ftrl": {"lamda1": 0.01, "learning_rate": 0.1, "beta": 1},
        "ftml": {"beta1": 0.6, "beta2": 0.999, "epsilon": 1e-8},
        "sgld": {},
    }
    refused = set()
    for name, kwargs in snippets.items():
        one_step(from_library("mxnet-1.9", name, weights((2,)), **kwargs))
        try:
            one_step(from_library("mxnet-2.0", name, weights((2,)), **kwargs))
        except RuleError:
            refused.add(name)
        except Unsupported:
            refused.add(name)
    assert refused == {"adagrad", "rmsprop", "lbsgd"}
