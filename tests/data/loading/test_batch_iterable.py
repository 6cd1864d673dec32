"""Batches that the user makes: their order, sizes and numbers, the shares of ranks, and what is refused."""

import functools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import descend
from descend.data import Loading, open_data
from descend.data.loading.batch_iterable import BatchIterable
from descend.errors import ConfigurationError, DataError, DescendError

X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
LIST = [(X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8)]


class Again:
    """An iterable that starts over each time, of a length that is unknown."""

    def __iter__(self):
        return iter(LIST)


SOURCES = {"list": LIST, "tuple": tuple(LIST), "object": Again(), "function": lambda: iter(LIST)}
SOURCES["of epoch"] = lambda epoch: LIST


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_batches_come_as_they_are_and_may_be_entered_in_the_middle(source):
    feed = BatchIterable(source, 4, "train")
    for start in (0, 1, 2):
        found = list(feed.epoch(3, start))
        assert [b.fields["1"].tolist() for b in found] == [y.tolist() for _, y in LIST[start:]]
        assert [b.last for b in found] == [False] * (2 - start) + [True]
        assert [(b.epoch, b.step, b.size) for b in found] == [(3, 0, 4), (3, 1, 4), (3, 2, 2)][start:]
        assert [b.ids.tolist() for b in found] == [y.tolist() for _, y in LIST[start:]]
    assert (feed.num_samples, feed.steps_per_epoch, feed.first_size, feed.last_size) == (10, 3, 4, 2)


def test_sizes_are_known_at_once_of_a_list_and_after_an_epoch_of_anything_else():
    assert (BatchIterable(LIST, None, "train").first_size, BatchIterable(LIST, 4, "train").num_samples) == (4, 10)
    feed = BatchIterable(lambda: LIST, 4, "train")
    known = (feed.num_samples, feed.steps_per_epoch, feed.first_size, feed.last_size)
    assert known == (None, None, 4, None)
    next(feed.epoch(0))
    assert feed.num_samples is None  # the epoch is not over


def test_the_number_of_the_epoch_reaches_the_function():
    asked = []
    feed = BatchIterable(lambda epoch: asked.append(epoch) or LIST, 4, "train")
    list(feed.epoch(5))
    assert asked == [5]


def test_batches_are_read_one_ahead_and_no_further():
    read = []

    def source():
        for batch in LIST:
            read.append(len(batch[1]))
            yield batch

    batches = BatchIterable(source, 4, "train").epoch(0)
    next(batches)
    assert len(read) == 2  # one more, to know which is the last


@pytest.mark.parametrize("unit", [1, 2])
def test_ranks_share_each_batch_in_whole_units(unit):
    shares = [BatchIterable(LIST, 4, "train", rank, 3, unit) for rank in range(3)]
    for together in zip(*(share.epoch(0) for share in shares), strict=True):
        first = together[0].step * 4
        assert np.concatenate([b.ids for b in together]).tolist() == list(range(first, first + together[0].size))
        assert all(len(b.ids) % unit == 0 for b in together)
        for batch in together:
            assert batch.fields["1"].tolist() == batch.ids.tolist()
            assert batch.position == (batch.ids[0] - first if len(batch.ids) else batch.position)


@pytest.mark.parametrize("source", [iter(LIST), (batch for batch in LIST)], ids=["iterator", "generator"])
def test_what_can_be_iterated_only_once_is_refused_with_the_remedy(source):
    with pytest.raises(ConfigurationError, match=r"can be iterated only once.*without calling it"):
        BatchIterable(source, 4, "train")


def test_batches_of_another_size_are_refused():
    with pytest.raises(DataError, match="batch 0 for 'validate' has 4 samples and batch_size is 5: make them equal"):
        list(BatchIterable(lambda: LIST, 5, "validate").epoch(0))
    with pytest.raises(DataError, match="batch 1 for 'train' has 2 samples and batch_size is 4"):
        BatchIterable([LIST[0], LIST[2], LIST[1]], 4, "train")
    with pytest.raises(DataError, match="batch 2 for 'train' has 4 samples and batch_size is 3"):
        BatchIterable([(Y[:3],), (Y[:3],), (Y[:4],)], 3, "train")
    assert [b.size for b in BatchIterable(lambda: LIST, None, "train").epoch(0)] == [4, 4, 2]


def test_an_empty_list_is_refused_at_once():
    with pytest.raises(DataError, match="epoch 0 for 'train' has 0 batches, and at least 1 is needed"):
        BatchIterable([], 4, "train")


