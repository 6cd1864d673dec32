"""Are mistakes in groups answered: misspelt keys, senseless numbers, one weight listed twice."""

from __future__ import annotations

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
    """What the optimizer says to these groups, when built or at the first step before a weight changed; else None."""
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
    """What is wrong with an option of two groups, if anything."""
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
    """The same weight twice in one group, and in two groups."""
    p, q = _parameter(0), _parameter(1)
    inside = _answer(subject, [{"params": [p, q, p]}])
    across = _answer(subject, [{"params": [p]}, {"params": [q, p]}])
    if inside is None or across is None:
        places = [words for words, said in (("in one group", inside), ("in two groups", across)) if said is None]
        return fail(f"accepted {' and '.join(places)}")
    return ok(inside)
