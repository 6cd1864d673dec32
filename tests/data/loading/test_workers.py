"""Worker processes read the same samples as the main process, and leave nothing behind."""

import multiprocessing
import multiprocessing.heap
import os
import random
import signal
import threading

import numpy as np
import pytest
import torch
from data.torch_sets import Augmented, Failing, SlowToBegin, Sometimes, Suspended, Uneven
from system_needs import needs_linux

from descend.data import Loading, open_data
from descend.errors import ConfigurationError, DataError


def batches(dataset, epochs=(0,), batch_size=4, start_step=0, **how):
    feed = open_data(dataset, Loading(batch_size=batch_size, seed=3, **how))
    try:
        return [batch for epoch in epochs for batch in feed.epoch(epoch, start_step)]
    finally:
        feed.reader.close()


def content(some):
    return [
        (b.epoch, b.step, b.size, b.last, b.ids.tolist(), {k: v.tolist() for k, v in b.fields.items()}) for b in some
    ]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_samples_order_and_augmentation_do_not_depend_on_the_workers(workers):
    assert content(batches(Augmented(), (0, 1), workers=workers)) == content(batches(Augmented(), (0, 1)))


def test_augmentation_differs_between_epochs_and_samples_but_not_between_ways_to_reach_them():
    first, second = (
        {i: x for b in batches(Augmented(), (epoch,)) for i, x in zip(b.ids.tolist(), b.fields["0"], strict=True)}
        for epoch in (0, 1)
    )
    drawn = torch.stack([x - i for i, x in [*first.items(), *second.items()]])
    assert len({tuple(row) for row in drawn.tolist()}) == 26
    resumed = batches(Augmented(), (0,), start_step=2)
    assert content(resumed) == content(batches(Augmented(), (0,))[2:])
    other_size = {
        i: x for b in batches(Augmented(), batch_size=5) for i, x in zip(b.ids.tolist(), b.fields["0"], strict=True)
    }
    assert all(torch.equal(first[i], other_size[i]) for i in first)


@pytest.mark.parametrize("generator", ["torch", "numpy", "python"])
def test_a_data_set_that_draws_for_one_sample_only_draws_the_same_wherever_it_stands(generator):
    whole, alone = (
        {i: x for b in batches(Sometimes(generator), **how) for i, x in zip(b.ids.tolist(), b.fields["0"], strict=True)}
        for how in ({"batch_size": 4, "shuffle": False}, {"batch_size": 1})
    )
    assert all(torch.equal(whole[i], alone[i]) for i in range(13))
    assert float(whole[5][0]) != 5.0  # it does draw


def test_the_user_s_generators_are_left_where_they_were():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    expected = float(torch.rand(())), np.random.rand(), random.random()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    batches(Augmented())
    assert (float(torch.rand(())), np.random.rand(), random.random()) == expected


