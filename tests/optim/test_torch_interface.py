"""What a stock torch script does around its optimizer.

Most of it belongs to the engine, and is tested with one rule for each way in which the engine applies rules. What
depends on the state is tested with every rule in every form of its state, and on its code with every rule.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler

import descend.optim
from descend.errors import NumericalError, RuleError
from descend.optim import Optimizer, rules
from descend.optim.rules import ALL_RULES, RULES, Rule

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step:UserWarning")


def _state_form(rule: Rule) -> tuple[Any, ...]:
    """The rule with the entries of its state and their shapes."""
    state = rule.init(torch.zeros(4, 3))
    held = state._asdict() if state is not None else {}
    return type(rule), *((name, x.shape) for name, x in held.items() if x is not None)


every_state = pytest.mark.parametrize("rule", {_state_form(rule): rule for rule in ALL_RULES}.values(), ids=repr)

# One rule for each way in which the engine applies rules.
KINDS = (
    rules.SGD(),  # without state
    rules.SGD(momentum=0.9),
    rules.Adam(amsgrad=True),
    rules.AdamW(),  # decay in the rule
    rules.Nadam(),  # a number in the state
    rules.LAMB(),  # norms
    rules.HypergradientAdam(),  # sums over the tensor, and a number
    rules.Adafactor(),  # state of other shapes
    rules.SOAP(),  # whole matrices
    rules.SGLD(),  # noise
    rules.LBSGD(momentum=0.9, batch_scale=3, warmup_epochs=2, updates_per_epoch=4, clip_inside=0.5),  # skips updates
    rules.ScheduleFreeAdamW(),  # average beside the training point
)
every_kind = pytest.mark.parametrize("rule", KINDS, ids=repr)
LR = 0.01


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def made(rule: Rule, model: nn.Module, **options: Any) -> Optimizer:
    return Optimizer(model.named_parameters(), rule, **{"lr": LR, "weight_decay": 0.02, **options})


def batch(t: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(t), dtype=torch.float64)


def loss_of(model: nn.Module, t: int) -> Tensor:
    return model(batch(t).to(next(model.parameters()).dtype)).square().sum()


def train(model: nn.Module, optimizer: Any, steps: range) -> None:
    for t in steps:
        optimizer.zero_grad()
        loss_of(model, t).backward()
        optimizer.step()


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def close(one: nn.Module, other: nn.Module) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11)


# ---- around the step


@every_kind
def test_grad_scaler(rule: Rule) -> None:
    """A scaled loss gives the update of the loss itself; an overflow changes nothing and halves the scale."""
    one, other = net(), net()
    ours, plain = made(rule, one), made(rule, other)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for t in range(3):
        ours.zero_grad()
        scaler.scale(loss_of(one, t)).backward()
        if t == 2:
            scaler.unscale_(ours)
        scaler.step(ours)
        scaler.update()
    train(other, plain, range(3))
    close(one, other)
    before, state = copy.deepcopy(one), copy.deepcopy(ours.state_dict()["state"])
    one[0].weight.grad[0, 0] = math.inf
    scaler.step(ours)
    scaler.update()
    assert equal(one, before)
    assert scaler.get_scale() == 512.0
    after = ours.state_dict()["state"]
    assert all(torch.equal(after[i][k], v) for i, entry in state.items() for k, v in entry.items())


@every_state
def test_half_precision_under_a_scaler(rule: Rule) -> None:
    model = nn.Linear(4, 3).half()
    optimizer = Optimizer(model.named_parameters(), rule, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for t in range(3):
        optimizer.zero_grad()
        scaler.scale(model(batch(t).half()).float().square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    for p in model.parameters():
        assert p.dtype is torch.float16
        assert p.isfinite().all()
        assert torch.equal(optimizer.state[p]["master"].half(), p)


@every_kind
def test_clipping_by_norm(rule: Rule) -> None:
    one, other = net(), net()
    ours, plain = made(rule, one), made(rule, other)
    for t in range(3):
        ours.zero_grad()
        plain.zero_grad()
        loss_of(one, t).backward()
        loss_of(other, t).backward()
        nn.utils.clip_grad_norm_(one.parameters(), 0.5)
        norm = torch.stack([p.grad.norm() for p in other.parameters()]).norm()
        for p in other.parameters():
            p.grad = p.grad * (0.5 / (norm + 1e-6)).clamp(max=1.0)
        ours.step()
        plain.step()
    close(one, other)


@every_kind
def test_closures_and_hooks(rule: Rule) -> None:
    one, other = net(), net()
    ours, plain = made(rule, one), made(rule, other)
    calls: list[str] = []
    ours.register_step_pre_hook(lambda *_: calls.append("before"))
    ours.register_step_post_hook(lambda *_: calls.append("after"))
    for t in range(2):

        def closure(t: int = t) -> Tensor:
            ours.zero_grad()
            loss = loss_of(one, t)
            loss.backward()
            return loss

        assert ours.step(closure).item() > 0
    train(other, plain, range(2))
    assert equal(one, other)
    assert calls == ["before", "after"] * 2


@every_kind
def test_zero_grad_both_ways(rule: Rule) -> None:
    """Gradients of zeros are gradients; none at all leave weights and counts as they are."""
    model = net()
    optimizer = made(rule, model)
    train(model, optimizer, range(2))
    optimizer.zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    before = copy.deepcopy(model)
    counts = [int(optimizer.state[p]["step"]) for p in model.parameters()]
    optimizer.step()
    assert equal(model, before)
    assert counts == [int(optimizer.state[p]["step"]) for p in model.parameters()] == [2] * 4


# ---- schedulers


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 0.9**t),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 8, cycle_momentum="momentum" in o.defaults),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.05, 2, cycle_momentum="momentum" in o.defaults),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=3),
}


def rates(scheduler: Any, optimizer: Any, steps: int) -> list[float]:
    seen: list[float] = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    return seen


# A scheduler only writes options of the group: every rule meets a scheduler, every scheduler a rule, and every rule
# with a momentum or betas meets one that cycles those.
_ONE_OF_EACH = list({type(rule): rule for rule in ALL_RULES}.values())
_CYCLED = [rule for rule in _ONE_OF_EACH if {"momentum", "beta1"} & set(rule.__dict__)]
_PAIRS = dict.fromkeys(
    [(rule, list(SCHEDULERS)[i % len(SCHEDULERS)]) for i, rule in enumerate(_ONE_OF_EACH)]
    + [(rule, "OneCycleLR") for rule in _CYCLED]
)


@pytest.mark.parametrize(("rule", "name"), _PAIRS, ids=lambda x: x if isinstance(x, str) else repr(x))
def test_torchs_schedulers_set_the_rate_of_every_update(rule: Rule, name: str) -> None:
    """The rates are those that torch's SGD is given, and the weights are those of the rates set by hand."""
    model, other = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
    other.load_state_dict(model.state_dict())
    ours, by_hand = made(rule, model), made(rule, other)
    scheduler = SCHEDULERS[name](ours)
    torchs = torch.optim.SGD([torch.zeros(1)], lr=LR, momentum=0.9)
    wanted = rates(SCHEDULERS[name](torchs), torchs, 6)
    for t in range(6):
        group, twin = ours.param_groups[0], by_hand.param_groups[0]
        assert group["lr"] == pytest.approx(wanted[t], rel=1e-12)
        twin["lr"] = group["lr"]
        if "momentum" in group:
            twin["momentum"] = group["momentum"]
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.grad = torch.full_like(p, 1.0 + t)
            q.grad = p.grad.clone()
        ours.step()
        by_hand.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    assert equal(model, other)


