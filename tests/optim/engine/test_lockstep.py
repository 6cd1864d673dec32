"""Recordings carried out together: which operations are one call for all stacks, and what each stack gets."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from descend.optim.engine.lockstep import Lockstep, lockstep
from descend.optim.engine.recorded import Recording, record
from descend.torch_private import dispatch_mode


def inputs(seed: int, rows: int = 2, columns: int = 3) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.rand(rows, 4, columns, generator=draw) + 0.1 for name in ("g", "p")}


def recorded(text: Any, given: dict[str, Tensor]) -> Recording:
    found, made = record(lambda: {"p": text(given["g"], given["p"])}, {}, given)
    assert made is not None, found
    return made


def calls_of(together: Lockstep, given: list[dict[str, Tensor]]) -> tuple[list[str], list[Tensor]]:
    """Names of the operations, and new values."""
    seen: list[str] = []

    def call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "lift" not in str(function) and "unbind" not in str(function):  # of the table of numbers, which is empty
            seen.append(str(function).removeprefix("aten.").removesuffix(".default"))
        return function(*args, **kwargs)

    with dispatch_mode(call):
        found = together([[] for _ in given], [dict(one) for one in given])
    return seen, [new["p"] for new in found]


@pytest.mark.parametrize(
    ("text", "equal", "different"),
    [
        (lambda c: lambda g, p: p * c, ["_foreach_mul.Scalar"], ["_foreach_mul.ScalarList"]),
        (lambda c: lambda g, p: p.clamp(min=c), ["_foreach_clamp_min.Scalar"], ["_foreach_clamp_min.ScalarList"]),
        (lambda c: lambda g, p: p.clamp(max=c), ["_foreach_clamp_max.Scalar"], ["_foreach_clamp_max.ScalarList"]),
        (lambda c: lambda g, p: p.lerp(g, c), ["_foreach_lerp.Scalar"], ["lerp.Scalar"] * 2),
        (lambda c: lambda g, p: torch.add(p, g, alpha=c), ["_foreach_add.List"], ["add.Tensor"] * 2),
        (lambda c: lambda g, p: p.clamp(c, 0.9), ["clamp"] * 2, ["clamp"] * 2),
        (lambda c: lambda g, p: p.clamp(min=c).sqrt() * 2.0, ["_foreach_clamp_min.Scalar", "_foreach_sqrt",
         "_foreach_mul.Scalar"], ["_foreach_clamp_min.ScalarList", "_foreach_sqrt", "_foreach_mul.Scalar"]),
    ],
    ids=["product", "at least", "at most", "between", "sum", "bounded on both sides", "in a row"],
)  # fmt: skip
def test_constants_may_differ_among_stacks_of_one_pattern(text: Any, equal: list[str], different: list[str]) -> None:
    given = [inputs(1), inputs(2, columns=5)]
    for constants, expected in (((0.5, 0.5), equal), ((0.5, 0.25), different)):
        made = [recorded(text(c), one) for c, one in zip(constants, given, strict=True)]
        if made[0].pattern != made[1].pattern:
            assert expected is different
        seen, found = calls_of(Lockstep(made), given)
        assert seen == expected
        for c, one, new in zip(constants, given, found, strict=True):
            torch.testing.assert_close(new, text(c)(**one))


def test_factors_of_lanes_that_share_a_call_are_spread_over_their_stacks() -> None:
    texts = [lambda g, p: (p * g).sqrt() * 0.5, lambda g, p: (p @ g.mT).sqrt() * 0.25]
    given = [inputs(1), inputs(2), inputs(3, columns=4)]
    which = (0, 0, 1)
    made = [recorded(texts[i], one) for i, one in zip(which, given, strict=True)]
    seen, found = calls_of(Lockstep(made), given)
    assert [name for name in seen if "foreach" in name].count("_foreach_mul.ScalarList") == 1
    for i, one, new in zip(which, given, found, strict=True):
        torch.testing.assert_close(new, texts[i](**one))


def test_a_value_is_given_up_after_its_last_reader() -> None:
    alive: list[int] = []
    held: list[weakref.ref[Tensor]] = []

    def call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = function(*args, **kwargs)
        if "foreach" in str(function):
            alive.append(sum(ref() is not None for ref in held))
            held.extend(weakref.ref(x) for x in found)
        return found

    given = inputs(1)
    together = Lockstep([recorded(lambda g, p: ((p.sqrt() * 2.0).reciprocal() + 1.0).sqrt(), given)])
    with dispatch_mode(call):
        together([[]], [dict(given)])
    assert alive == [0, 1, 1, 1, 1]


def test_how_recordings_are_carried_out_is_found_once() -> None:
    made = recorded(lambda g, p: p + g, inputs(1))
    assert lockstep((made, made)) is lockstep((made, made))


def test_stacks_of_other_shapes_may_hold_vectors_of_constants() -> None:
    given = [inputs(1), inputs(2, columns=3), inputs(3, rows=5)]
    made = [recorded(lambda g, p: p * torch.tensor([1.0, 2.0, 3.0]), one) for one in given]
    _, found = calls_of(Lockstep(made), given)
    for one, new in zip(given, found, strict=True):
        assert torch.equal(new, one["p"] * torch.tensor([1.0, 2.0, 3.0]))
