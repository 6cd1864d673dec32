"""No setting is taken in silence: every field of every rule and every option of the engine moves some trajectory.

A field is changed to several values, beside the other settings of each entry of `ALL_RULES`, on gradients that hold a
large, a tiny, a zero and an infinite one, over weights that hold a zero tensor, at a falling rate.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from descend.errors import RuleError
from descend.optim import Optimizer, create
from descend.optim.rules import ALL_RULES, LAMB, RULES, SGD, SGLD, Adam, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = [(5, 3), (4,), (6, 2), (1,)]
WORDS = {
    "eps_at": ("outside", "inside", "uncorrected"),
    "decay_at": ("rate", "corrected", "corrected after"),
    "warmup_strategy": ("linear", "power2", "sqrt", "lars"),
    "ratio_of": ("parts", "sum"),
    "base": ("adamw", "lion"),
    "adjust": ("original", "match_rms_adamw"),
}


def drawn(shape: tuple[int, ...], seed: int, size: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size


def gradient(t: int, i: int, shape: tuple[int, ...]) -> torch.Tensor:
    g = drawn(shape, 100 + 10 * t + i, {5: 20.0, 6: 0.0, 8: 1e-9}.get(t, 1.0))
    if t == 7:
        g.reshape(-1)[0] = float("inf")
    return g


def path(rule: Rule, steps: int = 12, **options: Any) -> torch.Tensor:
    """All weights after all steps."""
    w = [torch.nn.Parameter(drawn(shape, i)) for i, shape in enumerate(SHAPES)]
    w.append(torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.float64)))
    given = {"lr": 0.05, "weight_decay": 0.02, "on_nonfinite": "allow", "runner": "plain", **options}
    optimizer = Optimizer([(f"w{i}", p) for i, p in enumerate(w)], rule, **given)
    seen: list[torch.Tensor] = []
    for t in range(steps):
        optimizer.param_groups[0]["lr"] *= 0.8
        for i, p in enumerate(w):
            p.grad = gradient(t, i, tuple(p.shape))
        optimizer.step()
        seen += [p.detach().flatten().clone() for p in w]
    return torch.cat(seen)


def others(name: str, value: Any) -> tuple[Any, ...]:
    """Other values of a field; not all are allowed beside every other setting."""
    if name in WORDS:
        return tuple(word for word in WORDS[name] if word != value)
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, tuple):
        return (tuple(0.9 * x for x in value),)
    if isinstance(value, int):
        return (value + 1, 2, 5)
    return (0.3, 0.01, 0.97, 2.5, -0.5)


def changes(rule: type[Rule], field: str) -> Iterator[tuple[Rule, Rule]]:
    """Pairs of settings of a rule that differ in one field."""
    for base in [r for r in ALL_RULES if type(r) is rule]:
        for value in others(field, getattr(base, field)):
            try:
                yield base, replace(base, **{field: value})
            except RuleError:
                continue


@pytest.mark.parametrize(("rule", "field"), [(rule, f.name) for rule in RULES.values() for f in fields(rule)])
def test_every_field_of_every_rule_matters(rule: type[Rule], field: str) -> None:
    assert any(
        not torch.equal(path(base).nan_to_num(7.0), path(changed).nan_to_num(7.0))
        for base, changed in changes(rule, field)
    )


@pytest.mark.parametrize(
    ("rule", "option", "value"),
    [
        (SGD(), "lr", 0.1),
        (SGD(), "weight_decay", 0.1),
        (Adam(), "decay", "decoupled"),
        (Adam(), "rescale_grad", 0.5),
        (SGD(), "clip_value", 0.5),
        (SGD(), "maximize", True),
        (SGD(), "lr_mult", 0.5),
        (LAMB(), "scaled", False),
        (SGLD(), "seed", 1),
        (SGD(), "on_nonfinite", "skip"),
    ],
    ids=lambda value: str(value),
)
def test_every_option_of_the_engine_matters(rule: Rule, option: str, value: Any) -> None:
    assert not torch.equal(path(rule).nan_to_num(7.0), path(rule, **{option: value}).nan_to_num(7.0))


# ---- a form of the decay for rules that apply it themselves


OWN_DECAY = [name for name, rule in RULES.items() if "decay" in rule.needs]


def weights() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2, 2))]


@pytest.mark.parametrize("name", OWN_DECAY)
def test_a_form_of_decay_that_would_change_nothing_is_refused(name: str) -> None:
    rule = RULES[name]
    for form in {"coupled", "clipped", "decoupled"} - {rule.default_decay}:
        message = f"{rule.__name__} applies weight decay itself, .*decay='{form}'"
        with pytest.raises(RuleError, match=message):
            create(name, weights(), decay=form)
        with pytest.raises(RuleError, match=message):
            Optimizer(weights(), rule(), lr=0.1, decay=form)
        with pytest.raises(RuleError, match=message):
            create("sgd", [{"params": weights(), "rule": rule(), "decay": form}])
        optimizer = create(name, weights())
        optimizer.param_groups[0]["decay"] = form
        optimizer.param_groups[0]["params"][0].grad = torch.ones(2, 2)
        with pytest.raises(RuleError, match=message):
            optimizer.step()


@pytest.mark.parametrize("name", OWN_DECAY)
def test_a_group_with_such_a_rule_is_not_asked_for_the_form_of_the_others(name: str) -> None:
    rule = RULES[name]
    groups = [{"params": weights(), "rule": rule()}, {"params": weights()}]
    optimizer = create("adam", groups, decay="clipped")
    assert [group["decay"] for group in optimizer.param_groups] == [rule.default_decay, "clipped"]
    assert Optimizer(weights(), rule(), lr=0.1).param_groups[0]["decay"] == rule.default_decay
