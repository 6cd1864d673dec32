"""The data sets of lbann.contrib.data."""

import numpy as np
import pytest

import descend.lbann.contrib.data as data
from descend.errors import ConfigurationError
from descend.lbann.util.data import Dataset


def test_rows_of_arrays_are_samples():
    rows = data.ArrayDataset(np.arange(12).reshape(2, 3, 2), response=[5, 7])
    assert isinstance(rows, Dataset)
    assert len(rows) == 2
    assert rows[1].sample.tolist() == [[6, 7], [8, 9], [10, 11]]
    assert rows[1].response == 7
    dims = rows.get_sample_dims()
    assert dims.sample == (3, 2)
    assert dims.response == (1,)
    assert not hasattr(dims, "label")


def test_arrays_of_other_lengths_are_refused():
    with pytest.raises(ConfigurationError, match="sample has 3, label has 2"):
        data.ArrayDataset(np.zeros(3), np.zeros(2))
