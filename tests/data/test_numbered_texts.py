"""Text in arrays that names classes."""

import copy

import numpy as np
import pytest
import torch

import descend
from descend.data import read
from descend.errors import DataError

LABELS = np.array(["dog", "cat", "owl", "cat"])


@pytest.mark.parametrize("labels", [LABELS, LABELS.astype("S")])
def test_classes_are_numbered_in_the_order_of_the_alphabet(tmp_path, labels, monkeypatch):
    monkeypatch.setattr("descend.data.numbered_texts._READ_AT_ONCE", 3)
    np.savez(tmp_path / "a.npz", x=np.arange(4.0), y=labels)
    reader = copy.deepcopy(read(tmp_path / "a.npz", target="y"))  # by the methods that send it to a worker
    assert reader.classes == {"y": ["cat", "dog", "owl"]}
    assert reader.fields["y"].dtype == np.int64
    assert reader.read(np.array([3, 0, 2]))["y"].tolist() == [0, 1, 2]
    assert reader.column("y").tolist() == [1, 0, 2, 0]
    assert read(tmp_path / "a.npz").fields["y"].dtype == labels.dtype


def test_classes_that_are_given_keep_their_order(tmp_path):
    np.save(tmp_path / "a.npy", np.array([("dog", 1), ("cat", 2)], dtype=[("kind", "U3"), ("n", "i4")]))
    reader = read(tmp_path / "a.npy", label="kind", classes=["dog", "cat"])
    assert reader.read(np.arange(2))["kind"].tolist() == [0, 1]
    reader = read(tmp_path / "a.npy", label="kind", classes=["dog"])
    with pytest.raises(DataError, match=r"sample 1 .*'cat' in 'kind' is none of its classes: dog"):
        reader.read(np.arange(2))


def test_a_module_learns_them(tmp_path):
    """Numbers of 128 bits, which torch does not have, beside them."""
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3), np.longdouble), y=LABELS)
    module = torch.nn.Linear(3, 3)
    torch.nn.init.zeros_(module.bias)
    descend.fit(
        module,
        "cross_entropy",
        tmp_path / "a.npz",
        targets=["y"],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        batch_size=4,
        stop=descend.Epochs(1),
    )
    assert int(module.bias.argmax()) == 0  # "cat", which is half of them
