"""LBANN's reader "python_dataset": samples of a pickled object that the starting process has signed."""

import hashlib
import hmac
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from descend.arguments.leniency import lenient
from descend.data import DataReader, Reader, open_readers
from descend.data.description import PythonDatasetReader
from descend.data.formats.python_dataset import KEY_VARIABLE
from descend.errors import ConfigurationError, DataError

KEY = "a key of this test"


class Numbers:
    """Three samples with labels."""

    dims = SimpleNamespace(sample=[2, 2], label=3)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 2:
            raise IndexError("gone")
        return SimpleNamespace(sample=np.full((2, 2), index), label=np.eye(3)[index], response=1)

    def get_sample_dims(self):
        return self.dims


class Wild:
    """Its pickle would run code."""

    def __reduce__(self):
        return (print, ("this was run",))


def written(folder, dataset, key=KEY, monkeypatch=None):
    data = pickle.dumps(dataset)
    (folder / "set.pkl").write_bytes(data)
    (folder / "set.pkl.signature").write_text(hmac.new(key.encode(), data, hashlib.sha256).hexdigest() + "\n")
    return folder / "set.pkl"


def opened(path):
    settings = PythonDatasetReader(dataset_path=str(path), module_dir=str(path.parent))
    return open_readers(DataReader([Reader(name="python_dataset", role="train", python_dataset=settings)]))["train"]


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])


def test_samples_are_those_of_the_object(key, tmp_path):
    with lenient():
        reader = opened(written(tmp_path, Numbers()))
    assert len(reader) == 3
    assert {name: field.shape for name, field in reader.fields.items()} == {"samples": (2, 2), "labels": (3,)}
    batch = reader.read(np.array([1, 0]))
    assert batch["samples"].tolist() == [[[1, 1], [1, 1]], [[0, 0], [0, 0]]]
    assert batch["labels"].tolist() == [[0, 1, 0], [1, 0, 0]]


def test_a_sample_that_cannot_be_taken_is_named(key, tmp_path):
    with lenient():
        reader = opened(written(tmp_path, Numbers()))
    with pytest.raises(DataError, match="sample 2 raises IndexError: gone"):
        reader.read(np.array([2]))


@pytest.mark.parametrize("why", ["no key", "another key", "no signature", "changed"])
def test_nothing_is_read_that_is_not_signed(why, key, tmp_path, monkeypatch, capsys):
    path = written(tmp_path, Wild(), "another" if why == "another key" else KEY)
    if why == "no key":
        monkeypatch.delenv(KEY_VARIABLE)
    if why == "no signature":
        path.with_name("set.pkl.signature").unlink()
    if why == "changed":
        path.write_bytes(path.read_bytes() + b" ")
    with (
        lenient(),
        pytest.raises(DataError, match=r"it is not signed by the process that started this driver.*lbann\.run"),
    ):
        opened(path)
    assert "this was run" not in capsys.readouterr().out


def test_no_other_door_reads_it(key, tmp_path, capsys):
    with pytest.raises(ConfigurationError, match="runs code of its own"):
        opened(written(tmp_path, Wild()))
    assert "this was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (3, "cannot be used: TypeError"),
        (SimpleNamespace(), "cannot be used"),
    ],
)
def test_what_is_no_data_set_is_said(dataset, message, key, tmp_path):
    with lenient(), pytest.raises(DataError, match=message):
        opened(written(tmp_path, dataset))


def test_a_data_set_without_dimensions_of_its_samples_is_refused(key, tmp_path, monkeypatch):
    monkeypatch.setattr(Numbers, "dims", SimpleNamespace(label=3))
    with lenient(), pytest.raises(DataError, match="has no dimensions of sample"):
        opened(written(tmp_path, Numbers()))


def test_a_missing_file_is_named(key, tmp_path):
    with lenient(), pytest.raises(DataError, match=r"set\.pkl cannot be read"):
        opened(tmp_path / "set.pkl")
