"""Kinds of layers that change images: shapes, numbers of parents, and what they refuse."""

import pytest

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of


@pytest.mark.parametrize(
    ("layer", "shapes", "output"),
    [
        (g.BilinearResize(height=5, width=2), [(3, 7, 4)], (3, 5, 2)),
        (g.Rotation(), [(3, 7, 4), (1,)], (3, 7, 4)),
        (g.Rotation(), [(3, 7, 4), (1, 1, 1)], (3, 7, 4)),  # one number, whatever its dimensions
        (g.CompositeImageTransformation(), [(3, 7, 4), (1,), (2,), (2,)], (3, 7, 4)),
        (g.Cutout(), [(3, 7, 4), (1,)], (3, 7, 4)),
    ],
    ids=kind,
)
def test_the_output_is_an_image_of_the_same_channels(layer, shapes, output):
    assert shape_of(layer, *shapes) == output
    assert layer.num_parents == len(shapes)


@pytest.mark.parametrize(("height", "width"), [(0, 2), (2, 0), (-1, 2), (2, -1)])
def test_both_sides_of_a_resized_image_must_be_set(height, width):
    found = refusal(g.BilinearResize(height=height, width=width), (1, 3, 3))
    assert found == f"has height {height} and width {width}; both must be at least 1"


@pytest.mark.parametrize("shape", [(9,), (3, 3), (1, 2, 3, 3)])
@pytest.mark.parametrize(
    ("layer", "numbers"),
    [
        (g.BilinearResize(height=2, width=2), []),
        (g.Rotation(), [(1,)]),
        (g.CompositeImageTransformation(), [(1,), (2,), (2,)]),
        (g.Cutout(), [(1,)]),
    ],
    ids=kind,
)
def test_an_image_has_three_dimensions(layer, numbers, shape):
    text = " x ".join(map(str, shape))
    assert refusal(layer, shape, *numbers) == (
        f"needs an image (channels, height, width), and 'p0' gives {text}: put a Reshape between them"
    )


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.BilinearResize(height=2, width=2), [(9,)], "needs an image (channels, height, width), and 'p0' gives 9"),
        (g.BilinearResize(height=2), [(1, 3, 3)], "has height 2 and width 0; both must be at least 1"),
        (g.Rotation(), [(3, 3), (1,)], "needs an image"),
        (g.Rotation(), [(1, 3, 3), (2,)], "needs an angle of 1 number, and 'p1' gives 2"),
        (
            g.CompositeImageTransformation(),
            [(1, 3, 3), (1,), (1,), (2,)],
            "needs a shear of 2 numbers, and 'p2' gives 1",
        ),
        (
            g.CompositeImageTransformation(),
            [(1, 3, 3), (1,), (2,), (1,)],
            "needs a translation of 2 numbers, and 'p3' gives 1",
        ),
        (g.Cutout(), [(1, 3, 3), (2,)], "needs a side of 1 number, and 'p1' gives 2"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