# ---- copies, saved state


@every_state
def test_copies_and_pickles_go_on_as_the_original(rule: Rule) -> None:
    model = net()
    optimizer = made(rule, model)
    train(model, optimizer, range(2))
    copied = copy.deepcopy((model, optimizer))
    pickled = pickle.loads(pickle.dumps((model, optimizer)))
    train(model, optimizer, range(2, 4))
    for twin, its_own in (copied, pickled):
        assert not equal(twin, model)
        train(twin, its_own, range(2, 4))
        assert equal(twin, model)


@every_state
def test_state_follows_the_names_through_a_file(rule: Rule) -> None:
    whole, part = net(), net()
    reference, first = made(rule, whole), made(rule, part)
    train(whole, reference, range(4))
    train(part, first, range(2))
    calls: list[str] = []
    first.register_state_dict_pre_hook(lambda *_: calls.append("saving"))
    first.register_state_dict_post_hook(lambda *_: calls.append("saved"))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    second = Optimizer(reversed(list(part.named_parameters())), rule, lr=0.7)
    second.register_load_state_dict_pre_hook(lambda *_: calls.append("loading"))
    second.register_load_state_dict_post_hook(lambda *_: calls.append("loaded"))
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    train(part, second, range(2, 4))
    assert equal(whole, part)
    assert calls == ["saving", "saved", "loading", "loaded"]


