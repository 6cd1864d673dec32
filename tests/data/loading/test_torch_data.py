"""Data of torch users as batches."""

import numpy as np
import pytest
import torch
from data.torch_sets import Augmented, Failing
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

from descend.data import ArrayReader, Loading, brings_batches, open_data
from descend.data.loading.map_dataset import SampleReader
from descend.data.tensor_reader import TensorReader
from descend.errors import ConfigurationError, DataError

X = torch.arange(20.0).reshape(10, 2)
Y = torch.arange(10)


def opened(data, batch_size=4, **how):
    return open_data(data, Loading(batch_size=batch_size, seed=5, **how))


def epoch(data, number=0, batch_size=4, **how):
    return list(opened(data, batch_size, **how).epoch(number))


class Rows(torch.utils.data.Dataset):
    def __init__(self, make):
        self.make = make
        self.read: list[int] = []

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.read.append(index)
        return self.make(index)


class Infinite(IterableDataset):
    def __iter__(self):
        return iter([(X[i], X[i]) for i in range(10)])


KINDS = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "arrays of another byte order": (X.numpy().astype(">f4"), Y.numpy().astype(">i8")),
    "reader of another byte order": ArrayReader({"0": X.numpy().astype(">f4"), "1": Y.numpy().astype(">i8")}),
    "TensorDataset": TensorDataset(X, Y),
    "Dataset": Rows(lambda i: (X[i], Y[i])),
    "Dataset of numbers": Rows(lambda i: (X[i].numpy(), i)),
    "DataLoader": DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True),
    "reader": ArrayReader({"0": X.numpy(), "1": Y.numpy()}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_samples_in_the_same_order(kind):
    found, expected = epoch(KINDS[kind], 2), epoch(TensorDataset(X, Y), 2)
    for ours, reference in zip(found, expected, strict=True):
        assert (ours.ids.tolist(), ours.size, ours.last) == (reference.ids.tolist(), reference.size, reference.last)
        for name in ("0", "1"):
            np.testing.assert_array_equal(np.asarray(ours.fields[name]), np.asarray(reference.fields[name]))
            assert np.asarray(ours.fields[name]).dtype == np.asarray(reference.fields[name]).dtype


def test_each_sample_comes_once_an_epoch_in_another_order():
    orders = [[i for b in epoch((X, Y), number) for i in b.ids.tolist()] for number in range(3)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_resuming_reads_no_skipped_sample():
    rows = Rows(lambda i: X[i])
    feed = opened(rows)
    whole = [i for b in feed.epoch(1) for i in b.ids.tolist()]
    rows.read.clear()
    assert [i for b in feed.epoch(1, 2) for i in b.ids.tolist()] == whole[8:] == rows.read


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        (lambda i: X[i], ["0"]),
        (lambda i: {"x": X[i], "y": i}, ["x", "y"]),
        (lambda i: ((X[i], X[i] + 1), {"label": i, "mask": X[i] > 3}), ["0/0", "0/1", "1/label", "1/mask"]),
    ],
)
def test_samples_of_any_nesting_are_named_fields(sample, names):
    assert list(epoch(Rows(sample))[0].fields) == names


def test_tensors_in_memory_are_indexed_at_once():
    assert isinstance(opened(TensorDataset(X, Y)).reader, TensorReader)
    assert isinstance(opened(Subset(TensorDataset(X, Y), [3, 1])).reader, TensorReader)
    assert isinstance(opened(Augmented()).reader, SampleReader)


def test_subsets_of_subsets():
    part = random_split(Subset(TensorDataset(X, Y), [9, 8, 7, 6, 5]), [3, 2], torch.Generator().manual_seed(0))[0]
    found = torch.cat([b.fields["1"] for b in epoch(part, shuffle=False)])
    assert found.tolist() == [int(part[i][1]) for i in range(3)]


def test_bfloat16_comes_as_it_is():
    assert epoch((X.bfloat16(),))[0].fields["0"].dtype is torch.bfloat16


# ---- DataLoader


def test_a_loader_s_collate_fn_and_order_are_kept():
    loader = DataLoader(Rows(lambda i: i), batch_size=4, collate_fn=lambda some: {"twice": torch.tensor(some) * 2})
    assert [b.fields["twice"].tolist() for b in epoch(loader)] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]


def test_a_loader_brings_its_batch_size_and_drop_last():
    feed = opened(DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True, drop_last=True), batch_size=None)
    assert (feed.steps_per_epoch, feed.num_samples) == (2, 8)
    left_out = [set(range(10)) - {i for b in feed.epoch(number) for i in b.ids.tolist()} for number in range(4)]
    assert len({frozenset(some) for some in left_out}) > 1


