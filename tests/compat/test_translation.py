"""Translations: parameters and arguments as other libraries take them."""

import pytest
import torch
from optimizer_inputs import weights

from descend.compat.translation import Translation, build, call, check_kinds, falling, members
from descend.errors import RuleError, Unsupported
from descend.optim import from_library
from descend.optim.rules import SGD, Adam


def test_a_falling_rate_takes_each_factor_from_its_step_on():
    schedule = falling(1.0, [(5, 0.5), (2, 0.1), (5, 0.5)])
    assert [schedule(t) for t in (0, 1, 2, 4, 5, 9)] == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.025, 0.025])


def test_members_are_counted_over_all_groups():
    a, b = weights((2,), (3,))
    found = members({"params": [("a", a), ("b", b)]}, "here", first=4)
    assert [(m.index, m.name) for m in found] == [(4, "a"), (5, "b")]
    assert found[1].tensor is b
    assert [m.name for m in members({"params": a}, "here")] == [None]


def test_a_call_needs_the_arguments_of_the_signature():
    def make(rate, nesterov=False):
        return rate, nesterov

    make.__annotations__ = {"rate": "float", "nesterov": "bool"}  # as `from __future__ import annotations` leaves them
    assert call("it", make, {"rate": 0.5}) == (0.5, False)
    with pytest.raises(RuleError, match="it has no argument 'rat'; did you mean 'rate'"):
        call("it", make, {"rat": 0.5})
    with pytest.raises(RuleError, match="it needs rate"):
        call("it", make, {"nesterov": True})
    with pytest.raises(RuleError, match="it: nesterov must be True or False, got 'False'"):
        call("it", make, {"rate": 0.5, "nesterov": "False"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": "1"}, "x must be a number"),
        ({"x": float("nan")}, "x must be a number"),
        ({"x": True}, "x must be a number"),
        ({"many": [1.0, "a"]}, "many must be a list of numbers"),
        ({"text": 3}, "text must be a text"),
    ],
)
def test_values_of_another_kind_are_refused(given, words):
    def make(x, many, text, maybe): ...

    make.__annotations__ = {"x": "float", "many": "Sequence[float]", "text": "str", "maybe": "float | None"}

    check_kinds("it", make, {"x": 1, "many": (1.0, None), "text": "a", "maybe": None})
    with pytest.raises(RuleError, match=words):
        check_kinds("it", make, given)


def test_parameters_with_other_options_are_in_other_groups():
    a, b, c = weights((2,), (2,), (2,))
    halved = {1: {"lr_mult": 0.5}}
    optimizer = build("it", [a, b, c], lambda own: Translation(SGD(), 0.1, own=lambda m: halved.get(m.index, {})))
    assert [group["params"] for group in optimizer.param_groups] == [[a, c], [b]]
    assert [group["lr_mult"] for group in optimizer.param_groups] == [1.0, 0.5]


def test_updates_that_count_as_applied_are_those_of_the_tensors_too():
    for begin_state, counted in ((True, 7), (False, None)):
        (w,) = weights((2,))
        optimizer = build("it", [w], lambda own, b=begin_state: Translation(Adam(), 0.1, begin=7, begin_state=b))
        assert optimizer.updates == 7
        assert optimizer.state[w].get("step") == counted


def test_what_cannot_be_translated_names_each_parameter():
    (a, b) = weights((2,), (3,))
    made = Translation(SGD(), 0.1, refuse=lambda m: "too long" if m.tensor.numel() > 2 else None)
    with pytest.raises(Unsupported, match="it: weights b cannot be had: too long"):
        build("it", [("a", a), ("b", b)], lambda own: made)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (torch.ones(2), "is one tensor"),
        (torch.nn.Linear(2, 2), "is a module; give its named_parameters"),
        ({"a": torch.ones(2)}, "is a dict; give its items"),
        ({torch.ones(2)}, "is a set"),
        (None, "must be a list of weights, got None"),
        ([], "the list of weights is empty"),
        ([("a",)], "group 0: weights 0 must be a tensor, or its name and the tensor"),
        ([{"lr": 1.0}], "needs the key 'params'"),
        ([{"params": [torch.ones(2)]}, {"params": [3]}], "group 1: weights 1: expected a tensor"),
    ],
)
def test_what_is_no_list_of_weights_is_refused(params, words):
    with pytest.raises(RuleError, match=f"torch SGD.*{words}"):
        from_library("torch", "SGD", params)
