"""Dropout as a kind of layer: shapes, the range of keep_prob, and the value of a dropped entry."""

import pytest
import torch

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of


@pytest.mark.parametrize("dropout", [g.Dropout, g.SeluDropout])
@pytest.mark.parametrize("keep_prob", [-1, -1e-9, 1e-9, 0.5, 1])
def test_a_probability_above_0_and_up_to_1_is_taken_and_a_negative_one_turns_the_layer_off(dropout, keep_prob):
    assert shape_of(dropout(keep_prob=keep_prob), (2, 3)) == (2, 3)


@pytest.mark.parametrize("dropout", [g.Dropout, g.SeluDropout])
@pytest.mark.parametrize("keep_prob", [0, 1.000001, 1.5, float("inf"), float("nan")])
def test_other_probabilities_are_refused(dropout, keep_prob):
    assert refusal(dropout(keep_prob=keep_prob), (3,)) == (
        f"has keep_prob {float(keep_prob)!r}; expected above 0 and up to 1 (0.5 is usual), or negative for off"
    )


def test_a_dropped_entry_has_the_value_that_selu_gives_far_below_zero():
    """SELU(x) falls to −scale alpha, which Klambauer et al. put in place of a dropped entry."""
    lowest = torch.nn.functional.selu(torch.tensor(-1e3, dtype=torch.float64)).item()
    assert g.SeluDropout(keep_prob=0.5).dropped_value() == pytest.approx(lowest, rel=1e-15)
    assert lowest == pytest.approx(-1.7580993408473766, rel=1e-12)  # the paper's α'


def test_alpha_and_scale_count_when_both_are_set():
    assert g.SeluDropout(alpha=2.0, scale=3.0).dropped_value() == -6.0
    usual = g.SeluDropout().dropped_value()
    assert g.SeluDropout(alpha=2.0).dropped_value() == usual
    assert g.SeluDropout(scale=3.0).dropped_value() == usual


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.Dropout(), [(3,)], "has keep_prob 0.0; expected above 0 and up to 1"),
        (g.Dropout(keep_prob=1.5), [(3,)], "has keep_prob 1.5"),
        (g.Dropout(keep_prob=float("nan")), [(3,)], "has keep_prob nan"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
