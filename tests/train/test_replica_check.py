"""Ranks that hold copies of the weights compare them now and then, and at the end."""

import numpy as np
import pytest
import torch
from thread_ranks import Distributed, on_ranks
from toys import Regression

import descend
from descend.data import ArrayReader, Batches
from descend.errors import DataError
from descend.experiment.build import build_run
from descend.train import BatchedIterativeOptimizer, Mode
from descend.train.loop import train
from descend.train.run import RunConfig
from descend.train.strategies import buckets

X = np.random.default_rng(0).normal(size=(12, 3))
Y = X.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr(buckets, "distributed", Distributed)


class Changes(descend.Callback):
    """Changes a weight on one rank, by an amount that is a part of its largest element."""

    def __init__(self, by, at, name="weight"):
        self.by, self.at, self.name = by, at, name

    def after_step(self, step):
        if step.step == self.at:
            p = dict(step.module.named_parameters())[self.name]
            p.data += self.by * p.data.abs().max()


def trained(communicator, steps, *callbacks, strategy=None, **config):
    """Train on one of several ranks; returns how many comparisons were made and what was said."""
    task, said = Regression(), []
    run = build_run(
        RunConfig("model0", 0, BatchedIterativeOptimizer(), say=said.append, **config),
        task=task,
        optimizer=torch.optim.SGD(task.module.parameters(), lr=0.01),
        data={
            Mode.TRAIN: Batches(ArrayReader({"x": X, "y": Y}), 4, 0, False, communicator.rank, communicator.world_size)
        },
        world=communicator,
        strategy=strategy,
        micro_batch_size=4,
        callbacks=callbacks,
    )
    at, compare = [], run.checks.replicas.compare

    def noted():
        at.append(run.state.step)
        compare()

    run.checks.replicas.compare = noted
    run.checks.replicas.begin()
    train(run, descend.Steps(steps))
    run.checks.replicas.end()
    return at, said


@pytest.mark.parametrize(("ranks", "who"), [(2, 1), (3, 2)])
def test_the_rank_and_the_weights_that_drifted_are_named(ranks, who):
    def act(communicator):
        return trained(communicator, 60, *[Changes(0.5, 10)] * (communicator.rank == who))

    with pytest.raises(
        DataError, match=rf"after 16 updates .*'weight' of rank {who} differ from those of rank 0; look"
    ):
        on_ranks(ranks, act)


def test_a_drift_after_the_last_comparison_is_found_at_the_end():
    with pytest.raises(DataError, match="after 20 updates"):
        on_ranks(2, lambda communicator: trained(communicator, 20, *[Changes(0.5, 19)] * communicator.rank))


def test_what_is_not_finite_on_one_rank_alone_is_a_drift():
    with pytest.raises(DataError, match="after 3 updates"):
        on_ranks(2, lambda communicator: trained(communicator, 3, *[Changes(float("nan"), 3)] * communicator.rank))


def test_comparisons_become_rare():
    (at, said), _ = on_ranks(2, lambda communicator: trained(communicator, 130))
    assert at == [16, 48, 112, 130]
    assert not said


def test_rounding_is_said_once_and_ends_nothing():
    def act(communicator):
        return trained(communicator, 60, *[Changes(1e-9, 10)] * communicator.rank)

    (_, said), _ = on_ranks(2, act)
    assert len(said) == 1
    assert "the weights of the ranks differ by rounding, up to " in said[0]


def test_nothing_is_compared_where_weights_are_no_copies_or_the_user_says_no():
    change = Changes(0.5, 10)

    def local(communicator):
        return trained(communicator, 30, *[change] * communicator.rank, strategy=descend.LocalSGD(steps=8))

    def refused(communicator):
        return trained(communicator, 30, *[change] * communicator.rank, check_ranks=False)

    for act in (local, refused):
        assert [at for at, _ in on_ranks(2, act)] == [[], []]
    assert trained(on_ranks(1, lambda communicator: communicator)[0], 30, change)[0] == []
