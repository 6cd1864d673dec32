""""""

import numpy as np
import pytest
from data.transforms.samples import draws, images

from descend.data.transforms import (
    AdjustBrightness,
    AdjustContrast,
    AdjustSaturation,
    Colorize,
    ColorJitter,
    Grayscale,
    Normalize,
    NormalizeToLBANNLayout,
    SampleNormalize,
    Scale,
    ToLBANNLayout,
)


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


def test_bytes_become_the_same_as_floats():
    for transform in (Scale(0.3), Normalize("3", "7"), ToLBANNLayout(), SampleNormalize()):
        pixels = transform.apply(images(dtype=np.uint8), draws())
        np.testing.assert_array_equal(pixels, transform.apply(images(), draws()))


# ---- each formula in float64, one sample at a time


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


def rounded(x):
    return np.clip(np.rint(x), 0, 255)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.75])
def test_bytes_are_rounded_after_each_step(factor):
    """LBANN's arithmetic: the gray image is rounded before it is blended."""
    x = images(dtype=np.uint8)
    f = float(np.float32(factor))
    for sample, bright, contrasted, saturated in zip(
        x.astype(float),
        *(kind(factor).apply(x, draws()) for kind in (AdjustBrightness, AdjustContrast, AdjustSaturation)),
        strict=True,
    ):
        gray = rounded(gray_of(sample))
        for found, wanted in (
            (bright, f * sample),
            (contrasted, f * sample + (1 - f) * gray.mean()),
            (saturated, f * sample + (1 - f) * gray),
        ):
            clear = np.abs(wanted - np.floor(wanted) - 0.5) > 1e-3  # a half may fall on either side in float32
            np.testing.assert_array_equal(found[clear], rounded(wanted)[clear])
            assert clear.mean() > 0.5


def test_gray_of_bytes():
    colour = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [1, 2, 3]], np.uint8).reshape(5, 3, 1, 1)
    assert Grayscale().apply(colour, draws(5)).ravel().tolist() == [76, 150, 29, 255, 2]
