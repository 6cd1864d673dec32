"""Tensors in memory as samples."""

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from descend.data.loading.batches import Batches
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


@pytest.mark.parametrize("chosen", [None, [4, 9, 2, 6, 5, 0]])
def test_batches_for_a_gpu_are_gathered_where_they_are_sent_from(monkeypatch, chosen):
    """Large fields in page-locked memory, at once, and class numbers as ever; the values are the same."""
    pinned, empty = [], torch.empty

    def unpinned(*shape, pin_memory=False, **options):
        pinned.append(pin_memory)
        return empty(*shape, **options)

    wide = torch.randn(10, 3, 40, 200).to(memory_format=torch.channels_last).requires_grad_()
    data = TensorDataset(wide, torch.arange(10))
    data = data if chosen is None else Subset(data, chosen)
    reader, other = tensor_reader(data, "test", pin_memory=True), tensor_reader(data, "test")
    expected = other.read(np.array([3, 0, 5]))
    monkeypatch.setattr(torch, "empty", unpinned)
    found = reader.read(np.array([3, 0, 5]))
    assert pinned == [True, False]
    assert all(torch.equal(found[name], rows) and not found[name].requires_grad for name, rows in expected.items())
    in_order = reader.read_consecutive(1, 3)
    assert pinned == [True, False] * 2
    assert all(torch.equal(rows, other.read(np.arange(1, 4))[name]) for name, rows in in_order.items())
    in_order["0"].data.zero_()
    assert float(wide.detach().abs().min()) > 0
    assert len(reader.read(np.zeros(0, dtype=np.int64))["1"]) == 0


def test_sparse_rows_are_read_for_a_gpu_as_ever():
    found = tensor_reader((X.to_sparse(),), "test", pin_memory=True).read(np.array([3, 1]))
    assert torch.equal(found["0"].to_dense(), X[[3, 1]])


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
