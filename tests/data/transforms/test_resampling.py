"""Resizing against a loop over its definition, and Pillow where both mean the same."""

import numpy as np
import pytest
import torch
from data.transforms.samples import draws, images
from PIL import Image

from descend.data.order import Draws
from descend.data.transforms import (
    RandomAffine,
    RandomResizedCrop,
    RandomResizedCropWithFixedAspectRatio,
    Resize,
    ResizedCenterCrop,
)


def resized(x, height, width):
    """An image (channels, rows, columns) by the definition, in float64."""
    out = np.empty((len(x), height, width))
    for i in range(height):
        for j in range(width):
            r = np.clip((i + 0.5) * x.shape[1] / height - 0.5, 0, x.shape[1] - 1)
            c = np.clip((j + 0.5) * x.shape[2] / width - 0.5, 0, x.shape[2] - 1)
            r0, c0 = int(r), int(c)
            r1, c1 = min(r0 + 1, x.shape[1] - 1), min(c0 + 1, x.shape[2] - 1)
            above = x[:, r0, c0] * (1 - (c - c0)) + x[:, r0, c1] * (c - c0)
            below = x[:, r1, c0] * (1 - (c - c0)) + x[:, r1, c1] * (c - c0)
            out[:, i, j] = above * (1 - (r - r0)) + below * (r - r0)
    return out


@pytest.mark.parametrize(("height", "width"), [(7, 5), (3, 9), (14, 2), (1, 1)])
def test_resize_is_its_definition(height, width):
    wanted = np.stack([resized(x.astype(float), height, width) for x in images()])
    np.testing.assert_allclose(Resize(height, width).apply(images(), draws()), wanted, atol=1e-3)
    pixels = Resize(height, width).apply(images(dtype=np.uint8), draws())
    assert np.abs(pixels - wanted).max() <= 1  # weights are multiples of 1/2048
    assert np.abs(pixels - np.rint(wanted)).mean() < 0.1


@pytest.mark.parametrize(("size", "wanted"), [((60, 70), (201, 190)), ((300, 200), (111, 90)), ((90, 1), (2, 8200))])
@pytest.mark.parametrize("channels", [1, 3, 6])
def test_large_images_are_resized_as_tensors_are(size, wanted, channels):
    """By parts of rows, whether the channels lie beside each other, as decoders leave them, or in planes."""
    decoded = np.random.default_rng(1).integers(0, 256, (2, *size, channels)).astype(np.uint8)
    x = decoded.transpose(0, 3, 1, 2)
    expected = Resize(*wanted).apply(torch.from_numpy(np.ascontiguousarray(x)), draws(2)).numpy()
    for image in (x, np.ascontiguousarray(x), x[:, ::-1][:, ::-1], np.asfortranarray(x)):
        np.testing.assert_array_equal(Resize(*wanted).apply(image, draws(2)), expected)
    parts = RandomResizedCrop(150, 160)
    tensors = parts.apply(torch.from_numpy(np.ascontiguousarray(x)), draws(2)).numpy()
    np.testing.assert_array_equal(parts.apply(x, draws(2)), tensors)


def test_pixels_of_four_bytes_are_taken_as_they_lie():
    """As decoders give red, green, blue and a byte that means nothing; from any place of the image on."""
    decoded = np.random.default_rng(1).integers(0, 256, (90, 85, 4)).astype(np.uint8)
    whole = decoded.transpose(2, 0, 1)
    for x in (whole[:3], whole[1:], whole[:2, 5:, 7:-2], whole[:3, ::2], whole[2::-1], whole[:3, :, ::-1]):
        planes = np.ascontiguousarray(x)
        for size in ((150, 160), (41, 300)):
            found, expected = (Resize(*size).apply(one[None], draws(1)) for one in (x, planes))
            np.testing.assert_array_equal(found, expected)


def test_enlarging_agrees_with_pillow():
    x = images(1, 3, 9, 8, np.uint8)
    wanted = Image.fromarray(x[0].transpose(1, 2, 0)).resize((24, 36), Image.Resampling.BILINEAR)
    found = Resize(36, 24).apply(x, draws(1))[0].transpose(1, 2, 0)
    assert np.abs(found.astype(int) - np.asarray(wanted)).max() <= 1


def test_known_pixels_of_opencv():
    """What OpenCV 5.0 makes of this image by cv2.resize(x, (3, 3)) and cv2.resize(x, (7, 2))."""
    x = np.arange(0, 240, 15, dtype=np.uint8).reshape(1, 1, 4, 4)
    assert Resize(3, 3).apply(x, draws(1))[0, 0].tolist() == KNOWN_3_3
    assert Resize(2, 7).apply(x, draws(1))[0, 0].tolist() == KNOWN_2_7