@pytest.mark.parametrize("name", RULES)
def test_the_state_of_every_other_rule_is_refused_with_a_table(name: str) -> None:
    model = net()
    optimizer = descend.optim.create(name, model.named_parameters())
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()
    names = [*RULES, *RULES]
    alike = [other for other in RULES if _state_form(RULES[other]())[1:] == _state_form(RULES[name]())[1:]]
    for other in {*alike, *names[names.index(name) :][:3]}:
        fresh = descend.optim.create(other, net().named_parameters())
        if other == name:
            fresh.load_state_dict(saved)
            continue
        with pytest.raises(RuleError, match=r"(?s)0\.weight.*2\.bias"):
            fresh.load_state_dict(saved)
        assert not fresh.state
        assert fresh.updates == 0


# ---- groups


@every_state
def test_a_group_that_is_added_later_starts_without_state(rule: Rule) -> None:
    """The weights that come in the middle move as under an optimizer of their own, the others as before."""
    one, other = net(), net()
    ours = Optimizer(one[0].named_parameters(), rule, lr=LR)
    first = Optimizer(other[0].named_parameters(), rule, lr=LR)
    second = Optimizer(other[2].named_parameters(), rule, lr=0.02)
    for t in range(5):
        if t == 2:
            ours.add_param_group({"params": [(f"late {n}", p) for n, p in one[2].named_parameters()], "lr": 0.02})
        for model in (one, other):
            model.zero_grad()
            loss_of(model, t).backward()
        ours.step()
        first.step()
        if t >= 2:
            second.step()
    if "noise" in rule.needs and getattr(rule, "temperature", 1.0):
        return  # noise is drawn by name
    close(one, other)


_WRONG = (-1.0, math.nan, math.inf, -math.inf, "0.1", None)


# The engine checks these for all rules alike: every rule meets a wrong value of each option, every value several rules.
@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        (name, key, _WRONG[(i + j) % len(_WRONG)])
        for i, name in enumerate(RULES)
        for j, key in enumerate(("lr", "weight_decay"))
    ],
)
def test_wrong_numbers_are_refused_with_their_group(name: str, key: str, value: Any) -> None:
    model = net()
    first, last = model[0].parameters(), model[2].parameters()
    with pytest.raises(RuleError, match=f"group 1: {key} must"):
        descend.optim.create(name, [{"params": first}, {"params": last, key: value}])
    with pytest.raises(RuleError, match=f"group 0: {key} must"):
        descend.optim.create(name, model.parameters(), **{key: value})
    optimizer = descend.optim.create(name, model.parameters())
    train(model, optimizer, range(1))
    before = copy.deepcopy(model)
    optimizer.param_groups[0][key] = value
    with pytest.raises(RuleError, match=f"group 0: {key} must"):
        train(model, optimizer, range(1))
    assert equal(model, before)


@pytest.mark.parametrize("name", RULES)
def test_misspelt_keys_twins_and_empty_lists_are_refused(name: str) -> None:
    model = net()
    weight = model[0].weight
    wrong: list[tuple[Any, str]] = [
        ([{"params": [weight], "weightdecay": 0.0}], r"'weightdecay'; did you mean 'weight_decay'"),
        ([{"params": [weight], "learning_rate": 1.0}], r"no option 'learning_rate'"),
        ([weight, weight], "appear twice"),
        ([{"params": [weight]}, {"params": [weight]}], "appear twice"),
        ([], "list of weights is empty"),
    ]
    for params, words in wrong:
        with pytest.raises(RuleError, match=words):
            descend.optim.create(name, params)
    with pytest.warns(UserWarning, match="group 1 holds no weights"):
        descend.optim.create(name, [{"params": [weight]}, {"params": []}])


