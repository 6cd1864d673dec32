"""Single images and whole batches go through the same transforms, with the same random numbers."""

from typing import ClassVar

import numpy as np
import pytest

from descend.data.counter_rng import key_of
from descend.data.reader_protocol import Field
from descend.data.sample_transforms import SampleTransforms
from descend.data.transforms import Colorize, HorizontalFlip, Mixup, Normalize, RandomCrop, RandomResizedCrop, Scale
from descend.errors import ConfigurationError, DataError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 3, 12, 10)).astype(np.uint8)
KEY = key_of("test")


class Batch:
    """Images of one shape."""

    fields: ClassVar = {"samples": Field((3, 12, 10), np.dtype(np.uint8))}


class Single:
    """The same images one by one, or others."""

    fields: ClassVar = {"samples": Field((-1, -1, -1), np.dtype(np.uint8))}
    blue_first = False

    def __init__(self, images=IMAGES, images_per_sample=1):
        self._images, self.images_per_sample = images, images_per_sample

    def images(self, sample, which):
        return self._images[sample]


CHAIN = [RandomResizedCrop(9, 9), RandomCrop(8, 7), HorizontalFlip(0.5), Normalize("1 2 3", "4 5 6")]


@pytest.mark.parametrize("transforms", [CHAIN, CHAIN[1:], [Colorize(), *CHAIN], [Scale(0.5), RandomCrop(4, 4)]])
def test_one_by_one_is_all_at_once(transforms):
    numbers = np.array([3, 1, 5])
    together = SampleTransforms(Batch(), transforms, KEY)
    alone = SampleTransforms(Single(), transforms, KEY)
    wanted = together.apply(IMAGES[numbers], numbers, 2)
    np.testing.assert_array_equal(alone.apply(None, numbers, 2), wanted)
    assert alone.output_shape() == together.output_shape() == wanted.shape[1:]


def test_large_images_one_by_one_are_all_at_once():
    """Those that a thread finishes alone, and those that it finishes together."""
    for side in (250, 80):
        images = RNG.integers(0, 256, (5, 3, side, side)).astype(np.uint8)
        transforms = [RandomCrop(side - 5, side - 3), HorizontalFlip(0.5), Normalize("1 2 3", "4 5 6")]
        numbers = np.array([4, 0, 2, 1, 3])
        wanted = SampleTransforms(Batch(), transforms, KEY).apply(images[numbers], numbers, 1)
        found = SampleTransforms(Single(images), transforms, KEY).apply(None, numbers, 1)
        np.testing.assert_array_equal(found, wanted)


def test_colours_are_reversed_before_the_first_transform_of_values():
    source = Single()
    source.blue_first = True
    normal = SampleTransforms(source, [Normalize("10 20 30", "1 1 1")], KEY)
    wanted = IMAGES[:2, ::-1] - np.array([10, 20, 30], np.float32).reshape(3, 1, 1)
    np.testing.assert_array_equal(normal.apply(None, np.arange(2), 0), wanted)


def test_several_images_of_a_sample_have_random_numbers_of_their_own():
    two = SampleTransforms(Single(images_per_sample=2), [RandomCrop(4, 4)], KEY)
    found = two.apply(None, np.arange(6), 0)
    assert found.shape == (6, *two.output_shape()) == (6, 6, 4, 4)
    assert (found[:, :3] != found[:, 3:]).any()


def test_shapes_that_differ():
    source = Single([IMAGES[0], IMAGES[1][:, :5]])
    with pytest.raises(DataError, match=r"images differ in shape: \(3, 5, 10\) of sample 1 and \(3, 12, 10\)"):
        SampleTransforms(source, [], KEY).apply(None, np.arange(2), 0)
    with pytest.raises(ConfigurationError, match="cuts 8 x 8"):
        SampleTransforms(source, [RandomCrop(8, 8)], KEY).apply(None, np.arange(2), 0)


def test_mixing_is_found():
    chain = SampleTransforms(Batch(), [Scale(0.5), Mixup(1.0)], KEY)
    assert chain.mixing == [Mixup(1.0)]
    numbers = np.arange(6)
    np.testing.assert_array_equal(chain.apply(IMAGES, numbers, 0), IMAGES * np.float32(0.5))
