"""Functions in forks of this process: what they say, what they raise, and when they are killed."""

import dataclasses
import gc
import os
import signal
import warnings

import pytest
import torch
from study_tasks import mlp, trial
from torch import nn

from descend.errors import DescendError
from descend.study.running import processes
from descend.study.running.processes import (
    can_fork,
    can_stack_in_processes,
    divided,
    few_collections,
    forked,
    run_in_forks,
)
from descend.study.running.sequential import run_sequentially

TASK = mlp(width=4).prepared()


def saying(*words):
    return lambda: iter([word.encode() for word in words])


def killed():
    yield b"begun"
    os.kill(os.getpid(), signal.SIGKILL)


def failing():
    yield b"begun"
    raise ValueError("mine")


def test_what_all_of_them_say_arrives():
    assert sorted(forked([saying("a", "b"), saying("c"), saying()])) == [b"a", b"b", b"c"]


def test_a_process_that_is_killed_says_nothing_more():
    assert sorted(forked([killed, saying("c")])) == [b"begun", b"c"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_leaves_signals_to_its_parent(threads):
    """A request that the parent has noted is none to what runs in the fork, nor to the threads that it has there."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def signalled():
        yield str([signal.getsignal(number) is signal.SIG_DFL for number in numbers]).encode()
        for number in numbers:
            os.kill(os.getpid(), number)
        yield b"alive"

    before = torch.get_num_threads()
    torch.set_num_threads(2)  # those of torch's pools begin in the fork, too, where it sets their number
    try:
        assert list(forked([signalled], threads)) == [b"[True, True, True]", b"alive"]
    finally:
        torch.set_num_threads(before)


def test_signals_are_as_before_after_a_fork():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert list(forked([saying("a")])) == [b"a"]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_what_one_raises_is_raised_here():
    with pytest.raises(DescendError, match="ValueError: mine"):
        list(forked([failing]))


def test_a_function_runs_in_a_process_of_its_own():
    ((pid,),) = [[int(said) for said in forked([lambda: iter([str(os.getpid()).encode()])])]]
    assert pid != os.getpid()


@pytest.mark.parametrize(("count", "lengths"), [(4, [2, 2]), (5, [3, 2]), (1, [1])])
def test_trials_are_divided_evenly(monkeypatch, count, lengths):
    monkeypatch.setattr(processes, "cores", lambda: 2)
    trials = [trial(i) for i in range(count)]
    parts = divided(trials)
    assert [len(part) for part in parts] == lengths
    assert [one for part in parts for one in part] == trials


def test_why_there_are_no_processes(monkeypatch):
    monkeypatch.setattr(processes, "cores", lambda: 1)
    assert can_fork(TASK) == "there is one processor"
    monkeypatch.setattr(processes, "cores", lambda: 2)
    assert can_fork(TASK) is None
    assert can_stack_in_processes(TASK) is None
    normed = dataclasses.replace(TASK, model=lambda: nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)))
    assert "batch norm" in can_stack_in_processes(normed)


def test_trials_in_forks_are_trials_one_by_one(monkeypatch):
    monkeypatch.setattr(processes, "cores", lambda: 2)
    trials = [trial(i, steps=4) for i in range(3)]
    found = {record.trial.id: record.scores for record in run_in_forks(TASK, trials, 2)}
    assert found == {record.trial.id: record.scores for record in run_sequentially(TASK, trials, 2)}


def test_a_process_does_not_look_through_the_garbage_of_its_parent():
    kept = [[number] for number in range(50_000)]

    def collected():
        yield str(len(gc.get_objects())).encode()

    (count,) = forked([collected])
    assert int(count) < len(kept) < len(gc.get_objects())


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_are_left_as_they_were(enabled):
    def failing_within():
        with few_collections():
            assert not gc.isenabled()
            raise ValueError("mine")

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError, match="mine"):
            failing_within()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


class Fails:
    """A context of processes in which something cannot be had."""

    def __init__(self, what, started=0):
        self.what, self.left, self.real = what, started, processes.multiprocessing.get_context("fork")

    def __getattr__(self, name):
        return getattr(self.real, name)

    def Value(self, *given):  # noqa: N802
        if self.what == "semaphores":
            raise FileNotFoundError(2, "No such file or directory")  # what a system without /dev/shm says
        return self.real.Value(*given)

    def Process(self, **options):  # noqa: N802
        process = self.real.Process(**options)
        if self.what == "processes" and self.left <= 0:
            process.start = lambda: (_ for _ in ()).throw(BlockingIOError(11, "Resource temporarily unavailable"))
        self.left -= 1
        return process


@pytest.mark.parametrize(
    ("what", "started", "words"),
    [("semaphores", 2, "divided among processes beforehand"), ("processes", 0, "one by one"), ("processes", 1, None)],
)
def test_where_processes_or_semaphores_are_short_the_trials_are_the_same(monkeypatch, what, started, words):
    monkeypatch.setattr(processes, "cores", lambda: 2)
    trials = [trial(i, steps=4) for i in range(3)]
    expected = {record.trial.id: record.scores for record in run_sequentially(TASK, trials, 2)}
    context = Fails(what, started)
    monkeypatch.setattr(processes, "_fork_context", lambda: context)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = {record.trial.id: record.scores for record in run_in_forks(TASK, trials, 2)}
    assert found == expected
    assert [words in str(one.message) for one in said] == ([True] if words else [])
