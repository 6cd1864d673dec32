"""Reductions as kinds of layers: shapes as torch has them, modes, and what they refuse."""

import itertools

import pytest
import torch

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of


@pytest.mark.parametrize(
    ("layer", "shapes", "output"),
    [
        (g.Reduction(), [(2, 3)], (1,)),
        (g.Reduction(mode="sum"), [(2, 3)], (1,)),
        (g.Reduction(mode="mean"), [(2, 3)], (1,)),
        (g.Reduction(mode="average"), [(2, 3)], (1,)),
        (g.BatchwiseReduceSum(), [(2, 3)], (2, 3)),
        (g.Covariance(), [(2, 3), (2, 3)], (1,)),
        (g.Covariance(biased=True), [(1,), (1,)], (1,)),
        (g.Variance(), [(2,)], (1,)),
        (g.Variance(biased=True), [(1,)], (1,)),
        (g.ChannelwiseMean(), [(5, 3, 2)], (5,)),
        (g.ChannelwiseMean(), [(5,)], (5,)),
    ],
    ids=kind,
)
def test_shapes(layer, shapes, output):
    assert shape_of(layer, *shapes) == output
    assert layer.num_parents == len(shapes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_dropped_axes_leave_the_shape_that_torch_leaves(count):
    """Whatever their order; where none is left there is one entry, since a sample has a dimension."""
    shape = (2, 3, 4)
    for axes in itertools.permutations(range(3), count):
        left = tuple(torch.empty(shape).sum(axes).shape)
        for mode in ("", "sum", "product", "max", "min"):
            assert shape_of(g.MultiDimReduction(axes=axes, mode=mode), shape) == (left or (1,))


@pytest.mark.parametrize(("layer", "mode"), [(g.Reduction(), "sum"), (g.MultiDimReduction(), "sum")], ids=kind)
def test_an_unset_mode_is_the_sum(layer, mode):
    assert layer.setting("mode") == mode
    assert layer.to_fields()["mode"] == ""


def test_the_norms_of_rows_read_the_weights_of_another_layer():
    assert shape_of(g.RowwiseWeightsNorms(), (5, 3)) == (5,)
    assert g.RowwiseWeightsNorms.borrows_weights
    assert g.RowwiseWeightsNorms.num_parents == 0
    assert refusal(g.RowwiseWeightsNorms(), (5, 3, 2)) == "needs a matrix of weights, and 'p0' are 5 x 3 x 2"


def test_axes_count_from_the_front():
    assert "has axes [-1], and 'p0' gives 3 x 2: expected different ones of 0 to 1" in refusal(
        g.MultiDimReduction(axes=[-1]), (3, 2)
    )


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.Reduction(mode="max"), [(3,)], "has mode 'max'; expected sum (or unset), mean or average"),
        (g.MultiDimReduction(), [(3,)], "has axes [], and 'p0' gives 3: expected different ones of 0 to 0"),
        (g.MultiDimReduction(axes=[0, 0]), [(3, 2)], "has axes [0, 0]"),
        (g.MultiDimReduction(axes=[2]), [(3, 2)], "has axes [2], and 'p0' gives 3 x 2: expected different ones"),
        (g.MultiDimReduction(axes=[0], mode="mean"), [(3,)], "has mode 'mean'"),
        (g.Variance(), [(1,)], "divides by the number of entries less 1, and 'p0' gives 1: set biased"),
        (g.Covariance(), [(1,), (1,)], "divides by the number of entries less 1"),
        (g.Covariance(), [(3,), (2,)], "needs parents of one shape"),
        (g.RowwiseWeightsNorms(), [(3,)], "needs a matrix of weights, and 'p0' are 3"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
