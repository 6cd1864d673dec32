"""From settings to an optimizer: groups by role, rules of ours and of other libraries, learning rates."""

import pytest
import torch
from torch import nn

from descend.errors import ConfigurationError
from descend.study.running.optimizer import foreign_class, is_ours, make, multipliers, schedule_of, shares


def module():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def settings(**given):
    return {"optimizer": "SGD", "schedule": "constant", "lr": 0.1, **given}


def test_parameters_with_the_same_options_share_a_group():
    (only,) = shares(settings(momentum=0.9, weight_decay=0.01), module())
    assert only.names == ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    assert only.rule.momentum == 0.9
    assert only.options["weight_decay"] == 0.01


def test_a_role_has_options_of_its_own_and_later_ones_win():
    net = module()
    net[0].weight.requires_grad_(False)
    given = {"roles.vectors.weight_decay": 0.0, "roles.vectors.lr_mult": 0.5, "roles.norm.lr_mult": 0.1}
    groups = {share.names: share.options for share in shares(settings(weight_decay=0.01, **given), net)}
    assert set(groups) == {("0.bias", "2.bias"), ("1.weight", "1.bias"), ("2.weight",)}
    assert groups["0.bias", "2.bias"]["lr_mult"] == 0.5
    assert groups["1.weight", "1.bias"]["lr_mult"] == 0.1
    assert {options["weight_decay"] for options in groups.values()} == {0.0, 0.01}


def test_another_rule_takes_the_decay_and_the_momentum_and_nothing_else():
    given = {"momentum": 0.8, "weight_decay": 0.1, "trust": 0.01, "roles.vectors.optimizer": "SGD"}
    lars, sgd = shares(settings(**{**given, "optimizer": "LARS"}), module())
    assert (type(lars.rule).__name__, type(sgd.rule).__name__) == ("LARS", "SGD")
    assert sgd.rule.momentum == 0.8
    assert sgd.options["weight_decay"] == 0.1


@pytest.mark.parametrize(
    ("given", "said"), [({"optimizer": "SDG"}, "did you mean 'sgd'"), ({"momentun": 1}, "did you mean 'momentum'")]
)
def test_what_a_rule_does_not_have_is_answered(given, said):
    with pytest.raises(ConfigurationError, match=said):
        shares(settings(**given), module())


def test_a_schedule_has_the_learning_rate_as_its_peak():
    schedule = schedule_of(settings(schedule="linear", **{"schedule.warmup_fraction": 0.5}), 10)
    rates = [schedule(step) for step in range(10)]
    assert max(rates) == pytest.approx(0.1)
    assert rates[0] < rates[4] > rates[9]


def test_an_optimizer_of_ours_has_a_group_for_each_set_of_options():
    net = module()
    optimizer = make(settings(**{"roles.bias.lr_mult": 0.5}), 10, net)(list(net.named_parameters()))
    assert [len(group["params"]) for group in optimizer.param_groups] == [4, 2]
    assert [group["lr_mult"] for group in optimizer.param_groups] == [1.0, 0.5]


def test_an_optimizer_of_torch_gets_learning_rates_by_group():
    net = module()
    given = settings(optimizer="torch.optim:AdamW", weight_decay=0.1, **{"roles.vectors.lr_mult": 0.25})
    optimizer = make(given, 10, net)(list(net.named_parameters()))
    assert type(optimizer) is torch.optim.AdamW
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.025]
    assert multipliers(given, net) == [1.0, 0.25]
    mine = make(settings(optimizer="mine"), 10, net, kind=torch.optim.Adagrad)(list(net.named_parameters()))
    assert type(mine) is torch.optim.Adagrad


def test_whose_an_optimizer_is_and_where_its_class_is():
    assert is_ours(settings())
    assert not is_ours(settings(optimizer="torch.optim:SGD"))
    assert foreign_class("torch:optim.SGD") is torch.optim.SGD
    with pytest.raises(ConfigurationError, match=r"torch\.optim has no 'SDG'; did you mean 'SGD'"):
        foreign_class("torch.optim:SDG")
    with pytest.raises(ConfigurationError, match="module 'tortch' cannot be imported"):
        foreign_class("tortch:SGD")
