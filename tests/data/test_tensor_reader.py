"""Tensors in memory as samples."""

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from descend.data.tensor_reader import is_array, tensor_reader
from descend.errors import DataError

X = torch.arange(20.0).reshape(10, 2)


def test_rows_are_gathered_by_index():
    reader = tensor_reader({"x": X, "y": np.arange(10)}, "test")
    assert (len(reader), reader.role) == (10, "test")
    found = reader.read(np.array([7, 0, 7]))
    assert torch.equal(found["x"], X[[7, 0, 7]])
    assert found["y"].tolist() == [7, 0, 7]


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
