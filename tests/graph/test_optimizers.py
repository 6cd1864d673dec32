"""Descriptions of update rules: published defaults in Python, LBANN's zeros in its text format, two spellings."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch

import descend
import descend.optim
from descend.errors import ConfigurationError, RuleError
from descend.graph import text

# Kingma and Ba 2015; Hinton 2012, lecture 6; Baydin et al. 2018; ε of AdaGrad as in descend.optim.
PUBLISHED = {
    "Adam": {"learn_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "adamw_weight_decay": 0.0},
    "RMSprop": {"learn_rate": 1e-3, "decay_rate": 0.9, "eps": 1e-8},
    "AdaGrad": {"learn_rate": 0.01, "eps": 1e-6},
    "HypergradientAdam": {
        "init_learning_rate": 1e-3,
        "hyper_learning_rate": 1e-7,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
    },
}
TEXTS = {
    "Adam": ("adam { learn_rate: 0.1 }", ["beta1", "beta2", "eps"]),
    "RMSprop": ("rmsprop { learn_rate: 0.1 eps: 1e-8 }", ["decay_rate"]),
    "AdaGrad": ("adagrad { learn_rate: 0.1 }", ["eps"]),
    "HypergradientAdam": ("hypergradient_adam { init_learning_rate: 0.1 beta1: 0.9 }", ["beta2", "eps"]),
}


def read(source: str) -> Any:
    classes = {cls.message: cls for cls in (getattr(descend, name) for name in (*TEXTS, "SGD"))}
    return text.to_value(text.parse(source, "rule.prototext", "Optimizer"), classes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_option_that_is_not_given_has_its_published_default(name: str):
    assert dataclasses.asdict(getattr(descend, name)()) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_both_faces_have_the_same_defaults(name: str):
    """`fit` with a description makes an optimizer whose options are those of the class in descend.optim."""
    p = torch.nn.Parameter(torch.ones(2))
    own = getattr(descend.optim, {"RMSprop": "RMSProp"}.get(name, name))([("p", p)]).param_groups[0]
    description = dataclasses.asdict(getattr(descend, name)())
    other_names = {"learn_rate": "lr", "init_learning_rate": "lr", "decay_rate": "rho"}
    for option, value in description.items():
        if option != "adamw_weight_decay":
            assert own[other_names.get(option, option)] == value, option


def test_a_description_without_options_is_not_sign_descent():
    """With zeros for beta1, beta2 and eps, the updates of two unequal gradients would have the same size."""
    p = torch.nn.Linear(2, 1, bias=False)
    from descend.experiment.build_optimizer import build_optimizer

    optimizer = build_optimizer(descend.Adam(learn_rate=1e-3), p)
    sizes: list[torch.Tensor] = []
    for gradient in ([1.0, 1.0], [0.1, 1.0]):
        before = p.weight.detach().clone()
        p.weight.grad = torch.tensor([gradient])
        optimizer.step()
        sizes.append((before - p.weight.detach()).squeeze())
    torch.testing.assert_close(sizes[0], torch.full((2,), 1e-3), rtol=1e-4, atol=0)
    # m = 0.9 · 0.1 + 0.1 · 0.1, v = 0.999 · 0.001 + 0.001 · 0.01, both corrected for t = 2.
    expected = 1e-3 * (0.1 / 0.19) / ((0.999e-3 + 1e-5) / (1 - 0.999**2)) ** 0.5
    assert sizes[1][0].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_keeps_lbanns_zeros_and_warns_of_them(name: str):
    source, unset = TEXTS[name]
    with pytest.warns(UserWarning, match=f"{name} without") as caught:
        found = read(source)
    assert type(found).__name__ == name
    assert all(getattr(found, field) == 0 for field in unset)
    (warning,) = caught
    message = str(warning.message)
    assert message.startswith("rule.prototext:1:")
    assert f"without {', '.join(unset)}:" in message
    assert all(f"{field}: {PUBLISHED[name][field]!r}" in message for field in unset)


def test_a_learning_rate_that_a_text_leaves_out_is_0():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read("adam { beta1: 0.9 beta2: 0.99 eps: 1e-8 }")
    assert found.learn_rate == 0
    assert found.stands_still


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_python_describes_survives_its_text(name: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in ({}, {"lr": 0.25}, {"eps": 1e-3}):
            rule = getattr(descend, name)(**given)
            assert read(wrapped(rule)) == rule


def wrapped(rule: Any) -> str:
    """The text of a description in its envelope."""
    kind = rule.message.rpartition(".")[2]
    field = {"HypergradientAdam": "hypergradient_adam"}.get(kind, kind.lower())
    return f"{field} {{ {text.render(rule)} }}"


def test_zeros_that_python_asks_for_survive_the_text_too():
    rule = descend.Adam(learn_rate=0.1, beta1=0.0, beta2=0.5)
    with pytest.warns(UserWarning, match="Adam without beta1:"):
        assert read(wrapped(rule)) == rule


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (descend.SGD(lr=0.1, momentum=0.9), descend.SGD(learn_rate=0.1, momentum=0.9)),
        (descend.Adam(lr=0.1, betas=(0.8, 0.7)), descend.Adam(learn_rate=0.1, beta1=0.8, beta2=0.7)),
        (descend.AdaGrad(lr=0.1), descend.AdaGrad(learn_rate=0.1)),
        (descend.RMSprop(lr=0.1, rho=0.5), descend.RMSprop(learn_rate=0.1, decay_rate=0.5)),
        (descend.HypergradientAdam(lr=0.1), descend.HypergradientAdam(init_learning_rate=0.1)),
        (descend.Adam(lr=0.1, learn_rate=0.1), descend.Adam(0.1)),
    ],
)
def test_descriptions_take_the_names_of_optimizers(one: Any, other: Any):
    assert one == other


@pytest.mark.parametrize(
    ("name", "theirs", "own"),
    [
        ("SGD", {"learn_rate": 0.5}, {"lr": 0.5}),
        ("Adam", {"learn_rate": 0.5, "betas": (0.8, 0.7)}, {"lr": 0.5, "beta1": 0.8, "beta2": 0.7}),
        ("RMSProp", {"learn_rate": 0.5, "decay_rate": 0.25}, {"lr": 0.5, "rho": 0.25}),
        ("HypergradientAdam", {"init_learning_rate": 0.5}, {"lr": 0.5}),
        ("LAMB", {"learn_rate": 0.5, "lr": 0.5}, {"lr": 0.5}),
    ],
)
def test_optimizers_take_the_names_of_descriptions(name: str, theirs: dict[str, Any], own: dict[str, Any]):
    made = descend.optim.create(name, [torch.nn.Parameter(torch.ones(1))], **theirs)
    assert {key: made.param_groups[0][key] for key in own} == own


def test_two_names_with_different_values_are_an_error_in_both_places():
    with pytest.raises(ConfigurationError, match=r"Adam got lr=0\.1 and learn_rate=0\.2, which are one setting"):
        descend.Adam(lr=0.1, learn_rate=0.2)
    with pytest.raises(ConfigurationError, match=r"Adam got betas=\(0\.8, 0\.9\) and beta2=0\.7"):
        descend.Adam(betas=(0.8, 0.9), beta2=0.7)
    with pytest.raises(ConfigurationError, match="betas must hold 2 numbers"):
        descend.Adam(betas=(0.8,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="SGD got 'learn_rate' twice, by position and as 'lr'"):
        descend.SGD(0.1, lr=0.2)
    weights = [torch.nn.Parameter(torch.ones(1))]
    with pytest.raises(RuleError, match=r"Adam got learn_rate=0\.1 and lr=0\.2, which are one setting"):
        descend.optim.create("adam", weights, learn_rate=0.1, lr=0.2)


def test_an_option_that_is_neither_is_still_an_error():
    with pytest.raises(RuleError, match="Adam has no option 'decay_rate'"):
        descend.optim.create("adam", [torch.nn.Parameter(torch.ones(1))], decay_rate=0.1)
    with pytest.raises(ConfigurationError, match="Adam has no field 'rho'"):
        descend.Adam(rho=0.1)  # pyright: ignore[reportCallIssue]
