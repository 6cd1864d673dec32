"""What each trial of a stack is given in a step is what it would be given alone."""

import dataclasses

import numpy as np
import pytest
import torch
from study_tasks import trial
from torch import nn

from descend.data import order
from descend.study.running.optimizer import schedule_of
from descend.study.running.stack_inputs import Draw, SampleOrder, SuppliedDropout, learning_rates, random_words
from descend.train.patches.dropout import philox_words

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