@pytest.mark.slow
def test_processes_end_with_the_reader_also_when_an_epoch_is_left_early():
    handlers = [signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)]
    before = set(threading.enumerate())
    feed = open_data(Augmented(40), Loading(batch_size=4, workers=2))
    steps = feed.epoch(0)
    first = next(steps)
    steps.close()
    assert content([next(feed.epoch(0))]) == content([first])  # what was under way is not taken for an answer
    assert len(multiprocessing.active_children()) == 2
    feed.reader.close()
    assert multiprocessing.active_children() == []
    assert set(threading.enumerate()) == before
    assert [signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.slow
def test_signals_are_for_the_parent_alone():
    feed = open_data(Augmented(40), Loading(batch_size=4, workers=1))
    steps = feed.epoch(0)
    next(steps)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(multiprocessing.active_children()[0].pid, number)
    assert len(list(steps)) == 9
    feed.reader.close()


@pytest.mark.slow
def test_a_dead_process_is_reported_with_its_signal_and_its_sample():
    with pytest.raises(DataError, match=r"killed by SIGKILL at sample 6 of Failing for 'train'"):
        batches(Failing({6: "killed"}), workers=1, shuffle=False)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_process_that_takes_long_to_end_is_reported_with_its_code():
    with pytest.raises(DataError, match=r"ended with exit code 7 at sample 6 of Failing for 'train'"):
        batches(Failing({6: "exits slowly"}), workers=1, shuffle=False)


@pytest.mark.slow
def test_what_a_process_needs_to_begin_is_no_part_of_the_time_for_a_batch():
    found = batches(SlowToBegin(), workers=1, timeout_seconds=5)
    assert content(found) == content(batches(Augmented()))


@pytest.mark.slow
@needs_linux
def test_a_process_goes_on_while_the_batch_of_another_one_takes_longer(tmp_path):
    found = batches(Uneven(tmp_path), batch_size=1, workers=2, shuffle=False, timeout_seconds=20)
    assert [b.ids.tolist() for b in found] == [[i] for i in range(6)]


@pytest.mark.slow
def test_batches_of_many_samples_come_in_order():
    """A task and an answer that are larger than the buffer of a pipe would wait for each other."""
    found = batches(Failing({}, 90_000), batch_size=30_000, workers=1, shuffle=False)
    assert np.concatenate([b.ids for b in found]).tolist() == list(range(90_000))


@pytest.mark.slow
def test_a_read_that_blocks_is_named_and_ended():
    with pytest.raises(DataError, match="sample 5 of Failing for 'train' is not read after 3 seconds"):
        batches(Failing({5: "hangs"}), workers=1, shuffle=False, timeout_seconds=3)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_an_error_in_a_process_is_the_error_here():
    with pytest.raises(DataError, match=r"sample 7 of Failing for 'train'.*OSError: disk on fire"):
        batches(Failing({7: "raises"}), workers=2, shuffle=False)


def test_a_data_set_that_cannot_be_sent_is_refused():
    class Local(Augmented):
        pass

    with pytest.raises(ConfigurationError, match=r"workers=1: Local for 'train' cannot be pickled.*workers=0"):
        batches(Local(), workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_replaced_by_the_next_ones(workers):
    dataset = Failing({2: "raises", 3: "shape", 9: "raises"})
    with pytest.warns(UserWarning, match="is replaced by the next one") as warned:
        found = batches(dataset, shuffle=False, skip_bad=3, workers=workers)
    assert [b.ids.tolist() for b in found] == [[0, 1, 4, 4], [4, 5, 6, 7], [8, 0]]
    assert found[0].fields["0"][:, 0].tolist() == [0, 1, 4, 4]
    assert len(warned) == 3


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("before", ["descriptor", "second half"])
def test_a_process_that_is_suspended_in_the_middle_of_an_answer_is_named_and_ended(before):
    with pytest.raises(DataError, match=r"sample \d+ of Suspended for 'train' is not read after 1.5 seconds: it hangs"):
        batches(Suspended(before), workers=1, timeout_seconds=1.5)
    assert multiprocessing.active_children() == []


def _without_shared_memory(monkeypatch):
    monkeypatch.setattr(multiprocessing.heap.Arena, "_choose_dir", lambda *given: (_ for _ in ()).throw(OSError(2, "")))
    monkeypatch.setattr(multiprocessing.heap.BufferWrapper, "_heap", multiprocessing.heap.Heap())


@pytest.mark.slow(seconds=15)
def test_without_shared_memory_workers_read_the_same(monkeypatch):
    """As in a container without /dev/shm."""
    _without_shared_memory(monkeypatch)
    assert content(batches(Augmented(), workers=1)) == content(batches(Augmented()))


def test_a_system_that_starts_no_process_is_named_with_the_remedy(monkeypatch):
    def start(self):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)
    with pytest.raises(ConfigurationError, match=r"cannot be started \(Resource temporarily unavailable\); pass fewer"):
        batches(Augmented(), workers=2)
