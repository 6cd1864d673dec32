"""What one file may ask for, in entries, bytes, operations and layers."""

import pytest

from descend.onnx import values as budget
from descend.onnx.values import MAX_ENTRIES, Budget, UnsupportedNode


def test_one_array_has_a_bound():
    Budget().array(MAX_ENTRIES, itemsize=1)
    with pytest.raises(UnsupportedNode, match=r"computes a constant of more than 100,000,000 entries"):
        Budget().array(MAX_ENTRIES + 1, itemsize=1)
    with pytest.raises(UnsupportedNode, match="entries"):
        Budget().array(10**9, 10**9, 10**9)  # as Python's integers, which do not overflow


def test_all_arrays_together_have_a_bound():
    left = Budget()
    for _ in range(4):
        left.array(10**4, 10**3, itemsize=10)
    with pytest.raises(UnsupportedNode, match="constants of more than 400,000,000 bytes in all"):
        left.array(1)


def test_operations_are_those_that_are_said_or_one_for_each_entry(monkeypatch):
    monkeypatch.setattr(budget, "_OPERATIONS", 1000)
    left = Budget()
    left.array(10, 40)
    left.array(1, operations=600)
    with pytest.raises(UnsupportedNode, match="computes constants that take too long"):
        left.array(1, operations=1)


def test_bounds_grow_with_the_file():
    """A model of 1 GB may transpose its weights; without that a small file of as many nodes could ask for the same."""
    Budget(file_bytes=10**9).array(10**9, itemsize=1)
    many = Budget(nodes=10)
    for _ in range(100_000 + 1000):
        many.layer((1,))
    with pytest.raises(UnsupportedNode, match="far more layers than the file has nodes"):
        many.layer((1,))


def test_a_layer_gives_no_more_than_memory_holds():
    Budget().layer((2**24, 2**24))
    with pytest.raises(UnsupportedNode, match="gives a tensor that no memory holds"):
        Budget().layer((2**24, 2**25))
