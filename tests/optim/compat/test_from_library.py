"""Translations: names, arguments, what is refused and why; arithmetic that the recorded trajectories do not show."""

import numpy as np
import pytest
import torch

from descend.errors import RuleError, Unsupported
from descend.optim import from_library, schedule_from_library
from descend.optim.compat import LIBRARIES, OPTIMIZERS
from descend.optim.rules import LARS, SGD, Adam, AdamW, SignSGD


def weights(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)) for shape in shapes]


def one_step(optimizer: torch.optim.Optimizer, g: float = 1.0) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.full_like(p, g)
    optimizer.step()


REQUIRED = {"optax": {"learning_rate": 0.1}, "lbann": {"learn_rate": 0.1}}


@pytest.mark.parametrize(("library", "name"), [(lib, name) for lib in LIBRARIES for name in OPTIMIZERS[lib][0]])
def test_every_name_makes_an_optimizer_that_steps(library, name):
    given = dict(REQUIRED.get(library, {}))
    if name in ("hypergradient_adam", "HypergradientAdam"):
        given = {"init_learning_rate": 0.1}
    if name == "rmsprop" and library == "lbann":
        given["decay_rate"] = 0.9
    w = weights((3, 2))
    before = w[0].detach().clone()
    one_step(from_library(library, name, w, **given))
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
        ("mxnet-2.0", "sgd", {"wd": None}, "wd must be a number and is None"),
        ("mxnet-2.0", "sgd", {"rescale_grad": "1"}, "rescale_grad must be a number and is '1'"),
        ("mxnet-2.0", "sgd", {"clip_gradient": "a"}, "clip_gradient must be a number and is 'a'"),
        ("mxnet-2.0", "signum", {"momentum": None}, "signum: momentum is None and must be given"),
        ("mxnet-2.0", "sgd", {"begin_num_update": 2.5}, "begin_num_update counts updates"),
        ("mxnet-2.0", "sgd", {"begin_num_update": -1}, "begin_num_update counts updates"),
        ("mxnet-1.9", "sgd", {"param_idx2name": ["a"]}, "param_idx2name is a dict"),
        ("mxnet-2.0", "sgd", {"lr_mult": 2.0}, "lr_mult is a factor for each tensor or a dict"),
        ("mxnet-2.0", "sgd", {"lr_mult": ["a"]}, "lr_mult must be a number and is 'a'"),
        ("mxnet-2.0", "sgd", {"lr_mult": [1.0, 2.0]}, "holds 2 factors and there are 1 tensors"),
        ("mxnet-2.0", "sgd", {"wd_mult": {"fc": 0.0}}, "wd_mult: no tensor is called 'fc'"),
        ("mxnet-1.9", "sgd", {"param_idx2name": {0: "fc_bias"}, "lr_mult": {"fc_bais": 2.0}}, "did you mean 'fc_bias'"),
        ("mxnet-1.9", "sgd", {"param_idx2name": {0: "fc_bias"}, "wd_mult": [1.0, 2.0]}, "holds 2 factors"),
        ("mxnet-1.9", "sgd", {"param_idx2name": {"fc_bias": 0}}, "param_idx2name is a dict"),
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
        ("mxnet-2.0", "lamb", {"bias_correction": "no"}, "lamb: bias_correction must be True or False and is 'no'"),
        ("mxnet-1.9", "rmsprop", {"clip_weights": float("nan")}, "rmsprop: clip_weights must be a number and is nan"),
        ("mxnet-1.9", "lbsgd", {"num_epochs": "60"}, "num_epochs must be a number"),
        ("mxnet-2.0", "adam", {"use_fused_step": "False"}, "use_fused_step must be True or False"),
        ("torch", "Adam", {"betas": 0.9}, "betas must be a list of numbers and is 0.9"),
        ("torch", "Rprop", {"step_sizes": (0.1,)}, "step_sizes are two numbers"),
        ("torch", "Adam", {"lr": None}, "lr must be a number and is None"),
        ("torch", "Adam", {"lr": 10**400}, "Adam: lr must be a number and is 1000"),
        ("torch", "Muon", {"ns_steps": 2.5}, "Muon: ns_steps counts iterations, at least 1, and is 2.5"),
        ("torch", "Muon", {"ns_steps": float("inf")}, "ns_steps counts iterations"),
        ("mxnet-1.9", "lbsgd", {"batch_scale": float("inf")}, "batch_scale counts batches"),
        ("mxnet-1.9", "adam", {"wd": 10**400}, "wd must be a number and is 1000"),
        ("optax", "sgd", {"learning_rate": 10**400}, "SGD, group 0: lr must be finite"),
        ("torch", "RMSprop", {"alpha": -1.0}, r"RMSprop\(alpha=-1.0\): RMSProp: rho must lie in"),
        ("torch", "Adam", {"betas": (2, 0.9)}, r"Adam\(betas=\(2, 0.9\)\): Adam: beta1 must lie"),
        ("mxnet-2.0", "sgd", {"wd": -1}, r"mxnet-2.0 sgd\(wd=-1\): SGD, group 0: weight_decay must be"),
        ("optax", "lars", {"learning_rate": "x"}, r"optax lars\(learning_rate='x'\): LARS, group 0: lr must be"),
    ],
)
def test_an_impossible_value_is_refused_in_the_librarys_words(library, name, kwargs, words):
    with pytest.raises(RuleError, match=words):
        from_library(library, name, weights((2, 2)), **kwargs)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (torch.ones(2), "is one tensor"),
        (torch.nn.Linear(2, 2), "is a module; give its named_parameters"),
        ({"a": torch.ones(2)}, "is a dict; give its items"),
        ({torch.ones(2)}, "is a set"),
        (None, "must be a list of weights and is None"),
        ([], "the list of weights is empty"),
        ([("a",)], "group 0: weights 0 must be a tensor, or its name and the tensor"),
        ([{"lr": 1.0}], "needs the key 'params'"),
        ([{"params": [torch.ones(2)]}, {"params": [3]}], "group 1: weights 1: expected a tensor"),
    ],
)
def test_what_is_no_list_of_weights_is_refused(params, words):
    with pytest.raises(RuleError, match=f"torch SGD.*{words}"):
        from_library("torch", "SGD", params)


