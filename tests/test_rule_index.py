"""The list made from the text of the rules says what the rules themselves say."""

from __future__ import annotations

import ast
import inspect

import pytest

import descend.optim
from descend.errors import RuleError
from descend.optim.engine.settings import rule_fields
from descend.optim.rules import RULES
from descend.rule_index import describe, rules


def test_it_has_every_optimizer():
    assert tuple(rules()) == tuple(sorted(RULES))
    assert set(rules()) <= set(descend.optim.names())  # which may hold a user's own beside them


@pytest.mark.parametrize("name", RULES)
def test_options_and_defaults_are_those_of_the_rule(name):
    rule = RULES[name]
    options = dict(rules()[name].options)
    stated = {"lr": rule.default_lr, "weight_decay": rule.default_weight_decay, "decay": rule.default_decay}
    shown = {key: value for key, value in options.items() if key != "ns_coefficients"}  # a constant with a name
    expected = {key: value for key, value in {**stated, **rule_fields(rule)}.items() if key != "ns_coefficients"}
    assert {key: ast.literal_eval(value) for key, value in shown.items()} == expected


@pytest.mark.parametrize("name", RULES)
def test_a_description_holds_equations_and_deviations(name):
    text = describe(name)
    assert inspect.cleandoc(inspect.getmodule(RULES[name]).__doc__) in text
    assert "| where |" in text
    assert text.splitlines()[2].strip()


def test_a_summary_is_one_sentence_in_a_line():
    for entry in rules().values():
        assert entry.summary.endswith("."), entry.summary
        assert len(entry.summary) < 130


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(RuleError, match="did you mean 'RMSProp'"):
        describe("rmspropp")
