"""The forecast of an experiment on many ranks: what is measured on one process, and the table."""

import dataclasses

import numpy as np
import pytest
import torch
from thread_ranks import Distributed, on_ranks
from toys import Regression, data

import descend
from descend.data import Batch
from descend.errors import ConfigurationError
from descend.experiment.build import build_run
from descend.experiment.experiment import Experiment
from descend.experiment.inspect import scaling_forecast
from descend.experiment.inspect.scaling_forecast import forecast_table, profile_of
from descend.launch.cost_model import Network, Profile, forecast
from descend.train import BatchedIterativeOptimizer, Mode
from descend.train.run import RunConfig
from descend.train.step import train_step
from descend.train.strategies import buckets, zero

PROFILE = Profile(0.002, 1e-5, 4_000_000, 3_000_000, 1, 6_000_000)
NETWORK = Network(1e-5, 1e9)


def test_the_table_has_a_line_for_each_number_of_ranks_with_the_numbers_of_the_model():
    head, network, batch, empty, titles, *lines = forecast_table(PROFILE, NETWORK, 1024, (1, 4, 64)).splitlines()
    assert head.startswith("one rank: 2 ms a step and 10 µs a sample, measured; 3,000,000 bytes of gradients in 1 ")
    assert (network, batch, empty) == ("network: 10 µs a message, 1 GB/s, rings", "mini-batch: 1,024 samples", "")
    assert titles.split()[:3] == ["ranks", "ms/step", "sums"]
    for ranks, line in zip((1, 4, 64), lines, strict=True):
        one = forecast(PROFILE, NETWORK, 1024, ranks)
        cells = line.split()
        assert int(cells[0]) == ranks
        assert float(cells[1]) == pytest.approx(one.step_seconds * 1e3, abs=0.006)
        assert float(cells[2]) == pytest.approx(one.sum_seconds * 1e3, abs=0.006)
        assert float(cells[-3]) == pytest.approx(one.memory_bytes / 1e6, abs=0.06)
        assert float(cells[-2]) == pytest.approx(one.sharded_bytes / 1e6, abs=0.06)
        assert float(cells[-1]) == pytest.approx(one.fully_sharded_bytes / 1e6, abs=0.06)


def test_ranks_that_are_never_faster_are_reported_as_such():
    never = dataclasses.replace(PROFILE, sample_seconds=0.0)
    assert "never" in forecast_table(never, NETWORK, 64, (2,)).splitlines()[-1]


def experiment(batch_size):
    x, y = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    z = descend.FullyConnected(x, num_neurons=10, has_bias=True, name="fc")
    loss = descend.CrossEntropy(descend.Softmax(z), y, name="loss")
    model = descend.Model(1, objective_function=loss, callbacks=[descend.Timer()])
    trainer = descend.Trainer(mini_batch_size=batch_size, random_seed=3)
    return Experiment(trainer, model, descend.zoo.digits(), descend.Adam(learn_rate=0.01))


def test_a_measurement_counts_bytes_of_weights_gradients_and_state(monkeypatch):
    monkeypatch.setattr(scaling_forecast, "_STEPS", 4)
    monkeypatch.setattr(scaling_forecast, "_SIZES", 2)
    made = experiment(32)
    profile = profile_of(made)
    weights = 4 * (64 * 10 + 10)
    assert (profile.weights_bytes, profile.gradient_bytes, profile.state_bytes) == (weights, weights, 2 * weights)
    assert profile.largest_state_bytes == 2 * 4 * 64 * 10  # of the matrix, which ranks do not cut
    assert profile.messages == 1
    assert profile.fixed_seconds >= 0
    assert profile.sample_seconds >= 0
    assert len(made.model.callbacks) == 1  # the experiment itself is not changed


def test_a_mini_batch_of_one_sample_cannot_be_shared():
    with pytest.raises(ConfigurationError, match="mini_batch_size must be > 1 to be shared by ranks, got 1"):
        profile_of(experiment(1))


def held_bytes(run):
    """What a rank holds between two steps: weights, its own gradients, their sums, and the optimizer's state."""
    parameters = list(run.task.module.parameters())
    state = [value for entry in run.optimizer.state.values() for value in entry.values() if value.dim()]
    sums = [bucket.buffer for bucket in run.strategy.reducer._buckets]
    held = [*parameters, *run.strategy.reducer.local.values(), *sums, *state]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}.values())


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shard", [False, True])
def test_the_memory_of_a_rank_is_as_foretold(shard, ranks, monkeypatch):
    for module in (buckets, zero):
        monkeypatch.setattr(module, "distributed", Distributed)
    rows = np.arange(6)
    x, y = rows[:, None] * np.ones(3), rows[:, None] * 1.0

    def act(communicator):
        task = Regression()
        task.module = torch.nn.Sequential(*[torch.nn.Linear(3, 3, dtype=torch.float64) for _ in range(ranks)])
        task.module.append(torch.nn.Linear(3, 1, dtype=torch.float64))
        run = build_run(
            RunConfig("model0", 0, BatchedIterativeOptimizer()),
            task=task,
            optimizer=torch.optim.Adam(task.module.parameters()),
            data={Mode.TRAIN: data()},
            world=communicator,
            shard_optimizer=shard,
            micro_batch_size=6,
        )
        own = slice(communicator.rank * 6 // ranks, (communicator.rank + 1) * 6 // ranks)
        for step in range(2):
            run.clear_gradients()
            train_step(run, Batch({"x": x[own], "y": y[own]}, rows[own], 0, step, 6, False, own.start))
        return held_bytes(run)

    weights = 8 * (ranks * 12 + 4)
    profile = Profile(0.0, 1e-3, weights, weights, 1, 2 * weights, 2 * 8 * 9)
    predicted = forecast(profile, NETWORK, 6, ranks)
    expected = predicted.sharded_bytes if shard else predicted.memory_bytes
    found = on_ranks(ranks, act)
    assert max(found) == pytest.approx(expected, rel=0.1)  # as evenly as whole parameters allow
    if not shard:
        assert found == [expected] * ranks
