"""Dimensions: from the unit interval to values and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from descend.errors import ConfigurationError
from descend.study.design import choice, integer, linear, log, one_minus_log
from descend.study.design.space import dimension, grid

RANGES = [log(1e-4, 1e2), linear(-1.0, 3.0), one_minus_log(5e-3, 0.3)]


@pytest.mark.parametrize("one", RANGES, ids=repr)
@given(u=st.floats(0, 1, exclude_max=True))
def test_place_is_the_inverse_of_at(one, u):
    assert one.place(one.at(u)) == pytest.approx(u, abs=1e-9)


def test_values_by_hand():
    assert log(1e-2, 1.0).at(0.5) == pytest.approx(0.1)
    assert one_minus_log(1e-3, 0.1).at(0.5) == pytest.approx(0.99)
    assert [integer(1, 3).at(u) for u in (0.0, 0.34, 0.67, 0.999)] == [1, 2, 3, 3]
    assert [choice("a", "b").at(u) for u in (0.0, 0.49, 0.5, 0.99)] == ["a", "a", "b", "b"]


def test_edges_are_named_by_their_values():
    """The lower end of one_minus_log's range is the higher momentum."""
    one = log(1e-3, 1.0)
    assert [one.edge(v) for v in (1.5e-3, 0.03, 0.7)] == ["lower", None, "upper"]
    momentum = one_minus_log(5e-3, 0.3)
    assert [momentum.edge(v) for v in (0.994, 0.95, 0.72)] == ["upper", None, "lower"]
    assert choice(1, 2).edge(1) is None


@given(st.sampled_from([*RANGES, integer(1, 4), choice(1, 2)]))
def test_the_written_form_is_read_back(one):
    assert dimension(one.plain()) == one


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"lgo": [1, 2]}, "did you mean 'log'"),
        ({"log": [1, 0.1]}, "below the upper"),
        ({"log": [0, 1]}, "above 0"),
        ({"one_minus_log": [0.1, 2]}, "at most 1"),
        ({"integer": [1, 2.5]}, "integers"),
        ({"choice": []}, "at least one"),
        ({"log": [1]}, "two numbers"),
        (3, "written like"),
    ],
)
def test_mistakes(written, said):
    with pytest.raises(ConfigurationError, match=said):
        dimension(written)


def test_a_grid_has_the_centres_of_its_cells():
    cells = grid([linear(0, 1), linear(0, 1)], 4)
    assert cells == [(0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75)]
    with pytest.raises(ConfigurationError, match="like 9, and 10 trials"):
        grid([linear(0, 1)] * 2, 10)
