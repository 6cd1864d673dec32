"""Swap and minimal difference on planted configurations."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from descend.errors import ConfigurationError, Refused
from descend.study.analysis import differences, minimal_difference, swap, swap_table

LARS = {"optimizer": "LARS", "lr": 29.0, "momentum": 0.929, "warmup_power": 1, "gamma": 0.0, "smoothing": 0.1}
NESTEROV = {"optimizer": "SGD", "lr": 7.05, "momentum": 0.976, "warmup_power": 2, "gamma": 0.4, "smoothing": 0.15}


def test_planted_differences_are_found():
    """Needed are the optimizer, the rate and the scale; the rest was an accident of the search."""
    found = minimal_difference(
        NESTEROV, LARS, lambda c: c["optimizer"] == "SGD" and c["lr"] < 10 and c["gamma"] > 0, fixed=["optimizer"]
    )
    assert found.needed == {"optimizer": ("LARS", "SGD"), "lr": (29.0, 7.05), "gamma": (0.0, 0.4)}
    assert set(found.taken_back) == {"momentum", "warmup_power", "smoothing"}
    assert found.configuration == {**LARS, "optimizer": "SGD", "lr": 7.05, "gamma": 0.4}
    assert found.tried[0] == (tuple(LARS), True)


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_no_single_change_can_be_taken_back(first, second):
    """The rule passes with all of one set of changes or all of another."""
    mine, theirs = dict.fromkeys("abcdef", 1), dict.fromkeys("abcdef", 0)

    def passes(c):
        return any(all(c[name] for name in names) for names in (first, second))

    found = minimal_difference(mine, theirs, passes)
    assert passes(found.configuration)
    for name in found.needed:
        assert not passes({**found.configuration, name: 0})


@given(st.sets(st.sampled_from("abcde")))
def test_it_is_the_smallest_for_a_rule_that_only_loses(needed):
    mine, theirs = dict.fromkeys("abcde", 1), dict.fromkeys("abcde", 0)

    def passes(c):
        return all(c[name] for name in needed)

    sizes = [n for n in range(6) for s in itertools.combinations("abcde", n) if needed <= set(s)]
    assert len(minimal_difference(mine, theirs, passes).needed) == min(sizes)


def test_settings_that_one_side_lacks_are_changes_too():
    found = minimal_difference({"a": 1, "b": 2}, {"a": 1, "c": 3}, lambda c: "b" in c)
    assert found.configuration == {"a": 1, "b": 2, "c": 3}
    assert differences({"a": 1, "b": 2}, {"a": 1, "c": 3}) == {"b": (2, "(absent)"), "c": ("(absent)", 3)}


def test_a_configuration_that_does_not_pass_is_refused():
    with pytest.raises(Refused, match="does not pass"):
        minimal_difference({"a": 1}, {"a": 2}, lambda c: False)


def test_a_misspelt_name_is_answered():
    with pytest.raises(ConfigurationError, match="did you mean 'warmup_power'"):
        minimal_difference(NESTEROV, LARS, lambda c: True, fixed=["warmup_powr"])
    with pytest.raises(ConfigurationError, match="lars has no setting 'momentun'"):
        swap({"lars": LARS}, "momentun")


def test_the_papers_swap_table_has_its_form():
    """Medians of table 2: each optimizer loses with the other's warm-up power."""
    cells = swap({"nesterov": NESTEROV, "lars": LARS}, "warmup_power")
    assert cells["nesterov", "lars"] == {**NESTEROV, "warmup_power": 1}
    medians = {("nesterov", "nesterov"): 75.92, ("nesterov", "lars"): 75.79}
    medians |= {("lars", "lars"): 75.97, ("lars", "nesterov"): 75.69}
    table = {(c.arm, c.giver): c for c in swap_table({key: [value] * 50 for key, value in medians.items()})}
    assert table["nesterov", "lars"].change == pytest.approx(-0.13)
    assert table["lars", "nesterov"].change == pytest.approx(-0.28)
    assert table["lars", "lars"].change == 0
    assert swap_table({("a", "a"): [1.0], ("a", "b"): [0.5]}, lower_is_better=True)[1].change == 0.5
    assert swap_table({("a", "a"): [1.0]})[0].interval is None
