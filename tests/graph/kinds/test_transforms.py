"""Kinds of layers that join, cut, pool and pass on: shapes as torch has them, children, and what they refuse."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import descend.graph as g
from tests.graph.kinds.given import incoming, kind, refusal, shape_of, windows


@settings(max_examples=40)
@given(windows)
def test_pooling_is_shaped_as_torch_shapes_it(window):
    dims = len(window["space"])
    # torch takes no more padding than half a window, and in three dimensions no window larger than the space.
    space = [max(pair) for pair in zip(window["space"], window["size"], strict=True)]
    padding = [min(p, size // 2) for p, size in zip(window["padding"], window["size"], strict=True)]
    layer = g.Pooling(
        num_dims=dims,
        pool_mode="average",
        has_vectors=True,
        pool_dims=window["size"],
        pool_strides=window["stride"],
        pool_pads=padding,
    )
    pools = (torch.nn.AvgPool1d, torch.nn.AvgPool2d, torch.nn.AvgPool3d)
    pool = pools[dims - 1](window["size"], window["stride"], padding)
    expected = tuple(pool(torch.zeros(1, 2, *space)).shape[1:])
    assert shape_of(layer, (2, *space)) == expected


def test_pooling_takes_single_numbers_for_all_dimensions():
    layer = g.Pooling(num_dims=2, pool_mode="max", pool_dims_i=2, pool_strides_i=2)
    assert shape_of(layer, (6, 28, 14)) == (6, 14, 7)
    assert layer.window() == ((2, 2), (2, 2), (0, 0), (1, 1))


@pytest.mark.parametrize(
    ("mode", "largest"),
    [("max", True), ("max_deterministic", True), ("average", False), ("average_no_pad", False)],
)
def test_every_mode_of_pooling_is_taken(mode, largest):
    layer = g.Pooling(num_dims=1, pool_mode=mode, pool_dims_i=2, pool_strides_i=1)
    assert shape_of(layer, (3, 8)) == (3, 7)
    assert layer.takes_largest is largest


def test_the_stride_of_pooling_has_no_default():
    """LBANN fills nothing in, where torch takes the size of the window."""
    assert "has 0 numbers in pool_strides; it needs 1, or 2 for its 2 dimensions" in refusal(
        g.Pooling(num_dims=2, pool_mode="max", has_vectors=True, pool_dims=2), (3, 8, 8)
    )
    assert "has pool_strides_i 0" in refusal(g.Pooling(num_dims=2, pool_mode="max", pool_dims_i=2), (3, 8, 8))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(1, 4), max_size=3), st.data())
def test_joined_tensors_are_shaped_as_torch_shapes_them(shape, more, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    shapes = [tuple(shape), *((*shape[:axis], size, *shape[axis + 1 :]) for size in more)]
    joined = torch.cat([torch.empty(one) for one in shapes], axis)
    assert shape_of(g.Concatenation(axis=axis), *shapes) == tuple(joined.shape)


@pytest.mark.parametrize("other", [(2, 3, 1), (2,)])
def test_tensors_of_other_ranks_are_not_joined(other):
    assert "joins along axis 0" in refusal(g.Concatenation(), (2, 3), other)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(st.integers(-1, 6), min_size=1, max_size=4))
def test_reshaped_data_is_shaped_as_torch_shapes_it(shape, dims):
    """What torch cannot do is refused; a size of 0 is, since a sample has entries."""
    layer = g.Reshape(dims=dims)
    try:
        wanted = tuple(torch.empty(shape).reshape(dims).shape)
    except RuntimeError:
        assert "has dims" in refusal(layer, tuple(shape))
    else:
        assert shape_of(layer, tuple(shape)) == wanted


@pytest.mark.parametrize(
    "layer", [g.Sum(), g.Hadamard(), g.Cross_Grid_Sum(), g.WeightedSum(scaling_factors=[1, 0, -1])], ids=kind
)
def test_sums_and_products_take_parents_of_one_shape(layer):
    assert shape_of(layer, (2, 3), (2, 3), (2, 3)) == (2, 3)
    assert layer.num_parents is None


@pytest.mark.parametrize("layer", [g.Dummy(), g.IdentityZero(), g.StopGradient(), g.Split()], ids=kind)
def test_data_that_passes_keeps_its_shape(layer):
    assert shape_of(layer, (2, 3)) == (2, 3)


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1)])
def test_an_evaluation_reads_one_number(shape):
    assert shape_of(g.Evaluation(), shape) == shape


@pytest.mark.parametrize("children", [0, 1, 3])
def test_layers_of_several_outputs_have_one_for_each_child(children):
    """Without children there is still one output, which a Dummy takes."""
    count = max(children, 1)
    assert g.Split().output_shapes(incoming((6, 2)), children) == ((6, 2),) * count
    assert g.Cross_Grid_Sum().output_shapes(incoming((6, 2), (6, 2)), children) == ((6, 2),) * count
    pieces = g.Cross_Grid_Sum_Slice().output_shapes(incoming((6, 2), (6, 2)), children)
    assert pieces == ((6 // count, 2),) * count


@pytest.mark.parametrize(("layer", "children"), [(g.Dummy, 0), (g.Evaluation, 0), (g.Sum, 1), (g.Split, None)])
def test_the_number_of_children_is_bounded(layer, children):
    assert layer.num_children == children


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=5, unique=True).map(sorted), st.integers(0, 1))
def test_pieces_are_shaped_as_slices_of_a_tensor(points, axis):
    x = torch.empty((9, 9))
    wanted = [tuple(x.narrow(axis, a, b - a).shape) for a, b in itertools.pairwise(points)]
    layer = g.Slice(axis=axis, slice_points=points)
    assert layer.output_shapes(incoming((9, 9)), len(wanted)) == tuple(wanted)
    assert f"has slice_points for {len(wanted)} pieces and {len(wanted) + 1} children" in refusal(
        layer, (9, 9), children=len(wanted) + 1
    )


@pytest.mark.parametrize(
    ("layer", "shapes", "children", "problem"),
    [
        (g.Slice(slice_points=[0, 2, 4]), [(4,)], 1, "has slice_points for 2 pieces and 1 children"),
        (g.Slice(slice_points=[0, 5]), [(4,)], 1, "has slice_points [0, 5], and 'p0' gives 4"),
        (g.Slice(slice_points=[2, 2]), [(4,)], 1, "expected two or more rising numbers from 0 to 4"),
        (g.Slice(slice_points=[3]), [(4,)], 1, "has slice_points [3]"),
        (g.Slice(slice_points=[-1, 2]), [(4,)], 1, "has slice_points [-1, 2]"),
        (g.Slice(axis=1, slice_points=[0, 1]), [(4,)], 1, "has axis 1, and 'p0' gives 4: expected 0 to 0"),
        (g.Slice(get_slice_points_from_reader="x"), [(4,)], 1, "write slice_points"),
        (g.WeightedSum(scaling_factors=[1]), [(4,), (4,)], 1, "has 1 scaling_factors and 2 parents"),
        (g.WeightedSum(scaling_factors=[1, 2]), [(4,), (3,)], 1, "needs parents of one shape"),
        (g.Hadamard(), [(4,), (3,)], 1, "needs parents of one shape"),
        (g.Cross_Grid_Sum(), [(4,), (3,)], 1, "needs parents of one shape"),
        (g.Cross_Grid_Sum_Slice(), [(4,), (4,)], 3, "cuts in 3 equal pieces, one a child, and 'p0' gives 4"),
        (
            g.Pooling(num_dims=1, pool_mode="max", pool_dims_i=2, pool_pads_i=2, pool_strides_i=1),
            [(3, 8)],
            1,
            "has windows of 2 and padding 2, so a window would be in the padding alone; the padding must be smaller",
        ),
        (
            g.Pooling(num_dims=2, pool_mode="avg"),
            [(3, 8, 8)],
            1,
            "has pool_mode 'avg'; expected max, average or average_no_pad",
        ),
        (g.Pooling(num_dims=2, pool_mode="max", pool_dims=2), [(3, 8, 8)], 1, "which count with has_vectors alone"),
        (
            g.Pooling(num_dims=1, pool_mode="max", has_vectors=True, pool_dims=2, pool_strides=2, pool_pads_i=1),
            [(3, 8)],
            1,
            "which count without has_vectors alone",
        ),
        (g.Pooling(num_dims=2, pool_mode="max"), [(3, 8, 8)], 1, "has pool_dims_i 0; every number must be at least 1"),
        (g.Sum(), [(2,), (3,)], 1, "needs parents of one shape"),
        (g.Concatenation(axis=1), [(2,), (3,)], 1, "has axis 1, and 'p0' gives 2: expected 0 to 0"),
        (g.Concatenation(axis=-1), [(2,)], 1, "has axis -1"),
        (
            g.Concatenation(),
            [(2, 3), (2, 4)],
            1,
            "its parents may differ there alone; 'p0' gives 2 x 3 and 'p1' gives 2 x 4",
        ),
        (g.Reshape(), [(2,)], 1, "has dims nothing; expected sizes of at least 1"),
        (g.Reshape(dims=[-1, -1]), [(4,)], 1, "one of which may be -1"),
        (g.Reshape(dims=[3, -1]), [(4,)], 1, "has dims 3 x -1, and 'p0' gives 4, which has 4 entries"),
        (g.Evaluation(), [(2,)], 1, "needs one number a sample, and 'p0' gives 2"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, children, problem):
    assert problem in refusal(layer, *shapes, children=children)
