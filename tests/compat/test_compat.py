"""Every name of every library makes an optimizer; wrong names, arguments and values are refused."""

import numpy as np
import pytest
import torch
from optimizer_inputs import one_step, weights

from descend.compat import LIBRARIES, OPTIMIZERS
from descend.errors import RuleError, Unsupported
from descend.optim import from_library, schedule_from_library

REQUIRED = {"optax": {"learning_rate": 0.1}, "lbann": {"learn_rate": 0.1}}


@pytest.mark.parametrize(("library", "name"), [(lib, name) for lib in LIBRARIES for name in OPTIMIZERS[lib][0]])
def test_every_name_makes_an_optimizer_that_steps(library, name):
    given = dict(REQUIRED.get(library, {}))
    if name in ("hypergradient_adam", "HypergradientAdam"):
        given = {"init_learning_rate": 0.1}
    if name == "rmsprop" and library == "lbann":
        given["decay_rate"] = 0.9
    if library == "lucidrains/lion-pytorch":
        given["decoupled_weight_decay"] = False
    w = weights((3, 2))
    before = w[0].detach().clone()
    made = from_library(library, name, w, **given)
    one_step(made)
    if name == "ADOPT":  # the first gradient moves nothing
        one_step(made)
    assert w[0].isfinite().all()
    assert not torch.equal(w[0], before) or "lbsgd" in name


@pytest.mark.parametrize(("library", "name"), [(lib, name) for lib in LIBRARIES for name in OPTIMIZERS[lib][1]])
def test_what_cannot_be_had_says_why(library, name):
    with pytest.raises(Unsupported, match=f"{library} {name}: ...+"):
        from_library(library, name, weights((2,)))


@pytest.mark.parametrize(
    ("library", "name", "kwargs", "words"),
    [
        ("mxnet", "sgd", {}, "did you mean 'mxnet-"),
        ("mxnet-2.0", "rmspop", {}, "did you mean 'rmsprop'"),
        ("mxnet-2.0", "adam", {"learning_rat": 0.1}, "did you mean 'learning_rate'"),
        ("mxnet-2.0", "adagrad", {"eps": 1e-7}, "has no argument 'eps'"),
        ("mxnet-2.0", "rmsprop", {"gamma1": 0.9}, "has no argument 'gamma1'"),
        ("mxnet-1.9", "sgd", {"aggregate_num": 4}, "arguments of MXNet 2.0"),
        ("mxnet-1.9", "sgd", {"use_fused_step": None}, "arguments of MXNet 2.0"),
        ("mxnet-2.0", "nadam", {"use_fused_step": True}, "nadam has no fused step"),
        ("mxnet-2.0", "sgd", {"wd": None}, "wd must be a number, got None"),
        ("mxnet-2.0", "sgd", {"rescale_grad": "1"}, "rescale_grad must be a number, got '1'"),
        ("mxnet-2.0", "sgd", {"clip_gradient": "a"}, "clip_gradient must be a number, got 'a'"),
        ("mxnet-2.0", "signum", {"momentum": None}, "signum: momentum is None and must be given"),
        ("mxnet-2.0", "sgd", {"begin_num_update": 2.5}, "begin_num_update must be an integer >= 0"),
        ("mxnet-2.0", "sgd", {"begin_num_update": -1}, "begin_num_update must be an integer >= 0"),
        ("mxnet-1.9", "sgd", {"param_idx2name": ["a"]}, "param_idx2name must be dict"),
        ("mxnet-2.0", "sgd", {"lr_mult": 2.0}, "lr_mult is a factor for each tensor or a dict"),
        ("mxnet-2.0", "sgd", {"lr_mult": ["a"]}, "lr_mult must be a number, got 'a'"),
        ("mxnet-2.0", "sgd", {"lr_mult": [1.0, 2.0]}, "holds 2 factors and there are 1 tensors"),
        ("mxnet-2.0", "sgd", {"wd_mult": {"fc": 0.0}}, "wd_mult: no tensor is called 'fc'"),
        ("mxnet-1.9", "sgd", {"param_idx2name": {0: "fc_bias"}, "lr_mult": {"fc_bais": 2.0}}, "did you mean 'fc_bias'"),
        ("mxnet-1.9", "sgd", {"param_idx2name": {0: "fc_bias"}, "wd_mult": [1.0, 2.0]}, "holds 2 factors"),
        ("mxnet-1.9", "sgd", {"param_idx2name": {"fc_bias": 0}}, "param_idx2name must be dict"),
        ("mxnet-1.9", "adadelta", {"lr_scheduler": ("PolySchedule", {"max_update": 9})}, "mean 'PolyScheduler'"),
        ("mxnet-1.9", "adadelta", {"lr_scheduler": "PolyScheduler"}, "lr_scheduler is"),
        ("mxnet-1.9", "adadelta", {"lr_mult": {"fc": 0.0}}, "lr_mult: no tensor is called 'fc'"),
        ("torch", "Adam", {"beta1": 0.9}, "has no argument 'beta1'"),
        ("torch", "SGD", {"nesterov": True}, "nesterov only with a momentum"),
        ("optax", "adam", {}, "needs learning_rate"),
        ("lbann", "adam", {"learning_rate": 0.1}, "did you mean 'learn_rate'"),
    ],
)
def test_a_wrong_word_is_named(library, name, kwargs, words):
    with pytest.raises(RuleError, match=words):
        from_library(library, name, weights((2,)), **kwargs)


