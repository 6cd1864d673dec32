"""Recordings of functions of tensors: what they hold, when they may be repeated, and that repeating gives the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from descend.optim.engine.lockstep import Lockstep
from descend.optim.engine.recorded import Recording, record
from descend.torch_private import dispatch_mode

aten = torch.ops.aten


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def inputs(rows: int = 3, seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(rows, 4, 4, generator=draw) for name in ("g", "p")}


def recorded(text: Any, t: float = 2.0, given: dict[str, Tensor] | None = None) -> tuple[dict[str, Tensor], Any]:
    t_, given = number(t), inputs() if given is None else given
    return record(lambda: text(t_, given["g"], given["p"]), {"t": t_}, given)


def repeated(recordings: list[Recording], t: float, given: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    return Lockstep(recordings)([[t]] * len(recordings), [dict(one) for one in given])


def mapped(text: Any) -> Any:
    return lambda t, g, p: torch.vmap(lambda g, p: text(t, g, p))(g, p)


TEXTS: dict[str, Any] = {
    "arithmetic": lambda t, g, p: {"p": p - (0.5 * t) * g / (2.0 + g.abs()) + 1.5 * p * g},
    "subtracted from a number": lambda t, g, p: {"p": (t - p) * (1 - g) / (3.0 / (g * g + 1))},
    "with factors on either side": lambda t, g, p: {"p": (0.5 * p + g) * (p - 2 * g) + (0.25 * p - 3.0 * g)},
    "with factors": lambda t, g, p: {"p": torch.add(p, g, alpha=-0.25) - torch.sub(g, p, alpha=2)},
    "bounded": lambda t, g, p: {"p": g.clamp(-0.5, 0.5) + p.clamp(min=0.1) - g.clamp(max=0.2)},
    "chosen": lambda t, g, p: {"p": torch.where(g > 0, p, torch.minimum(g, p) ** 2).lerp(g, 0.25)},
    "products": lambda t, g, p: {"p": torch.addmm(p, g, g.mT, beta=0.5, alpha=2.0) @ p},
    "norms": lambda t, g, p: {"p": p / p.norm() * torch.linalg.vector_norm(g, dtype=torch.float64).clamp(min=1e-3)},
    "ordered": lambda t, g, p: {"p": p[:, (p * g).sum(0).argsort(descending=True)].sort(0)[0]},
    "joined": lambda t, g, p: {"p": torch.cat([p[:1] * t, torch.stack([g[1], g[2]]), p[3:]])},
    "constants": lambda t, g, p: {"p": p * torch.tensor(0.5) + torch.arange(4) + torch.eye(4)},
    "low precision": lambda t, g, p: {"p": (p.to(torch.bfloat16) @ g.to(torch.bfloat16)).to(p.dtype)},
    "bases": lambda t, g, p: {"p": torch.linalg.qr(p @ g)[0] + torch.linalg.eigh(g @ g.mT)[0]},
    "a copy": lambda t, g, p: {"p": g},
    "numbers of numbers": lambda t, g, p: {"p": p * (1 - 0.9**t).sqrt() / (1 - 0.5 ** t.clamp(max=3.0)) * (t > 2)},
}


@pytest.mark.parametrize("name", TEXTS)
def test_repeating_gives_what_the_text_gives(name: str) -> None:
    """With other tensors and another number, for stacks of two heights at once."""
    text = mapped(TEXTS[name])
    heights = (3, 5)
    made = [recorded(text, given=inputs(rows)) for rows in heights]
    for rows, (first, _) in zip(heights, made, strict=True):
        torch.testing.assert_close(first, text(number(2.0), **inputs(rows)))
    assert made[0][1].pattern is made[1][1].pattern
    given = [inputs(rows, seed=7) for rows in heights]
    expected = [text(number(3.0), **one)["p"] for one in given]
    found = repeated([one for _, one in made], 3.0, given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one["p"], other, rtol=1e-6, atol=1e-6)


def test_a_number_of_python_is_converted_to_the_precision_of_elements() -> None:
    """As `torch.vmap` does with the factor of a tensor that is 0-d for the text and no stack of floats for ATen."""
    text = mapped(lambda t, g, p: {"p": (p[0, 0].to(torch.bfloat16) * 0.3 + g[0, 0].to(torch.bfloat16)) * t})
    made, given = recorded(text)[1], inputs(seed=1)
    (found,) = repeated([made], 3.0, [given])
    torch.testing.assert_close(found["p"], text(number(3.0), **given)["p"])


def test_recordings_of_different_patterns_share_calls() -> None:
    """Each has lines of its own; lists of both are one call where they meet."""
    texts = [
        mapped(lambda t, g, p: {"p": (p * g).sqrt().clamp(min=0.1) * t}),
        mapped(lambda t, g, p: {"p": ((p @ g) * g).sqrt().sum(0, keepdim=True).clamp(min=0.2) * t - p}),
    ]
    made, given = [recorded(text)[1] for text in texts], [inputs(seed=1), inputs(seed=2)]
    assert made[0].pattern != made[1].pattern
    numbers, expected = (3.0, 0.5), []
    for text, t, one in zip(texts, numbers, given, strict=True):
        expected.append(text(number(t), **one)["p"])
    seen: list[str] = []

    def call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(str(function))
        return function(*args, **kwargs)

    together = Lockstep(made)
    with dispatch_mode(call):
        found = together([[t] for t in numbers], [dict(one) for one in given])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one["p"], other, equal_nan=True)
    calls = sorted(name for name in seen if "foreach" in name)
    assert calls == [
        f"aten._foreach_{x}" for x in ("clamp_min.ScalarList", "mul.List", "mul.ScalarList", "sqrt.default", "sub.List")
    ]


def test_numbers_may_differ_among_stacks() -> None:
    text = mapped(lambda t, g, p: {"p": p * t + g / t - t * g.sqrt().maximum(t * p)})
    made, given = recorded(text)[1], [inputs(seed=1), inputs(seed=2)]
    found = Lockstep([made, made])([[2.0], [5.0]], [dict(one) for one in given])
    for one, t, new in zip(given, (2.0, 5.0), found, strict=True):
        torch.testing.assert_close(new["p"], text(number(t), **one)["p"], equal_nan=True)


def test_what_is_done_twice_or_for_nothing_is_left_out() -> None:
    def text(t: Tensor, g: Tensor, p: Tensor) -> dict[str, Tensor]:
        g.exp()
        return {"p": p - (g * g).sqrt() + (g * g).view(g.shape)}

    _, made = recorded(text)
    functions = [line.function for line in made.lines]
    assert functions == [aten.mul.Tensor, aten.sqrt.default, aten.sub.Tensor, aten.add.Tensor]


def test_random_numbers_are_drawn_again() -> None:
    _, made = recorded(lambda t, g, p: {"p": torch.rand_like(g) - torch.rand_like(g)})
    first, second = (repeated([made], 2.0, [inputs()])[0]["p"] for _ in range(2))
    assert first.abs().max() > 0
    assert not torch.equal(first, second)


def test_sums_of_products_are_one_operation() -> None:
    """As addmm of one matrix is; a product that is read elsewhere stays one."""
    _, made = recorded(mapped(lambda t, g, p: {"p": torch.addmm(p, p, g, beta=0.5, alpha=2.0)}))
    assert [line.function for line in made.lines] == [aten.baddbmm.default]
    _, made = recorded(mapped(lambda t, g, p: {"p": (p @ g) * (g + p @ g)}))
    assert aten.baddbmm.default not in [line.function for line in made.lines]


def test_a_factor_is_part_of_a_sum() -> None:
    """β m + (1 − β) g in two operations; a product that is read elsewhere stays one."""
    _, made = recorded(mapped(lambda t, g, p: {"p": 0.5 * p + 0.25 * g}))
    assert [line.function for line in made.lines] == [aten.mul.Tensor, aten.add.Tensor]
    _, made = recorded(mapped(lambda t, g, p: {"p": p - 0.25 * g}))
    assert [line.function for line in made.lines] == [aten.sub.Tensor]
    _, made = recorded(mapped(lambda t, g, p: {"p": p - 0.25 * g, "g": 0.25 * g}))
    assert [line.function for line in made.lines] == [aten.mul.Tensor, aten.sub.Tensor]


def test_another_answer_is_another_recording() -> None:
    def text(t: Tensor, g: Tensor, p: Tensor) -> dict[str, Tensor]:
        return {"p": p + g if bool(t % 3 == 0) else p - g}

    _, made = recorded(mapped(text), t=2.0)
    assert [made.answers_are([number(t)]) for t in (1.0, 2.0, 3.0, 4.0, 6.0)] == [True, True, False, True, False]


def written_in_place(t: Tensor, g: Tensor, p: Tensor) -> dict[str, Tensor]:
    return {"p": p.clone().sub_(g)}


def by_numpy(t: Tensor, g: Tensor, p: Tensor) -> dict[str, Tensor]:
    return {"p": p * float(np.sqrt(t.numpy()))}


def by_list(t: Tensor, g: Tensor, p: Tensor) -> dict[str, Tensor]:
    return {"p": p * t.tolist()}


def asks_for_an_element(t: Tensor, g: Tensor, p: Tensor) -> dict[str, Tensor]:
    return {"p": p * float(g[0, 0, 0])}


def of_some_elements(t: Tensor, g: Tensor, p: Tensor) -> dict[str, Tensor]:
    return {"p": p + g[g > 0].sum()}


OUTSIDE = torch.ones(4, 4)


def from_outside(t: Tensor, g: Tensor, p: Tensor) -> dict[str, Tensor]:
    return {"p": p * OUTSIDE}


@pytest.mark.parametrize(
    "text", [written_in_place, by_numpy, by_list, asks_for_an_element, of_some_elements, from_outside]
)
def test_what_would_not_be_the_same_is_not_repeated(text: Any) -> None:
    found, made = recorded(text)
    assert made is None
    torch.testing.assert_close(found, text(number(2.0), **inputs()))


def test_an_unchanged_value_is_left_out() -> None:
    _, made = recorded(lambda t, g, p: {"p": p, "g": p})
    given = inputs()
    (found,) = repeated([made], 1.0, [given])
    assert found.keys() == {"g"}
    assert found["g"] is given["p"]


def test_inputs_are_given_up() -> None:
    """What kept them would hold their memory to the end."""
    _, made = recorded(lambda t, g, p: {"p": p * g})
    held = inputs()
    Lockstep([made])([[1.0]], [held])
    assert held == {}
