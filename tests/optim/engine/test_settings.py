"""Options of a parameter group."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import descend.optim
from descend.errors import RuleError
from descend.optim.engine.settings import OPTIONS, GroupSettingsReader, resolve
from descend.optim.rules import SGD, Adam

NO_NUMBERS = [math.nan, math.inf, 10**400, "1", None, True, torch.tensor(True), torch.tensor(1j), torch.ones(2)]


def group(**changed: Any) -> dict[str, Any]:
    return {**OPTIONS, "params": [], "rule": Adam(), "lr": 0.1, **changed}


@pytest.mark.parametrize("name", ["lr", "lr_mult", "weight_decay", "rescale_grad"])
@given(value=st.floats(max_value=0, exclude_max=True) | st.sampled_from(NO_NUMBERS))
def test_numbers_are_finite_and_not_negative(name: str, value: object) -> None:
    with pytest.raises(RuleError, match=f"here: {name} must be"):
        resolve(group(**{name: value}), "here")


@given(lr=st.floats(0, 1e3), factor=st.floats(0, 1e3))
def test_the_factor_of_the_rate_is_in_the_rate(lr: float, factor: float) -> None:
    assert resolve(group(lr=lr, lr_mult=factor), "here").lr == lr * factor
    assert resolve(group(lr=torch.tensor(0.5, dtype=torch.float64)), "here").lr == 0.5


def test_ascent_turns_the_gradient() -> None:
    assert resolve(group(maximize=True, rescale_grad=0.5), "here").rescale == -0.5
    with pytest.raises(RuleError, match="maximize must be True or False"):
        resolve(group(maximize=1), "here")


def test_clipping_to_nothing_is_refused() -> None:
    with pytest.raises(RuleError, match="clip_value is 0, which would erase"):
        resolve(group(clip_value=0.0), "here")
    assert resolve(group(clip_value=None), "here").clip is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("decay", "decoupeld", "did you mean 'decoupled'"),
        ("weigth_decay", 0.1, "did you mean 'weight_decay'"),
        ("momentum", 0.9, "has no option 'momentum'"),
        ("rule", "adam", "rule must be a rule"),
        ("betas", (0.9,), "betas must hold 2 numbers"),
        ("beta1", 1.0, "beta1 must be a number >= 0 and < 1"),
    ],
)
def test_what_makes_no_sense_is_named(key: str, value: object, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        resolve(group(**{key: value}), "here")


def test_what_a_wrapper_keeps_in_a_group_is_left_alone_unless_it_could_be_an_option() -> None:
    """Lookahead of pytorch_optimizer and of torch-optimizer counts its steps in the groups of the inner optimizer."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = descend.optim.AdamW([weight], lr=0.1)
    optimizer.param_groups[0]["counter"] = 0
    for count in range(3):
        weight.grad = torch.ones(2)
        optimizer.step()
        assert optimizer.param_groups[0]["counter"] == count
        optimizer.param_groups[0]["counter"] += 1
    state = copy.deepcopy(optimizer.state_dict())
    other = descend.optim.AdamW([weight], lr=0.1)
    other.load_state_dict(state)
    assert other.param_groups[0]["counter"] == 3
    other.step()
    assert "AdamW" in str(descend.optim.explain(other))
    for key in ("momentum", "differentiable", "weightdecay", "beta_1"):  # another rule's, torch's, and misspelt ones
        wrong = descend.optim.AdamW([weight], lr=0.1)
        wrong.param_groups[0][key] = 0.1
        with pytest.raises(RuleError, match=f"has no option '{key}'"):
            wrong.step()
    with pytest.warns(UserWarning, match="group 0: nothing here reads 'adaptive'; that is right if a wrapper"):
        shared = descend.optim.AdamW([{"params": [weight], "adaptive": True}], lr=0.1)
    shared.step()


