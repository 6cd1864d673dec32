import numpy as np
import pytest
from data.transforms.samples import draws, images

from descend.data.transforms import CenterCrop, Cutout, HorizontalFlip, Pad, RandomCrop, VerticalFlip


@pytest.mark.parametrize(("kind", "axis"), [(HorizontalFlip, -1), (VerticalFlip, -2)])
def test_flip(kind, axis):
    x = images(1000, 1, 3, 4)
    y = kind(0.3).apply(x, draws(1000))
    flipped = (y == np.flip(x, axis)).all(axis=(1, 2, 3))
    assert (flipped | (y == x).all(axis=(1, 2, 3))).all()
    assert 240 < flipped.sum() < 360  # 300 ± 4 standard deviations
    np.testing.assert_array_equal(kind(1.0).apply(x, draws(1000)), np.flip(x, axis))


def test_center_crop():
    np.testing.assert_array_equal(CenterCrop(3, 2).apply(images(), draws()), images()[:, :, 2:5, 1:3])


def test_random_crop_takes_every_place():
    x = np.arange(5 * 4, dtype=np.float32).reshape(1, 1, 5, 4).repeat(2000, axis=0)
    y = RandomCrop(3, 2).apply(x, draws(2000))
    corners = y[:, 0, 0, 0].astype(int)
    places, counts = np.unique(corners, return_counts=True)
    assert places.tolist() == [row * 4 + column for row in range(3) for column in range(3)]
    assert counts.min() > 150  # 222 expected, standard deviation 14
    for i in range(20):
        row, column = divmod(corners[i], 4)
        np.testing.assert_array_equal(y[i, 0], x[0, 0, row : row + 3, column : column + 2])


def test_pad():
    y = Pad(2).apply(images(), draws())
    assert y.shape == (6, 3, 11, 9)
    np.testing.assert_array_equal(y[:, :, 2:-2, 2:-2], images())
    assert y.sum(dtype=float) == images().sum(dtype=float)


def test_cutout_makes_square_holes():
    ones = np.ones((500, 2, 9, 9), dtype=np.float32)
    y = Cutout(1, 3).apply(ones, draws(500))
    np.testing.assert_array_equal(y[:, 0], y[:, 1])
    holes = (y[:, 0] == 0).sum(axis=(1, 2))
    assert set(holes.tolist()) == {4, 6, 9}  # at a corner, at an edge, inside
    # A centre is at a corner with probability 4/81 and inside with 49/81.
    assert 250 < (holes == 9).sum() < 355
    assert ((y[:, 0] == 0).any(axis=0)).all()