@pytest.mark.parametrize(
    ("library", "name", "kwargs", "words"),
    [
        ("torch", "SGD", {"momentum": 0.9, "nesterov": "False"}, "torch's SGD: nesterov must be True or False"),
        ("mxnet-2.0", "lamb", {"bias_correction": "no"}, "lamb: bias_correction must be True or False, got 'no'"),
        ("mxnet-1.9", "rmsprop", {"clip_weights": float("nan")}, "rmsprop: clip_weights must be a number, got nan"),
        ("mxnet-1.9", "lbsgd", {"num_epochs": "60"}, "num_epochs must be a number"),
        ("mxnet-2.0", "adam", {"use_fused_step": "False"}, "use_fused_step must be True or False"),
        ("torch", "Adam", {"betas": 0.9}, "betas must be a list of numbers, got 0.9"),
        ("torch", "Rprop", {"step_sizes": (0.1,)}, "step_sizes must be two numbers"),
        ("torch", "Adam", {"lr": None}, "lr must be a number, got None"),
        ("torch", "Adam", {"lr": 10**400}, "Adam: lr must be a number, got 1000"),
        ("torch", "Muon", {"ns_steps": 2.5}, "Muon: ns_steps must be an integer >= 1, got 2.5"),
        ("torch", "Muon", {"ns_steps": float("inf")}, "ns_steps must be an integer >= 1"),
        ("mxnet-1.9", "lbsgd", {"batch_scale": float("inf")}, "batch_scale must be an integer >= 1"),
        ("mxnet-1.9", "adam", {"wd": 10**400}, "wd must be a number, got 1000"),
        ("optax", "sgd", {"learning_rate": 10**400}, "SGD, group 0: lr must be a finite number"),
        ("torch", "RMSprop", {"alpha": -1.0}, r"RMSprop\(alpha=-1.0\): RMSProp: rho must be a number >= 0 and < 1"),
        ("torch", "Adam", {"betas": (2, 0.9)}, r"Adam\(betas=\(2, 0.9\)\): Adam: beta1 must be"),
        ("mxnet-2.0", "sgd", {"wd": -1}, r"mxnet-2.0 sgd\(wd=-1\): SGD, group 0: weight_decay must be"),
        ("optax", "lars", {"learning_rate": "x"}, r"optax lars\(learning_rate='x'\): LARS, group 0: lr must be"),
    ],
)
def test_an_impossible_value_is_refused_in_the_librarys_words(library, name, kwargs, words):
    with pytest.raises(RuleError, match=words):
        from_library(library, name, weights((2, 2)), **kwargs)


@pytest.mark.parametrize(("library", "name"), [("torch", None), (None, "SGD"), ("torch", b"SGD"), (3, "SGD")])
def test_a_library_or_a_name_that_is_no_text(library, name):
    with pytest.raises(RuleError, match=r"no library (None|3); known are|must be a string, got (None|b'SGD')"):
        from_library(library, name, weights((2,)))


@pytest.mark.parametrize("library", ["mxnet-1.9", "torch", "optax"])
def test_a_schedule_that_is_no_text(library):
    with pytest.raises(RuleError, match="the name of a schedule must be a string, got None; known are"):
        schedule_from_library(library, None)


@pytest.mark.parametrize(
    ("library", "name", "kwargs", "words"),
    [
        ("mxnet-1.9", "dcasgd", {"momentum": 0.9}, "raises for every momentum"),
        ("mxnet-1.9", "signum", {"momentum": 0, "wd_lh": 0.1}, "raises when momentum is 0"),
        ("mxnet-2.0", "groupadagrad", {"wd": 0.1}, "refuses weight decay"),
        ("mxnet-2.0", "adagrad", {"clip_gradient": -1.0}, "bound swapped"),
        ("mxnet-2.0", "lars", {"clip_gradient": -1.0, "use_fused_step": False}, "bound swapped"),
        ("mxnet-2.0", "rmsprop", {"clip_weights": -1.0, "use_fused_step": False}, "bound swapped"),
        ("torch", "Adam", {"differentiable": True}, "without a graph"),
        ("optax", "adamw", {"learning_rate": 0.1, "mask": {"a": True}}, "give groups"),
        ("optax", "adam", {"learning_rate": 0.1, "nesterov": True}, "nesterov=True is not supported"),
        ("optax", "adam", {"learning_rate": 0.1, "mu_dtype": np.ones(2)}, "mu_dtype=array.* is not supported"),
    ],
)
def test_an_argument_that_cannot_be_had(library, name, kwargs, words):
    with pytest.raises(Unsupported, match=words):
        from_library(library, name, weights((2, 2)), **kwargs)
