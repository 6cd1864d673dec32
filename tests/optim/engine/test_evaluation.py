"""`eval()` and `train()` of schedule-free rules: what `averaged()` means, for loops that call these two."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import descend.optim
from descend.errors import RuleError
from descend.optim.rules import RULES

RATES = {"schedulefreesgd": 0.5, "schedulefreeadamw": 0.05}
every_name = pytest.mark.parametrize("name", RATES)


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def made(name: str, model: nn.Module, **options: Any) -> Any:
    return descend.optim.create(name, model.named_parameters(), lr=RATES[name], **options)


def step(model: nn.Module, optimizer: Any, steps: range) -> None:
    for t in steps:
        optimizer.zero_grad()
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(t))
        model(x.to(next(model.parameters()).dtype)).square().mean().backward()
        optimizer.step()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("runner", ["plain", "blocks"])
@every_name
def test_eval_gives_what_averaged_gives_and_train_the_same_bits_back(
    name: str, runner: str, dtype: torch.dtype
) -> None:
    model = net(dtype)
    optimizer = made(name, model, runner=runner)
    step(model, optimizer, range(3))
    trained = weights(model)
    with optimizer.averaged():
        average = weights(model)
    assert not same(trained, average)
    for _ in range(2):
        for _ in range(2):  # called again, each does nothing
            optimizer.eval()
            assert same(weights(model), average)
            with optimizer.averaged():
                assert same(weights(model), average)
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                optimizer.train()
            assert same(weights(model), trained)


@every_name
def test_a_loop_that_evaluates_trains_to_the_same_bits(name: str) -> None:
    one, other = net(), net()
    plain, evaluated = made(name, one), made(name, other)
    for t in range(6):
        step(one, plain, range(t, t + 1))
        evaluated.train()
        step(other, evaluated, range(t, t + 1))
        with torch.no_grad():
            evaluated.eval()
            other(torch.ones(1, 3))
    evaluated.train()
    assert same(weights(one), weights(other))


def test_nothing_is_trained_or_loaded_after_eval() -> None:
    model = net()
    optimizer = made("schedulefreesgd", model)
    step(model, optimizer, range(1))
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.eval()
    for what, act in (
        ("a step", optimizer.step),
        ("load_state_dict", lambda: optimizer.load_state_dict(saved)),
        ("load_torch_state", lambda: optimizer.load_torch_state(saved)),
    ):
        with pytest.raises(RuleError, match=rf"{what} after eval\(\).*call the optimizer's train\(\) first"):
            act()
    optimizer.train()
    step(model, optimizer, range(1, 2))
    with optimizer.averaged():
        optimizer.eval()  # does nothing there
        with pytest.raises(RuleError, match=r"train\(\) within averaged\(\)"):
            optimizer.train()
    step(model, optimizer, range(2, 3))


@every_name
def test_a_state_saved_after_eval_goes_on_from_the_training_point(name: str) -> None:
    whole, model = net(), net()
    reference, first = made(name, whole), made(name, model)
    step(whole, reference, range(6))
    step(model, first, range(3))
    first.eval()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    first.train()
    step(model, first, range(3, 6))
    assert same(weights(model), weights(whole))

    again = net()
    second = made(name, again)
    again.load_state_dict(saved["model"])
    second.load_state_dict(saved["optimizer"])
    average = weights(again)
    second.eval()
    assert same(weights(again), average)
    with pytest.raises(RuleError, match="after eval"):
        second.step()
    second.train()
    step(again, second, range(3, 6))
    assert same(weights(again), weights(whole))


@every_name
def test_copies_made_after_eval_go_on_as_the_original(name: str) -> None:
    model = net()
    optimizer = made(name, model)
    step(model, optimizer, range(3))
    optimizer.eval()
    again, other = copy.deepcopy((model, optimizer))
    for one, its in ((model, optimizer), (again, other)):
        its.train()
        step(one, its, range(3, 6))
    assert same(weights(model), weights(again))


def test_weights_written_after_eval_stay_with_a_warning() -> None:
    model = net()
    optimizer = made("schedulefreesgd", model)
    step(model, optimizer, range(2))
    optimizer.eval()
    model[2].load_state_dict({"weight": torch.ones(2, 4), "bias": model[2].bias.detach()})  # pyright: ignore
    with pytest.warns(UserWarning, match=r"'2\.weight' changed between eval\(\) and train\(\)"):
        optimizer.train()
    assert torch.equal(model[2].weight, torch.ones(2, 4))  # pyright: ignore
    step(model, optimizer, range(2, 3))


def test_a_state_of_eval_without_its_training_point_is_refused() -> None:
    model = net()
    optimizer = made("schedulefreesgd", model)
    step(model, optimizer, range(2))
    optimizer.eval()
    saved = optimizer.state_dict()
    for entry in saved["state"].values():
        del entry["trained"]
    optimizer.train()
    with pytest.raises(RuleError, match=r"saved after eval\(\) and lacks the point of training"):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("name", RULES)
def test_before_the_first_step_and_for_other_rules_nothing_happens(name: str) -> None:
    p = nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3))
    optimizer = descend.optim.create(name, [p])
    before = p.detach().clone()
    optimizer.eval()
    optimizer.eval()
    assert torch.equal(p, before)
    if name not in RATES:
        p.grad = torch.ones_like(p)
        optimizer.step()
    optimizer.train()
    p.grad = torch.ones_like(p)
    optimizer.step()


def test_inference_mode_around_it_changes_nothing() -> None:
    model = net()
    optimizer = made("schedulefreeadamw", model)
    step(model, optimizer, range(2))
    trained = weights(model)
    with torch.inference_mode():
        optimizer.eval()
    torch.save(optimizer.state_dict(), io.BytesIO())
    with torch.inference_mode():
        optimizer.train()
    assert same(weights(model), trained)
    step(model, optimizer, range(2, 3))
