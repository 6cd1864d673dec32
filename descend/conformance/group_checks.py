"""Are mistakes in groups answered: misspelt keys, senseless numbers, one weight listed twice."""

from __future__ import annotations

import copy
import io
import math
from typing import TYPE_CHECKING, Any

import torch

from descend.conformance.candidate import Candidate, CandidateRun, OptionRefused, draw, first_line, gap
from descend.conformance.report import CheckOutcome, fail, not_applicable, ok

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["decay_of_group", "misspelt_key", "own_options", "rate_of_group", "twice"]

SAME = 1e-9  # relative: sums may be taken in another order
_OWN_OPTIONS = ("lr", "weight_decay", "momentum", "betas")


def _answer(subject: Candidate, groups: Sequence[dict[str, Any]]) -> str | None:
    """The refusal of these groups, when built or at the first step before a weight changed; else None."""
    params = list({id(p): p for group in groups for p in group["params"]}.values())
    before = [p.detach().clone() for p in params]
    try:
        optimizer = subject.over(groups)
    except OptionRefused as problem:
        return str(problem)
    for i, p in enumerate(params):
        p.grad = draw(p.shape, 100 + i)
    try:
        optimizer.step()
    except Exception as problem:
        untouched = all(torch.equal(p.detach(), b) for p, b in zip(params, before, strict=True))
        return f"at the step: {type(problem).__name__}: {first_line(problem)}" if untouched else None
    return None