@pytest.mark.parametrize(("library", "name"), [("torch", None), (None, "SGD"), ("torch", b"SGD"), (3, "SGD")])
def test_a_library_or_a_name_that_is_no_text(library, name):
    with pytest.raises(RuleError, match=r"no library (None|3); known are|is a text and is (None|b'SGD')"):
        from_library(library, name, weights((2,)))


@pytest.mark.parametrize("library", ["mxnet-1.9", "torch", "optax"])
def test_a_schedule_that_is_no_text(library):
    with pytest.raises(RuleError, match="the name of a schedule is a text and is None; known are"):
        schedule_from_library(library, None)


def test_flags_may_be_numbers_and_rates_tensors_of_one():
    one_step(from_library("torch", "SGD", weights((2, 2)), lr=torch.tensor(0.1), momentum=0.9, nesterov=np.bool_(True)))
    one_step(from_library("torch", "SGD", weights((2, 2)), lr=np.float32(0.1), momentum=0.9, nesterov=1))


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
        ("optax", "adam", {"learning_rate": 0.1, "nesterov": True}, "nesterov=True is not had"),
        ("optax", "adam", {"learning_rate": 0.1, "mu_dtype": np.ones(2)}, "mu_dtype=array.* is not had"),
    ],
)
def test_an_argument_that_cannot_be_had(library, name, kwargs, words):
    with pytest.raises(Unsupported, match=words):
        from_library(library, name, weights((2, 2)), **kwargs)


def test_half_precision_throughout_is_refused():
    half = weights((2,), dtype=torch.float16)
    with pytest.raises(Unsupported, match="multi_precision=True"):
        from_library("mxnet-2.0", "adam", half)
    one_step(from_library("mxnet-2.0", "adam", half, multi_precision=True))


