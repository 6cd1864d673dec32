"""Image layers against plain loops over pixels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from tests.lower.single import Single, f64, gradients, random


def at(image, row, column):
    """Channels of an image (C, H, W) between pixels; zero outside."""
    total = np.zeros(len(image))
    for r in (math.floor(row), math.floor(row) + 1):
        for c in (math.floor(column), math.floor(column) + 1):
            if 0 <= r < image.shape[1] and 0 <= c < image.shape[2]:
                total += image[:, r, c] * (1 - abs(row - r)) * (1 - abs(column - c))
    return total


def moved(image, angle, shear=(0, 0), translation=(0, 0)):
    _, height, width = image.shape
    cx, cy, turn = width // 2, height // 2, math.radians(angle)
    y = np.zeros_like(image)
    for row, column in np.ndindex(height, width):
        x1, y1 = column - cx, row - cy
        x1, y1 = math.cos(turn) * x1 - math.sin(turn) * y1, math.sin(turn) * x1 + math.cos(turn) * y1
        x1, y1 = x1 + shear[0] * y1, y1 + shear[1] * x1
        y[:, row, column] = at(image, y1 + translation[1] + cy, x1 + translation[0] + cx)
    return y


def test_bilinear_resize_has_pixel_centres_at_one_half_and_goes_on_at_edges():
    x = random(2, 2, 3, 4)
    y = Single(lambda s: descend.BilinearResize(s, height=5, width=2), (2, 3, 4))(x)
    image = np.pad(x.detach().numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    for row, column in np.ndindex(5, 2):
        place = ((row + 0.5) * 3 / 5 - 0.5 + 1, (column + 0.5) * 4 / 2 - 0.5 + 1)
        for n in range(2):
            np.testing.assert_allclose(y[n, :, row, column], at(image[n], *place), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(2, 4, 5), (1, 5, 5), (3, 1, 2)])
def test_rotation_turns_around_the_middle(shape):
    x, angles = random(4, *shape), f64([0], [30], [-90], [200.5])
    layer = Single(lambda s, a: descend.Rotation(s, a), shape, (1,))
    want = [moved(image, angle) for image, angle in zip(x.detach().numpy(), angles[:, 0].tolist(), strict=True)]
    np.testing.assert_allclose(layer(x, angles).detach(), want, rtol=1e-9, atol=1e-9)


def test_a_quarter_turn_goes_against_the_clock():
    image = f64([[[0, 1, 0], [0, 0, 0], [0, 0, 0]]]).view(1, 1, 3, 3)
    y = Single(lambda s, a: descend.Rotation(s, a), (1, 3, 3), (1,))(image, f64([90]))
    torch.testing.assert_close(y[0, 0], f64([0, 0, 0], [1, 0, 0], [0, 0, 0]))


def test_composite_transformations_turn_then_shear_then_move():
    x = random(3, 2, 4, 5)
    numbers = [f64([0], [25], [-70]), f64([0.3, 0], [0, -0.2], [0.1, 0.4]), f64([1, 0], [0.5, -1.25], [0, 2])]
    layer = Single(lambda *s: descend.CompositeImageTransformation(*s), (2, 4, 5), (1,), (2,), (2,))
    want = [
        moved(image, float(a), s.tolist(), t.tolist())
        for image, a, s, t in zip(x.detach().numpy(), *numbers, strict=True)
    ]
    np.testing.assert_allclose(layer(x, *numbers).detach(), want, rtol=1e-9, atol=1e-9)


def test_cutout_blanks_one_square_for_the_whole_mini_batch():
    x = torch.ones(3, 2, 8, 6, dtype=torch.float64)
    layer = Single(lambda s, side: descend.Cutout(s, side, name="cut"), (2, 8, 6), (1,))
    sides = f64([0], [3.7], [100])
    centres = set()
    for step in range(200):
        y = layer(x, sides, seed=step)
        assert torch.equal(y[0], x[0])
        assert not y[2].any()
        assert torch.equal(y[1, 0], y[1, 1])
        blank = (y[1, 0] == 0).nonzero()
        (top, left), (bottom, right) = blank.min(0).values.tolist(), blank.max(0).values.tolist()
        assert len(blank) == (bottom - top + 1) * (right - left + 1)
        assert bottom - top <= 2
        assert right - left <= 2
        if top > 0 and bottom < 7 and left > 0 and right < 5:  # whole, so its middle is its centre
            assert (bottom - top, right - left) == (2, 2)
            centres.add((top + 1, left + 1))
        assert torch.equal(layer(x[1:2], sides[1:2], seed=step, position=7, batch_size=9), y[1:2])
    assert len(centres) > 3


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda s: descend.BilinearResize(s, height=2, width=2), [(1, 3, 3)]),
        (lambda *s: descend.Rotation(*s), [(1, 3, 3), (1,)]),
        (lambda *s: descend.CompositeImageTransformation(*s), [(1, 3, 3), (1,), (2,), (2,)]),
        (lambda *s: descend.Cutout(*s), [(1, 3, 3), (1,)]),
    ],
)
def test_no_gradient_flows_through_images(make, shapes):
    xs = [random(2, *shape, seed=i, low=0, high=1) for i, shape in enumerate(shapes)]
    assert not Single(make, *shapes)(*xs).requires_grad


def test_gradients_of_nothing_are_zeros():
    layer = Single(lambda *s: descend.Rotation(*s), (1, 3, 3), (1,))
    assert not any(one.any() for one in gradients(layer, random(1, 1, 3, 3), f64([10])))


def tents(image, matrix, move):
    """Output pixel p from the input at c + matrix (p − c) + move, each input pixel weighted by a tent around it."""
    _, height, width = image.shape
    middle = np.array([width // 2, height // 2])
    y = np.zeros_like(image)
    for row, column in np.ndindex(height, width):
        across, down = middle + matrix @ (np.array([column, row]) - middle) + move
        near_rows = np.maximum(0, 1 - np.abs(np.arange(height) - down))
        near_columns = np.maximum(0, 1 - np.abs(np.arange(width) - across))
        y[:, row, column] = np.einsum("chw,h,w->c", image, near_rows, near_columns)
    return y


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_any_image_turned_sheared_and_moved(seed):
    draw = np.random.default_rng(seed)
    shape, samples = tuple(draw.integers(1, 7, 3)), int(draw.integers(1, 3))
    image = draw.normal(size=(samples, *shape)) * draw.choice([1e-3, 1, 1e3])
    angle = draw.choice([draw.uniform(-720, 720), 0, 90, -180, 270, 1e4], (samples, 1)).astype(float)
    shear = draw.choice([draw.normal(), 0, 1, -1], (samples, 2))
    move = draw.choice([3 * draw.normal(), 0, 1, -2, 0.5, 100], (samples, 2))
    turn = np.deg2rad(angle[:, 0])
    turned = np.moveaxis(np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]), 2, 0)
    sheared = np.array([[[1, across], [down, 1]] for across, down in shear]) @ turned
    inputs = [torch.from_numpy(one) for one in (image, angle, shear, move)]
    rotation = Single(lambda *x: descend.Rotation(*x), shape, (1,))
    composite = Single(lambda *x: descend.CompositeImageTransformation(*x), shape, (1,), (2,), (2,))
    for layer, matrices, moves, count in ((rotation, turned, 0 * move, 2), (composite, sheared, move, 4)):
        want = [tents(*one) for one in zip(image, matrices, moves, strict=True)]
        largest = np.abs(image).max()
        np.testing.assert_allclose(layer(*inputs[:count]), want, rtol=1e-9, atol=1e-9 * largest)
        assert not any(one.any() for one in gradients(layer, *inputs[:count]))