@pytest.mark.parametrize(
    ("settings", "how", "message"),
    [
        ({"batch_size": 8}, {}, "batch_size is 8 and fit's is 4"),
        (
            {"batch_size": 4, "sampler": SubsetRandomSampler([1] * 10)},
            {},
            "is a SubsetRandomSampler.*descend.We",
        ),
        ({"batch_sampler": [[0, 1], [2, 3]]}, {}, "makes batches of its own"),
        ({"batch_size": 4, "generator": torch.Generator()}, {}, "generator.*seed="),
        ({"batch_size": 4, "shuffle": True}, {"shuffle": False}, "shuffles and fit has shuffle=False"),
        ({"batch_size": 4, "drop_last": True}, {"role": "validate"}, "leave samples out of the evaluation"),
        ({"batch_size": None}, {}, "makes batches of its own"),
    ],
)
def test_what_a_loader_says_and_cannot_be_is_refused_by_name(settings, how, message):
    with pytest.raises(ConfigurationError, match=message):
        opened(DataLoader(TensorDataset(X, Y), **settings), **how)


def test_a_loader_over_an_iterable_data_set_is_gone_through_as_it_is():
    found = epoch(DataLoader(Infinite(), batch_size=4))
    assert [b.ids.tolist() for b in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_iterable_data_set_yields_samples_or_with_no_batch_size_batches():
    found = epoch(Infinite())
    assert [b.ids.tolist() for b in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert torch.equal(found[0].fields["0"], X[:4])
    assert [len(b.ids) for b in epoch(Infinite(), batch_size=None)] == [2] * 10
    assert not brings_batches(Infinite())


# ---- what is wrong


@pytest.mark.parametrize("empty", [TensorDataset(X[:0]), [], (X[:0],), Failing({}, samples=0)])
def test_no_samples_at_all(empty):
    with pytest.raises(DataError, match=r"0 samples|0 batches"):
        opened(empty)


def test_a_batch_larger_than_the_data_set_with_drop_last_names_the_numbers_and_settings():
    loader = DataLoader(TensorDataset(X, Y), batch_size=32, drop_last=True)
    with pytest.raises(DataError, match=r"10 samples with batch_size=32 and drop_last=True leave no step"):
        opened(loader, 32)


def test_fields_of_unequal_length():
    with pytest.raises(DataError, match=r"of one length, got lengths {'0': 10, '1': 9}"):
        opened((X, Y[:9]))


def test_what_is_no_data():
    with pytest.raises(ConfigurationError, match=r"data for 'train' must be a torch Dataset .*, got a int"):
        opened(3)


@pytest.mark.parametrize("settings", [{"batch_size": 0}, {"batch_size": 2.5}, {"workers": -1}, {"skip_bad": True}])
def test_counts_are_checked(settings):
    with pytest.raises(ConfigurationError, match="must be an integer >= "):
        Loading(**{"batch_size": 4, **settings})


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), 1e7, "5", True])
def test_a_limit_on_waiting_is_a_time(limit):
    with pytest.raises(ConfigurationError, match=r"timeout_seconds must be a number > 0 and <= 1000000 or None, got"):
        Loading(batch_size=4, timeout_seconds=limit)


def test_samples_need_a_size():
    with pytest.raises(ConfigurationError, match="these are samples: pass a batch_size"):
        opened((X, Y), batch_size=None)


def test_indices_of_a_subset_may_count_from_the_end_and_not_beyond():
    (batch,) = epoch(Subset(TensorDataset(X, Y), [0, -1, -10]), shuffle=False)
    assert batch.fields["1"].tolist() == [0, 9, 0]
    with pytest.raises(DataError, match="a Subset with the index 10, and its data set has 10 samples"):
        opened(Subset(TensorDataset(X, Y), [0, 10]))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"a": (X, Y)}, "'a' is a tuple; a role has one data set"),
        ({"x": X, "y": Y.tolist()}, "'y' is a list"),
        ({}, "it is empty"),
    ],
)
def test_a_dictionary_of_something_else_than_fields_is_refused(data, words):
    with pytest.raises(ConfigurationError, match=f"a tensor or an array for each field, and {words}"):
        opened(data)


def test_a_data_set_without_a_length_is_named():
    class Endless(Dataset):
        def __getitem__(self, index):
            return torch.ones(2)

    with pytest.raises(ConfigurationError, match="Endless has no __len__, and an epoch needs it"):
        open_data(Endless(), Loading(batch_size=2))