@pytest.mark.parametrize(
    ("name", "key", "ours"),
    [("rmsprop", "alpha", "rho"), ("adam", "b1", "beta1"), ("adagrad", "initial_accumulator_value", "initial")],
)
def test_another_librarys_name_of_an_option_is_refused_with_ours(name: str, key: str, ours: str) -> None:
    """Otherwise a script that writes torch's `alpha` into a group of RMSProp would change nothing, in silence."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = descend.optim.create(name, [weight], lr=0.1)
    optimizer.param_groups[0][key] = 0.5
    with pytest.raises(RuleError, match=f"has no option '{key}'; here that is '{ours}'"):
        optimizer.step()
    other = descend.optim.SGD([weight], lr=0.1)  # has no such option, so it is a wrapper's
    other.param_groups[0][key] = 0.5
    other.step()


def test_sam_over_an_optimizer_shares_its_groups() -> None:
    """As in the common implementation of Foret et al. 2021: its options stand in the groups of the inner optimizer."""

    class SAM(torch.optim.Optimizer):
        def __init__(self, params: Any, base: Any, rho: float, **options: Any) -> None:
            super().__init__(params, {"rho": rho, "adaptive": False, **options})
            self.base = base(self.param_groups, **options)
            self.param_groups = self.base.param_groups

    found: list[torch.Tensor] = []
    for base in (torch.optim.SGD, descend.optim.SGD):
        weight = torch.nn.Parameter(torch.ones(3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sam = SAM([weight], base, rho=0.05, lr=0.1, momentum=0.9)
        for _ in range(3):
            weight.grad = weight.detach().clone()
            sam.base.step()
        found.append(weight.detach())
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("value", ["False", 2, None, math.nan])
def test_a_flag_of_a_rule_is_true_or_false(value: object) -> None:
    """A text from a command line is true whatever it says."""
    words = f"x: amsgrad must be True or False, got {value!r}"
    given: Any = value
    with pytest.raises(RuleError, match=words):
        resolve(group(rule=Adam(amsgrad=given)), "x")
    with pytest.raises(RuleError, match=words):
        resolve(group(amsgrad=value), "x")
    assert resolve(group(amsgrad=1), "x").rule == Adam(amsgrad=True)


def test_constants_in_a_group_become_the_rules() -> None:
    assert resolve(group(beta1=0.5), "here").rule == Adam(beta1=0.5)
    assert resolve(group(betas=(0.5, 0.6)), "here").rule == Adam(beta1=0.5, beta2=0.6)
    with pytest.raises(RuleError, match=r"beta1 is 0\.4 and betas says 0\.5; set one of them"):
        resolve(group(beta1=0.4, betas=(0.5, 0.999)), "here")


def reader() -> GroupSettingsReader:
    return GroupSettingsReader("SGD", {"runner": "auto"})


def test_settings_are_remembered_until_something_changes() -> None:
    ours, said = reader(), group(rule=SGD(momentum=0.9))
    (first,) = ours.read([said], 0)
    assert ours.read([said], 0)[0] is first
    said["lr"] = 0.2
    assert ours.read([said], 0)[0].lr == 0.2


def test_a_tensor_may_be_written_into_and_is_read_each_time() -> None:
    ours, rate = reader(), torch.tensor(0.5)
    said = group(lr=rate)
    assert ours.read([said], 0)[0].lr == 0.5
    rate.fill_(0.25)
    assert ours.read([said], 0)[0].lr == 0.25


def test_a_schedule_decides_and_another_rate_is_refused() -> None:
    ours, said = reader(), group(lr=0.0, schedule=lambda step: 1.0 / (1 + step))
    ours.start_schedule(0, said, 0)
    assert said["lr"] == 1.0
    assert ours.read([said], 1)[0].lr == 0.5
    said["lr"] = 0.3
    with pytest.raises(RuleError, match=r"SGD, group 0: lr was set to 0\.3 while a schedule decides it"):
        ours.read([said], 2)
    ours.forget_schedules()
    assert ours.read([said], 3)[0].lr == 0.25


def test_options_of_the_whole_optimizer_must_be_its_own() -> None:
    ours, said = reader(), group(runner="auto")
    ours.read([said], 0)
    said["runner"] = "plain"
    with pytest.raises(RuleError, match=r"runner is 'plain' here and 'auto' for the optimizer"):
        ours.read([said], 1)
