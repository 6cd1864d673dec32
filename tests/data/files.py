"""What the tests of all formats share."""

import numpy as np
import pytest

import descend.data
from descend.errors import DataError


def same(reader, truth, seed=0):
    """The samples of a reader, in an order of their own and some of them twice, are those that were written."""
    count = len(next(iter(truth.values())))
    assert len(reader) == count
    assert list(reader.fields) == list(truth)
    ids = np.random.default_rng(seed).permutation(np.concatenate([np.arange(count), np.arange(0, count, 3)]))
    found = reader.read(ids)
    for name, wanted in truth.items():
        wanted = np.asarray(wanted)
        assert found[name].shape == (len(ids), *reader.fields[name].shape)
        assert found[name].dtype.kind == reader.fields[name].dtype.kind == wanted.dtype.kind
        np.testing.assert_array_equal(found[name], wanted[ids])
    for name, values in reader.read(np.zeros(0, dtype=np.int64)).items():
        assert values.shape == (0, *reader.fields[name].shape)


def _read_all(source, options):
    reader = descend.data.read(source, **options)
    reader.read(np.arange(len(reader)))


def refusal(source, **options):
    """The error of reading a file."""
    with pytest.raises(DataError) as caught:
        _read_all(source, options)
    assert caught.value.exit_code == 3
    return str(caught.value)
