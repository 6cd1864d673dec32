"""What of a text with means over rows and columns is computed when, and which texts have no kernel."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import Tensor

from descend.optim.compiler.matrix_plan import plan
from descend.optim.compiler.trace import Trace, Untraceable, trace_matrices
from descend.optim.rules import Adafactor
from descend.optim.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    Mean = Callable[[Tensor], Tensor]


def text(rule: Rule, dims: int = 2, low: bool = False) -> Trace:
    options = {"lr": 0.1, "decay": 0.0, "decay_form": "coupled", "rescale": 1.0, "clip": None, "scaled": True}
    return trace_matrices(SimpleNamespace(rule=rule, **options), torch.float32, low, dims)


def test_adafactor_takes_three_passes_over_a_matrix_and_two_over_a_vector() -> None:
    matrix, vector = plan(text(Adafactor())), plan(text(Adafactor(), dims=1))
    passes = [
        [made.trace.ops[at].name for at in made.reductions(stage, "element")]
        for made in (matrix, vector)
        for stage in range(made.last + 1)
    ]
    assert passes == [["row_mean", "column_mean", "norm"], [], ["norm"], [], ["norm", "norm"], []]
    assert set(matrix.kept) == {"s.row", "s.column"}
    assert set(matrix.writes) == {"p"}
    assert set(vector.writes) == {"p", "s.V"}


def test_kinds_follow_from_the_dimensions_in_which_values_differ() -> None:
    ops = text(Adafactor()).ops
    kinds = {op.name: {other.kind for other in ops if other.name == op.name} for op in ops}
    assert kinds["row_mean"] == {"row"}
    assert kinds["column_mean"] == {"column", "matrix"}  # of elements, and of one value a row


class Number(NamedTuple):
    n: Tensor


def rule(update: Any, init: Any = lambda self, p: None) -> Rule:
    return dataclass(frozen=True)(type("Own", (Rule,), {"direction": update, "init": init}))()


def noisy(self: Any, g: Tensor, row_mean: Mean, noise: Any) -> Any:
    return g - row_mean(g) + noise(), None


def rooted(self: Any, g: Tensor, row_mean: Mean, norm: Mean) -> Any:
    return (g - row_mean(g)) / norm(g).sqrt(), None


def of_a_number(self: Any, g: Tensor, row_mean: Mean, norm: Mean) -> Any:
    return g - row_mean(norm(g)), None


def of_a_row(self: Any, g: Tensor, row_mean: Mean) -> Any:
    return g - row_mean(row_mean(g)), None


def norm_of_rows(self: Any, g: Tensor, row_mean: Mean, norm: Mean) -> Any:
    return g / norm(row_mean(g)), None


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (noisy, "noise"),
        (rooted, "more than arithmetic"),
        (of_a_number, "row_mean of a number"),
        (of_a_row, "row_mean of a row"),
        (norm_of_rows, "norm of a row"),
    ],
)
def test_other_texts_get_the_reference_update(update: Any, reason: str) -> None:
    with pytest.raises(Untraceable, match=reason):
        plan(text(rule(update)))


def test_a_state_of_another_shape_has_no_kernel() -> None:
    def keep(self: Any, g: Tensor, s: Number, row_mean: Mean) -> Any:
        return g - row_mean(g), s

    with pytest.raises(Untraceable, match="shaped neither"):
        text(rule(keep, lambda self, p: Number(p.new_zeros(11))))


def test_who_asks_for_a_mean_is_given_whole_tensors() -> None:
    assert rule(of_a_row).whole_tensor
    assert not Rule.whole_tensor