def test_a_function_that_gives_nothing_the_second_time_is_reported():
    once = iter(LIST)
    feed = BatchIterable(lambda: once, 4, "train")
    list(feed.epoch(0))
    with pytest.raises(DataError, match=r"epoch 1 for 'train' has 0 batches.* pass a list or a function that opens"):
        list(feed.epoch(1))


def test_a_batch_that_cannot_be_read_is_named_by_its_number():
    with pytest.raises(DataError, match="batch 1 for 'train': the fields must be of one length"):
        list(BatchIterable(lambda: [LIST[0], (X[:4], Y[:3])], 4, "train").epoch(0))


def fit(data):
    module, optimizer = nn.Linear(3, 1), functools.partial(torch.optim.SGD, lr=0.1)
    return descend.fit(module, "mse", data, optimizer=optimizer, batch_size=8, stop=descend.Epochs(1))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (nn.Linear(3, 1), "got a Linear: pass the model as model"),
        (nn.Sequential(nn.Linear(3, 1)), "got a Sequential: pass the model as model"),
        (list, "got the class list: pass an object of it"),
        (math, "got a module"),
        (len, r"got <built-in function len>: object of type 'int' has no len\(\)"),
        (max, "got <built-in function max>: 'int' object is not iterable"),
        (functools.partial(int), r"got functools.partial\(<class 'int'>\), which returns 0"),
        (lambda first, second: LIST, r"got <function .*>: give its other arguments by functools.partial"),
        (lambda *, first: LIST, r"got <function .*>: give its other arguments by functools.partial"),
    ],
    ids=["module", "sequential", "class", "python module", "len", "max", "int", "two arguments", "by name alone"],
)
def test_what_makes_no_batches_is_refused_in_one_form(data, words):
    with pytest.raises(DescendError, match=f"data for 'train' must be .*{words}"):
        fit(data)


def test_functions_are_called_as_their_signature_allows():
    for function in (lambda: LIST, lambda epoch: LIST, lambda *, epoch=0: LIST, functools.partial(list, LIST)):
        assert [b.size for b in BatchIterable(function, None, "train").epoch(0)] == [4, 4, 2]
    assert [len(list(BatchIterable(lambda e, n=2: LIST[: e + n], None, "train").epoch(e))) for e in (0, 1)] == [2, 3]


def test_an_error_within_a_function_of_the_user_stays_what_it_is():
    def batches():
        raise TypeError("of the user")

    with pytest.raises(TypeError, match="of the user"):
        list(BatchIterable(batches, 4, "train").epoch(0))


# ---- an IterableDataset given as it is: single samples become batches, and batches are noticed where possible

ROWS, LABELS = torch.arange(240.0).reshape(12, 20), torch.arange(12)


class Yields(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def batches_of(n, x=ROWS, y=LABELS):
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
    assert sizes(Yields(list(zip(ROWS, LABELS, strict=True))), 5) == [5, 5, 2]
    assert sizes(batches_of(5), None) == [5, 5, 2]
    assert sizes(DataLoader(batches_of(5), batch_size=None), None) == [5, 5, 2]


@pytest.mark.parametrize("y", [LABELS, ROWS], ids=["class numbers", "rows"])
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
    [
        (ROWS[0], LABELS[0]),
        (ROWS[0], ROWS[0]),
        (torch.ones(3, 8, 8), torch.tensor(1)),
        (ROWS[:3],),
        ROWS[:3],
        {"x": ROWS[0], "label": 3},
    ],
    ids=["a row", "a sequence and its labels", "an image", "one field", "a tensor", "a dictionary"],
)
def test_usual_samples_are_no_matter(sample):
    assert sizes(Yields([sample] * 3), 2) == [2, 1]


def test_a_sequence_as_long_as_a_batch_is_large_is_no_matter():
    assert sizes(Yields([(ROWS[0], ROWS[1])] * 20), 20) == [20]


def test_what_cannot_be_put_into_one_batch_says_what_was_yielded():
    with pytest.raises(DataError, match=r"'0' \(5, 20\) float32, .* and '0' \(2, 20\) float32.* pass batch_size=None"):
        epoch(batches_of(5, y=ROWS), 7)


@pytest.mark.parametrize("option", [{"workers": 2}, {"skip_bad": 1}, {"timeout_seconds": 5.0}])
@pytest.mark.parametrize(
    "data", [batches_of(4), [(ROWS, LABELS)], lambda: [(ROWS, LABELS)], DataLoader(batches_of(4), batch_size=None)]
)
def test_options_that_nothing_would_use_are_refused(data, option):
    with pytest.raises(ConfigurationError, match="nothing would use it"):
        open_data(data, Loading(batch_size=None, **option))
    open_data(data, Loading(batch_size=None, role="validate", **option))  # they may be those of the training data
