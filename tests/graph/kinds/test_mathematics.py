"""Products of matrices and Fourier transforms as kinds of layers: shapes, products counted, and refusals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of

sizes = st.integers(1, 5)


@given(st.none() | sizes, sizes, sizes, sizes, st.booleans(), st.booleans())
def test_a_product_is_shaped_and_counted_as_torch_does(stack, rows, inner, columns, transpose_a, transpose_b):
    """Each entry of the product is a sum of `inner` products, and every matrix of a stack has its own."""
    front = () if stack is None else (stack,)
    a = torch.empty(*front, rows, inner)
    b = torch.empty(*front, inner, columns)
    wanted = torch.matmul(a, b)
    shapes = tuple((x.mT if turned else x).shape for x, turned in ((a, transpose_a), (b, transpose_b)))
    layer = g.MatMul(transpose_a=transpose_a, transpose_b=transpose_b)
    assert shape_of(layer, *map(tuple, shapes)) == tuple(wanted.shape)
    assert layer.multiply_adds(shapes, tuple(wanted.shape)) == wanted.numel() * inner


def test_the_message_names_the_sizes_that_are_multiplied():
    """Both are those after transposing: 2 x 3 transposed has 2 columns, 5 x 4 transposed has 4 rows."""
    found = refusal(g.MatMul(transpose_a=True, transpose_b=True), (2, 3), (5, 4))
    assert found == (
        "needs as many columns of the first as rows of the second, and has 2 and 4; "
        "'p0' gives 2 x 3 and 'p1' gives 5 x 4: check transpose_a and transpose_b"
    )


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 4), (2, 5, 4, 3)])
def test_a_spectrum_has_the_shape_of_the_data(shape):
    assert shape_of(g.DFTAbs(), shape) == shape


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.MatMul(), [(2, 3), (4, 3)], "has 3 and 4; 'p0' gives 2 x 3 and 'p1' gives 4 x 3: check transpose_a"),
        (g.MatMul(), [(3,), (3,)], "multiplies matrices, or stacks of equally many of them; 'p0' gives 3"),
        (g.MatMul(), [(2, 3, 4), (3, 4, 5)], "multiplies matrices, or stacks of equally many of them"),
        (g.MatMul(), [(2, 3, 4), (4, 5)], "multiplies matrices, or stacks of equally many of them"),
        (g.DFTAbs(), [(3,)], "works on channels and one to three dimensions, and 'p0' gives 3"),
        (g.DFTAbs(), [(1, 2, 3, 4, 5)], "works on channels and one to three dimensions"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
