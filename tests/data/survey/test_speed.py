"""Speeds of a reader whose time is known, and transforms from the command line."""

import time

import numpy as np
import pytest

from descend.data import read
from descend.data.survey import survey
from descend.data.survey.speed import parsed_transforms, samples_per_second
from descend.data.transforms import HorizontalFlip, Normalize, RandomCrop
from descend.errors import ConfigurationError, DataError


class Clocked:
    """Each sample takes a thousandth of a second of a clock that the reader turns."""

    role = "train"

    def __init__(self, monkeypatch, count, bad=()):
        self.count, self.bad, self.now, self.asked = count, bad, 0.0, []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def __len__(self):
        return self.count

    def read(self, indices, epoch=0):
        self.now += 0.001 * len(indices)
        self.asked.append(indices.tolist())
        if set(self.bad) & set(indices.tolist()):
            raise DataError("bad")
        return {}


def test_the_speed_is_that_of_the_reader_in_random_order(monkeypatch):
    reader = Clocked(monkeypatch, 1000)
    assert samples_per_second(reader, 0.5) == pytest.approx(1000)
    first = [i for batch in reader.asked[:15] for i in batch]
    assert len(set(first)) == len(first)  # an epoch has each sample once
    assert first != sorted(first)


def test_few_samples_and_bad_ones(monkeypatch):
    assert samples_per_second(Clocked(monkeypatch, 3), 0.1) == pytest.approx(1000)
    assert samples_per_second(Clocked(monkeypatch, 3, bad=[0, 1, 2]), 0.1) is None


def test_transforms_are_read_and_nothing_is_run():
    wanted = [RandomCrop(24, 20), HorizontalFlip(p=0.5), Normalize("0.5", "0.25")]
    assert parsed_transforms(["RandomCrop(24, 20)", "HorizontalFlip(p=0.5)", "Normalize('0.5', '0.25')"]) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RandomCorp(1, 2)", "no transform 'RandomCorp'; did you mean 'RandomCrop'"),
        ("RandomCrop(size=3)", "RandomCrop has no option 'size'"),
        ("RandomCrop(1, 2, 3)", "transform RandomCrop: .*arguments"),
        ("RandomCrop(open('x'))", "written as NAME"),
        ("os.system('x')", "written as NAME"),
        ("3 +", "written as NAME"),
        ("(" * 5000, "written as NAME"),
    ],
)
def test_what_is_no_transform(text, words):
    with pytest.raises(ConfigurationError, match=words):
        parsed_transforms([text])


def test_a_survey_has_both_speeds(command, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20 * 64, dtype=np.float32).reshape(20, 1, 8, 8))
    reader = read(tmp_path / "x.npy")
    found = survey({"train": reader}, transforms=[RandomCrop(4, 4)], seconds=0.01)
    assert found.speed > 0
    assert found.transformed_speed > 0
    assert survey({"train": reader}, seconds=0.01).transformed_speed is None
    with pytest.raises(ConfigurationError, match="cuts 9 x 9 out of images of 8 x 8"):
        survey({"train": reader}, transforms=[RandomCrop(9, 9)], seconds=0.01)
    assert "with transforms" in command("data", str(tmp_path / "x.npy"), "--transform", "RandomCrop(4, 4)")
