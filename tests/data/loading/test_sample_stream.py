"""An IterableDataset given as it is: single samples become batches, and batches are noticed where possible."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from descend.data import Loading, open_data
from descend.errors import ConfigurationError, DataError

X, Y = torch.arange(240.0).reshape(12, 20), torch.arange(12)


class Yields(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def batches_of(n, x=X, y=Y):
    return Yields([(x[at : at + n], y[at : at + n]) for at in range(0, 12, n)])


def epoch(data, batch_size, **how):
    return list(open_data(data, Loading(batch_size=batch_size, **how)).epoch(0))


def sizes(data, batch_size):
    return [batch.size for batch in epoch(data, batch_size)]


@pytest.fixture(autouse=True)
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_samples_become_batches_and_batches_stay_where_that_is_said():
    assert sizes(Yields(list(zip(X, Y, strict=True))), 5) == [5, 5, 2]
    assert sizes(batches_of(5), None) == [5, 5, 2]
    assert sizes(DataLoader(batches_of(5), batch_size=None), None) == [5, 5, 2]


@pytest.mark.parametrize("y", [Y, X], ids=["class numbers", "rows"])
def test_batches_of_the_batch_size_are_refused_before_anything_is_computed(y):
    with pytest.raises(
        ConfigurationError, match=r"Yields yields '0' \(4, 20\) float32, '1' .* are batches of 4"
    ) as caught:
        epoch(batches_of(4, y=y), 4)
    assert "pass batch_size=None" in str(caught.value)


def test_what_may_be_batches_is_a_warning_that_says_how_to_tell():
    with pytest.warns(UserWarning, match="taken as one sample, 2 of them a batch. Where these are batches, pass"):
        assert sizes(batches_of(4), 2) == [2, 1]
    assert sizes(DataLoader(batches_of(4), batch_size=2), 2) == [2, 1]  # said by a loader: nothing to warn of


@pytest.mark.parametrize(
    "sample",
    [(X[0], Y[0]), (X[0], X[0]), (torch.ones(3, 8, 8), torch.tensor(1)), (X[:3],), X[:3], {"x": X[0], "label": 3}],
    ids=["a row", "a sequence and its labels", "an image", "one field", "a tensor", "a dictionary"],
)
def test_usual_samples_are_no_matter(sample):
    assert sizes(Yields([sample] * 3), 2) == [2, 1]


def test_a_sequence_as_long_as_a_batch_is_large_is_no_matter():
    assert sizes(Yields([(X[0], X[1])] * 20), 20) == [20]


def test_what_cannot_be_put_into_one_batch_says_what_was_yielded():
    with pytest.raises(DataError, match=r"'0' \(5, 20\) float32, .* and '0' \(2, 20\) float32.* pass batch_size=None"):
        epoch(batches_of(5, y=X), 7)


@pytest.mark.parametrize("option", [{"workers": 2}, {"skip_bad": 1}, {"timeout_seconds": 5.0}])
@pytest.mark.parametrize(
    "data", [batches_of(4), [(X, Y)], lambda: [(X, Y)], DataLoader(batches_of(4), batch_size=None)]
)
def test_options_that_nothing_would_use_are_refused(data, option):
    with pytest.raises(ConfigurationError, match="nothing would use it"):
        open_data(data, Loading(batch_size=None, **option))
    open_data(data, Loading(batch_size=None, role="validate", **option))  # they may be those of the training data