@every_kind
def test_what_is_not_finite_changes_nothing(rule: Rule) -> None:
    for bad in (math.nan, -math.inf):
        model = net()
        optimizer = made(rule, model)
        train(model, optimizer, range(1))
        before = copy.deepcopy(model)
        loss_of(model, 1).backward()
        model[2].weight.grad[0, 0] = bad
        with pytest.raises(NumericalError, match=r"'2\.weight' is not finite"):
            optimizer.step()
        assert equal(model, before)


# ---- models


@every_state
def test_a_model_may_be_cast_after_construction(rule: Rule) -> None:
    model = net()
    optimizer = made(rule, model)
    train(model, optimizer, range(2))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        model.to(dtype)
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        train(model, optimizer, range(2, 4))
        for p in model.parameters():
            assert p.dtype is dtype
            assert p.isfinite().all()
        coarse = dtype is torch.bfloat16 or getattr(rule, "batch_scale", 1) > 1
        assert coarse or not equal(model, before)


@every_kind
def test_parametrized_and_tied_weights(rule: Rule) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)).double()
    model[2].weight = model[0].weight
    tied = made(rule, model)
    assert [len(group["params"]) for group in tied.param_groups] == [1]
    with pytest.raises(RuleError, match="appear twice"):
        Optimizer(list(model.named_parameters(remove_duplicate=False)), rule, lr=LR)
    train(model, tied, range(2))
    assert model[2].weight is model[0].weight
    other = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh()).double()
    optimizer = made(rule, other)
    before = copy.deepcopy(other.state_dict())
    train(other, optimizer, range(getattr(rule, "batch_scale", 1) * 2 + 1))  # signs of two steps may cancel
    assert all(not torch.equal(before[name], p) for name, p in other.state_dict().items())


@every_kind
def test_a_compiled_model(rule: Rule) -> None:
    one, other = net(), net()
    compiled = torch.compile(one, backend="eager")
    train(compiled, made(rule, one), range(2))
    train(other, made(rule, other), range(2))
    assert equal(one, other)


@pytest.mark.parametrize("runner", ["plain", "blocks"])
def test_weights_without_values_are_named_at_the_first_step(runner: str) -> None:
    """`to_empty` makes other tensors, and torch's optimizers go on with the empty ones in silence."""
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    optimizer = descend.optim.Adam(model.named_parameters(), runner=runner)
    model.to_empty(device="cpu")
    with pytest.raises(RuleError, match=r"'weight' is on the meta device.*after model\.to_empty"):
        optimizer.step()


@every_kind
def test_labels_of_groups_say_nothing_about_the_update(rule: Rule) -> None:
    """Scripts look their groups up by `group["name"]`."""
    one, other = net(), net()
    groups = [{"params": [p], "name": name} for name, p in one.named_parameters()]
    labelled = Optimizer(groups, rule, lr=LR)
    train(one, labelled, range(2))
    train(other, Optimizer([{"params": [p]} for p in other.parameters()], rule, lr=LR), range(2))
    assert equal(one, other)
    again = Optimizer([{"params": [p]} for p in one.parameters()], rule, lr=LR)
    again.load_state_dict(labelled.state_dict())
    assert [group["name"] for group in again.param_groups] == [name for name, _ in one.named_parameters()]


@pytest.mark.parametrize("runner", ["plain", "blocks"])
@every_kind
def test_weights_may_grow_between_steps(rule: Rule, runner: str) -> None:
    """As point clouds do: longer weights take the place, with the old moments and zeros behind them."""
    p, q = (nn.Parameter(torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).view(6, 2)) for _ in range(2))
    optimizer = Optimizer([{"params": [p]}, {"params": [q]}], rule, lr=LR, runner=runner)
    for x in (p, q):
        x.grad = torch.ones_like(x)
    optimizer.step()
    held = optimizer.state.pop(p)
    longer = nn.Parameter(torch.cat([p.detach(), torch.zeros(2, 2, dtype=torch.float64)]))
    if any(x.ndim and x.shape != p.shape for x in held.values()):
        held = {}  # sums over rows or sides, which cannot be lengthened so
    optimizer.state[longer] = {
        key: torch.cat([x, x.new_zeros(2, 2)]) if x.shape == p.shape else x for key, x in held.items()
    }
    optimizer.param_groups[0]["params"][0] = longer
    for x in (longer, q):
        x.grad = torch.ones_like(x)
    optimizer.step()
    if held and rule.whole_tensor is False and not {"norm", "noise"} & set(rule.needs):
        torch.testing.assert_close(longer[:6], q, rtol=1e-12, atol=1e-14)
    assert longer.isfinite().all()


