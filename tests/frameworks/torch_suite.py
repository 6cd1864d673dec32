"""Checks our optimizers as torch checks its own: over `optim_db`, torch's list of its optimizers and their options.

    frameworks/bin/python tests/frameworks/torch_suite.py [NAME ...] [--verbose]

Every set of options of every optimizer, in float32 and float64, by `from_library("torch", NAME)` and by our own class
with the same options. The subjects are those of torch's `TestOptimRenewed`, of its tests of schedulers and of averaged
weights; the checks are ours. Each check is one case and ends in one of four ways:

    pass        as torch's class
    on purpose  we differ by design; the reason is counted and where there is a remedy it is tried
    torch       torch's own class fails the same check
    DEFECT      anything else; the exit status is then 1

It reads `torch.testing._internal`, which no release promises, so pytest does not collect it.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import io
import itertools
import math
import pickle  # torch's suite pickles optimizers, too; what is loaded is of this process
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers
from torch.optim import swa_utils
from torch.testing._internal import common_optimizers

import descend.optim
from descend.compat import recipe_from_library
from descend.errors import DescendError, RuleError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

STEPS = 8
CLOSE = {torch.float32: 2e-6, torch.float64: 1e-10}
OUR_NAMES = {"AdamW": "AdamW", "SparseAdam": "Adam"}  # else the name of the rule
SHAPES: tuple[tuple[int, ...], ...] = ((5, 4), (4,), (), (3, 2, 2))
MATRICES: tuple[tuple[int, ...], ...] = ((5, 4), (4, 6))


class OnPurposeError(Exception):
    """A difference that is meant."""


@dataclass(frozen=True)
class Case:
    """An optimizer of torch with one set of options, and a way to build ours.

    Attributes:
        info: torch's entry.
        kwargs: The options in torch's words.
        dtype: Of the weights.
        face: "from_library", "native" or, for the control, "torch".
    """

    info: Any
    kwargs: dict[str, Any]
    dtype: torch.dtype
    face: str

    @property
    def name(self) -> str:
        """Torch's name of the optimizer."""
        return self.info.optim_cls.__name__

    @property
    def sparse(self) -> bool:
        """Whether it takes sparse gradients only."""
        return self.info.only_supports_sparse_grads

    def theirs(self, params: Any, **more: Any) -> Any:
        """Torch's optimizer."""
        return self.info.optim_cls(params, **{**copy.deepcopy(self.kwargs), **more})

    def ours(self, params: Any, **more: Any) -> Any:
        """The optimizer under test."""
        kwargs = {**copy.deepcopy(self.kwargs), **more}  # schedulers write into a rate that is a tensor
        if self.face == "torch":
            return self.info.optim_cls(params, **kwargs)
        if self.face == "from_library":
            return descend.optim.from_library("torch", self.name, params, **kwargs)
        return native(self.name, params, kwargs)

    def weights(self, count: int | None = None) -> list[nn.Parameter]:
        """The same weights each time."""
        draw = torch.Generator().manual_seed(0)
        shapes = MATRICES if self.name == "Muon" else SHAPES[:1] + SHAPES[3:] if self.sparse else SHAPES
        values = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes[:count]]
        return [nn.Parameter(value.to(self.dtype)) for value in values]

    def give_gradients(self, params: Iterable[Tensor], step: int) -> None:
        """Gradients that depend on the step and the weights alone; rows of them where they have to be sparse."""
        for i, p in enumerate(params):
            draw = torch.Generator().manual_seed(1000 * step + i)
            wave = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.dtype)
            gradient = wave + 0.1 * p.detach()
            if self.sparse:
                gradient[step % len(gradient)] = 0
                gradient = gradient.to_sparse(1)
            p.grad = gradient

    def train(self, optimizer: Any, params: Sequence[Tensor], steps: Iterable[int], after: Any = None) -> None:
        """So many updates; `after(step)` follows each."""
        for step in steps:
            self.give_gradients(params, step)
            optimizer.step()
            if after is not None:
                after(step)


