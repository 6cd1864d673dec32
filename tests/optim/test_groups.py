"""Who is decayed and who is scaled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import descend.optim
from descend.errors import RuleError
from descend.optim import groups


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))


def options(net: nn.Module, **rules: object) -> dict[str, tuple[float, bool]]:
    optimizer = descend.optim.LAMB(groups.split(net, **rules), lr=1e-3, weight_decay=0.1)
    return {row.name: (row.decay, row.scaled is True) for row in descend.optim.explain(optimizer).rows}


def test_decay_and_scaling_are_excluded_apart() -> None:
    assert options(model(), undecayed=["bias", "norm"], unscaled=["dims<=1"]) == {
        "0.weight": (0.1, True),
        "0.bias": (0.0, False),
        "1.weight": (0.0, False),
        "1.bias": (0.0, False),
        "3.weight": (0.1, True),
        "3.bias": (0.0, False),
    }
    assert options(model(), unscaled=["3.*"])["3.weight"] == (0.1, False)


def test_the_update_of_exactly_those_weights_changes() -> None:
    def stepped(undecayed: list[str]) -> dict[str, torch.Tensor]:
        net = model()
        optimizer = descend.optim.AdamW(groups.split(net, undecayed=undecayed), lr=0.1, weight_decay=0.5)
        net(torch.ones(2, 3, 8, 8)).square().sum().backward()
        optimizer.step()
        return {name: p.detach() for name, p in net.named_parameters()}

    everybody, without = stepped([]), stepped(["norm"])
    changed = {name for name, p in everybody.items() if not torch.equal(p, without[name])}
    assert changed == {"1.weight"}  # the bias of the norm is 0, so its decay is 0 too


def test_a_rule_that_matches_nothing_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(RuleError, match=r"rule '3\.wieght' matches none of the 6 weights; did you mean '3\.weight'"):
        groups.split(model(), undecayed=["3.wieght"])
    with pytest.raises(RuleError, match="give the model itself"):
        groups.split(model().named_parameters(), undecayed=["norm"])
    frozen = copy.deepcopy(model()).requires_grad_(False)
    with pytest.raises(RuleError, match="nothing is trainable"):
        groups.split(frozen)


def test_further_options_and_their_order() -> None:
    made = groups.split(model(), options={"*": {"lr_mult": 0.5}, "3.*": {"lr_mult": 10.0}})
    assert [(len(g["params"]), g["lr_mult"]) for g in made] == [(4, 0.5), (2, 10.0)]
    assert made[1]["reasons"][0] == "*: lr_mult=0.5; 3.*: lr_mult=10.0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"undecayed": "bias"}, "undecayed must be a list of rules"),
        ({"unscaled": 3}, "unscaled must be a list of rules"),
        ({"undecayed": [3]}, "a rule is a text such as 'bias' and one of undecayed is 3"),
        ({"options": ["*"]}, "options must be a dict from rules to options"),
        ({"options": {"*": 3}}, r"the options of '\*' must be a dict and are 3"),
    ],
)
def test_what_is_no_rule_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(RuleError, match=words):
        groups.split(nn.Linear(2, 2), **arguments)


def test_weights_without_names_cannot_be_split() -> None:
    with pytest.raises(RuleError, match="rules look at names; give the model"):
        groups.split(nn.Linear(2, 2).parameters(), undecayed=["bias"])
    assert len(groups.split(dict(nn.Linear(2, 2).named_parameters()), undecayed=["bias"])) == 2


def test_biases_of_attention_and_of_recurrent_layers_are_biases() -> None:
    """torch calls them `in_proj_bias` and `bias_ih_l0`; a layer called `bias` has weights that are none."""
    net = nn.ModuleDict(
        {
            "encoder": nn.TransformerEncoderLayer(8, 2, 16),
            "gru": nn.GRU(4, 4),
            "attention": nn.MultiheadAttention(8, 2, add_bias_kv=True),
            "bias": nn.Linear(2, 2, bias=False),
        }
    )
    undecayed = {name for name, (decay, _) in options(net, undecayed=["bias"]).items() if decay == 0.0}
    assert undecayed == {name for name, _ in net.named_parameters() if "bias" in name} - {"bias.weight"}


@pytest.mark.parametrize("key", ["params", "param_names", "reasons"])
def test_what_split_writes_itself_is_no_option(key: str) -> None:
    with pytest.raises(RuleError, match=f"split: '{key}' of 'bias' is no option"):
        groups.split(model(), options={"bias": {key: []}})


def test_a_schedule_may_be_given_as_such() -> None:
    schedule = descend.optim.schedules.Ramp(0.5, 1.0, 5)
    split = groups.split(model(), options={"bias": {"schedule": schedule}})
    optimizer = descend.optim.SGD(split, lr=0.1)
    assert {row.name: row.lr for row in descend.optim.explain(optimizer).rows if row.lr != 0.1} == {
        "0.bias": 0.5,
        "1.bias": 0.5,
        "3.bias": 0.5,
    }
    with pytest.raises(RuleError, match="group 0: schedule must be a function of the step"):
        descend.optim.SGD([{"params": [torch.zeros(2)], "schedule": 0.1}])
