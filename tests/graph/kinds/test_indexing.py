"""Kinds of layers that pick, place and order entries: shapes as torch has them, and what they refuse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of


@pytest.mark.parametrize(
    ("layer", "shapes", "output"),
    [
        (g.Argmax(), [(5,)], (1,)),
        (g.Argmin(), [(5,)], (1,)),
        (g.InTopK(k=9), [(2, 3)], (2, 3)),  # k may exceed the number of entries
        (g.OneHot(size=4), [(1,)], (4,)),
        (g.OneHot(size=4), [(1, 1)], (4,)),
        (g.Sort(), [(5,)], (5,)),
        (g.Crop(dims=[2, 5]), [(4, 5), (2,)], (2, 5)),
        (g.Scatter(dims=[7]), [(3,), (3,)], (7,)),
        (g.Scatter(dims=[9, 3], axis=0), [(2, 3), (2,)], (9, 3)),
        (g.Scatter(dims=[2, 9], axis=1), [(2, 3), (3,)], (2, 9)),
        (g.UniformHash(), [(2, 3)], (2, 3)),
    ],
    ids=kind,
)
def test_shapes(layer, shapes, output):
    assert shape_of(layer, *shapes) == output
    assert layer.num_parents == len(shapes)


@pytest.mark.parametrize(("shape", "axis"), [((5,), None), ((5,), 0), ((4, 5), 0), ((4, 5), 1)])
def test_gathered_data_is_shaped_as_index_select_shapes_it(shape, axis):
    picked = torch.zeros(shape).index_select(axis or 0, torch.zeros(7, dtype=torch.long))
    assert shape_of(g.Gather(axis=axis), shape, (7,)) == tuple(picked.shape)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_permuted_axes_are_shaped_as_torch_shapes_them(shape, data):
    axes = data.draw(st.permutations(range(len(shape))))
    permuted = torch.empty(shape).permute(*axes)
    assert shape_of(g.TensorPermute(axes=axes), tuple(shape)) == tuple(permuted.shape)


@given(
    st.integers(1, 3),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
)
def test_upsampled_data_is_shaped_as_torch_shapes_it(channels, space, factors):
    factors = factors[: len(space)]
    wanted = torch.nn.Upsample(scale_factor=tuple(map(float, factors)))(torch.zeros(1, channels, *space)).shape[1:]
    layer = g.Upsample(upsample_mode="nearest", num_dims=len(space), has_vectors=True, scale_factors=factors)
    assert shape_of(layer, (channels, *space)) == tuple(wanted)


def test_one_factor_holds_for_all_dimensions_in_both_ways_of_writing_it():
    for fields in ({"scale_factors_i": 3}, {"has_vectors": True, "scale_factors": [3]}):
        layer = g.Upsample(upsample_mode="nearest", num_dims=2, **fields)
        assert layer.factors() == (3, 3)
        assert shape_of(layer, (2, 4, 5)) == (2, 12, 15)


def test_tessellated_data_may_be_larger_or_smaller_than_the_input():
    assert shape_of(g.Tessellate(dims=[7, 1]), (3, 2)) == (7, 1)
    assert "has dims 3 x 0" in refusal(g.Tessellate(dims=[3, 0]), (3, 2))


@pytest.mark.parametrize(
    ("layer", "parents"),
    [
        (g.OneHot(), (0,)),
        (g.Gather(), (1,)),
        (g.Scatter(), (1,)),
        (g.Crop(), ()),  # its place is no index
        (g.Argmax(), ()),
    ],
    ids=kind,
)
def test_parents_that_hold_indices_are_named(layer, parents):
    """Narrow formats are kept from them: float16 has no 2049."""
    assert layer.index_parents == parents


@pytest.mark.parametrize("axis", [-1, 1])
def test_one_dimension_has_axis_0_alone(axis):
    for layer in (g.Gather(axis=axis), g.Scatter(axis=axis, dims=[3])):
        assert refusal(layer, (3,), (3,)) == f"has axis {axis}, and 'p0' gives 3: expected 0 to 0"


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.Argmax(), [(3, 2)], "works on one dimension, and 'p0' gives 3 x 2: put a Reshape to 6"),
        (g.Argmin(), [(3, 2)], "works on one dimension"),
        (g.Sort(), [(3, 2)], "works on one dimension"),
        (g.InTopK(), [(3,)], "has k 0; it must be at least 1"),
        (g.OneHot(), [(1,)], "has size 0; it must be at least 1"),
        (g.OneHot(size=3), [(2,)], "takes one index, and 'p0' gives 2"),
        (g.Crop(dims=[2]), [(3, 3), (2,)], "has dims 2, and 'p0' gives 3 x 3: expected 2 sizes"),
        (g.Crop(), [(3,), (1,)], "has dims nothing, and 'p0' gives 3: expected 1 sizes"),
        (g.Crop(dims=[4]), [(3,), (1,)], "has dims 4, and 'p0' gives 3, which is smaller"),
        (g.Crop(dims=[2, 2]), [(3, 3), (1,)], "needs a place of 2 numbers, one a dimension of 'p0'; 'p1' gives 1"),
        (g.Gather(), [(2, 3), (2,)], "has no axis, and 'p0' gives 2 x 3: set it to 0 or 1"),
        (g.Gather(axis=2), [(2, 3), (2,)], "has axis 2, and 'p0' gives 2 x 3: expected 0 to 1"),
        (g.Gather(axis=0), [(2, 3, 4), (2,)], "works on one or two dimensions"),
        (g.Gather(), [(3,), (2, 2)], "works on one dimension, and 'p1' gives 2 x 2"),
        (g.Scatter(dims=[3]), [(3,), (2,)], "needs 3 indices, one an entry of 'p0' along axis 0; 'p1' gives 2"),
        (g.Scatter(), [(3,), (3,)], "has dims nothing, and 'p0' gives 3: expected 1 sizes"),
        (g.Scatter(dims=[3, 4], axis=0), [(2, 3), (2,)], "they may differ along axis 0 alone"),
        (g.Tessellate(dims=[3]), [(3, 2)], "has dims 3, and 'p0' gives 3 x 2: expected 2 sizes of at least 1"),
        (g.TensorPermute(axes=[0, 0]), [(3, 2)], "has axes [0, 0], and 'p0' gives 3 x 2: expected each of 0 to 1"),
        (g.TensorPermute(axes=[0]), [(3, 2)], "has axes [0]"),
        (g.Upsample(num_dims=1, scale_factors_i=2), [(3, 2)], "has upsample_mode ''; expected nearest"),
        (g.Upsample(upsample_mode="nearest", scale_factors_i=2), [(3, 2)], "has num_dims 0, and 'p0' gives 3 x 2"),
        (g.Upsample(upsample_mode="nearest", num_dims=1), [(3, 2)], "has scale_factors_i 0"),
        (
            g.Upsample(upsample_mode="nearest", num_dims=1, scale_factors=[2]),
            [(3, 2)],
            "has scale_factors, which count with has_vectors alone",
        ),
        (
            g.Upsample(upsample_mode="nearest", num_dims=1, has_vectors=True, scale_factors=[2], scale_factors_i=2),
            [(3, 2)],
            "has scale_factors_i, which counts without has_vectors alone",
        ),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