def native(name: str, params: Any, kwargs: dict[str, Any]) -> Any:
    """Our own class, with options that mean what torch's words mean; groups are translated alike."""
    known = set(torch.optim.__dict__[name].__init__.__code__.co_varnames)

    def options(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        recipe = recipe_from_library("torch", name, given)
        found = {key: value for key, value in recipe.options().items() if key != "rule"}
        fields = dataclasses.fields(recipe.rule)  # pyright: ignore[reportArgumentType]
        found |= {field.name: getattr(recipe.rule, field.name) for field in fields}
        return OUR_NAMES.get(name, type(recipe.rule).__name__), found

    title, whole = options(kwargs)
    members = list(params) if not isinstance(params, Tensor) else params
    if isinstance(members, list) and members and isinstance(members[0], dict):
        members = [_translated(group, known, lambda own: options({**kwargs, **own})[1]) for group in members]
    return getattr(descend.optim, title)(members, **whole)


def _translated(group: dict[str, Any], known: set[str], options: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A group whose own options are in our words."""
    own = {key: value for key, value in group.items() if key in known and key != "params"}
    rest = {key: value for key, value in group.items() if key not in own}
    return {**rest, **(options(own) if own else {})}


def apart(one: Sequence[Tensor], two: Sequence[Tensor]) -> float:
    """The largest difference in units of the weight, at least of 1."""
    pairs = zip(one, two, strict=True)
    return max(float(((x - y).abs() / y.abs().clamp(min=1.0)).max()) for x, y in pairs if x.numel())


def close(one: Sequence[Tensor], two: Sequence[Tensor], case: Case) -> None:
    """Raise where weights differ by more than rounding, which in torch is that of a rate that is a tensor."""
    assert all(torch.isfinite(x).all() for x in one), "not finite"
    distance = apart([x.detach() for x in one], [x.detach() for x in two])
    rate = case.kwargs.get("lr")
    limit = max(CLOSE[case.dtype], CLOSE[rate.dtype] if isinstance(rate, Tensor) else 0.0)
    if case.name == "NAdam":
        limit = max(limit, 1e-8)  # torch holds its product of momenta in single precision
    assert distance <= limit, f"{distance:.1e} apart"


def equal(one: Sequence[Tensor], two: Sequence[Tensor]) -> None:
    """Raise where a bit differs."""
    assert all(map(torch.equal, one, two)), f"{apart(one, two):.1e} apart"


CHECKS: dict[str, Callable[[Case], None]] = {}


def check(function: Callable[[Case], None]) -> Callable[[Case], None]:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


# ---- the update


@check
def trajectory(case: Case) -> None:
    """The same weights as torch's class."""
    a, b = case.weights(), case.weights()
    case.train(case.ours(a), a, range(STEPS))
    case.train(case.theirs(b), b, range(STEPS))
    close(a, b, case)


@check
def strided(case: Case) -> None:
    """Weights and gradients that are not contiguous."""
    pairs = [nn.Parameter(torch.stack([p.detach()] * 2, -1)[..., 0]) for p in case.weights()]
    other = case.weights()
    ours, theirs = case.ours(pairs), case.theirs(other)
    for step in range(STEPS):
        case.give_gradients(other, step)
        for p, q in zip(pairs, other, strict=True):
            g: Any = q.grad
            p.grad = g.clone() if case.sparse else torch.stack([g] * 2, -1)[..., 0]
        ours.step()
        theirs.step()
    close(pairs, other, case)


@check
def groups(case: Case) -> None:
    """Two groups with another rate each, one of them added later, and a group without weights of its own."""
    ends = []
    for build in (case.ours, case.theirs):
        params = case.weights()
        optimizer = build([{"params": params[:1], "lr": 3e-3}, {"params": params[1:-1] or params[1:]}])
        case.train(optimizer, params, range(3))
        if len(params) > 2:
            optimizer.add_param_group({"params": params[-1], "lr": 5e-3})
        case.train(optimizer, params, range(3, STEPS))
        ends.append(params)
    close(*ends, case)


@check
def decay_in_a_group(case: Case) -> None:
    """A weight decay in one group alone."""
    if "weight_decay" not in case.info.optim_cls([nn.Parameter(torch.ones(2, 2))], **case.kwargs).defaults:
        return
    ends = []
    for build in (case.ours, case.theirs):
        params = case.weights()
        optimizer = build([{"params": params[:1], "weight_decay": 0.1}, {"params": params[1:]}])
        case.train(optimizer, params, range(STEPS))
        ends.append(params)
    close(*ends, case)


CHANGES: dict[str, Any] = {
    "lr": 2e-3,
    "weight_decay": 0.05,
    "eps": 1e-4,
    "betas": (0.8, 0.95),
    "momentum": 0.7,
    "maximize": True,
    "nesterov": False,
    "dampening": 0.0,
    "foreach": None,
}


@check
def changed_groups(case: Case) -> None:
    """What is written into a group between two steps, one key at a time."""
    held = case.theirs(case.weights()).param_groups[0]
    for key, value in CHANGES.items():
        if key not in held or (key == "eps" and case.name == "Adafactor") or (key == "momentum" and not held[key]):
            continue
        ends = []
        for build in (case.ours, case.theirs):
            params = case.weights()
            optimizer = build(params)
            case.train(optimizer, params, range(3))
            optimizer.param_groups[0][key] = value
            case.train(optimizer, params, range(3, STEPS))
            ends.append(params)
        try:
            close(*ends, case)
        except AssertionError as error:
            raise AssertionError(f"{key}: {error}") from None


@check
def tensor_rate(case: Case) -> None:
    """A rate that is a tensor: at first, filled in place, and replaced."""
    ends = []
    for build in (case.ours, case.theirs):
        rate = torch.tensor(1e-3, dtype=torch.float64)
        params = case.weights()
        flags = {} if case.kwargs.get("capturable") or "foreach" not in case.kwargs else {"foreach": False}
        optimizer = build(params, lr=rate, **flags)
        case.train(optimizer, params, range(3))
        rate.fill_(4e-3)
        case.train(optimizer, params, range(3, 5))
        optimizer.param_groups[0]["lr"] = torch.tensor(2e-3, dtype=torch.float64)
        case.train(optimizer, params, range(5, STEPS))
        ends.append(params)
    close(*ends, case)


@check
def missing_gradients(case: Case) -> None:
    """None of some weights in some steps, of all of them, and a frozen one."""
    ends = []
    plain = {"fused": False} if "fused" in case.kwargs else {}  # torch's fused SGD raises TypeError
    for build in (case.ours, case.theirs):
        params = case.weights()
        optimizer = build(params, **plain)
        before = [p.detach().clone() for p in params]
        optimizer.step()
        equal(before, params)
        assert case.name == "Adagrad" or not optimizer.state_dict()["state"], "state without a gradient"
        for step in range(STEPS):
            case.give_gradients(params, step)
            for i in range(len(params)):
                if (step + i) % 3 == 0:
                    params[i].grad = None
            optimizer.step()
        params[0].requires_grad_(False)
        params[0].grad = None
        case.train(optimizer, params[1:], range(STEPS))
        ends.append(params)
    close(*ends, case)


@check
def zero_gradients(case: Case) -> None:
    """Zeros for gradients, and `zero_grad` in both ways."""
    ends = []
    for build in (case.ours, case.theirs):
        params = case.weights()
        optimizer = build(params)
        case.train(optimizer, params, range(2))
        for to_none in (False, True):
            optimizer.zero_grad(set_to_none=to_none)
            assert all((p.grad is None) == to_none for p in params)
            optimizer.step()
        case.train(optimizer, params, range(2, 5))
        ends.append(params)
    close(*ends, case)


@check
def empty_weights(case: Case) -> None:
    """A weight without elements beside others."""
    if case.name == "Muon" or case.sparse:
        return
    ends = []
    for build in (case.ours, case.theirs):
        params = [nn.Parameter(torch.empty(0, 3, dtype=case.dtype)), *case.weights()]
        case.train(build(params), params, range(3))
        ends.append(params[1:])
    close(*ends, case)


@check
def closures(case: Case) -> None:
    """A closure is called once with gradients, also under no_grad, and its value comes back."""
    ends = []
    for build in (case.ours, case.theirs):
        params = case.weights()
        optimizer = build(params)
        calls = []

        def closure(params: Any = params, optimizer: Any = optimizer, calls: Any = calls) -> Tensor:
            assert torch.is_grad_enabled()
            optimizer.zero_grad()
            loss = sum((p * p).sum() for p in params) + torch.zeros((), dtype=case.dtype)
            loss.backward()
            calls.append(1)
            if case.sparse:
                case.give_gradients(params, len(calls))
            return loss

        with torch.no_grad():
            values = [float(optimizer.step(closure)) for _ in range(3)]
        assert len(calls) == 3
        assert all(map(math.isfinite, values))
        ends.append(params)
    close(*ends, case)


@check
def flags_change_nothing(case: Case) -> None:
    """foreach, fused and capturable, where torch has them."""
    held = case.theirs(case.weights(1)).param_groups[0]
    base = case.weights()
    case.train(case.ours(base), base, range(4))
    for key in ("foreach", "capturable"):
        if key in held:
            params = case.weights()
            flags = {flag: None for flag in ("foreach", "fused") if flag in held} | {key: True}
            case.train(case.ours(params, **flags), params, range(4))
            close(params, base, case)


@check
def goes_downhill(case: Case) -> None:
    """The loss of a small network falls, or rises where that is asked for."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(10, 5, dtype=case.dtype))
    x, y = torch.randn(5, dtype=case.dtype), torch.randn(10, dtype=case.dtype)
    optimizer = case.ours([weight])

    def loss() -> Tensor:
        return (weight.mv(x) - y).square().sum()

    first = float(loss())
    for _ in range(60):
        optimizer.zero_grad()
        loss().backward()
        if case.sparse:
            g: Any = weight.grad
            weight.grad = g.to_sparse()
        optimizer.step()
    last = float(loss())
    assert (last > first) if case.kwargs.get("maximize") else (last < first), f"{first} to {last}"


# ---- schedulers


def nothing(step: int) -> float:
    """A factor."""
    return 1 / (1 + step)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4], 0.5),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.3, 1.0, 4),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 7, 2.0),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3, 2),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, nothing),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.9),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1, factor=0.5, cooldown=1),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 4e-3, total_steps=2 * STEPS),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-4, 1e-3, step_size_up=2),
    "OneCycleLR, rate alone": lambda o: schedulers.OneCycleLR(o, 4e-3, total_steps=2 * STEPS, cycle_momentum=False),
    "CyclicLR, rate alone": lambda o: schedulers.CyclicLR(o, 1e-4, 1e-3, step_size_up=2, cycle_momentum=False),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=5e-4, anneal_epochs=3),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 3), schedulers.CosineAnnealingLR(o, 5)], milestones=[3]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.9)]
    ),
}


def scheduled(case: Case, build: Any, make: Any, *, reload: bool) -> list[Tensor] | None:
    """The weights after a run under a scheduler; None where torch says that it does not fit the optimizer."""
    params = case.weights()
    optimizer = build(params)
    try:
        schedule = make(optimizer)
    except ValueError as error:
        if "momentum" not in str(error):
            raise
        return None
    for step in range(STEPS):
        case.give_gradients(params, step)
        optimizer.step()
        schedule.step(*((1.0,) if isinstance(schedule, schedulers.ReduceLROnPlateau) else ()))
        if reload and step == STEPS // 2:
            saved = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
            optimizer = build(params)
            schedule = make(optimizer)
            optimizer.load_state_dict(saved[0])
            schedule.load_state_dict(saved[1])
    return [p.detach() for p in params]


def every_scheduler(case: Case, *, reload: bool) -> None:
    """Every scheduler of torch over ours and over torch's."""
    wrong = []
    extra = {f"of optim_db {i}": make for i, make in enumerate(itertools.chain(*case.info.scheduler_inputs[:1]))}
    for title, make in {**SCHEDULES, **({} if case.sparse else extra)}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                theirs = scheduled(case, case.theirs, make, reload=reload)
                ours = scheduled(case, case.ours, make, reload=reload)
                if theirs is None or ours is None:
                    assert (theirs is None) == (ours is None), "one takes it and the other does not"
                else:
                    close(ours, theirs, case)
            except Exception as error:  # whatever it is, it is listed, and the others are tried
                wrong.append(f"{title}: {type(error).__name__}: {str(error)[:120]}")
    assert not wrong, "; ".join(wrong)


@check
def under_schedulers(case: Case) -> None:
    """Rates and momenta that torch's schedulers write."""
    every_scheduler(case, reload=False)


@check
def schedulers_reloaded(case: Case) -> None:
    """The same, with optimizer and scheduler loaded into new ones on the way."""
    every_scheduler(case, reload=True)


@check
def averaged_weights(case: Case) -> None:
    """AveragedModel in its three forms over a model that the optimizer trains, and a copy of it."""
    ends = []
    for build in (case.ours, case.theirs):
        model = nn.ParameterList(case.weights())
        averages = [
            swa_utils.AveragedModel(model),
            swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
            swa_utils.AveragedModel(model, avg_fn=lambda mean, p, count: 0.7 * mean + 0.3 * p),
        ]
        params = list(model)
        optimizer = build(params)
        for step in range(STEPS):
            case.give_gradients(params, step)
            optimizer.step()
            for one in averages:
                one.update_parameters(model)
        ends.append([p for one in averages for p in one.module])
    close(*ends, case)


# ---- state


def halves(case: Case, carry: Callable[[Any, Any], None], *, named: bool = False) -> None:
    """Half a run, its state carried into an optimizer over a copy of the weights; both go on to the same bits."""

    def members(params: list[nn.Parameter]) -> Any:
        return [(f"w{i}", p) for i, p in enumerate(params)] if named else params

    params = case.weights()
    optimizer = case.ours(members(params))
    case.train(optimizer, params, range(4))
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    other = case.ours(members(copies))
    carry(optimizer, other)
    case.train(optimizer, params, range(4, STEPS))
    case.train(other, copies, range(4, STEPS))
    equal(params, copies)


@check
def state_round_trip(case: Case) -> None:
    """state_dict into load_state_dict, plain and with names."""
    halves(case, lambda a, b: b.load_state_dict(a.state_dict()))
    halves(case, lambda a, b: b.load_state_dict(a.state_dict()), named=True)


@check
def state_through_a_file(case: Case) -> None:
    """torch.save, and torch.load with weights_only."""

    def carry(a: Any, b: Any) -> None:
        file = io.BytesIO()
        torch.save(a.state_dict(), file)
        file.seek(0)
        b.load_state_dict(torch.load(file, weights_only=True))

    halves(case, carry)


@check
def state_is_deterministic(case: Case) -> None:
    """Two runs give the same state, and loading one does not change it."""
    found = []
    for _ in range(2):
        params = case.weights()
        optimizer = case.ours(params)
        case.train(optimizer, params, range(3))
        found.append(optimizer.state_dict())
    same_trees(*found)
    before = copy.deepcopy(found[0])
    case.ours(case.weights()).load_state_dict(found[0])
    same_trees(before, found[0])


def same_trees(one: Any, two: Any) -> None:
    """Raise where two nested values differ."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            same_trees(one[key], two[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for x, y in zip(one, two, strict=True):
            same_trees(x, y)
    elif isinstance(one, Tensor):
        assert torch.equal(one, two)
    else:
        assert one == two, f"{one!r} is not {two!r}"


@check
def older_states(case: Case) -> None:
    """States written before an option existed, and with options that are unknown here."""
    for key in case.info.not_og_supported_flags:

        def carry(a: Any, b: Any, key: str = key) -> None:
            state = copy.deepcopy(a.state_dict())
            for group in state["param_groups"]:
                group.pop(key, None)
            b.load_state_dict(state)

        halves(case, carry)


@check
def other_precision(case: Case) -> None:
    """State of one precision loaded over weights of others, which go on close to torch's in that precision."""
    params = case.weights()
    optimizer = case.ours(params)
    case.train(optimizer, params, range(3))
    state = copy.deepcopy(optimizer.state_dict())
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        others = [nn.Parameter(p.detach().to(dtype)) for p in params]
        other = case.ours(others)
        other.load_state_dict(state)
        reference = [nn.Parameter(p.detach().to(case.dtype)) for p in others]
        control = case.ours(reference)
        control.load_state_dict(state)
        case.train(other, others, range(3, 5))
        case.train(control, reference, range(3, 5))
        loose = {torch.bfloat16: 2e-2}.get(dtype, 1e-5 if case.name != "Muon" else 1e-2)
        assert apart([p.detach().to(case.dtype) for p in others], [p.detach() for p in reference]) < loose, dtype


@check
def named_and_unnamed(case: Case) -> None:
    """A state with names into an optimizer without, and the other way."""
    for first, second in ((True, False), (False, True)):
        params = case.weights()
        optimizer = case.ours([(f"w{i}", p) for i, p in enumerate(params)] if first else params)
        case.train(optimizer, params, range(3))
        copies = [nn.Parameter(p.detach().clone()) for p in params]
        other = case.ours([(f"w{i}", p) for i, p in enumerate(copies)] if second else copies)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        case.train(optimizer, params, range(3, 5))
        case.train(other, copies, range(3, 5))
        equal(params, copies)
        assert not first or other.state_dict()["param_groups"][0]["param_names"][0] == "w0"


@check
def taken_over_from_torch(case: Case) -> None:
    """The state of torch's class, and on from there as torch."""
    if case.face == "torch":
        return
    params, copies = case.weights(), case.weights()
    theirs = case.theirs(params)
    case.train(theirs, params, range(4))
    ours = case.ours(copies)
    with torch.no_grad():
        for p, q in zip(copies, params, strict=True):
            p.copy_(q)
    ours.load_torch_state(theirs.state_dict())
    case.train(theirs, params, range(4, STEPS))
    case.train(ours, copies, range(4, STEPS))
    close(copies, params, case)


@check
def numbers_in_the_state(case: Case) -> None:
    """A step count that is a plain number, as old states have it."""

    def carry(a: Any, b: Any) -> None:
        state = copy.deepcopy(a.state_dict())
        for entry in state["state"].values():
            if "step" in entry:
                entry["step"] = int(entry["step"])
        b.load_state_dict(state)

    halves(case, carry)


@check
def copies(case: Case) -> None:
    """deepcopy and pickle of model and optimizer, which have the same attributes and go on by themselves."""
    params = case.weights()
    optimizer = case.ours(params)
    case.train(optimizer, params, range(3))
    for remade in (copy.deepcopy((optimizer, params)), pickle.loads(pickle.dumps((optimizer, params)))):
        other, theirs = remade
        public = {name for name in vars(optimizer) if not name.startswith("_")}
        assert public == {name for name in vars(other) if not name.startswith("_")}
        here = [nn.Parameter(p.detach().clone()) for p in params]
        straight = case.ours(here)
        straight.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        case.train(other, theirs, range(3, STEPS))
        case.train(straight, here, range(3, STEPS))
        equal(theirs, here)
    assert repr(optimizer)


@check
def state_is_a_mapping(case: Case) -> None:
    """`state` makes entries on demand, can be emptied, takes what users file there, and is kept."""
    params = case.weights()
    optimizer = case.ours(params)
    assert isinstance(optimizer.state, dict)
    assert optimizer.state[params[0]] == {}
    case.train(optimizer, params, range(2))
    assert set(map(id, optimizer.state)) == set(map(id, params))
    optimizer.state["note"] = {"of": 1}
    assert optimizer.state_dict()["state"]["note"] == {"of": 1}
    other = case.ours(params)
    other.load_state_dict(optimizer.state_dict())
    assert other.state["note"] == {"of": 1}
    del optimizer.state["note"]
    optimizer.state.clear()
    case.train(optimizer, params, range(2, 4))


# ---- hooks


@check
def hooks_of_the_step(case: Case) -> None:
    """Hooks before and after, of one and of all optimizers, in torch's order, and removed."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    said: list[str] = []
    params = case.weights()
    optimizer = case.ours(params)
    handles = [
        register_optimizer_step_pre_hook(lambda *_: said.append("all before")),
        register_optimizer_step_post_hook(lambda *_: said.append("all after")),
        optimizer.register_step_pre_hook(lambda *_: said.append("before")),
        optimizer.register_step_post_hook(lambda *_: said.append("after")),
    ]
    try:
        case.train(optimizer, params, range(1))
    finally:
        for handle in handles:
            handle.remove()
    assert said == ["all before", "before", "after", "all after"], said
    case.train(optimizer, params, range(1))
    assert len(said) == 4
    handle = optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: 7.0), {}))
    assert optimizer.step() == 7.0, "arguments that a hook returns"
    handle.remove()


@check
def hooks_of_the_state(case: Case) -> None:
    """Hooks around state_dict and load_state_dict, in order, with what they return in force."""
    params = case.weights()
    optimizer = case.ours(params)
    case.train(optimizer, params, range(2))
    said: list[str] = []

    def before(o: Any, state: Any, title: str) -> Any:
        said.append(title)
        state = state.copy()
        state["param_groups"] = copy.deepcopy(state["param_groups"])
        state["param_groups"][0]["lr"] = 0.25 if title == "first" else 0.5
        return state

    other = case.ours(case.weights())
    other.register_load_state_dict_pre_hook(lambda o, s: before(o, s, "second"))
    other.register_load_state_dict_pre_hook(lambda o, s: before(o, s, "first"), prepend=True)
    other.register_load_state_dict_post_hook(lambda o: said.append("loaded"))
    other.register_load_state_dict_post_hook(lambda o: said.append("loaded first"), prepend=True)
    other.load_state_dict(optimizer.state_dict())
    assert said == ["first", "second", "loaded first", "loaded"], said
    assert other.param_groups[0]["lr"] == 0.5
    optimizer.register_state_dict_pre_hook(lambda o: said.append("saving"))
    optimizer.register_state_dict_post_hook(lambda o, s: {**s, "more": 1})
    assert optimizer.state_dict()["more"] == 1
    assert said[-1] == "saving"


# ---- what is refused


@check
def errors(case: Case) -> None:
    """What torch's class refuses by its list of wrong inputs is refused with an error of ours."""
    wrong = []
    found = [*common_optimizers.get_error_inputs_for_all_optims("cpu", case.dtype)]
    found += case.info.optim_error_inputs_func("cpu", case.dtype)
    for one in found:
        given = one.optimizer_error_input
        if given.desc in ALLOWED_HERE or (case.name == "Muon" and case.face == "native" and "2D" in given.desc):
            continue  # our own Muon takes tensors of any shape
        params = case.weights() if given.params is None else given.params
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                optimizer = case.ours(params, **given.kwargs)
                if one.error_on is common_optimizers.OptimizerErrorEnum.STEP_ERROR:
                    optimizer.step()
        except (DescendError, UserWarning):
            continue
        except Exception as error:  # a refusal by any other error is what is looked for
            if case.face == "torch":
                continue
            wrong.append(f"{given.desc}: {type(error).__name__}: {str(error)[:100]}")
        else:
            wrong.append(f"{given.desc}: accepted")
    assert not wrong, "; ".join(wrong)


# Wrong to torch because of the kernel that an option chooses; here such options choose nothing.
ALLOWED_HERE = {
    "lr as Tensor doesn't work with foreach & not capturable",
    "betas must be either both floats or both Tensors",
    r"betas\[0\] as a Tensor is not supported for capturable=False and foreach=True",
}


@check
def complex_weights(case: Case) -> None:
    """They are refused with a remedy, and the remedy is torch's update."""
    if not case.info.supports_complex or case.face == "torch":
        return
    draw = torch.Generator().manual_seed(0)
    dtype = torch.complex64 if case.dtype == torch.float32 else torch.complex128
    theirs = [nn.Parameter(torch.randn(3, 2, dtype=dtype, generator=draw))]
    said = ""
    try:
        case.ours([nn.Parameter(theirs[0].detach().clone())])
    except RuleError as error:
        said = str(error)
    assert "view_as_real" in said
    ours = [nn.Parameter(torch.view_as_real(theirs[0].detach().clone()))]
    a, b = case.ours(ours), case.theirs(theirs, **({"fused": False} if "fused" in case.kwargs else {}))
    for step in range(STEPS):
        g = torch.randn(3, 2, dtype=dtype, generator=torch.Generator().manual_seed(step))
        theirs[0].grad, ours[0].grad = g, torch.view_as_real(g).clone()
        a.step()
        b.step()
    close(ours, [torch.view_as_real(theirs[0].detach())], case)
    raise OnPurposeError("complex weights are refused; torch.view_as_real of them trains as torch's class")


@check
def sparse_gradients(case: Case) -> None:
    """Rows of gradients, as torch's class or refused where torch's class refuses them or rows cannot be had alone."""
    ends, refused = [], []
    for build in (case.ours, case.theirs):
        table = nn.Embedding(6, 3, sparse=True, dtype=case.dtype)
        with torch.no_grad():
            table.weight.copy_(torch.arange(18.0).reshape(6, 3) / 10)
        optimizer = build([table.weight])
        try:
            for step in range(STEPS):
                optimizer.zero_grad()
                table(torch.tensor([step % 6, 1, 1])).square().sum().backward()
                optimizer.step()
            refused.append(False)
        except (RuntimeError, RuleError, DescendError):
            refused.append(True)
        ends.append([table.weight])
    if refused == [True, False]:
        raise OnPurposeError("sparse gradients, where rows cannot be had alone")
    if refused == [False, True] and case.kwargs.get("fused"):
        raise OnPurposeError("sparse gradients, which a fused kernel of torch refuses; fused changes nothing here")
    if refused == [False, True] and case.face == "native":
        raise OnPurposeError("sparse gradients, which our own classes take where torch's refuses them")
    assert refused[0] == refused[1], "torch's class refuses sparse gradients and ours takes them"
    if refused[1]:
        return
    if case.face == "native" and case.kwargs.get("momentum") and apart(*ends) > CLOSE[case.dtype]:
        raise OnPurposeError("sparse gradients, of which our own classes move the rows alone, with their momentum")
    close(*ends, case)


# ---- the runner


def cases(names: Sequence[str]) -> Iterable[Case]:
    """All optimizers of torch's list, or those named."""
    for info in common_optimizers.optim_db:
        if names and info.optim_cls.__name__ not in names:
            continue
        found = common_optimizers._get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info)
        for given, dtype, face in itertools.product(found, CLOSE, ("from_library", "native")):
            yield Case(info, given.kwargs, dtype, face)


def outcome(case: Case, name: str) -> tuple[str, str]:
    """How one check ends, and why."""
    if case.kwargs.get("differentiable") or case.name in ("ASGD", "RAdam", "LBFGS"):
        try:
            case.ours(case.weights())
        except Unsupported:
            reason = "differentiable=True" if case.kwargs.get("differentiable") else "no rule here"
            return "on purpose", f"{reason} is refused"
        return "DEFECT", "accepted"
    try:
        CHECKS[name](case)
    except OnPurposeError as reason:
        return "on purpose", str(reason)
    except Exception as error:  # whatever a check ends with is its result
        said = f"{type(error).__name__}: {error} ({traceback.extract_tb(error.__traceback__)[-1].lineno})"
        try:
            CHECKS[name](dataclasses.replace(case, face="torch"))
        except Exception as theirs:  # torch's own class fails as well, by whatever error
            return "torch", f"{name}: {type(theirs).__name__}: {str(theirs)[:160]}"
        return "DEFECT", said
    return "pass", ""


def main() -> int:
    """Run all cases and print how they ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="optimizers of torch; all of them if none is given")
    parser.add_argument("--only", default="", help="one check")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    started = time.time()
    for case in cases(options.names):
        once = case.kwargs.get("differentiable") or case.name in ("ASGD", "RAdam", "LBFGS")
        for name in ["trajectory"] if once else [name for name in CHECKS if options.only in ("", name)]:
            ended, why = outcome(case, name)
            counts[case.face, ended] += 1
            if ended in ("on purpose", "torch"):
                reasons[f"{ended}: {why}"] += 1
            elif ended == "DEFECT":
                print(f"DEFECT {case.face} {case.name} {case.kwargs} {case.dtype} {name}: {why[:600]}", flush=True)  # noqa: T201
    for face in ("from_library", "native"):
        held = {ended: counts[face, ended] for ended in ("pass", "on purpose", "torch", "DEFECT")}
        print(f"{face}: {sum(held.values())} cases, {held}")  # noqa: T201
    for why, count in reasons.most_common():
        print(f"  {count:5} {why}")  # noqa: T201
    print(f"{time.time() - started:.0f} s, torch {torch.__version__}")  # noqa: T201
    return int(any(ended == "DEFECT" for _, ended in counts))


if __name__ == "__main__":
    sys.exit(main())
