import gzip
import string
from pathlib import Path

import numpy as np
import pytest
from system_needs import FASHION_MNIST, needs_fashion_mnist

from descend import zoo
from descend.data import open_readers
from descend.errors import DataError


def test_digits():
    readers = open_readers(zoo.digits())
    assert list(readers) == ["train", "validate", "test"]
    assert [reader.shuffle for reader in readers.values()] == [True, False, False]
    for reader in readers.values():
        batch = reader.read(np.arange(len(reader)))
        assert batch["samples"].shape[1:] == reader.fields["samples"].shape == (1, 8, 8)
        assert batch["labels"].shape[1:] == reader.fields["labels"].shape == (10,)
        assert (batch["samples"].min(), batch["samples"].max()) == (0, 1)
    assert sum(map(len, readers.values())) == 1797


@needs_fashion_mnist
def test_fashion_mnist(monkeypatch):
    monkeypatch.delenv("DESCEND_DATA_DIR", raising=False)
    readers = open_readers(zoo.fashion_mnist())
    assert {role: len(reader) for role, reader in readers.items()} == {
        "train": 59_000,
        "validate": 1_000,
        "test": 10_000,
    }
    content = gzip.decompress((FASHION_MNIST / "t10k-images-idx3-ubyte.gz").read_bytes())
    pixels = np.frombuffer(content[16:], np.uint8).reshape(10_000, 1, 28, 28)
    batch = readers["test"].read(np.arange(10_000))
    np.testing.assert_allclose(batch["samples"], pixels / 255, rtol=1e-6)
    assert batch["samples"].max() == 1
    assert (batch["labels"].sum(0) == 1000).all()
    assert len(open_readers(zoo.fashion_mnist(validation_fraction=0))["train"]) == 60_000


def test_fashion_mnist_is_looked_for_where_the_environment_says(monkeypatch, tmp_path):
    (tmp_path / "fashion-mnist").mkdir()
    monkeypatch.setenv("DESCEND_DATA_DIR", str(tmp_path))
    assert {reader.data_filedir for reader in zoo.fashion_mnist().reader} == {str(tmp_path / "fashion-mnist")}
    assert zoo.fashion_mnist(tmp_path).reader[0].data_filedir == str(tmp_path)


def test_fashion_mnist_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="apt install dataset-fashion-mnist") as caught:
        zoo.fashion_mnist(tmp_path / "nowhere")
    assert "train-images-idx3-ubyte.gz" in str(caught.value)


def test_a_text_that_every_python_has(monkeypatch, tmp_path):
    train, validate = (zoo.python_text(role, length=128) for role in ("train", "validate"))
    assert (train.role, validate.role, train.vocabulary) == ("train", "validate", 257)
    assert 5 < len(train) / len(validate) < 20
    first = sorted(path for path in Path(string.__file__).parent.glob("*.py") if path.stat().st_size)[0]
    tokens = train.read(np.arange(2))["input"].ravel()
    assert bytes(tokens[:200].astype(np.uint8)) == first.read_bytes()[:200]
    with pytest.raises(DataError, match="has the roles train and validate, got 'test'"):
        zoo.python_text("test")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match=r"no modules of Python's library .* descend.data.read\('a.txt'\)"):
        zoo.python_text()
