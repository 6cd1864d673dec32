"""State dicts under all that may differ between writer and reader."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

import descend.optim
from descend.errors import RuleError

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = {"a": (3,), "b": (2, 4), "c": (), "d": (70,)}


def optimizer(names: list[str], runner: str = "blocks", steps: int = 0, **options: Any) -> Any:
    """With weights and gradients that depend on the name alone."""
    params: dict[str, torch.nn.Parameter] = {}
    for name in names:
        random = torch.Generator().manual_seed(ord(name))
        params[name] = torch.nn.Parameter(torch.randn(SHAPES[name], generator=random))
        params[name].grad = torch.randn(SHAPES[name], generator=random)
    ours: Any = descend.optim.Adam(params.items(), runner=runner, **options)
    for _ in range(steps):
        ours.step()
    return ours


def state(ours: Any) -> dict[str, Any]:
    (group,) = ours.param_groups
    return {name: dict(ours.state[p]) for name, p in zip(group["param_names"], group["params"], strict=True)}


@profile(max_examples=10)
@given(order=st.permutations(list(SHAPES)), writer=st.sampled_from(["plain", "blocks"]), steps=st.integers(0, 3))
def test_state_follows_names_in_any_order(order: list[str], writer: str, steps: int) -> None:
    one, other = optimizer(list(SHAPES), writer, steps), optimizer(order, "plain")
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    torch.testing.assert_close(state(other), state(one), rtol=0, atol=0)
    assert other.updates == steps


def test_a_file_of_it_needs_no_code(tmp_path: Any) -> None:
    one = optimizer(list(SHAPES), steps=2, lr=lambda step: 0.1)
    torch.save(one.state_dict(), tmp_path / "state.pt")
    other = optimizer(list(SHAPES), lr=lambda step: 0.2)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(state(other), state(one), rtol=0, atol=0)


def test_what_is_loaded_is_apart_from_what_was_saved() -> None:
    one, other = optimizer(["a"], steps=1), optimizer(["a"])
    other.load_state_dict(one.state_dict())
    before = copy.deepcopy(state(one))
    other.step()
    torch.testing.assert_close(state(one), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("names", "words"),
    [(["a", "b", "c"], r"d +nothing +state"), (["a", "b", "c", "d"], r"d +state +nothing")],
)
def test_missing_and_extra_names_stand_in_the_table(names: list[str], words: str) -> None:
    written = optimizer([n for n in SHAPES if n != "d"] if len(names) == 4 else list(SHAPES), steps=1)
    reader = optimizer(names, steps=2)
    before = copy.deepcopy(state(reader))
    with pytest.raises(RuleError, match=words):
        reader.load_state_dict(written.state_dict())
    torch.testing.assert_close(state(reader), before, rtol=0, atol=0)
    reader.load_state_dict(written.state_dict(), strict=False)
    assert state(reader)["a"]["step"] == 1
    assert reader.updates == 1


def test_another_rule_or_form_of_decay_is_refused() -> None:
    written = optimizer(["a"], steps=1).state_dict()
    p = torch.nn.Parameter(torch.zeros(3))
    lion: Any = descend.optim.Lion([("a", p)])
    with pytest.raises(RuleError, match=r"a +Lion, decay decoupled +Adam, decay coupled"):
        lion.load_state_dict(written)


def test_groups_whose_options_differ_are_not_joined() -> None:
    p, q = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    two: Any = descend.optim.Adam([{"params": [("a", p)], "lr": 0.1}, {"params": [("b", q)], "lr": 0.2}])
    joined: Any = descend.optim.Adam([("a", p), ("b", q)])
    with pytest.raises(RuleError, match="saved groups 0, 1, whose options differ"):
        joined.load_state_dict(two.state_dict())


# ---- states that a user, or a disk, has changed


def group(**options: Any) -> Callable[[Any], None]:
    return lambda saved: saved["param_groups"][0].update(options)


def entry(**tensors: Any) -> Callable[[Any], None]:
    return lambda saved: saved["state"][0].update(tensors)


BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "groups that are none": (lambda s: s.update(param_groups={}), "'param_groups' must be a list of groups"),
    "a state that is none": (lambda s: s.update(state=()), "'state' must be a dict"),
    "a group without weights": (lambda s: s["param_groups"][0].pop("params"), "group 0 must be a dict with a list"),
    "too few names": (group(param_names=["a"]), "group 0 has 4 weights"),
    "a name twice": (group(param_names=list("abca")), "two weights are called 'a'"),
    "a number twice": (group(params=[0, 1, 2, 2]), "weights 2 appear twice"),
    "a list for a state": (lambda s: s["state"].update({1: [3]}), "state of weights 1 must be a dict, got list"),
    "a state without weights": (lambda s: s["state"].update({9: {}}), "state of weights 9, which are in no group"),
    "no rule": (lambda s: s["param_groups"][0].pop("rule"), "None, decay coupled"),
    "a rate that is none": (group(lr=math.nan), "saved group 0: lr must be a finite number"),
    "a constant out of range": (group(beta1=2.0), "beta1 must be a number >= 0 and < 1"),
    "an unknown option": (group(beta3=2.0), "no option 'beta3'"),
    "a count below none": (group(updates=-1), "'updates' of the state dict must be an integer, got -1"),
    "words for a seed": (group(seed="a"), "'seed' of the state dict must be an integer"),
    "no step": (lambda s: s["state"][0].pop("step"), r"a\.step +a step count +nothing"),
    "a step that is not a number": (entry(step=torch.tensor(math.nan)), r"a\.step +a step count +tensor\(nan\)"),
    "a step below none": (entry(step=torch.tensor(-1.0)), r"a\.step +a step count"),
    "moments that are no numbers": (entry(m=torch.tensor([0.0, math.nan, 0.0])), r"a\.m +\(3,\) of numbers +NaN"),
    "integers": (entry(m=torch.zeros(3, dtype=torch.int32)), r"a\.m +\(3,\) +\(3,\) torch.int32"),
    "complex numbers": (entry(m=torch.zeros(3, dtype=torch.cfloat)), r"a\.m +\(3,\) +\(3,\) torch.complex64"),
    "sparse moments": (entry(m=torch.zeros(3).to_sparse()), r"a\.m +\(3,\) +\(3,\) torch.sparse_coo"),
    "moments without values": (entry(m=torch.zeros(3, device="meta")), r"a\.m +\(3,\) +\(3,\) without values"),
    "a list for moments": (entry(m=[1.0]), r"a\.m +\(3,\) +\[1\.0\]"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_state_is_refused_whole(case: str) -> None:
    change, words = BROKEN[case]
    broken = copy.deepcopy(optimizer(list(SHAPES), steps=2).state_dict())
    change(broken)
    reader = optimizer(list(SHAPES), steps=1, lr=0.5)
    before = copy.deepcopy(reader.state_dict())
    with pytest.raises(RuleError, match=words):
        reader.load_state_dict(broken)
    torch.testing.assert_close(reader.state_dict()["state"], before["state"], rtol=0, atol=0)
    assert reader.state_dict()["param_groups"] == before["param_groups"]


def test_nonfinite_state_is_loaded_where_nonfinite_values_are_allowed() -> None:
    saved = copy.deepcopy(optimizer(["a"], steps=1).state_dict())
    saved["state"][0]["m"][1] = math.nan
    reader = optimizer(["a"], on_nonfinite="allow")
    reader.load_state_dict(saved)
    assert state(reader)["a"]["m"].isnan().tolist() == [False, True, False]


def test_the_master_has_to_fit_too() -> None:
    p = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    p.grad = torch.ones_like(p)
    ours: Any = descend.optim.Adam([("a", p)])
    ours.step()
    saved = copy.deepcopy(ours.state_dict())
    saved["state"][0]["master"] = torch.zeros(2)
    with pytest.raises(RuleError, match=r"a\.master +\(3,\) +\(2,\)"):
        ours.load_state_dict(saved)


@pytest.mark.parametrize("runner", ["plain", "blocks"])
def test_constants_that_a_schedule_wrote_say_what_is_remembered(runner: str) -> None:
    """SGD built without momentum, which OneCycleLR then gave it, continues with it in a new process."""

    def made(p: torch.nn.Parameter) -> Any:
        return descend.optim.SGD([("a", p)], lr=0.1, runner=runner)

    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    whole, part = made(p), made(q)
    for t in range(4):
        p.grad, q.grad = torch.full((3,), 1.0 + t), torch.full((3,), 1.0 + t)
        if t == 0:
            whole.param_groups[0]["momentum"] = part.param_groups[0]["momentum"] = 0.9
        if t == 2:
            saved, part = part.state_dict(), made(q)
            part.load_state_dict(saved)
        whole.step()
        part.step()
    assert torch.equal(p, q)
    assert part.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize("key", ["beta1", "betas"])
@pytest.mark.parametrize("built", [0.9, 0.8, 0.7])
def test_the_constants_in_force_are_those_that_go_on(key: str, built: float) -> None:
    """Under whichever of its two names one was written, and whatever the optimizer was built with that loads it."""
    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    whole = descend.optim.Adam([("a", p)], lr=0.1)
    whole.param_groups[0][key] = 0.8 if key == "beta1" else (0.8, 0.999)
    steps([p], [whole], range(2))
    with torch.no_grad():
        q.copy_(p)
    part = descend.optim.Adam([("a", q)], beta1=built)
    part.load_state_dict(whole.state_dict())
    steps([p, q], [whole, part], range(2, 4))
    assert torch.equal(p, q)
    assert part.param_groups[0]["beta1"] == part.param_groups[0]["betas"][0] == 0.8
    part.param_groups[0]["beta1"] = 0.5  # the rule is built again from the values in the group
    part.step()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("params", 1.5, "'params'"),
        ("params", torch.zeros(2), "'params'"),
        ("params", [[0]], "'params'"),
        ("param_names", torch.zeros(1), "'param_names'"),
        ("param_names", [3], "must be texts"),
        ("beta1", torch.zeros(2), "beta1 must be a number"),
        ("betas", (torch.zeros(2), 0.9), "beta1 must be a number"),
        ("bias_correction", "False", "bias_correction must be True or False, got 'False'"),
    ],
)
def test_whatever_stands_in_a_group_it_is_refused_in_words(key: str, value: object, words: str) -> None:
    saved = copy.deepcopy(optimizer(["a"], steps=1).state_dict())
    saved["param_groups"][0][key] = value
    reader = optimizer(["a"])
    with pytest.raises(RuleError, match=words):
        reader.load_state_dict(saved)
    assert not reader.state


def test_a_constant_that_makes_no_sense_is_refused_when_it_is_loaded() -> None:
    saved = optimizer(["a"], steps=1)
    saved.param_groups[0]["beta1"] = 2.0
    with pytest.raises(RuleError, match=r"beta1 must be a number >= 0 and < 1, got 2\.0"):
        optimizer(["a"]).load_state_dict(saved.state_dict())


# ---- torch's own


def steps(params: list[torch.nn.Parameter], optimizers: list[Any], times: range) -> None:
    for t in times:
        for p in params:
            p.grad = torch.full_like(p, 1.0 + t)
        for each in optimizers:
            each.step()


@pytest.mark.parametrize(
    "ours",
    [
        lambda p: descend.optim.NAG([p], lr=0.1, momentum=0.8),
        lambda p: descend.optim.NAG([p], lr=0.1, momentum=0.8, rate_inside=False),
        lambda p: descend.optim.SGD([p], lr=0.1, momentum=0.8, nesterov=True, rate_inside=True),
    ],
)
def test_torchs_buffer_gets_the_rate_where_it_belongs_inside(ours: Any) -> None:
    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    before = torch.optim.SGD([p], lr=0.1, momentum=0.8, nesterov=True)
    steps([p], [before], range(3))
    with torch.no_grad():
        q.copy_(p)
    after = ours(q)
    after.load_torch_state(before.state_dict())
    steps([p, q], [before, after], range(3, 6))
    torch.testing.assert_close(q, p)


def test_torchs_state_of_other_weights_is_refused() -> None:
    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    two = torch.optim.Adam([p, q])
    steps([p, q], [two], range(1))
    fewer: Any = descend.optim.Adam([p])
    with pytest.raises(RuleError, match=r"saved weights 1 +nothing +state"):
        fewer.load_torch_state(two.state_dict())
    assert not fewer.state


def test_what_a_user_files_under_a_text_is_kept() -> None:
    ours = optimizer(["a"], steps=1)
    ours.state["note"] = 1
    ours.state["more"] = {"x": [1, 2]}
    saved_dict = ours.state_dict()
    assert saved_dict["state"]["note"] == 1
    assert saved_dict["state"]["more"] == {"x": [1, 2]}
    again = optimizer(["a"])
    again.load_state_dict(saved_dict)
    assert again.state["note"] == 1
    assert again.state["more"] == {"x": [1, 2]}
    twin = copy.deepcopy(again)
    assert twin.state["note"] == 1
    for one in (ours, again):
        one.step()
    torch.testing.assert_close(state(again), state(ours), rtol=0, atol=0)


def test_an_optimizer_without_names_takes_over_those_of_a_state() -> None:
    """As torch does. Noise is a function of the name, so the run continues as the saved one would have."""

    def sgld(named: bool) -> Any:
        params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        return descend.optim.SGLD([*zip(["a", "b"], params, strict=True)] if named else params, lr=0.1)

    def step(ours: Any) -> list[torch.Tensor]:
        for p in ours.param_groups[0]["params"]:
            p.grad = torch.ones(3)
        ours.step()
        return [p.detach() for p in ours.param_groups[0]["params"]]

    one, other = sgld(named=True), sgld(named=False)
    step(one)
    for p, q in zip(other.param_groups[0]["params"], one.param_groups[0]["params"], strict=True):
        p.data.copy_(q.detach())
    other.load_state_dict(one.state_dict())
    assert other.param_groups[0]["param_names"] == ["a", "b"]
    assert all(torch.equal(p, q) for p, q in zip(step(other), step(one), strict=True))
    unnamed = sgld(named=False)
    unnamed.load_state_dict(sgld(named=False).state_dict())
    assert "param_names" not in unnamed.param_groups[0]


LIBRARY = {"SGD": {"momentum": 0.9}, "AdamW": {}}


@pytest.mark.slow
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", ["native", "groups", "from_library"])
@pytest.mark.parametrize("name", LIBRARY)
def test_torchs_distributed_checkpoint_nested_and_flat(name: str, kind: str, flat: bool, tmp_path: Any) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    def made() -> tuple[torch.nn.Module, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        if kind == "from_library":
            return model, descend.optim.from_library("torch", name, model.parameters(), lr=0.1, **LIBRARY[name])
        groups = descend.optim.groups.split(model, undecayed=["bias"]) if kind == "groups" else model.named_parameters()
        return model, getattr(descend.optim, name)(groups, lr=lambda step: 0.1 / (1 + step))

    def train(model: torch.nn.Module, ours: Any, steps: range) -> None:
        for t in steps:
            ours.zero_grad()
            model(torch.randn(5, 3, generator=torch.Generator().manual_seed(t))).square().mean().backward()
            ours.step()

    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, ours = made()
    train(model, ours, range(3))
    checkpoint.save(get_optimizer_state_dict(model, ours, options=options), checkpoint_id=str(tmp_path))
    again, other = made()
    again.load_state_dict(model.state_dict())
    held = get_optimizer_state_dict(again, other, options=options)
    checkpoint.load(held, checkpoint_id=str(tmp_path))
    set_optimizer_state_dict(again, other, held, options=options)
    assert other.updates == 3
    train(model, ours, range(3, 6))
    train(again, other, range(3, 6))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))