# ---- around the loop


every_runner = pytest.mark.parametrize("runner", ["plain", "blocks"])


@every_runner
@every_kind
def test_backward_through_weights_that_were_stepped_over_is_an_error(rule: Rule, runner: str) -> None:
    """As with torch's optimizers: the gradient would be of neither point. Who has no gradient stays as it was."""
    model = net()
    optimizer = made(rule, model, runner=runner)
    for frozen in (False, True):
        loss = loss_of(model, 0)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        model[2].weight.grad = None if frozen else model[2].weight.grad
        untouched, moved = model[2].weight._version, model[0].weight._version
        optimizer.step()
        assert (model[2].weight._version == untouched) is frozen
        assert model[0].weight._version > moved
        if not frozen:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


@every_kind
def test_the_step_may_stand_under_autocast(rule: Rule) -> None:
    """Autocast is about the model; a rule computes in the precision of its state."""
    one, other = net().float(), net().float()
    within, after = made(rule, one), made(rule, other)
    for t in range(3):
        for model, optimizer in ((one, within), (other, after)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                optimizer.zero_grad()
                loss_of(model, t).float().backward()
                if optimizer is within:
                    optimizer.step()
            if optimizer is after:
                optimizer.step()
    assert equal(one, other)


_UNDER_A_DEVICE = [("plain", rule) for rule in {type(rule): rule for rule in ALL_RULES}.values()]
_UNDER_A_DEVICE += [("blocks", rule) for rule in KINDS]


@pytest.mark.parametrize(("runner", "rule"), _UNDER_A_DEVICE, ids=lambda x: x if isinstance(x, str) else repr(x))
def test_a_default_device_elsewhere_changes_nothing(rule: Rule, runner: str) -> None:
    """Counts and numbers stay on the CPU, whatever `torch.set_default_device` says."""
    one, other = net(), net()
    ours, plain = made(rule, one, runner=runner), made(rule, other, runner=runner)
    train(other, plain, range(2))
    for t in range(2):
        ours.zero_grad()
        loss_of(one, t).backward()
        with torch.device("meta"):
            ours.step()
            ours.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert equal(one, other)


@pytest.mark.parametrize("runner", ["plain", "blocks"])
@pytest.mark.parametrize("name", ["adam", "lamb", "muon", "schedulefreesgd"])
def test_inference_mode_around_it_changes_nothing(name: str, runner: str) -> None:
    """Tensors made in that mode could be written neither by a later step nor by backward."""
    one, other, rule = net(), net(), RULES[name]()
    ours, plain = made(rule, one, runner=runner), made(rule, other, runner=runner)
    train(other, plain, range(4))
    for t in range(4):
        ours.zero_grad()
        loss_of(one, t).backward()
        with torch.inference_mode(t < 3):
            ours.step()
            if t == 1:
                ours.load_state_dict(copy.deepcopy(ours.state_dict()))
            with ours.averaged():
                loss_of(one, t)
    assert equal(one, other)


@every_kind
def test_one_optimizer_for_each_weight_may_step_within_backward(rule: Rule) -> None:
    if "noise" in rule.needs and getattr(rule, "temperature", 1.0):
        return  # noise is drawn by name, which these have not
    one, other = net(), net()
    each = {p: Optimizer([p], rule, lr=LR) for p in one.parameters()}

    def step(p: Tensor) -> None:
        each[p].step()
        each[p].zero_grad()

    for p in each:
        p.register_post_accumulate_grad_hook(step)
    for t in range(3):
        loss_of(one, t).backward()
    train(other, Optimizer(other.parameters(), rule, lr=LR), range(3))
    close(one, other)
