""""""

import itertools
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
import torch

from descend.data import ArrayReader, DataReader, Reader, open_readers
from descend.data.order import key_of
from descend.data.reader_protocol import Field
from descend.data.readers import SampleTransforms
from descend.data.transforms import (
    CenterCrop,
    Colorize,
    Cutout,
    HorizontalFlip,
    Mixup,
    Normalize,
    RandomCrop,
    RandomResizedCrop,
    Scale,
)
from descend.errors import ConfigurationError, DataError


@pytest.fixture
def counted(tmp_path, write_idx):
    """A folder with 200 samples of one element, whose value is their number."""
    write_idx(tmp_path / "x", np.arange(200, dtype=np.int32))
    write_idx(tmp_path / "y", np.zeros(200, dtype=np.uint8))
    return tmp_path


def opened(folder, seed=0, **fields):
    names = {"data_filedir": str(folder), "data_filename": "x", "label_filename": "y"}
    return open_readers(DataReader([Reader(name="mnist", role="train", **names, **fields)]), seed)


def numbers(reader) -> list[int]:
    """Which samples of the file a reader has, in its order."""
    return reader.read(np.arange(len(reader)))["samples"][:, 0].astype(int).tolist()


def test_all_samples_by_default(counted):
    for shuffle in (False, True):
        assert numbers(opened(counted, shuffle=shuffle)["train"]) == list(range(200))
        assert numbers(opened(counted, shuffle=shuffle, fraction_of_data_to_use=1.0)["train"]) == list(range(200))


def test_the_batches_know_whether_to_shuffle(counted):
    readers = opened(counted, shuffle=True, validation_fraction=0.1)
    assert (readers["train"].shuffle, readers["validate"].shuffle) == (True, False)


@pytest.mark.parametrize("amount", [{"fraction_of_data_to_use": 0.25}, {"absolute_sample_count": 50}])
def test_part_of_the_samples(counted, amount):
    assert numbers(opened(counted, **amount)["train"]) == list(range(50))
    drawn = numbers(opened(counted, shuffle=True, **amount)["train"])
    assert len(set(drawn)) == 50
    assert max(drawn) > 150  # not the first ones
    assert drawn == numbers(opened(counted, shuffle=True, **amount)["train"])
    assert drawn != numbers(opened(counted, seed=1, shuffle=True, **amount)["train"])


def test_first_n_comes_before_everything(counted):
    assert numbers(opened(counted, first_n=30)["train"]) == list(range(30))
    parts = opened(counted, shuffle=True, first_n=40, fraction_of_data_to_use=0.5, validation_fraction=0.25)
    assert {role: len(reader) for role, reader in parts.items()} == {"train": 15, "validate": 5}
    chosen = [n for reader in parts.values() for n in numbers(reader)]
    assert len(set(chosen)) == 20
    assert max(chosen) < 40


@pytest.mark.parametrize("shuffle", [False, True])
def test_held_out_samples(counted, shuffle):
    parts = opened(counted, shuffle=shuffle, validation_fraction=0.2, tournament_fraction=0.1)
    assert {role: len(reader) for role, reader in parts.items()} == {"train": 140, "validate": 40, "tournament": 20}
    chosen = {role: numbers(reader) for role, reader in parts.items()}
    assert sorted(itertools.chain(*chosen.values())) == list(range(200))
    # A file that is sorted by class is not held out by its end: the mean number is 100 ± 4 standard deviations.
    assert 65 < np.mean(chosen["validate"]) < 135
    if not shuffle:
        assert all(part == sorted(part) for part in chosen.values())


def test_what_is_held_out_is_a_function_of_the_seed(counted):
    same = [numbers(opened(counted, seed, validation_fraction=0.2)["validate"]) for seed in (5, 5, 6)]
    assert same[0] == same[1] != same[2]


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ({"absolute_sample_count": 201}, "absolute_sample_count asks for 201 samples and there are 200"),
        ({"first_n": 201}, "first_n asks for 201"),
        ({"validation_fraction": 0.001}, "200 samples leave none for the role 'validate'; change validation_fraction"),
        ({"fraction_of_data_to_use": 0.001}, "0 samples leave none for the role 'train'"),
    ],
)
def test_amounts_that_cannot_be_had(counted, amount, words):
    with pytest.raises(DataError, match=words):
        opened(counted, **amount)


