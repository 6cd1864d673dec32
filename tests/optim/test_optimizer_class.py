"""Optimizer classes made of rules."""

import inspect
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import descend.optim
from descend.errors import RuleError
from descend.optim import optimizer_class
from descend.optim.rules import Rule


@dataclass(frozen=True)
class Kick(Rule):
    """p ← p − lr heat sign(g)."""

    heat: float = 2.0

    def direction(self, g: Tensor) -> tuple[Tensor, None]:
        return self.heat * g.sign(), None


Hot = optimizer_class(Kick, name="Hot", lr=0.5, doc="Kick that is warm.", heat=1.0)


def parameter():
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.tensor([3.0, -3.0])
    return p


def test_a_class_has_the_signature_and_the_docstring_of_its_rule():
    parameters = inspect.signature(descend.optim.Adam).parameters
    assert list(parameters)[:2] == ["params", "lr"]
    assert parameters["beta2"].default == 0.999
    assert "Kingma" in (descend.optim.Adam.__doc__ or "")
    assert inspect.signature(descend.optim.AdamW).parameters["decay"].default == "decoupled"
    with pytest.raises(RuleError, match="Adam: missing a required argument: 'params'"):
        descend.optim.Adam()


def test_a_rule_of_ones_own_with_other_defaults():
    p = parameter()
    optimizer = Hot([p])
    assert (optimizer.param_groups[0]["heat"], optimizer.param_groups[0]["lr"]) == (1.0, 0.5)
    optimizer.step()
    assert p.tolist() == [0.5, 1.5]
    assert Hot.__name__ == "Hot"
    assert Hot.rule_class is Kick
    assert Hot.__doc__.startswith("Kick that is warm.")


def test_unknown_options_are_refused():
    with pytest.raises(RuleError, match="Kick has no option 'hot'"):
        optimizer_class(Kick, lr=0.5, hot=1.0)
    with pytest.raises(RuleError, match=r"Hot.* 'heet'; did you mean 'heat'"):
        Hot([parameter()], heet=1.0)
    with pytest.raises(RuleError, match="beside params and lr, give every option by its name"):
        Hot([parameter()], 0.1, 3.0)


def test_a_rate_without_default_is_required():
    with pytest.raises(RuleError, match="missing a required argument: 'lr'"):
        optimizer_class(Kick)([parameter()])


def test_torchs_betas_are_two_options():
    group = descend.optim.Adam([parameter()], betas=(0.5, 0.6)).param_groups[0]
    assert (group["beta1"], group["beta2"]) == (0.5, 0.6)
    with pytest.raises(RuleError, match="betas and beta1 say the same"):
        descend.optim.Adam([parameter()], betas=(0.5, 0.6), beta1=0.5)
    with pytest.raises(RuleError, match="betas must hold 2 numbers"):
        descend.optim.Adam([parameter()], betas=(0.5,))


def test_names_of_descriptions_are_accepted():
    assert descend.optim.Adam([parameter()], learn_rate=0.25).param_groups[0]["lr"] == 0.25


def test_the_earlier_name_still_works():
    assert descend.optim.face is optimizer_class


def test_a_pickle_finds_the_class_where_it_was_made():
    assert descend.optim.Adam.__module__ == "descend.optim.named_optimizers"
    p = parameter()
    copied = pickle.loads(pickle.dumps(descend.optim.Adam([p])))
    assert type(copied) is descend.optim.Adam
