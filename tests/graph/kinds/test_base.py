"""What several kinds share: equal shapes, numbers for each dimension, and how many places a window has."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from descend.errors import GraphError
from descend.graph.kinds.base import check_same_shapes, per_dimension, same_shape, window_shape
from tests.graph.kinds.given import incoming, windows


def test_equal_shapes_pass():
    check_same_shapes(incoming((2, 3)))
    assert same_shape(incoming((2, 3), (2, 3), (2, 3))) == (2, 3)


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        (
            [(2, 3), (2, 3), (6,), (5,)],
            "needs parents of one shape; 'p0' gives 2 x 3 and 'p2' gives 6: put a Reshape in front of one of them",
        ),
        (
            [(2, 3), (2, 4)],
            "needs parents of one shape; 'p0' gives 2 x 3 and 'p1' gives 2 x 4: the layers before must give equally "
            "many entries, such as num_neurons equal to the number of classes",
        ),
    ],
)
def test_the_first_pair_that_differs_is_named_with_a_remedy(shapes, problem):
    with pytest.raises(GraphError) as caught:
        same_shape(incoming(*shapes))
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("values", "unset", "found"),
    [
        ((), 1, (1, 1, 1)),
        ((), 0, (0, 0, 0)),
        ((5,), 1, (5, 5, 5)),
        ((1, 2, 3), None, (1, 2, 3)),
        ((0,), None, (0,) * 3),
    ],
)
def test_one_number_holds_for_every_dimension(values, unset, found):
    assert per_dimension("stride", values, 3, unset, 0) == found


@pytest.mark.parametrize(
    ("values", "unset", "lowest", "problem"),
    [
        ((), None, 1, "has 0 numbers in kernel; it needs 1, or 3 for its 3 dimensions"),
        ((1, 2), 1, 1, "has 2 numbers in kernel; it needs 1, or 3 for its 3 dimensions"),
        ((1, 2, 3, 4), 1, 1, "has 4 numbers in kernel; it needs 1, or 3 for its 3 dimensions"),
        ((2, 0, 2), 1, 1, "has kernel 2 x 0 x 2; every number must be at least 1"),
        ((-1,), 0, 0, "has kernel -1; every number must be at least 0"),
    ],
)
def test_a_wrong_count_and_a_number_out_of_range_are_refused(values, unset, lowest, problem):
    with pytest.raises(GraphError) as caught:
        per_dimension("kernel", values, 3, unset, lowest)
    assert str(caught.value) == problem


@given(windows)
def test_a_window_has_as_many_places_as_unfold_finds(window):
    """By enumeration: starts at 0, stride, 2 stride, ... whose last entry lies within the padded space."""
    numbers = [tuple(window[name]) for name in ("size", "stride", "padding", "dilation")]
    (given_input,) = incoming((2, *window["space"]))
    places = tuple(
        sum(start + d * (k - 1) < size + 2 * p for start in range(0, size + 2 * p, s))
        for size, k, s, p, d in zip(window["space"], *numbers, strict=True)
    )
    if min(places) < 1:
        with pytest.raises(GraphError, match="the window does not fit; make it smaller or add padding"):
            window_shape(given_input, *numbers)
    else:
        assert window_shape(given_input, *numbers) == places


@given(st.integers(1, 6), st.integers(1, 6))
def test_a_window_of_the_size_of_the_space_has_one_place(height, width):
    (image,) = incoming((3, height, width))
    assert window_shape(image, (height, width), (1, 1), (0, 0), (1, 1)) == (1, 1)
    pooled = torch.nn.functional.max_pool2d(torch.zeros(1, 3, height, width), (height, width), 1)
    assert pooled.shape[2:] == (1, 1)


def test_a_window_that_does_not_fit_is_named_with_all_its_numbers():
    (image,) = incoming((3, 8, 4))
    with pytest.raises(GraphError) as caught:
        window_shape(image, (3, 3), (1, 1), (0, 0), (1, 2))
    assert str(caught.value) == (
        "has a window of 3 x 3 (dilation 1 x 2, padding 0 x 0) and 'p0' gives 3 x 8 x 4: "
        "the window does not fit; make it smaller or add padding"
    )
