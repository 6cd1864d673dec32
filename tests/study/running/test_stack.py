"""A stack step by step, against loops in plain torch; what whole runs give is in test_vmapped.py."""

import dataclasses

import numpy as np
import pytest
import torch
from study_tasks import mlp, trial
from torch import nn

from descend.data import order
from descend.study import StudyTask
from descend.study.running.optimizer import schedule_of
from descend.study.running.stack import (
    Draw,
    SampleOrder,
    Stack,
    SuppliedDropout,
    UpdateNumbers,
    learning_rates,
    random_words,
)
from descend.train.patches.dropout import philox_words

TASK = mlp(width=4, double=True).prepared()


def by_hand(task, one, steps):
    """SGD with momentum in plain torch, over the batches of the trial."""
    module = task.module(one.seed)
    given = one.configuration
    optimizer = torch.optim.SGD(module.parameters(), lr=given["lr"], momentum=given.get("momentum", 0.0))
    x, y = task.train
    batches = torch.as_tensor(order(one.seed, 0, np.arange(len(x)), len(x))).split(one.batch_size)
    for rows in batches[:steps]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return nn.functional.cross_entropy(module(x), y)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}])
def test_steps_are_those_of_each_trial_by_hand(settings):
    trials = [trial(i, lr=0.1 * (i + 1), **settings) for i in range(3)]
    stack = Stack(TASK, trials)
    for number in (1, 2, 3):
        stack.step(number)
    found = stack.look()["train"]["loss"]
    for place, one in enumerate(trials):
        torch.testing.assert_close(found[place], by_hand(TASK, one, 3), rtol=1e-9, atol=0)
    assert stack.failed_at.tolist() == [0, 0, 0]


@pytest.mark.parametrize("on_device", [False, True])
def test_the_first_update_that_is_not_finite_is_noted_and_others_go_on(on_device, monkeypatch):
    trials = [trial(0, lr=0.1), trial(1, lr=1e200)]
    stack = Stack(TASK, trials)
    if on_device:  # nothing is asked of it there before the gradients are looked at
        monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False), raising=False)
    for number in range(1, 6):
        stack.step(number)
    assert stack.failed_at[0] == 0
    assert 1 < stack.failed_at[1] <= 5
    torch.testing.assert_close(stack.look()["train"]["loss"][0], by_hand(TASK, trials[0], 5), rtol=1e-9, atol=0)


def test_test_samples_are_scored_when_asked_for():
    stack = Stack(TASK, [trial()])
    assert set(stack.look()) == {"train", "validation"}
    assert stack.look(test=True) == {}


def test_a_stack_is_traced_once_for_all_of_its_form():
    task = mlp(width=4, double=True).prepared()
    trials = [trial(i, steps=80) for i in range(2)]
    Stack(task, trials).trace()
    known = len(task.traces)
    assert known > 0
    again = Stack(task, [trial(i + 5, steps=80, lr=0.3) for i in range(2)])
    again.trace()
    again.look()
    again.step(1)
    assert len(task.traces) == known


def test_a_stack_takes_the_samples_that_are_beside_its_modules(monkeypatch):
    """However it is made: to run it, or to measure it before. Where they lie is `StudyTask.beside`'s to say."""
    there = TASK.prepared()
    monkeypatch.setattr(StudyTask, "beside", lambda self, module: there)
    assert Stack(mlp(width=4, double=True).prepared(), [trial()])._data is there.train


TRIALS = [trial(0, batch_size=4), trial(1, batch_size=4)]
CPU = torch.device("cpu")


@pytest.mark.parametrize("samples", [10, 8])
def test_samples_are_those_of_each_trials_own_order(samples):
    orders = SampleOrder(TRIALS, samples, CPU)
    per_epoch = -(-samples // 4)
    for epoch in (0, 1):
        seen = torch.cat([orders.rows(epoch * per_epoch + place) for place in range(per_epoch)], dim=1)
        for place, one in enumerate(TRIALS):
            assert seen[place].tolist() == order(one.seed, epoch, np.arange(samples), samples).tolist()


@pytest.mark.parametrize(("samples", "rows", "steps", "count"), [(10, 4, 7, 5), (10, 2, 7, 2), (8, 4, 7, 7)])
def test_steps_of_a_size_are_counted(samples, rows, steps, count):
    orders = SampleOrder(TRIALS, samples, CPU)
    assert orders.count(rows, steps) == count
    assert sum(orders.rows(step).shape[1] == rows for step in range(steps)) == count


def test_learning_rates_are_those_of_the_schedules():
    trials = [trial(0, steps=10, lr=0.1, schedule="cosine"), trial(1, steps=10, lr=0.3)]
    rates = learning_rates(trials)
    assert rates.shape == (10, 2)
    for place, one in enumerate(trials):
        schedule = schedule_of(one.configuration, 10)
        assert rates[:, place].tolist() == [schedule(step) for step in range(10)]
    constant = learning_rates([dataclasses.replace(one, configuration=TRIALS[0].configuration) for one in trials])
    np.testing.assert_array_equal(constant, np.full((10, 2), 0.1))


def test_words_are_those_of_each_trial_alone():
    words = random_words(Draw("drop", 1, 3, 4), TRIALS, 5, CPU)
    assert words.shape == (2, 3, 4)
    for place, one in enumerate(TRIALS):
        alone = philox_words(one.seed, 4, "drop", 1, 0, 3, CPU, 4)
        assert words[place].tolist() == alone.tolist()


def test_a_random_layer_notes_what_it_asks_for_and_takes_what_it_is_given():
    module = nn.Sequential(nn.Dropout(0.5))
    dropout = SuppliedDropout(module)
    x = torch.ones(3, 4)
    with dropout:
        dropout.begin(0, 3, 0)
        module(x)
        (draw,) = dropout.asked
        assert draw.rows == 3
        words = [random_words(draw, TRIALS, number, CPU)[0] for number in (1, 1, 2)]
        outputs = []
        for given in words:
            dropout.given = [given]
            dropout.begin(0, 3, 0)
            outputs.append(module(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize(("samples", "steps", "firsts"), [(10, 9, [0, 2]), (10, 2, [0]), (8, 9, [0]), (3, 9, [0])])
def test_the_first_step_of_each_number_of_samples(samples, steps, firsts):
    made = SampleOrder([trial(batch_size=4)], samples, torch.device("cpu"))
    found = [made.rows(step).shape[1] for step in range(steps)]
    assert made.first_steps(steps) == firsts == sorted({found.index(rows) for rows in found})


def test_numbers_of_an_update_are_those_of_the_tables():
    """Over more than a block of them, in any order."""
    trials = [dataclasses.replace(one, steps=600) for one in TRIALS]
    numbers, rates = UpdateNumbers(trials, torch.device("cpu")), learning_rates(trials)
    for number in (1, 256, 257, 600, 2):
        rate, step = numbers.of(number)
        assert rate.tolist() == list(rates[number - 1])
        assert step.tolist() == [number] * len(trials)
