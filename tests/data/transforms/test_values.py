import numpy as np
from data.transforms.samples import draws, images

from descend.data.transforms import Normalize, NormalizeToLBANNLayout, SampleNormalize, Scale, ToLBANNLayout


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
