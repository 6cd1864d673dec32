"""Who is decayed and who is scaled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import descend
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

    all_of_them, without = stepped([]), stepped(["norm"])
    changed = {name for name, p in all_of_them.items() if not torch.equal(p, without[name])}
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
        ({"options": {"*": 3}}, r"the options of '\*' must be a dict, got 3"),
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
    with pytest.raises(RuleError, match=f"split: '{key}' of 'bias' is not an option"):
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


class Transformer(nn.Module):
    """Embeddings, five blocks, a norm and a head; the place of a token is not decayed, as its method says."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1, 4, 6))
        self.embed = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm((4, 6)), nn.Linear(6, 6)) for _ in range(5))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 2)

    def no_weight_decay(self) -> set[str]:
        return {"place"}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x).mean(1))


def names(group: dict[str, Any]) -> list[str]:
    return [name for name, _ in group["params"]]


def test_no_decay_spares_vectors_norms_and_what_the_model_names() -> None:
    decayed, undecayed = groups.no_decay(Transformer(), weight_decay=0.1, also=["head.weight"])
    assert (decayed["name"], decayed["weight_decay"]) == ("decayed", 0.1)
    assert names(decayed) == ["embed.weight", *(f"blocks.{i}.1.weight" for i in range(5))]
    assert (undecayed["name"], undecayed["weight_decay"]) == ("undecayed", 0.0)
    assert {"place", "blocks.0.0.weight", "norm.weight", "head.bias", "head.weight"} <= set(names(undecayed))
    assert [group["name"] for group in groups.no_decay(nn.Linear(3, 2, bias=False))] == ["decayed"]
    assert [names(group) for group in groups.no_decay(nn.Linear(3, 2).named_parameters())] == [["weight"], ["bias"]]


def test_no_decay_is_the_same_update_as_two_groups_by_hand() -> None:
    one, two = model(), model()
    by_hand = [
        {"params": [p for p in two.parameters() if p.ndim > 1], "weight_decay": 0.3},
        {"params": [p for p in two.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    for net, params in ((one, groups.no_decay(one, weight_decay=0.3)), (two, by_hand)):
        optimizer = torch.optim.AdamW(params, lr=0.1)
        net(torch.ones(2, 3, 8, 8)).square().sum().backward()
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))


def test_layerwise_rates_fall_towards_the_input() -> None:
    made = groups.layerwise(Transformer(), 0.5, lr=1.0, undecayed=["dims<=1"])
    rates = {name: group["lr"] for group in made for name in names(group)}
    assert rates["place"] == rates["embed.weight"] == 0.5**6
    assert [rates[f"blocks.{i}.1.weight"] for i in range(5)] == [0.5**5, 0.5**4, 0.5**3, 0.5**2, 0.5]
    assert rates["norm.weight"] == rates["head.bias"] == 1.0
    assert [group["name"] for group in made][:3] == ["layer 0", "layer 1", "layer 1, undecayed"]
    spared = [group for group in made if group.get("weight_decay") == 0.0]
    assert sorted(name for group in spared for name in names(group)) == sorted(
        [*(f"blocks.{i}.1.bias" for i in range(5)), "norm.weight", "norm.bias", "head.bias"]
    )
    assert [group["lr_mult"] for group in groups.layerwise(model(), 0.5)] == [0.25, 0.5, 1.0]


def test_layers_by_rules() -> None:
    made = groups.layerwise(Transformer(), 0.1, lr=1.0, layers=["head.*", "*"])
    assert [(len(group["params"]), group["lr"]) for group in made] == [(2, pytest.approx(0.1)), (24, 1.0)]
    with pytest.raises(RuleError, match=r"24 weights are of none of the layers, e\.g\. 'place'"):
        groups.layerwise(Transformer(), 0.1, layers=["head.*"])


def test_a_scheduled_rate_is_multiplied_layer_by_layer() -> None:
    net = model()
    optimizer = descend.optim.SGD(groups.layerwise(net, 0.5), lr=descend.optim.schedules.WarmupLinear(0.8, 4, 0))
    before = [p.detach().clone() for p in net.parameters()]
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    moved = [float((a - b).mean().detach()) for a, b in zip(before, net.parameters(), strict=True)]
    assert moved == pytest.approx([0.2, 0.2, 0.4, 0.4, 0.8, 0.8], rel=1e-5)


def test_train_only_freezes_the_others_and_only_those_move() -> None:
    class LowRank(nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            self.lora_a = nn.Parameter(torch.randn(2, weight.shape[1]))
            self.lora_b = nn.Parameter(torch.zeros(weight.shape[0], 2))

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight + self.lora_b @ self.lora_a

    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    nn.utils.parametrize.register_parametrization(net[0], "weight", LowRank(net[0].weight))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    trained = groups.train_only(net, ["*.lora_*", "1.bias"])
    assert sorted(name.rpartition(".")[2] for name in trained) == ["bias", "lora_a", "lora_b"]
    made = groups.no_decay(net)
    descend.fit(
        net,
        "cross_entropy",
        (torch.randn(12, 4), torch.randint(0, 3, (12,))),
        optimizer=lambda params: torch.optim.AdamW(made, lr=0.1),
        batch_size=4,
        stop=descend.Epochs(2),
    )
    moved = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(trained)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: groups.no_decay(model(), also=["haed.*"]), r"no_decay: rule 'haed\.\*' matches none"),
        (lambda: groups.no_decay(model(), weight_decay=-1), "weight_decay must be a finite number >= 0"),
        (lambda: groups.layerwise(model(), 0), "factor must be a finite number > 0"),
        (lambda: groups.train_only(model(), []), "rules is empty"),
        (lambda: groups.train_only(model(), "bias"), "rules must be a list of rules"),
        (lambda: groups.train_only(model(), ["x"]), "train_only: rule 'x' matches none"),
    ],
)
def test_what_is_wrong_with_groups_is_named(call: Any, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        call()
