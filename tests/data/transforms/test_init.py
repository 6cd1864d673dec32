"""What is true of every transform."""

import numpy as np
import pytest
import torch
from data.transforms.samples import draws, images

from descend.data.order import Draws, key_of
from descend.data.transforms import (
    RESCALES,
    TRANSFORMS,
    AdjustBrightness,
    AdjustContrast,
    AdjustSaturation,
    CenterCrop,
    Colorize,
    ColorJitter,
    CutMix,
    Cutout,
    Grayscale,
    HorizontalFlip,
    Mixup,
    Normalize,
    NormalizeToLBANNLayout,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    RandomResizedCropWithFixedAspectRatio,
    Resize,
    ResizedCenterCrop,
    SampleNormalize,
    Scale,
    ToLBANNLayout,
    VerticalFlip,
)
from descend.errors import ConfigurationError

BUILT = [
    Scale(0.5),
    Normalize("1 2 3", "4 5 6"),
    SampleNormalize(),
    ToLBANNLayout(),
    NormalizeToLBANNLayout("0.5", "0.25"),
    HorizontalFlip(0.5),
    VerticalFlip(0.5),
    CenterCrop(4, 3),
    RandomCrop(4, 3),
    Pad(2),
    Cutout(2, 3),
    Colorize(),
    Grayscale(),
    AdjustBrightness(1.5),
    AdjustContrast(0.5),
    AdjustSaturation(0.5),
    ColorJitter(0.5, 1.5, 0.5, 1.5, 0.5, 1.5),
    Resize(4, 9),
    ResizedCenterCrop(9, 9, 4, 5),
    RandomResizedCropWithFixedAspectRatio(9, 9, 4, 5),
    RandomResizedCrop(4, 4),
    RandomResizedCrop(4, 4, 0.1, 0.2, 1.0, 1.0),
    RandomAffine(-20, 30, 0.1, 0.2, 0.8, 1.2, -5, 5),
    Mixup(0.2),
    CutMix(1.0),
]


def test_the_list_above_has_all():
    assert {type(t) for t in BUILT} == set(TRANSFORMS)
    assert len(TRANSFORMS) == 22 + 2  # LBANN's, and ours


@pytest.mark.parametrize("transform", BUILT, ids=lambda t: type(t).__name__)
class TestEach:
    def test_bytes_and_floats_stay_what_they_are(self, transform):
        for dtype in (np.uint8, np.float32):
            kept = dtype if not isinstance(transform, RESCALES) else np.float32
            assert transform.apply(images(dtype=dtype), draws()).dtype == kept

    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_a_tensor_becomes_what_the_array_becomes(self, transform, dtype):
        x = images(dtype=dtype)
        array, tensor = transform.apply(x, draws()), transform.apply(torch.from_numpy(x), draws())
        assert isinstance(tensor, torch.Tensor)
        if array.dtype == np.uint8:
            np.testing.assert_array_equal(tensor.numpy(), array)
        else:
            np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-5, atol=1e-4)
        none = transform.apply(torch.from_numpy(x)[:0], draws(0))
        assert tuple(none.shape) == (0, *array.shape[1:])

    def test_keeps_its_input(self, transform):
        x = images()
        before = x.copy()
        transform.apply(x, draws())
        np.testing.assert_array_equal(x, before)

    def test_takes_no_samples(self, transform):
        whole, none = transform.apply(images(), draws()), transform.apply(images()[:0], draws(0))
        assert none.shape == (0, *whole.shape[1:])
        assert none.dtype == np.float32

    def test_a_sample_does_not_depend_on_its_batch(self, transform):
        x = images()
        together = transform.apply(x, draws())
        for i in range(len(x)):
            alone = transform.apply(x[i : i + 1], Draws(key_of("test"), np.array([i])))
            np.testing.assert_array_equal(together[i : i + 1], alone)

    def test_its_output_shape_is_that_of_its_output(self, transform):
        for channels in (1, 3):
            if transform == Normalize("1 2 3", "4 5 6") and channels == 1:
                continue
            x = images(channels=channels)
            assert transform.output_shape(x.shape[1:]) == transform.apply(x, draws()).shape[1:]

    def test_has_no_problems(self, transform):
        assert list(transform.problems()) == []

    def test_shapes_that_are_not_known(self, transform):
        """The shape of images of any size, where a transform makes it known or leaves it as it is."""
        known = transform.output_shape((3, 7, 5))
        for found, size in zip(transform.output_shape((-1, -1, -1)), known, strict=True):
            assert found in (-1, size)

    def test_message_is_its_name(self, transform):
        assert transform.message == f"Transform.{type(transform).__name__}"