def test_torchs_muon_takes_matrices_only():
    with pytest.raises(Unsupported, match=r"weights b .* matrices only and this one is \(3,\)"):
        from_library("torch", "Muon", list(zip("ab", weights((2, 2), (3,)), strict=True)))


# ---- MXNet's own habits


@pytest.mark.parametrize(("name", "erased"), [("sgd", False), ("adam", False), ("adagrad", True), ("dcasgd", True)])
def test_a_bound_of_zero_is_none_for_kernels_and_zero_for_the_rest(name, erased):
    w = weights((3,))
    before = w[0].detach().clone()
    one_step(from_library("mxnet-2.0", name, w, clip_gradient=0))
    assert torch.equal(w[0].detach(), before) == erased


def test_the_plain_path_of_a_kernel_takes_zero_at_its_word():
    w = weights((3,))
    before = w[0].detach().clone()
    one_step(from_library("mxnet-2.0", "sgd", w, clip_gradient=0, use_fused_step=False))
    assert torch.equal(w[0].detach(), before)


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


def test_names_decide_who_is_decayed_in_1_9_only():
    names = {0: "fc_weight", 1: "fc_bias", 2: "bn_gamma"}
    shapes = ((2, 2), (2,), (2,))
    old = from_library("mxnet-1.9", "sgd", weights(*shapes), wd=0.1, param_idx2name=names)
    assert [g["weight_decay"] for g in old.param_groups] == [0.1, 0.0]
    new = from_library("mxnet-2.0", "sgd", weights(*shapes), wd=0.1, param_idx2name=names)
    assert [g["weight_decay"] for g in new.param_groups] == [0.1]
    lars = from_library("mxnet-1.9", "lars", weights(*shapes), wd=0.1, param_idx2name=names)
    assert [(g["weight_decay"], g["scaled"]) for g in lars.param_groups] == [(0.1, True), (0.0, False)]
    gluon = from_library("mxnet-1.9", "sgd", weights(*shapes), wd=0.1, param_idx2name=names, batch_size=1)
    assert [g["weight_decay"] for g in gluon.param_groups] == [0.1]


def test_multipliers_by_index_come_before_those_by_name():
    given = {"param_idx2name": {0: "a_weight", 1: "b_weight"}, "lr_mult": {0: 0.5, "b_weight": 2.0, "a_weight": 9.0}}
    optimizer = from_library("mxnet-2.0", "sgd", weights((1,), (1,)), **given)
    assert [g["lr_mult"] for g in optimizer.param_groups] == [0.5, 2.0]


def test_multipliers_go_by_the_names_of_the_tensors_where_mxnet_knows_none():
    a, b = weights((1,), (1,))
    optimizer = from_library("mxnet-2.0", "sgd", [("a", a), ("b", b)], learning_rate=0.5, lr_mult={"b": 0.0, 0: 2.0})
    one_step(optimizer)
    assert [group["lr_mult"] for group in optimizer.param_groups] == [2.0, 0.0]
    with pytest.raises(RuleError, match="lr_mult: no tensor is called 'fc_weigth'; did you mean 'fc_weight'"):
        from_library("mxnet-2.0", "sgd", [("fc_weight", a)], lr_mult={"fc_weigth": 0.1})


@pytest.mark.parametrize("library", ["mxnet-1.9", "mxnet-2.0"])
@pytest.mark.parametrize("name", ["sgd", "adam", "signum"])
def test_no_rate_is_the_base_classes_or_the_schedules(library, name):
    """As both releases show it: learning_rate=None passes the constructor's default by."""
    assert from_library(library, name, weights((1,)), learning_rate=None).param_groups[0]["lr"] == 0.01
    scheduler = ("FactorScheduler", {"step": 2, "factor": 0.5, "base_lr": 0.5})
    optimizer = from_library(library, name, weights((1,)), learning_rate=None, lr_scheduler=scheduler)
    assert [optimizer.param_groups[0]["schedule"](n - 1) for n in (1, 2, 3, 5)] == [0.5, 0.5, 0.25, 0.125]


