"""Options of other libraries' optimizers are read as the constants of the published rule."""

from __future__ import annotations

from typing import Any

import pytest

from descend.conformance.published import PUBLISHED
from descend.conformance.rule_checks import constants_of


@pytest.mark.parametrize(
    ("rule", "options", "expected"),
    [
        ("Adam", {"betas": (0.8, 0.7), "eps": 1e-4}, {"beta1": 0.8, "beta2": 0.7, "eps": 1e-4}),  # torch
        ("Adam", {"b1": 0.8, "b2": 0.7}, {"beta1": 0.8, "beta2": 0.7}),  # optax
        ("Adam", {"beta1": 0.8, "epsilon": 1e-4}, {"beta1": 0.8, "eps": 1e-4}),  # MXNet
        ("RMSProp", {"alpha": 0.5}, {"rho": 0.5}),  # torch
        ("LARS", {"trust_coefficient": 0.02}, {"trust": 0.02}),
        ("Rprop", {"etas": (0.25, 1.5)}, {"eta_minus": 0.25, "eta_plus": 1.5}),
        ("AdamW", {"decoupled_weight_decay": False}, {"decay_form": "coupled"}),
        ("Adam", {"decoupled_weight_decay": True}, {"decay_form": "decoupled"}),
        ("Adam", {"decay": "decoupled", "decouple": False}, {"decay_form": "decoupled"}),
    ],
)
def test_names_of_other_libraries(rule: str, options: dict[str, Any], expected: dict[str, Any]):
    found = constants_of(PUBLISHED[rule.lower()], options)
    assert {name: found[name] for name in expected} == expected


def test_the_authors_values_hold_where_nothing_is_given():
    found = constants_of(PUBLISHED["adam"], {"lr": 0.1})
    assert (found["beta1"], found["beta2"], found["eps"]) == (0.9, 0.999, 1e-8)


def test_none_leaves_the_authors_value():
    assert constants_of(PUBLISHED["adam"], {"eps": None})["eps"] == 1e-8