def test_numbers_are_float32_as_in_the_text_form():
    assert Scale(1 / 255).scale == float(np.float32(1 / 255)) != 1 / 255
    assert Scale(1 / 255) == Scale(float(np.float32(1 / 255)))


def test_place_in_a_text_is_not_compared():
    assert Scale(2.0, where="a:1:1") == Scale(2.0)


@pytest.mark.parametrize(
    ("transform", "shape", "words"),
    [
        (CenterCrop(8, 2), (3, 7, 5), "cuts 8 x 2 out of images of 7 x 5"),
        (RandomCrop(2, 6), (3, 7, 5), "cuts 2 x 6"),
        (HorizontalFlip(0.5), (12,), "needs images"),
        (Normalize("1 2", "1 2"), (3, 7, 5), "2 means"),
        (Grayscale(), (2, 7, 5), "1 or 3 channels"),
    ],
)
def test_samples_that_do_not_fit(transform, shape, words):
    with pytest.raises(ConfigurationError, match=words):
        transform.apply(np.zeros((1, *shape), dtype=np.float32), draws(1))
    with pytest.raises(ConfigurationError, match=words):
        transform.output_shape(shape)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (Scale(), "scale is 0"),
        (Scale(float("nan")), "finite"),
        (Normalize("a", "1"), "numbers"),
        (Normalize("1 2", "1"), "2 means and 1 stddevs"),
        (Normalize("1", "0"), "stddevs='0' finite numbers > 0"),
        (HorizontalFlip(), "p must be a number > 0 and <= 1, got 0.0"),
        (VerticalFlip(1.5), "p must be a number > 0 and <= 1, got 1.5"),
        (RandomCrop(0, 4), "height must be an integer >= 1, got 0"),
        (Pad(0), "pad must be an integer >= 1, got 0"),
        (Cutout(1, 0), "length must be an integer >= 1, got 0"),
        (AdjustContrast(-1), "factor must be a finite number >= 0, got -1"),
        (ColorJitter(max_brightness_factor=0.5, min_brightness_factor=0.9), "0 <= min <= max, got 0.9 and 0.5"),
        (Resize(0, 4), "height must be an integer >= 1, got 0"),
        (ResizedCenterCrop(8, 8, 9, 4), "it cuts 9 x 4 out of 8 x 8"),
        (RandomResizedCropWithFixedAspectRatio(8, 8, 4, 0), "crop_width must be an integer >= 1"),
        (RandomResizedCrop(4, 4, ar_min=1.0), "ar_min is set and scale_min is not"),
        (RandomResizedCrop(4, 4, 0.5, 0.2, 1.0, 1.0), "0 < scale_min <= scale_max <= 1, got 0.5 and 0.2"),
        (RandomResizedCrop(4, 4, 0.5, 0.6, 0.0, 1.0), "0 < ar_min <= ar_max, got 0 and 1"),
        (RandomAffine(10, -10), "rotate_min <= rotate_max"),
        (RandomAffine(translate_h=2), "translate_h must be a number >= 0 and <= 1"),
        (RandomAffine(scale_max=2), "0 < scale_min <= scale_max, got 0 and 2"),
        (RandomAffine(shear_min=-95), "shear_min <= shear_max must be between -89 and 89"),
        (Mixup(), "alpha must be a finite number > 0, got 0.0"),
    ],
)
def test_fields_that_cannot_be(transform, words):
    assert words in "; ".join(transform.problems())