def test_problems_of_all_readers_at_once(tmp_path):
    description = DataReader([Reader(name="mnist", role=r, data_filedir=str(tmp_path)) for r in ("train", "test")])
    with pytest.raises(DataError) as caught:
        open_readers(description)
    assert [text.split(":")[0] for text in caught.value.problems] == ["reader 'mnist' (train)", "reader 'mnist' (test)"]


def digits(seed=0, role="train", **fields):
    return open_readers(DataReader([Reader(name="digits", role=role, **fields)]), seed)[role]


def test_fields_are_those_after_the_transforms():
    reader = digits(transforms=[RandomCrop(6, 5), Scale(1 / 16)])
    assert reader.fields["samples"].shape == (1, 6, 5)
    assert reader.read(np.arange(3))["samples"].shape == (3, 1, 6, 5)
    assert reader.read(np.arange(3))["samples"].max() <= 1


@pytest.mark.parametrize("transform", [CenterCrop(9, 9), Normalize("1 2", "1 2")])
def test_transforms_that_do_not_fit_are_found_when_opened(transform):
    with pytest.raises(ConfigurationError, match=r"reader 'digits' \(train\): transform"):
        digits(transforms=[transform])


def test_what_a_sample_gets_depends_on_seed_epoch_and_sample_alone():
    random = [RandomCrop(6, 6), HorizontalFlip(0.5), Cutout(1, 2)]
    reader, ids = digits(transforms=random), np.arange(100)
    first = reader.read(ids, epoch=0)["samples"]
    np.testing.assert_array_equal(reader.read(ids[::-1], epoch=0)["samples"][::-1], first)
    np.testing.assert_array_equal(reader.read(ids[40:41], epoch=0)["samples"][0], first[40])

    def changed(other):
        return (other != first).any(axis=(1, 2, 3)).mean()

    assert changed(reader.read(ids, epoch=1)["samples"]) > 0.9
    assert changed(digits(seed=1, transforms=random).read(ids)["samples"]) > 0.9


def test_augmentation_of_a_sample_does_not_depend_on_the_part_it_is_in():
    """The same image gets the same treatment whether others are held out or not."""
    random = [RandomCrop(6, 6)]
    whole = digits(transforms=random)
    part = digits(transforms=random, validation_fraction=0.5)
    all_images = {image.tobytes() for image in whole.read(np.arange(len(whole)))["samples"]}
    assert {image.tobytes() for image in part.read(np.arange(len(part)))["samples"]} <= all_images


def test_arrays_under_any_names():
    reader = ArrayReader({"x": np.arange(12.0).reshape(4, 3), "mask": np.array([True, False, True, True])})
    assert len(reader) == 4
    assert (reader.role, reader.shuffle) == ("train", True)
    assert reader.fields["x"].shape == (3,)
    assert reader.fields["mask"].shape == ()
    assert reader.fields["mask"].dtype == bool
    batch = reader.read(np.array([2, 0]))
    assert batch["x"].tolist() == [[6, 7, 8], [0, 1, 2]]
    assert batch["mask"].tolist() == [True, True]
    assert ArrayReader({"x": np.zeros(3)}, role="test").shuffle is False


def test_lists_and_tensors_are_arrays():
    rows = ArrayReader({"x": [[1.0, 2.0], [3.0, 4.0]], "y": torch.tensor([5, 6])}).read(np.array([1]))
    assert (rows["x"].tolist(), rows["y"].tolist(), rows["y"].dtype) == ([[3.0, 4.0]], [6], np.int64)


@pytest.mark.parametrize("given", [3, [[1.0], [1.0, 2.0]]])
def test_what_is_no_array_is_refused(given):
    with pytest.raises(DataError, match="'x' must be an array with an entry for each sample"):
        ArrayReader({"x": given})


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "no arrays"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "'x': 3, 'y': 4"),
        ({"x": np.zeros((0, 2))}, "empty"),
    ],
)
def test_arrays_that_are_no_data_set(arrays, words):
    with pytest.raises(DataError, match=words):
        ArrayReader(arrays)


def test_no_torch():
    code = (
        "import sys, numpy as np, descend.zoo\n"
        "from descend.data import Batches, open_readers\n"
        "reader = open_readers(descend.zoo.digits(), 1)['train']\n"
        "next(Batches(reader, 8, 1, True).epoch(0))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- single images and whole batches go through the same transforms, with the same random numbers

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