def test_a_default_rate_that_overwrites_a_schedule_is_copied_aloud():
    scheduler = ("FactorScheduler", {"step": 4, "factor": 0.5, "base_lr": 0.5})
    with pytest.warns(UserWarning, match=r"default rate 0.1 replace the base_lr"):
        optimizer = from_library("mxnet-2.0", "sgd", weights((1,)), lr_scheduler=scheduler)
    assert optimizer.param_groups[0]["lr"] == 0.1
    kept = from_library("mxnet-1.9", "sgd", weights((1,)), lr_scheduler=scheduler)
    assert kept.param_groups[0]["lr"] == 0.5
    ftrl = from_library("mxnet-1.9", "ftrl", weights((1,)), lr_scheduler=scheduler, learning_rate=0.3)
    assert ftrl.param_groups[0]["lr"] == 0.5


def test_a_scheduler_is_a_pair():
    with pytest.raises(RuleError, match=r"lr_scheduler is \(class name, arguments\)"):
        from_library("mxnet-2.0", "sgd", weights((1,)), lr_scheduler="FactorScheduler")


def test_begin_num_update_moves_the_bias_correction_and_the_schedule():
    scheduler = ("MultiFactorScheduler", {"step": [5], "factor": 0.1, "base_lr": 1.0})
    w = weights((2,))
    optimizer = from_library("mxnet-1.9", "adam", w, lr_scheduler=scheduler, begin_num_update=5, learning_rate=1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    before = w[0].detach().clone()
    one_step(optimizer)
    # by hand: m = 0.1, v = 0.001, t = 6
    move = 0.1 * np.sqrt(1 - 0.999**6) / (1 - 0.9**6) * 0.1 / (np.sqrt(0.001) + 1e-8)
    np.testing.assert_allclose((before - w[0].detach()).numpy(), move, rtol=1e-10)


def test_signsgd_is_signum_without_momentum():
    optimizer = from_library("mxnet-2.0", "signum", weights((1,)), momentum=0, wd=0.2, wd_lh=0.1)
    group = optimizer.param_groups[0]
    assert isinstance(group["rule"], SignSGD)
    assert (group["weight_decay"], group["decay"]) == (pytest.approx(0.3), "decoupled")


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


# ---- torch


def test_groups_carry_torchs_own_arguments():
    a, b = weights((2,), (2,))
    groups = [{"params": [a], "betas": (0.5, 0.6), "lr": 0.5}, {"params": b}]
    optimizer = from_library("torch", "AdamW", groups, lr=0.1, weight_decay=0.2, fused=True)
    first, second = optimizer.param_groups
    assert (first["rule"].beta1, first["lr"], first["weight_decay"]) == (0.5, 0.5, 0.2)
    assert (second["rule"], second["lr"], second["decay"]) == (Adam(), 0.1, "decoupled")


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
        ("CosineAnnealingLR", {"T_max": 0}, "divides by T_max"),
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


# ---- LBANN


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


# ---- optax, against its rules written out


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
    optax = pytest.importorskip("optax")
    jax = pytest.importorskip("jax")
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


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("FactorSchedule", {"step": 3}, "did you mean 'FactorScheduler'"),
        ("FactorScheduler", {"step": 3, "factor": 2.0}, "factor must be at most 1"),
        ("FactorScheduler", {"step": 3, "base_lr": 0.1, "warmup_steps": 2, "warmup_begin_lr": 0.5}, "above base_lr"),
        ("FactorScheduler", {"step": 3, "warmup_steps": 2, "warmup_mode": "liner"}, "did you mean 'linear'"),
        ("MultiFactorScheduler", {"step": [5, 3]}, "must rise"),
        ("CosineScheduler", {}, "needs max_update"),
    ],
)
def test_schedulers_that_mxnet_refuses(name, kwargs, words):
    with pytest.raises(RuleError, match=words):
        schedule_from_library("mxnet-2.0", name, **kwargs)
