"""Measuring the ways of running trials: what it says, and how long it continues."""

import re
import time
import warnings
from pathlib import Path

import pytest
import torch
from study_tasks import mlp, trial
from torch import nn

from descend.errors import ConfigurationError
from descend.study.design import Needs, Study
from descend.study.running import executor_choice as choose
from descend.study.running.scheduler import conduct
from descend.study.running.sequential import run_sequentially
from descend.study.running.stack import Stack
from descend.study.running.trial import Record
from descend.study.running.trial_setup import TrialCheckpoints, TrialSetup
from descend.study.running.trial_store import Memory
from descend.study.running.vmapped import BegunStacks, Tried
from descend.study.task import StudyTask

TOGETHER = choose.Executor("together", choose.run_vmapped, 64, "asked for")


class Attention(nn.Module):
    """One head over five places; torch's own kernel of it has no rule for stacks on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.joined, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x):
        query, key, value = self.joined(x).unflatten(-1, (3, 1, 8)).permute(2, 0, 3, 1, 4)
        return self.head(nn.functional.scaled_dot_product_attention(query, key, value).flatten(1, 2).mean(1))


def test_measuring_a_stack_says_nothing_of_vmap_and_all_that_others_say():
    class Telling(nn.Module):
        def forward(self, x):
            warnings.warn("of the user", UserWarning, stacklevel=1)
            return x

    x, y = torch.randn(80, 5, 8), torch.randint(0, 3, (80,))
    for model, said in ((Attention, []), (lambda: nn.Sequential(Attention(), Telling()), ["of the user"])):
        task = StudyTask(model, nn.CrossEntropyLoss(), (x, y), (x, y)).prepared()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            choose.seconds_a_step(TOGETHER, task, [trial(i, steps=4) for i in range(2)], {}, 2)
            Stack(task, [trial(i, steps=70) for i in range(2)]).trace()
        assert sorted({str(one.message) for one in warned}) == said


@pytest.mark.parametrize(("enough", "steps"), [(0.0, 2), (1e9, 13)])
def test_a_slow_stack_is_measured_with_few_steps(monkeypatch, enough, steps):
    monkeypatch.setattr(choose, "_ENOUGH_SECONDS", enough)
    taken = []
    step = Stack.step

    def counted(stack, number):
        taken.append(number)
        step(stack, number)

    monkeypatch.setattr(Stack, "step", counted)
    choose.seconds_a_step(TOGETHER, mlp(width=4).prepared(), [trial(i) for i in range(2)], {})
    assert taken == list(range(1, steps + 1))


EVERY = {"one": 1e-2, "stacks": 1e-4, "together": 2e-4, "processes": 5e-3}


def chosen_by(monkeypatch, times, steps, possible=("together", "stacks", "processes"), cores=2, alone=None):
    """The executor that is chosen where each has these times, and those that were measured."""
    asked = []

    def seconds(way, task, trials, kinds, count=12, **of_stacks):
        asked.append(way.name)
        return times[way.name]

    monkeypatch.setattr(choose, "seconds_a_step", seconds)
    monkeypatch.setattr(choose, "cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    obstacles = {name: None if name in possible else "no" for name in ("together", "stacks", "processes")}
    monkeypatch.setattr(choose, "try_together", lambda task, trials, kinds: Tried(obstacles["together"], alone))
    monkeypatch.setattr(choose, "can_stack_in_processes", lambda task: obstacles["stacks"])
    monkeypatch.setattr(choose, "can_fork", lambda task: obstacles["processes"])
    return choose.choose(None, [trial(i, steps=steps) for i in range(5)], 1, "auto", {}), asked


@pytest.mark.parametrize(
    ("times", "steps", "possible", "name", "measured"),
    [
        (EVERY, 1000, ("together", "stacks", "processes"), "stacks", ["stacks", "one"]),
        (EVERY, 20, ("together", "stacks", "processes"), "together", ["stacks", "one"]),  # shorter than a fork
        (EVERY, 1000, ("together", "processes"), "together", ["together", "one"]),
        (EVERY | {"stacks": 8e-3}, 1000, ("together", "stacks", "processes"), "processes", ["stacks", "one"]),
        (EVERY | {"stacks": 8e-3}, 3, ("together", "stacks", "processes"), "stacks", ["stacks", "one"]),  # too short
        (EVERY | {"stacks": 5.2e-3}, 1000, ("together", "stacks", "processes"), "stacks", ["stacks", "one"]),
        (EVERY, 1000, ("processes",), "processes", ["one"]),
        (EVERY, 4, ("processes",), "one", ["one"]),  # shorter than the forks
    ],
)
def test_what_is_measured_and_chosen(monkeypatch, times, steps, possible, name, measured):
    chosen, asked = chosen_by(monkeypatch, times, steps, possible)
    assert (chosen.name, asked) == (name, measured)


@pytest.mark.parametrize(
    ("alone", "possible", "measured"),
    [
        (None, ("together", "stacks", "processes"), ["stacks", "one"]),
        (5.9e-4, ("together", "stacks", "processes"), ["stacks", "one"]),  # two processes take half of it
        (6.1e-4, ("together", "stacks", "processes"), ["stacks"]),
        (6.1e-4, ("together",), ["together"]),
        (5.9e-4, ("together",), ["together", "one"]),
    ],
)
def test_what_is_far_from_a_stack_is_not_timed(monkeypatch, alone, possible, measured):
    """Three times as fast as every process at once, by the trials that were run alone to try the stack."""
    name = measured[0]
    found, asked = chosen_by(monkeypatch, {"one": 1e-2, "stacks": 1e-4, "together": 2e-4}, 1000, possible, alone=alone)
    assert (found.name, asked) == (name, measured)


def test_a_stack_that_was_timed_is_the_one_that_runs(monkeypatch):
    """To the bits of a run that nothing was timed before, with scores before the first update."""
    task, trials = mlp(width=4).prepared(), [trial(i, steps=20) for i in range(3)]
    known = list(choose.run_vmapped(task, trials, 2))
    begun = BegunStacks()
    choose.seconds_a_step(TOGETHER, task, trials, {}, 5, begun=begun, evaluations=2)
    taken, step = [], Stack.step
    monkeypatch.setattr(Stack, "step", lambda stack, number: taken.append(number) or step(stack, number))
    found = list(choose.run_vmapped(task, trials, 2, begun=begun))
    assert [(one.trial, one.steps, one.scores) for one in found] == [
        (one.trial, one.steps, one.scores) for one in known
    ]
    assert taken == list(range(7, 21))
    taken.clear()
    list(choose.run_vmapped(task, trials, 2, begun=begun))
    assert taken == list(range(1, 21))  # it is given once


def test_a_stack_of_other_trials_is_not_continued():
    task = mlp(width=4).prepared()
    begun = BegunStacks()
    choose.seconds_a_step(TOGETHER, task, [trial(i, steps=20) for i in range(3)], {}, 5, begun=begun)
    others = [trial(i, steps=20) for i in range(1, 3)]
    (first, second) = choose.run_vmapped(task, others, 1, begun=begun)
    assert [first.trial, second.trial] == others


def test_no_step_after_which_scores_are_taken_is_timed(monkeypatch):
    taken, step = [], Stack.step
    monkeypatch.setattr(Stack, "step", lambda stack, number: taken.append(number) or step(stack, number))
    assert choose.seconds_a_step(TOGETHER, mlp(width=4).prepared(), [trial(0, steps=6)], {}, evaluations=2) > 0
    assert taken == [1, 2]


def test_stacks_are_timed_in_this_process_as_wide_as_they_run_and_by_one_thread(monkeypatch):
    widths, step, threads = [], Stack.step, torch.get_num_threads()

    def counted(stack, number):
        widths.append((len(stack.trials), torch.get_num_threads()))
        step(stack, number)

    monkeypatch.setattr(Stack, "step", counted)
    monkeypatch.setattr(choose, "divided", lambda trials: [trials[:3], trials[3:]])
    way = choose.Executor("stacks", choose.run_in_stacks, 64, "asked for")
    assert choose.seconds_a_step(way, mlp(width=4).prepared(), [trial(i) for i in range(5)], {}, 2) > 0
    assert set(widths) == {(3, 1)}
    assert torch.get_num_threads() == threads


def test_processes_are_judged_by_trials_of_as_many_threads_as_they_have(monkeypatch):
    """One trial by two threads takes half of what it takes in a process; what processes share is in neither time."""
    threads, before = [], torch.get_num_threads()

    def seconds(way, task, trials, kinds, count=12, **of_stacks):
        threads.append(torch.get_num_threads())
        return {1: 1e-2, 2: 5e-3}[torch.get_num_threads()]

    monkeypatch.setattr(choose, "seconds_a_step", seconds)
    monkeypatch.setattr(choose, "cores", lambda: 2)
    monkeypatch.setattr(choose, "can_fork", lambda task: None)
    monkeypatch.setattr(choose, "try_together", lambda task, trials, kinds: Tried("no"))
    torch.set_num_threads(2)
    try:
        found = choose.choose(None, [trial(i, steps=1000) for i in range(4)], 1, "auto", {})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (found.name, threads) == ("one", [2, 1])


SAVED = TrialSetup(checkpoints=TrialCheckpoints(Path("trials"), 5))


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (SAVED, r"each trial is saved by itself \(checkpoint_every\)"),
        (TrialSetup(Needs(cores=2)), "each trial needs several"),
        (TrialSetup(Needs(ranks=2)), "each has 2 ranks on this machine; say --executor one, or ray"),
    ],
)
def test_what_a_trial_needs_may_forbid_a_stack(setup, said):
    task, trials = mlp(width=4).prepared(), [trial(i) for i in range(4)]
    for wanted in ("together", "stacks"):
        with pytest.raises(ConfigurationError, match=said):
            choose.choose(task, trials, 1, wanted, {}, setup=setup)
    assert choose.choose(task, trials, 1, "one", {}, setup=setup).name == "one"


def test_processes_save_their_trials(tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "can_fork", lambda task: None)
    setup = TrialSetup(checkpoints=TrialCheckpoints(tmp_path, 2))
    task, trials = mlp(width=4).prepared(), [trial(i, steps=3) for i in range(2)]
    way = choose.choose(task, trials, 1, "processes", {}, setup=setup)
    found = {record.trial.id: record.scores for record in way.run(task, trials, 1, {})}
    assert found == {record.trial.id: record.scores for record in run_sequentially(task, trials, 1)}
    assert all((setup.checkpoints.run_dir(one) / "checkpoints" / "step-3").is_dir() for one in trials)


def test_an_unknown_executor_is_a_mistake_of_a_finished_study_too():
    study = Study(workload=mlp, batch_sizes=32, steps=1, arms={"a": "SGD"}, trials=1, searches=1, shortlist=1)
    with pytest.raises(ConfigurationError, match="no executor 'fast'"):
        conduct(study, Memory(), executor="fast")


def run_of(statuses, seconds=None):
    """An executor's function: trials end with these statuses in turn, after so many seconds in turn."""
    statuses, seconds = iter(statuses), iter(seconds or ())

    def run(task, trials, evaluations, kinds):
        time.sleep(next(seconds, 0.0))
        for one in trials:
            yield Record(one, next(statuses))

    return run


