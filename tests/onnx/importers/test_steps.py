"""Steps that several importers share, each against numpy."""

from itertools import pairwise

import numpy as np
import pytest

from descend.onnx.importers.steps import (
    ahead,
    cut,
    known_sizes,
    log_sum_exp,
    nonzero,
    own_axis,
    padded,
    picked,
    piece_bounds,
    reduced,
    together,
)
from descend.onnx.values import Budget, ConstantValue, ShapeValue, UnsupportedNode
from tests.onnx.files import a_node, computed, drawn, importer_of

S = (3, 6, 4)
X = drawn(2, *S)
NODE = a_node("Op")


def test_axes_of_a_sample_are_one_less_than_those_of_the_file():
    assert [own_axis(axis, 3) for axis in (1, 3, -1, -3)] == [0, 2, 2, 0]
    for axis in (0, -4):
        with pytest.raises(UnsupportedNode, match="works along the dimension of the samples"):
            own_axis(axis, 3)
    for axis in (4, -5):
        with pytest.raises(UnsupportedNode, match=rf"has axis {axis}, and its input has 4 dimensions"):
            own_axis(axis, 3)


def test_pieces_are_those_that_numpy_cuts():
    """Without sizes ONNX makes equal pieces, and the last is smaller where they do not divide the size."""
    assert piece_bounds(a_node("Split", outputs=3), 7) == [(0, 3), (3, 6), (6, 7)]
    sizes = ConstantValue(np.array([2, 4, 1]))
    bounds = piece_bounds(a_node("Split", None, sizes, outputs=3), 7)
    assert [end - begin for begin, end in bounds] == [2, 4, 1]
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    with pytest.raises(UnsupportedNode, match="splits 8 entries into pieces of 2, 4, 1"):
        piece_bounds(a_node("Split", None, sizes, outputs=3), 8)
    with pytest.raises(UnsupportedNode, match="splits 2 entries"):
        piece_bounds(a_node("Split", outputs=4), 2)


@pytest.mark.parametrize(
    "places",
    [range(1, 5), range(5, 0, -2), [2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5], np.repeat(range(6), 2), [3, 0, 3]],
    ids=["run", "backwards", "list", "all twice", "each twice", "any"],
)
def test_picked_entries_are_numpys(places):
    r, x = importer_of(S)
    y = picked(r, NODE, x, 1, places if isinstance(places, range) else np.array(places))
    np.testing.assert_array_equal(computed(y, x0=X), X.take(np.array(places), 2))


def test_a_run_of_all_entries_makes_no_layer_and_none_is_refused():
    r, x = importer_of(S)
    assert picked(r, NODE, x, 1, range(6)) is x
    assert cut(r, "n", x, 0, 0, 3) is x
    with pytest.raises(UnsupportedNode, match="takes no entries"):
        picked(r, NODE, x, 1, range(0))


def test_a_run_in_steps_is_bounded_before_it_is_listed():
    r, x = importer_of((10**12,), budget=Budget())
    with pytest.raises(UnsupportedNode, match="more than 100,000,000 entries"):
        picked(r, NODE, x, 0, range(0, 10**12, 2))


def test_one_dimension_before_the_others():
    r, x = importer_of(S)
    np.testing.assert_array_equal(computed(ahead(r, "n", x, 2), x0=X), np.moveaxis(X, 3, 1))
    assert ahead(r, "n", x, 0) is x


@pytest.mark.parametrize("sides", [[(0, 0), (1, 2), (3, 0)], [(2, 0), (-1, 0), (-1, -2)]], ids=["more", "fewer"])
def test_entries_before_and_behind(sides):
    r, x = importer_of(S)
    wanted = X[:, :, max(0, -sides[1][0]) :, max(0, -sides[2][0]) : 4 + min(0, sides[2][1])]
    wanted = np.pad(wanted, [(0, 0), *((max(a, 0), max(b, 0)) for a, b in sides)], constant_values=0.5)
    np.testing.assert_array_equal(computed(padded(r, NODE, x, sides, 0.5), x0=X), wanted)
    with pytest.raises(UnsupportedNode, match="leaves nothing"):
        padded(r, NODE, x, [(-3, 0), (0, 0), (0, 0)], 0.0)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("mode", "numpys"), [("mean", np.mean), ("sum", np.sum), ("max", np.max), ("product", np.prod)]
)
def test_reductions_are_numpys(mode, numpys, keep):
    r, x = importer_of(S)
    y = reduced(r, NODE, x, mode, (3, -3), keep)
    wanted = numpys(X, axis=(1, 3), keepdims=keep)
    assert y.shape == wanted.shape[1:]
    np.testing.assert_allclose(computed(y, x0=X), wanted, rtol=1e-5, atol=1e-6)


def test_the_logarithm_of_a_sum_does_not_overflow():
    """exp(1000) is infinite in float64 too; numpy's logaddexp takes the larger out first."""
    r, x = importer_of((3, 4))
    wide = drawn(2, 3, 4) * 1000
    y = log_sum_exp(r, NODE, x, (2,), keep=False)
    np.testing.assert_allclose(computed(y, x0=wide), np.logaddexp.reduce(wide, 2), rtol=1e-6)


def test_shapes_are_broadcast_as_numpy_does():
    assert together((3, 1), (4,), ()) == np.broadcast_shapes((3, 1), (4,), ())
    with pytest.raises(UnsupportedNode, match="brings together shapes that do not fit"):
        together((3,), (4,))


def test_sizes_that_are_known_and_numbers_that_are_not_zero():
    assert known_sizes(ShapeValue((None, 3))) == (None, 3)
    assert known_sizes(ConstantValue(np.array([[2], [5]]))) == (2, 5)
    with pytest.raises(UnsupportedNode, match="joins sizes with data"):
        known_sizes(importer_of(S)[1])
    assert nonzero(NODE, "alpha", 0.5) == 0.5
    with pytest.raises(UnsupportedNode, match="has alpha 0"):
        nonzero(NODE, "alpha", 0.0)
