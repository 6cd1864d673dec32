"""A transformed field is that of the transforms, with random numbers of the run."""

import numpy as np
import pytest
from PIL import Image

from descend.data import Loading, open_data, read, transform
from descend.data.order import Draws, key_of
from descend.data.transforms import HorizontalFlip, Mixup, Normalize, RandomCrop, Resize, Scale
from descend.errors import ConfigurationError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (10, 3, 8, 8)).astype(np.uint8)
COLUMNS = {"image": X, "label": np.arange(10)}
CROP = [RandomCrop(5, 6), HorizontalFlip(0.5)]


def test_each_sample_has_random_numbers_of_its_own():
    reader = transform(read(COLUMNS), CROP, "image")
    ids = np.array([7, 2, 7])
    found = reader.read(ids)
    assert reader.fields["image"].shape == (3, 5, 6)
    assert found["image"].dtype == reader.fields["image"].dtype == np.uint8
    np.testing.assert_array_equal(found["image"][0], found["image"][2])
    np.testing.assert_array_equal(found["image"][1], reader.read(np.array([2]))["image"][0])
    np.testing.assert_array_equal(found["label"], ids)
    assert (found["image"] != reader.read(ids, epoch=1)["image"]).any()
    draws = Draws(key_of("epoch", int(key_of("transform", 0, "train", "image")), 0), ids)
    wanted = X[ids]
    for one in CROP:
        wanted = one.apply(wanted, draws)
    np.testing.assert_array_equal(found["image"], wanted)


def batches(reader, seed, epoch=0, size=4):
    found = {}
    for batch in open_data(reader, Loading(batch_size=size, seed=seed)).epoch(epoch):
        found |= dict(zip(batch.ids.tolist(), np.asarray(batch.fields["image"]), strict=True))
    return np.stack([found[number] for number in range(10)])


def test_a_run_has_its_own_and_batches_change_nothing():
    reader = transform(read(COLUMNS), CROP, "image")
    first = batches(reader, seed=3)
    np.testing.assert_array_equal(first, batches(reader, seed=3, size=7))
    assert (first != batches(reader, seed=4)).any()
    assert (first != batches(reader, seed=3, epoch=1)).any()


@pytest.fixture
def folder(tmp_path):
    for number, array in enumerate(X):
        Image.fromarray(array.transpose(1, 2, 0)).save(tmp_path / f"{number}.png")
    return tmp_path


def test_images_of_files(folder):
    """`fit` scales bytes to [0, 1], and what a transform scaled it leaves as it is."""
    plain = transform(folder, [Resize(4, 4)])
    assert plain.pixels == {"image"}
    scaled = transform(folder, [Resize(4, 4), Scale(0.5)])
    assert scaled.pixels == frozenset()
    whole = plain.read(np.arange(10))["image"]
    np.testing.assert_array_equal(scaled.read(np.arange(10))["image"], whole * np.float32(0.5))
    np.testing.assert_allclose(batches(plain, 0), whole / 255, rtol=1e-6)
    np.testing.assert_array_equal(batches(scaled, 0), whole * np.float32(0.5))


@pytest.mark.parametrize(
    ("transforms", "field", "words"),
    [
        (CROP, "imgae", "there is no field 'imgae'; did you mean 'image'?"),
        (CROP, None, "field= must name a field"),
        (CROP, "label", "needs images"),
        ([], "image", "there are no transforms"),
        (["flip"], "image", "'flip' is none of"),
        ([Mixup(0.2)], "image", "mixes two samples"),
        ([Scale()], "image", "transform Scale: scale is 0"),
        ([Normalize("1 2", "1 2")], "image", "2 means"),
        ([RandomCrop(9, 9)], "image", "cuts 9 x 9"),
    ],
)
def test_what_does_not_fit(transforms, field, words):
    with pytest.raises(ConfigurationError) as caught:
        transform(read(COLUMNS), transforms, field)
    assert words in str(caught.value)
