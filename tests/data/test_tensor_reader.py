"""Tensors in memory as samples."""

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from descend.data.batches import Batches
from descend.data.tensor_reader import is_array, tensor_reader
from descend.errors import DataError

X = torch.arange(20.0).reshape(10, 2)


def test_rows_are_gathered_by_index():
    reader = tensor_reader({"x": X, "y": np.arange(10)}, "test")
    assert (len(reader), reader.role) == (10, "test")
    found = reader.read(np.array([7, 0, 7]))
    assert torch.equal(found["x"], X[[7, 0, 7]])
    assert found["y"].tolist() == [7, 0, 7]


@pytest.mark.parametrize("chosen", [None, [4, 9, 2, 6, 5, 0]])
def test_consecutive_rows_are_those_of_their_indices_in_memory_of_their_own(chosen):
    images = torch.randn(10, 3, 4, 4).to(memory_format=torch.channels_last)
    data = TensorDataset(images, X.t().contiguous().t())
    reader = tensor_reader(data if chosen is None else Subset(data, chosen), "test")
    found, expected = reader.read_consecutive(2, 3), reader.read(np.arange(2, 5))
    for name, rows in expected.items():
        assert torch.equal(found[name], rows)
        assert found[name].stride() == rows.stride()
        found[name].zero_()
    assert torch.equal(reader.read(np.arange(2, 5))["0"], expected["0"])


def test_batches_in_order_are_read_as_consecutive_samples():
    """A batch that a module writes to is a copy, whether or not samples are in order."""
    for shuffle in (False, True):
        for rank in (0, 1):
            batches = Batches(tensor_reader((X,), "train"), 4, seed=0, shuffle=shuffle, rank=rank, ranks=2)
            for batch in batches.epoch(0):
                assert torch.equal(batch.fields["0"], X[batch.ids])
                batch.fields["0"].fill_(-1)
    assert torch.equal(X, torch.arange(20.0).reshape(10, 2))


def test_subsets_count_from_the_end_as_torch_does():
    part = Subset(TensorDataset(X), [-1, 0])
    assert torch.equal(tensor_reader(part, "train").read(np.arange(2))["0"], X[[-1, 0]])
    with pytest.raises(DataError, match="index 10, and its data set has 10 samples"):
        tensor_reader(Subset(TensorDataset(X), [10]), "train")


def test_what_is_not_in_memory_is_left_to_others():
    assert tensor_reader([X], "train") is None
    assert tensor_reader((X, [1]), "train") is None
    assert is_array(X)
    assert not is_array([1.0])
    with pytest.raises(DataError, match="0 samples"):
        tensor_reader((X[:0],), "train")
