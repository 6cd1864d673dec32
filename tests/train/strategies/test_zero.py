"""ZeRO stage 1 on ranks that are threads: what each of them has of the gradients, and when all have all."""

import numpy as np
import pytest
import torch
from thread_ranks import Distributed, on_ranks
from torch import nn
from toys import Regression, data

from descend.data import Batch
from descend.experiment.build import build_run
from descend.train import BatchedIterativeOptimizer, Callback, Mode
from descend.train.objective import Totals
from descend.train.run import RunConfig
from descend.train.strategies import buckets, zero
from descend.train.strategies.data_parallel import DataParallel
from descend.train.strategies.zero import ZeroDataParallel
from descend.train.transforms.usual import Clip, usual_transforms

X, Y = np.random.default_rng(3).normal(size=(10, 3)), np.random.default_rng(4).normal(size=(10, 1))


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    for module in (buckets, zero):
        monkeypatch.setattr(module, "distributed", Distributed)


class Looking(Callback):
    def after_backward(self, step):
        pass


def run_on(communicator, shard=True, callbacks=(), **clip):
    task, draw = Regression(), torch.Generator().manual_seed(0)  # one of its own: ranks are threads
    task.module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    for p in task.module.parameters():
        nn.init.normal_(p, generator=draw)
    run = build_run(
        RunConfig("model0", 0, BatchedIterativeOptimizer()),
        task=task,
        optimizer=torch.optim.SGD(task.module.parameters(), lr=0.1),
        data={Mode.TRAIN: data()},
        world=communicator,
        shard_optimizer=shard,
        callbacks=callbacks,
        transforms=usual_transforms(**clip),
        micro_batch_size=10,
    )
    run.transforms.setup(run)
    return run


def reduced(run, communicator, step=0):
    rows = slice(0, 4) if communicator.rank == 0 else slice(4, 10)
    batch = Batch({"x": X[rows], "y": Y[rows]}, np.arange(10)[rows], 0, step, 10, False, rows.start)
    strategy = run.strategy
    with strategy.accumulating(batch):
        ratios = [strategy.backward(run.task.losses(part).objective, part) for part in strategy.micro_batches(batch)]
    return strategy.reduce(batch, ratios, Totals())


def names_with_gradient(run):
    return [name for name, p in run.task.module.named_parameters() if p.grad is not None]


def gradients(run):
    return {name: p.grad.clone() for name, p in run.task.module.named_parameters() if p.grad is not None}


def test_after_the_first_step_each_rank_has_the_gradients_of_its_own_parameters():
    def act(communicator):
        run, plain = run_on(communicator), run_on(communicator, shard=False)
        assert (type(run.strategy), type(plain.strategy)) == (ZeroDataParallel, DataParallel)
        reduced(run, communicator)
        first = names_with_gradient(run)
        for step in (1, 2):
            run.clear_gradients()
            plain.clear_gradients()
            reduced(run, communicator, step)
            reduced(plain, communicator, step)
        assert run.strategy.local_parameters().keys() == run.optimizer.local_names
        return first, gradients(run), gradients(plain)

    (first, one, whole), (_, other, _) = on_ranks(2, act)
    assert first == list(whole)  # all of them
    assert set(one) | set(other) == set(whole)
    assert not set(one) & set(other)
    for name, gradient in {**one, **other}.items():
        assert torch.equal(gradient, whole[name])


def test_what_one_rank_needs_all_have_from_the_next_step_on():
    def act(communicator):
        run = run_on(communicator, callbacks=[Looking()] if communicator.rank else [])
        counts = []
        for step in range(3):
            run.clear_gradients()
            reduced(run, communicator, step)
            counts.append(len(names_with_gradient(run)))
        return counts

    assert on_ranks(2, act) == [[4, 4, 4]] * 2


@pytest.mark.parametrize("clip", [{"clip_global_norm": 0.01}, {"clip_norm": 0.01}, {"clip_value": 0.01}])
def test_clipping_changes_no_bit(clip):
    def act(communicator):
        found = []
        for shard in (True, False):
            run = run_on(communicator, shard, **clip)
            reduced(run, communicator)
            run.clear_gradients()
            before = reduced(run, communicator, 1)
            run.transforms.one(Clip)(before)
            found.append(gradients(run))
        return found

    (one, whole), (other, _) = on_ranks(2, act)
    together = {**one, **other}
    assert together.keys() == whole.keys()
    for name in whole:
        assert torch.equal(together[name], whole[name])
    assert sum(float(g.square().sum()) for g in whole.values()) < 0.05**2  # the bound was in force


def test_a_rank_without_gradients_takes_part_in_the_norm():
    def act(communicator):
        run = run_on(communicator, clip_global_norm=1e-3)
        for name, p in run.task.module.named_parameters():
            p.requires_grad_(run.optimizer.owners[name] == 1)
        for step in (0, 1):
            run.clear_gradients()
            run.transforms.one(Clip)(reduced(run, communicator, step))
        return gradients(run)

    first, second = on_ranks(2, act)
    assert (first, len(second)) == ({}, 3)
    assert sum(float(g.square().sum()) for g in second.values()) ** 0.5 == pytest.approx(1e-3, rel=1e-6)


def test_names_of_all_ranks_are_put_together():
    def act(communicator):
        run = run_on(communicator)
        for step in (0, 1):
            run.clear_gradients()
            reduced(run, communicator, step)
        return run.strategy.union([f"w{communicator.rank}"]), run.strategy.union([])

    assert on_ranks(2, act) == [(["w0", "w1"], [])] * 2
