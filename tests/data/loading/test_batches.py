import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from descend.data import ArrayReader, Batches, order
from descend.errors import ConfigurationError, DataError


def reader(n, **kwargs):
    return ArrayReader({"x": np.arange(n) * 10, "y": np.ones((n, 2))}, **kwargs)


def ids(batches):
    return [batch.ids.tolist() for batch in batches]


@given(
    n=st.integers(1, 200),
    batch_size=st.integers(1, 250),
    ranks=st.integers(1, 7),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_every_sample_once_whatever_the_ranks(n, batch_size, ranks, epoch, shuffle):
    shares = [
        list(Batches(reader(n), batch_size, 1, shuffle, rank, ranks, ahead=0).epoch(epoch)) for rank in range(ranks)
    ]
    expected = order(1, epoch, np.arange(n), n, shuffle)
    for step, parts in enumerate(zip(*shares, strict=True)):
        together = np.concatenate([part.ids for part in parts])
        np.testing.assert_array_equal(together, expected[step * batch_size : (step + 1) * batch_size])
        sizes = [len(part.ids) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for part in parts:
            assert (part.size, part.step, part.epoch) == (len(together), step, epoch)
            np.testing.assert_array_equal(part.fields["x"], part.ids * 10)
            assert part.fields["y"].shape == (len(part.ids), 2)
    assert sum(parts[0].size for parts in zip(*shares, strict=True)) == n


@pytest.mark.parametrize(
    ("n", "batch_size", "steps", "first", "last"), [(10, 4, 3, 4, 2), (8, 4, 2, 4, 4), (3, 4, 1, 3, 3)]
)
def test_sizes(n, batch_size, steps, first, last):
    batches = Batches(reader(n), batch_size, 0, True)
    assert (batches.num_samples, batches.steps_per_epoch) == (n, steps)
    assert (batches.first_size, batches.last_size) == (first, last)
    sizes = [batch.size for batch in batches.epoch(0)]
    assert (len(sizes), sizes[0], sizes[-1]) == (steps, first, last)


def test_epochs_and_seeds_differ():
    orders = [ids(Batches(reader(50), 7, seed, True).epoch(epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("start", [0, 1, 6, 7, 9])
def test_an_epoch_continues_at_any_step(ahead, start):
    whole = ids(Batches(reader(50), 7, 3, True, ahead=0).epoch(2))
    batches = Batches(reader(50), 7, 3, True, ahead=ahead)
    assert ids(batches.epoch(2, start)) == whole[start:]


def test_the_order_does_not_depend_on_how_many_steps_are_ordered_at_once(monkeypatch):
    whole = ids(Batches(reader(50), 7, 3, True).epoch(0))
    monkeypatch.setattr("descend.data.loading.batches.ORDERED_AT_ONCE", 15)
    assert ids(Batches(reader(50), 7, 3, True).epoch(0)) == whole


def test_a_batch_larger_than_the_data_set_is_one_partial_batch():
    batches = Batches(reader(5), 64, 0, True)
    assert [len(batch.ids) for batch in batches.epoch(0)] == [5]
    [note] = batches.notes
    assert "64" in note
    assert "5 samples of the reader for 'train'" in note
    assert Batches(reader(5), 5, 0, True).notes == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0, True), "size .* >= 1, got 0"),
        ((4, 0, True, 2, 2), "rank .* < 2, got 2"),
    ],
)
def test_arguments_that_cannot_be(arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        Batches(reader(5), *arguments)


class Broken(ArrayReader):
    """Samples of which number 23 cannot be read."""

    def read(self, indices, epoch=0):
        if 23 in indices:
            raise DataError("sample 23 cannot be read")
        return super().read(indices, epoch)


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_comes_after_the_batches_before_it(ahead):
    epoch = Batches(Broken({"x": np.arange(50)}), 5, 0, False, ahead=ahead).epoch(0)
    assert [next(epoch).step for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(DataError, match="sample 23"):
        next(epoch)


def test_a_file_that_cannot_be_read_is_found_before_the_first_step():
    class Unreadable(ArrayReader):
        def read(self, indices, epoch=0):
            raise DataError("the file is damaged")

    Batches(reader(5), 5, 0, False).check_first_sample()
    with pytest.raises(DataError, match="damaged"):
        Batches(Unreadable({"x": np.arange(5)}), 5, 0, False).check_first_sample()


def test_no_thread_is_left():
    epoch = Batches(reader(50), 5, 0, True).epoch(0)
    next(epoch)
    assert [t for t in threading.enumerate() if t.name == "descend-prefetch"]
    epoch.close()
    assert not [t for t in threading.enumerate() if t.name == "descend-prefetch"]
