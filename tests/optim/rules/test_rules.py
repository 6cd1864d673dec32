"""The table of rules."""

import pytest
import torch

from descend.optim import named_optimizers, rules
from descend.optim.rules import ALL_RULES, RULES


def test_the_table_is_by_lower_case_name():
    assert all(name == rule.__name__.lower() for name, rule in RULES.items())
    assert RULES["lamb"] is rules.LAMB
    assert set(RULES.values()) == {type(rule) for rule in ALL_RULES}


def test_every_rule_is_public_here_and_has_a_named_optimizer():
    listed = {name for name in rules.__all__ if isinstance(getattr(rules, name), type)} - {"Rule"}
    assert listed == {rule.__name__ for rule in RULES.values()}
    assert listed <= set(named_optimizers.__all__)


def test_settings_are_listed_once():
    assert len(set(ALL_RULES)) == len(ALL_RULES)


@pytest.mark.parametrize("rule", ALL_RULES, ids=repr)
def test_state_begins_with_finite_values(rule):
    state = rule.init(torch.ones(4, 3))
    for name, value in ({} if state is None else state._asdict()).items():
        assert value is None or value.isfinite().all(), name