def test_trials_that_end_as_errors_give_no_time():
    """Before, they counted as infinitely fast or slow, by chance."""
    for statuses in (["error"], ["done", "out of memory"]):
        way = choose.Executor("one", run_of(statuses), 1, "")
        assert choose.seconds_a_step(way, mlp(width=4).prepared(), [trial(0)], {}, 2) is None


def test_a_negative_difference_of_two_timings_is_measured_again():
    slower_first = choose.Executor("one", run_of(["done"] * 9, [0.05, 0.0, 0.0, 0.04]), 1, "")
    seconds = choose.seconds_a_step(slower_first, mlp(width=4).prepared(), [trial(0)], {}, 2)
    assert seconds is not None
    assert 0.02 / 4 < seconds < 0.4 / 4
    always = choose.Executor("one", run_of(["done"] * 9, [0.05, 0.0] * 3), 1, "")
    assert choose.seconds_a_step(always, mlp(width=4).prepared(), [trial(0)], {}, 2) is None


@pytest.mark.parametrize(
    ("times", "chosen", "reason"),
    [
        ({"one": None, "together": 1e-3}, "together", "not measured, since a trial failed .*: one"),
        ({"one": 1e-3, "together": None}, "one", "not measured, since a trial failed .*: together"),
        ({"one": None, "together": None}, "one", "no executor could be measured"),
    ],
)
def test_an_executor_that_cannot_be_measured_neither_wins_nor_sets_the_mark(monkeypatch, times, chosen, reason):
    found, _ = chosen_by(monkeypatch, times, 5, ("together",))
    assert found.name == chosen
    assert re.search(reason, found.reason)
