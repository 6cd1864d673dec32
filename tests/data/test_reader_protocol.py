"""Values of the reader protocol: fields that can be compared, and one-hot rows."""

import dataclasses

import numpy as np
import pytest

from descend.data.reader_protocol import Field, Format, one_hot


def test_one_hot():
    rows = one_hot(np.array([2, 0]), 3)
    np.testing.assert_array_equal(rows, [[0, 0, 1], [1, 0, 0]])
    assert rows.dtype == np.float32
    assert one_hot(np.array([], dtype=int), 3).shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_one_hot_is_a_row_of_the_identity_for_each_label(dtype):
    labels = np.random.default_rng(0).integers(0, 200, 50).astype(dtype)
    np.testing.assert_array_equal(one_hot(labels, 200), np.eye(200, dtype=np.float32)[labels])


def test_a_label_beyond_the_classes_is_an_error():
    with pytest.raises(IndexError):
        one_hot(np.array([3]), 3)


def test_fields_and_formats_are_values():
    assert Field((2,), np.dtype("f4")) == Field((2,), np.dtype(np.float32))
    assert Field((2,), np.dtype("f4")) != Field((2,), np.dtype("f8"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Format(open=lambda reader, seed: None, uses=frozenset()).uses = frozenset({"a"})