KNOWN_3_3 = [[12, 32, 52], [92, 113, 133], [172, 192, 212]]
KNOWN_2_7 = [[30, 35, 44, 53, 61, 70, 75], [150, 155, 164, 173, 181, 190, 195]]


def test_resized_center_crop():
    whole = Resize(9, 8).apply(images(), draws())
    np.testing.assert_array_equal(ResizedCenterCrop(9, 8, 4, 3).apply(images(), draws()), whole[:, :, 2:6, 2:5])


def test_random_part_of_the_resized_image():
    x = images(1, 1, 6, 6).repeat(600, axis=0)
    whole = Resize(5, 4).apply(x[:1], draws(1))[0, 0]
    parts = RandomResizedCropWithFixedAspectRatio(5, 4, 3, 3).apply(x, draws(600))[:, 0]
    places = {(r, c): whole[r : r + 3, c : c + 3] for r in range(3) for c in range(2)}
    counts = {place: sum(np.array_equal(part, one) for part in parts) for place, one in places.items()}
    assert sum(counts.values()) == 600
    assert min(counts.values()) > 60  # 100 expected, standard deviation 9


def test_random_resized_crop_has_areas_and_proportions_of_its_ranges():
    """From a ramp: the slope of the output says how wide and how high the part was, its first pixel where."""
    height, width, n = 60, 80, 500
    ramp_x = np.tile(np.arange(width, dtype=np.float32), (height, 1))
    ramp_y = np.tile(np.arange(height, dtype=np.float32)[:, None], (1, width))
    x = np.stack([ramp_x, ramp_y])[None].repeat(n, axis=0)
    y = RandomResizedCrop(30, 30).apply(x, draws(n))
    wide = (y[:, 0, 0, 20] - y[:, 0, 0, 10]) * 3
    high = (y[:, 1, 20, 0] - y[:, 1, 10, 0]) * 3
    share, ratio = wide * high / (height * width), wide / high
    assert 0.07 < share.min() < 0.1
    assert 0.9 < share.max() <= 1.01
    assert 0.70 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.4
    assert abs(share.mean() - 0.5) < 0.06  # large parts of unequal proportions fit less often
    lefts = y[:, 0, 0, 0]
    assert lefts.min() >= 0
    assert lefts.max() > 40


def test_a_part_that_never_fits_is_the_middle_square():
    x = np.tile(np.arange(40, dtype=np.float32), (2, 1))[None, None]
    y = RandomResizedCrop(2, 2, 0.9, 1.0, 1.0, 1.0).apply(x, draws(1))
    np.testing.assert_array_equal(y[0, 0], [[19, 20], [19, 20]])


class Given(Draws):
    """Draws that are all the same number."""

    def __init__(self, value):
        self.value = value

    def uniform(self, columns):
        return np.full((1, columns), self.value)


@pytest.mark.parametrize(
    ("transform", "change"),
    [
        (RandomAffine(90, 90), lambda x: np.rot90(x, 1, (2, 3))),
        (RandomAffine(180, 180), lambda x: x[:, :, ::-1, ::-1]),
        (RandomAffine(), lambda x: x),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_turns_that_hit_pixels(transform, change, dtype):
    x = images(1, 3, 7, 7, dtype)
    np.testing.assert_array_equal(transform.apply(x, draws(1)), change(x))


def test_shifts_and_scales():
    x = images(1, 2, 8, 8)
    moved = RandomAffine(translate_h=0.5, translate_w=0.25).apply(x, Given(1.0))  # by 4 down and 2 to the right
    np.testing.assert_array_equal(moved[:, :, 4:, 2:], x[:, :, :4, :6])
    assert not moved[:, :, :4].any()
    assert not moved[:, :, :, :2].any()
    twice = RandomAffine(scale_min=2, scale_max=2).apply(x, draws(1))
    np.testing.assert_allclose(twice[..., 3, 3], x[:, :, 3:5, 3:5].reshape(1, 2, 4) @ [9 / 16, 3 / 16, 3 / 16, 1 / 16])


def test_a_turn_agrees_with_pillow():
    ramp = (np.add.outer(np.arange(31), 2 * np.arange(31)) * 2).astype(np.uint8)
    wanted = np.asarray(Image.fromarray(ramp).rotate(25, Image.Resampling.BILINEAR)).astype(int)
    found = RandomAffine(25, 25).apply(ramp[None, None], draws(1))[0, 0].astype(int)
    inside = np.hypot(*np.mgrid[-15:16, -15:16]) < 13
    assert np.abs(found - wanted)[inside].max() <= 2


def test_shear_moves_rows():
    x = images(1, 1, 9, 9)
    y = RandomAffine(shear_min=45, shear_max=45).apply(x, draws(1))[0, 0]
    np.testing.assert_allclose(y[4], x[0, 0, 4], atol=1e-4)
    np.testing.assert_allclose(y[6, 2:], x[0, 0, 6, :-2], atol=1e-3)  # two rows down, two pixels to the right
