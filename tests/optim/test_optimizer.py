"""What a torch loop expects of an optimizer, and what this one refuses."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import descend.optim
from descend.errors import NumericalError, RuleError
from descend.optim import Optimizer, Rule
from descend.optim.compiler.cache import compiler

RUNNERS = ["plain", "blocks", *(["compiled"] if compiler() else [])]


class KickState(NamedTuple):
    m: Tensor


@dataclass(frozen=True)
class Kick(Rule):
    """Momentum with noise: small enough to work out by hand."""

    momentum: float = 0.5
    heat: float = 0.0

    def init(self, p: Tensor) -> KickState:
        return KickState(m=torch.zeros_like(p))

    def direction(self, g: Tensor, s: KickState, noise: Any) -> tuple[Tensor, KickState]:
        m = self.momentum * s.m + g
        return m + self.heat * noise(), KickState(m)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def largest_gap(one: nn.Module, other: nn.Module) -> float:
    return max((p - q).abs().max().item() for p, q in zip(one.parameters(), other.parameters(), strict=True))


# ---- the same numbers as torch


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        ("Adam", torch.optim.Adam, {"betas": (0.8, 0.95), "weight_decay": 0.1, "maximize": True}),
        ("AdamW", torch.optim.AdamW, {"weight_decay": 0.2}),
        ("SGD", torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_equals_torch(runner: str, ours: str, theirs: Any, options: dict[str, Any]) -> None:
    one, other = net(), net()
    train(one, getattr(descend.optim, ours)(one.parameters(), lr=1e-2, runner=runner, **options), 50)
    train(other, theirs(other.parameters(), lr=1e-2, **options), 50)
    assert largest_gap(one, other) < 1e-12


def test_one_step_is_one_step_with_a_rule_for_each_group() -> None:
    one, other = net(), net()
    first, last = list(one.parameters())[:2], list(one.parameters())[2:]
    descend_groups = [{"params": first, "rule": Kick(momentum=0.9), "lr": 1e-2}, {"params": last}]
    optimizer = descend.optim.Adam(descend_groups, lr=1e-3)
    train(one, optimizer, 10)
    sgd = torch.optim.SGD(list(other.parameters())[:2], lr=1e-2, momentum=0.9)
    adam = torch.optim.Adam(list(other.parameters())[2:], lr=1e-3)
    random = torch.Generator().manual_seed(1)
    for _ in range(10):
        other.zero_grad()
        other(torch.randn(8, 4, generator=random, dtype=torch.float64)).square().sum().backward()
        sgd.step()
        adam.step()
    assert largest_gap(one, other) < 1e-12
    assert optimizer.updates == 10


# ---- groups and schedules


@pytest.mark.parametrize("runner", RUNNERS)
def test_writing_into_a_group_is_heard(runner: str) -> None:
    p, q = (nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64)) for _ in range(2))
    one = descend.optim.Adam([p], lr=0.1, runner=runner)
    other = torch.optim.Adam([q], lr=0.1)
    for step in range(6):
        one.param_groups[0]["beta1"] = 0.9 if step < 3 else 0.5
        other.param_groups[0]["betas"] = (0.9 if step < 3 else 0.5, 0.999)
        p.grad, q.grad = (torch.tensor([1.0, -2.0 + step], dtype=torch.float64) for _ in range(2))
        one.step()
        other.step()
    torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


def test_torch_schedulers_move_rate_and_momentum() -> None:
    one, other = net(), net()
    ours = descend.optim.Adam(one.parameters(), lr=1e-3)
    theirs = torch.optim.Adam(other.parameters(), lr=1e-3)
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20) for o in (ours, theirs)]
    for step in range(15):
        train(one, ours, 1, seed=step)
        train(other, theirs, 1, seed=step)
        for scheduler in schedulers:
            scheduler.step()
    assert ours.param_groups[0]["betas"] == theirs.param_groups[0]["betas"]
    assert largest_gap(one, other) < 1e-12


def test_a_schedule_is_read_at_the_number_of_updates() -> None:
    seen: list[int] = []

    def schedule(updates: int) -> float:
        seen.append(updates)
        return 1.0 / (1 + updates)

    p = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = Optimizer([p], Kick(momentum=0.0), lr=schedule)
    for _ in range(3):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert p.item() == pytest.approx(-(1 + 1 / 2 + 1 / 3), abs=1e-15)
    assert seen[-3:] == [0, 1, 2]
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(RuleError, match="a schedule decides it"):
        optimizer.step()


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_rate_of_zero_holds_a_scheduled_group_and_its_return_goes_on(runner: str) -> None:
    """So torch.distributed.checkpoint makes the state that it then loads, also where a schedule decides the rate."""
    p = nn.Parameter(torch.ones(2))
    optimizer = descend.optim.SGD([p], lr=lambda t: 0.5 / (1 + t), momentum=0.5, weight_decay=0.1, runner=runner)
    group, rate = optimizer.param_groups[0], optimizer.param_groups[0]["lr"]
    for _ in range(2):
        group["lr"], p.grad = 0.0, torch.zeros(2)
        optimizer.step()
        assert p.tolist() == [1.0, 1.0]
        assert group["lr"] == 0.0
    group["lr"] = rate
    optimizer.state.clear()
    optimizer.begin_at(1)
    p.grad = torch.ones(2)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((2,), 1 - 0.25 * 1.1))
    group["lr"] = 0.1
    with pytest.raises(RuleError, match="a schedule decides it"):
        optimizer.step()


def test_lr_mult_also_holds_under_a_schedule() -> None:
    p, q = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = Optimizer([{"params": [p]}, {"params": [q], "lr_mult": 0.5}], Kick(momentum=0.0), lr=lambda _: 1.0)
    p.grad, q.grad = torch.ones(1), torch.ones(1)
    optimizer.step()
    assert (p.item(), q.item()) == (-1.0, -0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"beta_2": 0.9},
            r"Adam has no option 'beta_2'; did you mean 'beta2'\? Its options are beta1=0.9",
        ),
        ({"lr": -1.0}, "lr must be a finite number >= 0, got -1.0; to ascend, say maximize=True"),
        ({"lr": math.nan}, "lr must be a finite number"),
        ({"lr": "0.1"}, "lr must be a number"),
        ({"weight_decay": math.inf}, "weight_decay must be a finite number"),
        ({"beta1": 1.0}, "beta1 must be a number >= 0 and < 1"),
        ({"decay": "decopled"}, "did you mean 'decoupled'"),
        ({"runner": "fats"}, "runner must be one of"),
        ({"on_nonfinite": "skipp"}, "did you mean 'skip'"),
        ({"clip_value": 0.0}, "clip_value is 0"),
        ({"maximize": 1}, "maximize must be True or False"),
        ({"betas": (0.9, 0.99), "beta1": 0.9}, "say the same"),
        ({"fused": True}, "no option 'fused', which tells torch how to compute: leave it out"),
        ({"foreach": None}, "no option 'foreach', which tells torch how to compute: leave it out"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RuleError, match=words):
        descend.optim.Adam(net().parameters(), **options)


def test_only_weights_and_rate_go_without_a_name() -> None:
    with pytest.raises(RuleError, match=r"SGD: beside params and lr, give every option by its name.*momentum=0\.0"):
        descend.optim.SGD(net().parameters(), 0.1, 0.9)
    with pytest.raises(RuleError, match="SGD: missing a required argument: 'params'"):
        descend.optim.SGD(lr=0.1)


def test_a_misspelt_group_key_names_key_group_and_nearest() -> None:
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weightdecay": 0.0}]
    with pytest.raises(RuleError, match=r"group 1 .*no option 'weightdecay'; did you mean 'weight_decay'"):
        descend.optim.Adam(groups)


@pytest.mark.parametrize(("key", "value"), [("lr", math.nan), ("lr", "1"), ("weight_decay", -1.0), ("betta1", 0.5)])
def test_what_is_written_into_a_group_later_is_checked(key: str, value: Any) -> None:
    model = net()
    optimizer = descend.optim.Adam(model.parameters())
    train(model, optimizer, 1)
    before = copy.deepcopy(model)
    optimizer.param_groups[0][key] = value
    with pytest.raises(RuleError, match="Adam, group 0"):
        optimizer.step()
    assert equal(model, before)


@pytest.mark.parametrize("rate", [np.float64(0.5), np.float32(0.5), torch.tensor(0.5)])
def test_numbers_of_other_libraries_are_numbers(rate: Any) -> None:
    p = nn.Parameter(torch.ones(1))
    p.grad = torch.ones(1)
    optimizer = descend.optim.SGD([p], lr=rate, weight_decay=np.int64(1))
    optimizer.step()
    assert p.item() == 0.0


# ---- ownership


def test_weights_that_cannot_be_owned_once_are_refused() -> None:
    a, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    shared = nn.Parameter(a.detach())
    cases: list[tuple[Any, str]] = [
        ([], "the list of weights is empty"),
        ([a, b, a], "weights 0 and group 0, weights 2"),
        ([{"params": [("x", a)]}, {"params": [("y", a)]}], r"'x' \(group 0\) and 'y' \(group 1\)"),
        ([("x", a), ("x", b)], "two tensors are called 'x'"),
        ([a, shared], "share memory"),
        ([nn.Parameter(torch.ones(1).expand(3))], "expanded"),
        ([torch.arange(3)], "int64"),
        ([torch.zeros(3, dtype=torch.bool)], "bool"),
        ([nn.Parameter(torch.zeros(3, dtype=torch.complex64))], "view_as_real"),
        ([(a * 2)], "not a leaf"),
        ([("x", a), b], "name all or none"),
        (["x"], "must be a tensor"),
        (a, "params is one tensor"),
        (nn.Linear(2, 2), r"params is a module; give its named_parameters\(\)"),
        ({"a": a}, r"params is a dict; give its items\(\)"),
        ({a, b}, "params is a set"),
        (None, "params must be a list of weights, got None"),
        ([torch.zeros(2).to(torch.float8_e4m3fn)], "is torch.float8_e4m3fn, in which nothing can be computed"),
        ([{"params": {a}}], "a set"),
    ]
    for params, words in cases:
        with pytest.raises(RuleError, match=words):
            descend.optim.Adam(params)


def test_an_empty_group_among_others_is_allowed_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="group 1 holds no weights"):
        descend.optim.Adam([{"params": net().parameters()}, {"params": []}])


def test_a_group_that_is_refused_is_not_added() -> None:
    model = net()
    optimizer = descend.optim.Adam(model.parameters())
    with pytest.raises(RuleError):
        optimizer.add_param_group({"params": [next(model.parameters())]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_group_may_be_added_in_mid_run(runner: str) -> None:
    one, other = net(), net()
    ours = descend.optim.Adam(one[0].parameters(), runner=runner)
    theirs = torch.optim.Adam(other[0].parameters())
    train(one, ours, 3)
    train(other, theirs, 3)
    ours.add_param_group({"params": one[2].parameters(), "lr": 0.1})
    theirs.add_param_group({"params": other[2].parameters(), "lr": 0.1})
    one.zero_grad()
    other.zero_grad()
    train(one, ours, 3)
    train(other, theirs, 3)
    assert largest_gap(one, other) < 1e-12


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("dampening", [0.0, 0.3])
def test_momentum_may_begin_and_end_in_mid_run(runner: str, dampening: float) -> None:
    one, other = net(), net()
    ours = descend.optim.SGD(one.parameters(), lr=1e-2, dampening=dampening, runner=runner)
    theirs = torch.optim.SGD(other.parameters(), lr=1e-2, dampening=dampening)
    for step, momentum in enumerate((0.0, 0.0, 0.9, 0.8, 0.0, 0.9)):
        for model, optimizer in ((one, ours), (other, theirs)):
            optimizer.param_groups[0]["momentum"] = momentum
            train(model, optimizer, 1, seed=step)
    assert largest_gap(one, other) < 1e-12


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_master_outlives_the_start_of_a_momentum(runner: str) -> None:
    p = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = descend.optim.SGD([p], lr=1e-4, runner=runner)
    for step in range(40):  # steps too small for bfloat16, which add up in the master
        optimizer.param_groups[0]["momentum"] = 0.0 if step < 20 else 1e-9
        p.grad = torch.ones_like(p)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["master"], torch.full((3,), 1 - 40e-4))


# ---- absent, zero, frozen; non-finite; sparse


@pytest.mark.parametrize("runner", RUNNERS)
def test_freezing_in_mid_run_keeps_weights_and_state(runner: str) -> None:
    model = net()
    optimizer = descend.optim.Adam(model.named_parameters(), weight_decay=0.1, runner=runner)
    train(model, optimizer, 2)
    frozen = model[0].weight
    frozen.requires_grad_(False)
    before, state = frozen.clone(), {k: v.clone() for k, v in optimizer.state[frozen].items()}
    assert frozen.grad is not None
    optimizer.step()
    train(model, optimizer, 2)
    assert torch.equal(frozen, before)
    assert all(torch.equal(optimizer.state[frozen][k], v) for k, v in state.items())
    frozen.requires_grad_(True)
    train(model, optimizer, 1)
    assert int(optimizer.state[frozen]["step"]) == 3
    assert int(optimizer.state[model[2].weight]["step"]) == 6


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(runner: str, value: float) -> None:
    for policy in ("raise", "skip"):
        model = net()
        optimizer = descend.optim.Adam(model.named_parameters(), runner=runner, on_nonfinite=policy)
        train(model, optimizer, 2)
        before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict()["state"])
        model[2].bias.grad[1] = value
        if policy == "raise":
            with pytest.raises(NumericalError, match=r"the gradient of '2\.bias' is not finite"):
                optimizer.step()
        else:
            optimizer.step()
            assert optimizer.skipped == 1
        assert optimizer.updates == 2
        assert equal(model, before)
        after = optimizer.state_dict()["state"]
        assert all(torch.equal(after[i][k], v) for i, entry in state.items() for k, v in entry.items())


@pytest.mark.parametrize("runner", RUNNERS)
def test_allow_lets_it_through_and_large_finite_gradients_pass(runner: str) -> None:
    p = nn.Parameter(torch.zeros(3))
    optimizer = Optimizer([p], Kick(momentum=0.0), lr=1.0, runner=runner, on_nonfinite="allow")
    p.grad = torch.tensor([math.nan, 1.0, 1.0])
    optimizer.step()
    assert torch.isnan(p[0])
    assert torch.equal(p[1:], torch.tensor([-1.0, -1.0]))
    q = nn.Parameter(torch.zeros(4))
    careful = Optimizer([q], Kick(momentum=0.0), lr=1.0, runner=runner)
    q.grad = torch.full((4,), 3e38)  # their sum overflows
    careful.step()
    assert torch.equal(q, -q.grad)


@pytest.mark.parametrize("runner", RUNNERS)
def test_gradients_are_left_alone(runner: str) -> None:
    model = net()
    optimizer = descend.optim.Adam(model.parameters(), runner=runner, weight_decay=0.5, rescale_grad=0.1, maximize=True)
    train(model, optimizer, 1)
    before = [(p.grad, p.grad.clone()) for p in model.parameters()]
    optimizer.step()
    assert all(p.grad is g and torch.equal(g, kept) for p, (g, kept) in zip(model.parameters(), before, strict=True))


# ---- low precision


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_weights_have_float32_masters(runner: str, dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(5, dtype=dtype))
    q = nn.Parameter(torch.ones(5))
    ours = descend.optim.AdamW([p], lr=1e-3, weight_decay=0.0, runner=runner)
    theirs = torch.optim.AdamW([q], lr=1e-3, weight_decay=0.0)
    for _ in range(60):  # in bfloat16 alone the weights would still be 1
        p.grad, q.grad = torch.full_like(p, 0.5), torch.full_like(q, 0.5)
        ours.step()
        theirs.step()
    assert ours.state[p]["master"].dtype is torch.float32
    torch.testing.assert_close(p.float(), q.detach(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(ours.state[p]["master"], q.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("runner", RUNNERS)
def test_fp16_zero_gradients_leave_weights_unchanged(runner: str) -> None:
    p = nn.Parameter(torch.ones(5, dtype=torch.float16))
    optimizer = descend.optim.Adam([p], runner=runner)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(p, torch.ones_like(p))


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_is_written_into_low_precision_weights_reaches_the_master(runner: str) -> None:
    p = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    optimizer = Optimizer([p], Kick(momentum=0.0), lr=0.5, runner=runner)
    p.grad = torch.full_like(p, 0.25)
    optimizer.step()
    with torch.no_grad():
        p[2] = 4.0
    optimizer.step()
    assert p.tolist() == [0.75, 0.75, 3.875, 0.75, 0.75]


# ---- saving


@pytest.mark.parametrize("runner", RUNNERS)
def test_resume_is_exact_and_follows_names(runner: str) -> None:
    whole, part = net(), net()
    rule = Kick(heat=0.1)
    reference = Optimizer(whole.named_parameters(), rule, lr=1e-2, runner=runner, seed=5)
    first = Optimizer(part.named_parameters(), rule, lr=1e-2, runner=runner, seed=5)
    train(whole, reference, 4)
    train(part, first, 2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = Optimizer(reversed(list(part.named_parameters())), rule, lr=0.7, runner=runner)
    second.load_state_dict(torch.load(file, weights_only=True))
    random = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 4, generator=random, dtype=torch.float64) for _ in range(4)]
    for x in batches[2:]:
        second.zero_grad()
        part(x).square().sum().backward()
        second.step()
    assert equal(whole, part)
    assert second.updates == 4


@pytest.mark.parametrize("state", [None, {}, {"model": {}, "optimizer": {}}, {"state": {}}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    optimizer = descend.optim.Adam(net().parameters())
    for load in (optimizer.load_state_dict, optimizer.load_torch_state):
        with pytest.raises(RuleError, match="a state dict has the keys 'state' and 'param_groups' and this is"):
            load(state)


def test_a_state_that_does_not_fit_is_refused_before_anything_is_copied() -> None:
    model = net()
    saved = descend.optim.Adam(model.named_parameters())
    train(model, saved, 2)
    state = saved.state_dict()

    def renamed(old: str, new: str) -> list[tuple[str, nn.Parameter]]:
        return [(new if name == old else name, p) for name, p in net().named_parameters()]

    bigger = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    cases: list[tuple[Optimizer, str]] = [
        (descend.optim.SGD(net().named_parameters(), lr=0.1, momentum=0.9), r"0\.weight +SGD, decay coupled +Adam"),
        (descend.optim.Adam(net().named_parameters(), decay="decoupled"), "decay decoupled"),
        (descend.optim.Adam(renamed("0.bias", "0.b")), r"(?s)0\.b +state +nothing.*0\.bias +nothing +state"),
        (descend.optim.Adam(bigger.named_parameters()), r"0\.weight\.m +\(7, 4\) +\(6, 4\)"),
    ]
    for optimizer, words in cases:
        with pytest.raises(RuleError, match=words):
            optimizer.load_state_dict(state)
        assert optimizer.updates == 0
        assert not optimizer.state
    tolerant = descend.optim.Adam(renamed("0.bias", "0.b"))
    tolerant.load_state_dict(state, strict=False)
    assert len(tolerant.state) == 3
    with pytest.raises(RuleError, match="load_torch_state"):
        tolerant.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [("Adam", torch.optim.Adam, {}), ("AdamW", torch.optim.AdamW, {}), ("SGD", torch.optim.SGD, {"momentum": 0.9})],
)
def test_torch_state_is_taken_over(runner: str, ours: str, theirs: Any, options: dict[str, Any]) -> None:
    one, other = net(), net()
    before = theirs(one.parameters(), lr=1e-2, **options)
    after = theirs(other.parameters(), lr=1e-2, **options)
    train(one, before, 5)
    train(other, after, 5)
    optimizer = getattr(descend.optim, ours)(one.named_parameters(), lr=1e-2, runner=runner, **options)
    optimizer.load_torch_state(before.state_dict())
    train(one, optimizer, 5, seed=2)
    train(other, after, 5, seed=2)
    assert largest_gap(one, other) < 1e-12
    with pytest.raises(RuleError, match="cannot take over"):
        descend.optim.Lion(net().named_parameters(), lr=1e-4).load_torch_state(after.state_dict())


@pytest.mark.parametrize("runner", RUNNERS)
def test_copies_and_pickles_go_on_by_themselves(runner: str) -> None:
    model = net()
    optimizer = descend.optim.Adam(model.named_parameters(), runner=runner)
    train(model, optimizer, 2)
    twin, other = copy.deepcopy((model, optimizer))
    third, fourth = pickle.loads(pickle.dumps((model, optimizer)))
    before = copy.deepcopy(model)
    train(twin, other, 2)
    assert equal(model, before)
    train(third, fourth, 2)
    train(model, optimizer, 2)
    assert equal(model, twin)
    assert equal(model, third)
    assert type(other) is descend.optim.Adam


# ---- a torch loop


@pytest.mark.parametrize("runner", RUNNERS)
def test_closures_hooks_and_clipping(runner: str) -> None:
    one, other = net(), net()
    x = torch.randn(8, 4, dtype=torch.float64)
    calls: list[str] = []
    for model, optimizer in (
        (one, descend.optim.Adam(one.parameters(), runner=runner)),
        (other, torch.optim.Adam(other.parameters())),
    ):
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))

        def closure(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return loss

        assert optimizer.step(closure).item() > optimizer.step(closure).item()
    assert calls == ["before", "after"] * 4
    assert largest_gap(one, other) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("runner", RUNNERS)
def test_grad_scaler(runner: str, dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = Optimizer([p], Kick(momentum=0.0), lr=0.5, runner=runner)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale((p * torch.tensor([1.0, 2.0, 3.0], dtype=dtype)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [0.5, 0.0, -0.5]
    p.grad = torch.full_like(p, math.inf)
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [0.5, 0.0, -0.5]
    assert optimizer.skipped == 1
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("runner", RUNNERS)
def test_weights_may_be_cast_or_replaced_after_construction(runner: str) -> None:
    model = net()
    optimizer = descend.optim.Adam(model.parameters(), runner=runner)
    train(model, optimizer, 2)
    for p in model.parameters():
        p.data = p.data.clone()
    other, twin = copy.deepcopy((model, optimizer))
    train(model, optimizer, 2)
    train(other, twin, 2)
    assert equal(model, other)
    model.float()
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    before = [p.clone() for p in model.parameters()]
    optimizer.step()
    assert all((p != q).any() and p.dtype is torch.float32 for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("runner", RUNNERS)
def test_state_may_be_cleared(runner: str) -> None:
    model, fresh = net(), net()
    optimizer = descend.optim.Adam(model.parameters(), runner=runner)
    train(model, optimizer, 2)
    fresh.load_state_dict(model.state_dict())
    optimizer.state.clear()
    train(model, optimizer, 2)
    train(fresh, descend.optim.Adam(fresh.parameters(), runner=runner), 2)
    assert largest_gap(model, fresh) < 1e-15


@pytest.mark.parametrize("runner", RUNNERS)
def test_tensors_shared_between_processes_stay_where_they_are(runner: str) -> None:
    model = net().share_memory()
    before = [p.data_ptr() for p in model.parameters()]
    optimizer = descend.optim.Adam(model.parameters(), runner=runner)
    train(model, optimizer, 2)
    assert [p.data_ptr() for p in model.parameters()] == before
    assert all(p.is_shared() for p in model.parameters())


# ---- noise


@pytest.mark.parametrize("runner", RUNNERS)
def test_noise_depends_on_seed_name_and_update_alone(runner: str) -> None:
    def moved(order: list[str], seed: int) -> dict[str, Tensor]:
        weights = {name: nn.Parameter(torch.zeros(300)) for name in order}
        optimizer = Optimizer(weights.items(), Kick(heat=1.0), lr=1.0, seed=seed, runner=runner)
        for p in weights.values():
            p.grad = torch.zeros_like(p)
        torch.manual_seed(len(order))  # of no consequence
        optimizer.step()
        return {name: p.detach() for name, p in weights.items()}

    one, other = moved(["a", "b"], 1), moved(["b", "c", "a"], 1)
    assert torch.equal(one["a"], other["a"])
    assert torch.equal(one["b"], other["b"])
    assert not torch.equal(one["a"], one["b"])
    assert not torch.equal(one["a"], moved(["a"], 2)["a"])
    assert one["a"].std().item() == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("runner", RUNNERS)
def test_gradients_are_not_held_after_a_step(runner: str) -> None:
    p = nn.Parameter(torch.zeros(50_000))
    optimizer = descend.optim.LAMB([p], lr=1e-3, runner=runner)
    p.grad = torch.ones_like(p)
    gone = weakref.ref(p.grad.untyped_storage())
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    assert p.grad is None
    assert gone() is None


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_an_optimizer_holds_goes_with_it_and_waits_for_no_collection(runner: str) -> None:
    p = nn.Parameter(torch.zeros(50_000))
    p.grad = torch.ones_like(p)
    optimizer = descend.optim.LAMB([p], lr=1e-3, runner=runner)
    optimizer.step()
    gone = weakref.ref(p), weakref.ref(p.untyped_storage())
    gc.collect()
    gc.disable()
    try:
        del optimizer, p
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def test_options_of_the_whole_optimizer_may_stand_in_every_group() -> None:
    """As ZeroRedundancyOptimizer writes them there."""
    p = torch.nn.Parameter(torch.ones(3))
    common = {"runner": "plain", "on_nonfinite": "skip", "seed": 7}
    optimizer = descend.optim.Adam([{"params": [p], "lr": 0.1, **common}], **common)
    p.grad = torch.ones(3)
    optimizer.step()
    assert not optimizer._arenas.arenas
    with pytest.raises(RuleError, match=r"group 0: runner is 'plain' here and 'auto' for the optimizer"):
        descend.optim.Adam([{"params": [p], "runner": "plain"}])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: descend.optim.AdamW([p], lr=lambda: 0.1), "schedule must be a function of the step"),
        (lambda p: descend.optim.AdamW(np.array(3.0)), "params must be a list of weights"),
    ],
)
def test_a_function_of_no_step_and_a_number_for_weights_are_refused(make, words):
    with pytest.raises(RuleError, match=words):
        make(torch.nn.Parameter(torch.ones(3)))
