"""Are mistakes in groups answered: misspelt keys, senseless numbers, one weight listed twice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from descend.optim.conformance.report import Outcome, fail, not_applicable, ok
from descend.optim.conformance.subject import Refused, Subject, draw, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["decay_of_group", "misspelt_key", "rate_of_group", "twice"]


def _answer(subject: Subject, groups: Sequence[dict[str, Any]]) -> str | None:
    """What the optimizer says to these groups, when built or at the first step before a weight changed; else None."""
    params = list({id(p): p for group in groups for p in group["params"]}.values())
    before = [p.detach().clone() for p in params]
    try:
        optimizer = subject.over(groups)
    except Refused as problem:
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


def misspelt_key(subject: Subject) -> Outcome:
    """An option of a group that does not exist."""
    said = _answer(subject, [{"params": [_parameter(0)], "weightdecay": 0.0}])
    return fail("{'weightdecay': 0.0} was accepted in silence") if said is None else ok(said)


def _numbers(subject: Subject, key: str) -> Outcome:
    if key not in subject.options:
        return not_applicable(f"it has no {key}")
    taken: list[str] = []
    said = ""
    for value in (-1.0, math.nan, math.inf):
        answer = _answer(subject, [{"params": [_parameter(0)]}, {"params": [_parameter(1)], key: value}])
        taken += [str(value)] if answer is None else []
        said = answer or said
    return fail(f"accepted: {', '.join(taken)}") if taken else ok(said)


def rate_of_group(subject: Subject) -> Outcome:
    """A rate of one group that is negative, NaN or infinite."""
    return _numbers(subject, "lr")


def decay_of_group(subject: Subject) -> Outcome:
    """A weight decay of one group that is negative, NaN or infinite."""
    return _numbers(subject, "weight_decay")


def twice(subject: Subject) -> Outcome:
    """The same weight twice in one group, and in two groups."""
    p, q = _parameter(0), _parameter(1)
    inside = _answer(subject, [{"params": [p, q, p]}])
    across = _answer(subject, [{"params": [p]}, {"params": [q, p]}])
    if inside is None or across is None:
        places = [words for words, said in (("in one group", inside), ("in two groups", across)) if said is None]
        return fail(f"accepted {' and '.join(places)}")
    return ok(inside)
