"""Each transform against its formula, one sample or one pixel at a time."""

import numpy as np
import pytest

from descend.data.counter_rng import Draws, key_of
from descend.data.transforms import (
    TRANSFORMS,
    AdjustBrightness,
    AdjustContrast,
    AdjustSaturation,
    CenterCrop,
    Colorize,
    ColorJitter,
    Cutout,
    Grayscale,
    HorizontalFlip,
    Normalize,
    NormalizeToLBANNLayout,
    Pad,
    RandomCrop,
    Resize,
    SampleNormalize,
    Scale,
    ToLBANNLayout,
    Transform,
    VerticalFlip,
)
from descend.errors import ConfigurationError, Unsupported


def images(n=6, channels=3, height=7, width=5):
    pixels = np.random.default_rng(0).integers(0, 256, (n, channels, height, width))
    return pixels.astype(np.float32)


def draws(n=6, key="test"):
    return Draws(key_of(key), np.arange(n))


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
]


def test_the_list_above_is_all_that_is_built():
    assert {type(t) for t in BUILT} == {kind for kind in TRANSFORMS if kind.apply is not Transform.apply}


@pytest.mark.parametrize("transform", BUILT, ids=lambda t: type(t).__name__)
class TestEach:
    def test_keeps_float32_and_its_input(self, transform):
        x = images()
        before = x.copy()
        assert transform.apply(x, draws()).dtype == np.float32
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

    def test_message_is_its_name(self, transform):
        assert transform.message == f"Transform.{type(transform).__name__}"


def test_numbers_are_float32_as_in_the_text_form():
    assert Scale(1 / 255).scale == float(np.float32(1 / 255)) != 1 / 255
    assert Scale(1 / 255) == Scale(float(np.float32(1 / 255)))


def test_place_in_a_text_is_not_compared():
    assert Scale(2.0, where="a:1:1") == Scale(2.0)


def test_scale():
    np.testing.assert_array_equal(Scale(0.25).apply(images(), draws()), images() * 0.25)


def test_white_becomes_one_and_not_more():
    white = np.full((1, 1, 1, 1), 255, dtype=np.float32)
    assert ToLBANNLayout().apply(white, draws(1)).item() == 1.0
    assert Scale(1 / 255).apply(white, draws(1)).item() == 1.0


def test_normalize_by_channel():
    x = Normalize("1 2 3", "4 5 8").apply(images(), draws())
    np.testing.assert_allclose(x[:, 2], (images()[:, 2].astype(float) - 3) / 8, rtol=1e-6)
    one = Normalize("10", "4").apply(images(), draws())
    np.testing.assert_allclose(one, (images().astype(float) - 10) / 4, rtol=1e-6)


def test_normalize_to_lbann_layout():
    x = NormalizeToLBANNLayout("0.4 0.5 0.6", "0.1 0.2 0.3").apply(images(), draws())
    np.testing.assert_allclose(x[:, 1], (images()[:, 1].astype(float) / 255 - 0.5) / 0.2, rtol=1e-5, atol=1e-6)


def test_sample_normalize():
    x = SampleNormalize().apply(images(), draws()).astype(float).reshape(6, -1)
    np.testing.assert_allclose(x.mean(1), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(1), 1, atol=1e-6)
    constant = np.full((1, 1, 3, 3), 7, dtype=np.float32)
    assert not SampleNormalize().apply(constant, draws(1)).any()


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


def test_colorize_and_grayscale():
    gray, colour = images(channels=1), images(channels=3)
    np.testing.assert_array_equal(Colorize().apply(gray, draws()), np.concatenate([gray] * 3, axis=1))
    np.testing.assert_array_equal(Colorize().apply(colour, draws()), colour)
    np.testing.assert_array_equal(Grayscale().apply(gray, draws()), gray)
    r, g, b = colour.astype(float).transpose(1, 0, 2, 3)
    np.testing.assert_allclose(Grayscale().apply(colour, draws())[:, 0], 0.299 * r + 0.587 * g + 0.114 * b, rtol=1e-6)


def brightness(x, f):
    return np.clip(f * x, 0, 255)


def gray_of(x):
    return (0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2])[None]


def contrast(x, f):
    return np.clip(f * x + (1 - f) * gray_of(x).mean(), 0, 255)


def saturation(x, f):
    return np.clip(f * x + (1 - f) * gray_of(x), 0, 255)


@pytest.mark.parametrize(
    ("kind", "formula"), [(AdjustBrightness, brightness), (AdjustContrast, contrast), (AdjustSaturation, saturation)]
)
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.75])
def test_adjustments(kind, formula, factor):
    y = kind(factor).apply(images(), draws())
    expected = np.stack([formula(x, factor) for x in images().astype(float)])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)


def test_color_jitter_is_one_of_the_six_sequences():
    x, f = images(300), draws(300).uniform(3).astype(np.float32)
    y = ColorJitter(0.5, 1.5, 0.6, 1.4, 0.7, 1.3).apply(x, draws(300))
    steps = {
        "b": lambda v, u: brightness(v, 0.5 + u[0]),
        "c": lambda v, u: contrast(v, 0.6 + 0.8 * u[1]),
        "s": lambda v, u: saturation(v, 0.7 + 0.6 * u[2]),
    }
    found = set()
    for i in range(len(x)):
        for sequence in ("bcs", "bsc", "cbs", "csb", "sbc", "scb"):
            value = x[i].astype(float)
            for step in sequence:
                value = steps[step](value, f[i])
            if np.allclose(value, y[i], rtol=1e-4, atol=1e-2):
                found.add(sequence)
                break
        else:
            pytest.fail(f"sample {i} is none of the six")
    assert len(found) >= 4  # some sequences agree where nothing is clipped


def test_color_jitter_leaves_out_what_has_no_range():
    np.testing.assert_array_equal(ColorJitter().apply(images(), draws()), images())


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
        (Resize(4, 4), "not implemented; these are: AdjustBrightness"),
    ],
)
def test_fields_that_cannot_be(transform, words):
    assert words in "; ".join(transform.problems())


def test_what_is_not_built_refuses_to_work():
    with pytest.raises(Unsupported, match="Resize"):
        Resize(4, 4).apply(images(), draws())
    with pytest.raises(Unsupported, match="Resize"):
        Resize(4, 4).output_shape((3, 7, 5))