def _parameter(seed: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(draw((4, 3), seed))


def misspelt_key(subject: Candidate) -> CheckOutcome:
    """An option of a group that does not exist."""
    said = _answer(subject, [{"params": [_parameter(0)], "weightdecay": 0.0}])
    return fail("{'weightdecay': 0.0} was accepted in silence") if said is None else ok(said)


def _numbers(subject: Candidate, key: str) -> CheckOutcome:
    if key not in subject.options:
        return not_applicable(f"it has no {key}")
    taken: list[str] = []
    said = ""
    for value in (-1.0, math.nan, math.inf):
        answer = _answer(subject, [{"params": [_parameter(0)]}, {"params": [_parameter(1)], key: value}])
        taken += [str(value)] if answer is None else []
        said = answer or said
    return fail(f"accepted: {', '.join(taken)}") if taken else ok(said)


def rate_of_group(subject: Candidate) -> CheckOutcome:
    """A rate of one group that is negative, NaN or infinite."""
    return _numbers(subject, "lr")


def decay_of_group(subject: Candidate) -> CheckOutcome:
    """A weight decay of one group that is negative, NaN or infinite."""
    return _numbers(subject, "weight_decay")


def own_options(subject: Candidate) -> CheckOutcome:
    """Two groups with options of their own: each follows its own, whichever group is the first."""
    if subject.noisy:
        return not_applicable("it draws random numbers in the order of the list")
    problems: list[str] = []
    looked: list[str] = []
    for key in _OWN_OPTIONS:
        own = subject.options.get(key)
        if not (_is_number(own) or _are_numbers(own)):
            continue
        try:
            problem = _mixed_up(subject, key, own, _another(own))
        except Exception:  # refused, by whatever error: another option for one group is not supported
            continue
        looked += [key] if problem is None else []
        problems += [problem] if problem else []
    if problems:
        return fail("; ".join(problems))
    return ok(f"{', '.join(looked)}: its own") if looked else not_applicable("it has no such options")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _are_numbers(value: object) -> bool:
    return isinstance(value, (tuple, list)) and bool(value) and all(map(_is_number, value))


def _another(value: Any) -> Any:
    """A value of the same kind that is as sound."""
    return type(value)(x * 0.9 for x in value) if _are_numbers(value) else value / 2 if value else 0.02


def _mixed_up(subject: Candidate, key: str, one: Any, other: Any) -> str | None:
    """The problem with an option of two groups, if there is one."""
    forth = _two_groups(subject, (0, 1), ({key: one}, {key: other}))
    back = _two_groups(subject, (1, 0), ({key: other}, {key: one}))[::-1]
    if gap(back, forth, [draw((4, 3), seed) for seed in (0, 1)]) > SAME:
        return f"the {key} of a group acts on the other"
    alike = _two_groups(subject, (0, 1), ({key: one}, {key: one}))[1]
    if not torch.equal(alike, forth[1]):
        return None
    differing = _two_groups(subject, (0, 1), ({}, {}), **{key: other})[1]  # some rules make their rate themselves
    return None if torch.equal(alike, differing) else f"the {key} of a group is not used"


def _two_groups(
    subject: Candidate, seeds: tuple[int, int], options: Sequence[dict[str, Any]], **more: Any
) -> list[Tensor]:
    """The weights of two groups after a few steps."""
    trial = CandidateRun(subject, [draw((4, 3), seed) for seed in seeds], options=options, **more)
    for t in range(1, (subject.first_move or 0) + 3):
        trial.step(*(draw((4, 3), 10 * t + seed) for seed in seeds))
    return trial.values


def twice(subject: Candidate) -> CheckOutcome:
    """Check one weight listed twice in a group, and in two groups."""
    p, q = _parameter(0), _parameter(1)
    inside = _answer(subject, [{"params": [p, q, p]}])
    across = _answer(subject, [{"params": [p]}, {"params": [q, p]}])
    if inside is None or across is None:
        places = [words for words, said in (("in one group", inside), ("in two groups", across)) if said is None]
        return fail(f"accepted {' and '.join(places)}")
    return ok(inside)


# ---- can training be stopped and continued, and does an optimizer fit into a torch loop: saving, copying, closures

BEFORE, AFTER = 3, 3  # steps on each side of the break


def _ran(subject: Candidate, steps: int) -> CandidateRun:
    trial = CandidateRun(subject, subject.weights())
    for t in range(1, steps + 1):
        trial.step(*subject.gradients(t))
    return trial


def _continued(trial: CandidateRun, subject: Candidate, first: int) -> list[Tensor]:
    trial.count = first - 1
    for t in range(first, first + AFTER):
        trial.step(*subject.gradients(t))
    return trial.values


def _saved(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def round_trip(subject: Candidate) -> CheckOutcome:
    """Save after three steps, load into a fresh optimizer, three more: the same bits as without the break.

    The rate is another by then than the one that the fresh optimizer was built with, as under any schedule.
    """
    stopped, whole = _ran(subject, BEFORE), _ran(subject, BEFORE)
    for trial in (stopped, whole):
        trial.set_rate(subject.lr / 2)
    wanted = _continued(whole, subject, BEFORE + 1)
    content = io.BytesIO(_saved(stopped.optimizer.state_dict()))
    try:
        state = torch.load(content, weights_only=True)
    except Exception:
        state = copy.deepcopy(stopped.optimizer.state_dict())  # that it cannot be read safely is a line of its own
    resumed = CandidateRun(subject, stopped.values)
    resumed.optimizer.load_state_dict(state)
    values = _continued(resumed, subject, BEFORE + 1)
    if all(torch.equal(a, b) for a, b in zip(values, wanted, strict=True)):
        return ok("the same bits")
    return fail(f"{gap(values, wanted, subject.weights()):.0e} apart in displacement")


def safe_file(subject: Candidate) -> CheckOutcome:
    """A saved state that torch reads without running code."""
    content = io.BytesIO(_saved(_ran(subject, 2).optimizer.state_dict()))
    try:
        torch.load(content, weights_only=True)
    except Exception as problem:
        return fail(f"{type(problem).__name__}: {first_line(problem)}")
    return ok("read, tensors and plain values alone")


def by_name(subject: Candidate) -> CheckOutcome:
    """Names were given; a model lists its weights in another order when the state is loaded."""
    if subject.noisy:
        return not_applicable("it draws random numbers")
    names, starts = ("first", "second"), [draw((4, 3), i) for i in range(2)]
    gradients = [[draw((4, 3), 10 * t + i) for i in range(2)] for t in range(BEFORE + 1)]
    try:
        whole = CandidateRun(subject, starts, names=names)
    except OptionRefused as problem:
        return not_applicable(f"takes no names: {problem}")
    for each in gradients[:-1]:
        whole.step(*each)
    state, halfway = copy.deepcopy(whole.optimizer.state_dict()), whole.values
    if not state["state"]:
        return not_applicable("there is no state")
    turned = CandidateRun(subject, halfway[::-1], names=names[::-1])
    try:
        turned.optimizer.load_state_dict(state)
    except Exception as problem:
        return ok(f"refused: {type(problem).__name__}: {first_line(problem)}")
    whole.step(*gradients[-1])
    turned.count = BEFORE
    turned.step(*gradients[-1][::-1])
    error = gap(turned.values[::-1], whole.values, halfway)
    if error <= 1e-12:
        return ok("state follows the name")
    return fail("state follows the position: loaded in silence for the wrong weights")


def deep_copy(subject: Candidate) -> CheckOutcome:
    """A copy of weights and optimizer goes the same way, and leaves the original alone."""
    trial = _ran(subject, BEFORE)
    twin = copy.deepcopy(trial)
    before = trial.values
    copied = _continued(twin, subject, BEFORE + 1)
    if not all(torch.equal(a, b) for a, b in zip(trial.values, before, strict=True)):
        return fail("a step of the copy moved the original")
    own = _continued(trial, subject, BEFORE + 1)
    if all(torch.equal(a, b) for a, b in zip(copied, own, strict=True)):
        return ok("the same bits, apart from each other")
    return fail(f"{gap(copied, own, before):.0e} apart in displacement")


def closure(subject: Candidate) -> CheckOutcome:
    """`step(closure)` runs it with gradients enabled, returns its loss and uses its gradients."""
    plain = CandidateRun(subject, subject.weights())
    plain.step(*plain.values)
    trial = CandidateRun(subject, subject.weights())
    losses: list[float] = []

    def loss() -> Tensor:
        trial.optimizer.zero_grad()
        value = torch.stack([(p * p).sum() / 2 for p in trial.params]).sum()  # its gradient is the weights
        value.backward()
        losses.append(float(value))
        return value

    wanted = float(sum((w * w).sum() / 2 for w in subject.weights()))
    got = trial.apply(loss)
    got = got.detach() if isinstance(got, torch.Tensor) else got
    if got is None or abs(float(got) - wanted) > 1e-9 * wanted:
        return fail(f"returned {got!r} for a loss of {wanted:.6g}")
    if len(losses) != 1:
        return fail(f"evaluated the closure {len(losses)} times, of which one is enough")
    error = gap(trial.values, plain.values, plain.starts)
    return ok("the loss, and the same step") if error <= 1e-9 else fail(f"another step: {error:.0e} apart")


def added_group(subject: Candidate) -> CheckOutcome:
    """A group added after two steps: it moves like new, and the others go on."""
    if subject.noisy:
        return not_applicable("it draws random numbers in the order of the list")
    trial, alone = _ran(subject, 2), _ran(subject, 2)
    weights, g = draw((4, 3), 50), draw((4, 3), 51)
    fresh = CandidateRun(subject, [weights])
    added = torch.nn.Parameter(weights.clone())
    trial.optimizer.add_param_group({"params": [added]})
    added.grad = g.clone()
    trial.step(*subject.gradients(3))
    alone.step(*subject.gradients(3))
    fresh.step(g)
    if gap(trial.values, alone.values, trial.starts) > 1e-9:
        return fail("the weights of the first group moved otherwise than without it")
    error = gap([added.detach()], fresh.values, [weights])
    return ok("it moves like new") if error <= 1e-9 else fail(f"its first step is {100 * error:.2g} % off")


def zero_grad(subject: Candidate) -> CheckOutcome:
    """`zero_grad()` takes gradients away, `zero_grad(set_to_none=False)` writes zeros."""
    trial = _ran(subject, 1)
    trial.optimizer.zero_grad(set_to_none=False)
    if any(p.grad is None or bool(p.grad.any()) for p in trial.params):
        return fail("set_to_none=False left gradients that are not zero")
    trial.step(*subject.gradients(2))
    trial.optimizer.zero_grad()
    left = sum(p.grad is not None for p in trial.params)
    return fail(f"{left} gradients are left") if left else ok("zeros, and none")
