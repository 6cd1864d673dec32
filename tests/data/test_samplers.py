import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import descend
from descend.data import Batches, ClassBalancedSampler, Loading, Sampler, WeightedSampler, open_data
from descend.data.samplers import as_sampler
from descend.data.tensor_reader import TensorReader
from descend.errors import ConfigurationError, DataError, Stopped
from descend.train import Callback

WEIGHTS = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])


def drawn(sampler, count, seed=3, epoch=0, num_samples=6):
    return sampler.ids(seed, epoch, np.arange(count), num_samples)


def test_samples_come_in_proportion_to_their_weights():
    found = np.bincount(drawn(WeightedSampler(WEIGHTS), 80_000), minlength=6)
    assert list(found[WEIGHTS == 0]) == [0, 0, 0]
    expected = 80_000 * WEIGHTS / 8
    chi = float(((found - expected)[WEIGHTS > 0] ** 2 / expected[WEIGHTS > 0]).sum())
    assert chi < 13.8  # of two degrees of freedom, one time in a thousand above


def test_without_replacement_each_sample_comes_once_and_heavy_ones_first():
    sampler = WeightedSampler(WEIGHTS, size=3, replacement=False)
    orders = np.array([drawn(sampler, 3, epoch=epoch) for epoch in range(4_000)])
    assert all(sorted(row) == [1, 2, 4] for row in orders[:50].tolist())
    first = np.bincount(orders[:, 0], minlength=6)[[1, 2, 4]] / 4_000
    assert first == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.03)
    second_after_4 = orders[orders[:, 0] == 4][:, 1]
    assert np.mean(second_after_4 == 2) == pytest.approx(2 / 3, abs=0.04)


def test_classes_come_equally_often_and_samples_within_them():
    labels = np.array(["cat"] * 3 + ["dog"] * 20 + ["ant"] * 7)
    sampler = ClassBalancedSampler(labels)
    for epoch in range(3):
        ids = sampler.ids(1, epoch, np.arange(30), 30)
        assert {name: int((labels[ids] == name).sum()) for name in ("cat", "dog", "ant")} == {
            "cat": 10,
            "dog": 10,
            "ant": 10,
        }
        counts = np.bincount(ids, minlength=30)
        assert set(counts[:3]) <= {3, 4}
        assert set(counts[3:23]) <= {0, 1}
        assert set(counts[23:]) <= {1, 2}
    assert len(ClassBalancedSampler(torch.tensor([0, 5, 5]), size=100).ids(0, 0, np.arange(100), 3)) == 100


@pytest.mark.parametrize(
    "sampler",
    [
        WeightedSampler(WEIGHTS, size=50),
        WeightedSampler(WEIGHTS, size=3, replacement=False),
        ClassBalancedSampler([0, 0, 1, 1, 1, 2], size=50),
    ],
)
def test_a_sample_is_a_function_of_seed_epoch_and_position(sampler):
    size = sampler.size(6)
    whole = sampler.ids(7, 2, np.arange(size), 6)
    some = np.array([size - 1, 0, 1, 1])
    assert (sampler.ids(7, 2, some, 6) == whole[some]).all()
    others = [sampler.ids(8, 2, np.arange(size), 6), sampler.ids(7, 3, np.arange(size), 6)]
    assert size < 10 or all((other != whole).any() for other in others)
    assert (sampler.ids(7, 2, np.arange(size), 6) == whole).all()


def test_batches_of_any_size_and_ranks_have_the_same_samples():
    reader = TensorReader({"x": torch.arange(6)}, "train")
    sampler = WeightedSampler(WEIGHTS, size=20)
    whole = sampler.ids(5, 1, np.arange(20), 6).tolist()
    for size, ranks in ((7, 1), (20, 1), (6, 2)):
        feeds = [Batches(reader, size, 5, True, rank, ranks, sampler=sampler) for rank in range(ranks)]
        assert (feeds[0].num_samples, feeds[0].steps_per_epoch) == (20, -(-20 // size))
        steps = zip(*(feed.epoch(1) for feed in feeds), strict=True)
        assert [int(i) for step in steps for batch in step for i in batch.fields["x"]] == whole


class Ids(Callback):
    def __init__(self, stop_at=0):
        self.stop_at, self.ids = stop_at, []

    def after_step(self, step):
        self.ids.append(step.ids.tolist())
        if step.step == self.stop_at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)


def fit(sampler, watch, data=None, **more):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = data or (torch.randn(30, 4, generator=generator), torch.arange(30) % 3)
    settings = {"batch_size": 7, "stop": descend.Epochs(2), "sampler": sampler, "callbacks": [watch], **more}
    module = torch.nn.Linear(4, 3)
    return descend.fit(module, "cross_entropy", data, optimizer=functools.partial(torch.optim.SGD, lr=0.1), **settings)


def test_fit_takes_samplers_and_resumes_within_an_epoch(tmp_path):
    def sampler():
        return WeightedSampler(np.arange(30), size=25)

    whole = fit(sampler(), watch := Ids())
    first, rest = Ids(stop_at=3), Ids()
    with pytest.raises(Stopped):
        fit(sampler(), first, run_dir=tmp_path / "run")
    parts = fit(sampler(), rest, run_dir=tmp_path / "run", resume=True)
    assert first.ids + rest.ids == watch.ids
    assert [len(ids) for ids in watch.ids] == [7, 7, 7, 4] * 2
    assert torch.equal(whole.weights["weight"], parts.weights["weight"])
    with pytest.raises(ConfigurationError, match="sampler"):
        fit(WeightedSampler(np.ones(30), size=25), Ids(), run_dir=tmp_path / "run", resume=True)


def test_a_function_is_a_sampler():
    fit(lambda seed, epoch, positions: 29 - positions + 0 * (seed + epoch), watch := Ids(), batch_size=30)
    assert watch.ids == [list(range(29, -1, -1))] * 2
    with pytest.raises(DataError, match=r"returned sample 30 of a data set of 30 samples"):
        fit(lambda seed, epoch, positions: positions + 1, Ids())
    with pytest.raises(DataError, match="must return 30 integers"):
        fit(lambda seed, epoch, positions: positions[:2], Ids())


def test_a_class_of_ones_own():
    class EverySecond(Sampler):
        def size(self, num_samples):
            return num_samples // 2

        def ids(self, seed, epoch, positions, num_samples):
            return 2 * positions + epoch % 2

    fit(EverySecond(), watch := Ids(), batch_size=15)
    assert watch.ids == [list(range(0, 30, 2)), list(range(1, 30, 2))]


def test_a_loader_with_torchs_weighted_sampler_is_drawn_by_weight():
    data = TensorDataset(torch.arange(6), torch.arange(6))
    loader = DataLoader(data, batch_size=4, sampler=WeightedRandomSampler(WEIGHTS, 40))
    feed = open_data(loader, Loading(None, seed=3))
    ids = np.concatenate([batch.ids for batch in feed.epoch(0)])
    assert (ids == WeightedSampler(WEIGHTS, 40).ids(3, 0, np.arange(40), 6)).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WeightedSampler([1.0, -1.0]), "finite and at least 0"),
        (lambda: WeightedSampler([1.0, float("nan")]), "finite and at least 0"),
        (lambda: WeightedSampler([0.0, 0.0]), "must not be all 0"),
        (lambda: WeightedSampler(np.ones((2, 2))), "must be a row with one entry for each sample"),
        (lambda: WeightedSampler([1.0, 0.0], replacement=False), "at most the 1 samples whose weight is not 0"),
        (lambda: ClassBalancedSampler([0.5, 1.0]), "labels must be integers or text"),
        (lambda: ClassBalancedSampler([0, 1], size=0), "size must be an integer >= 1"),
        *(
            (lambda given=given: as_sampler(given), "sampler must be a descend.data.Sampler.*, got ")
            for given in (
                WeightedRandomSampler([1.0], 1),
                len,
                lambda: 1,
                nn.Linear(2, 2),
                Sampler,
                np.random.permutation,
            )
        ),
        (lambda: fit(functools.partial(int), Ids()), r"must be a .*got functools.*: int\(\) takes at most 2 arguments"),
        (lambda: fit(Sampler(), Ids()), "sampler must override Sampler.ids, got <"),
        (lambda: fit(WeightedSampler([1.0, 2.0]), Ids()), "there are 2 weights, and the data set has 30 samples"),
        (
            lambda: fit(
                WeightedSampler([1.0]), Ids(), data=[(torch.zeros(2, 4), torch.zeros(2).long())], batch_size=None
            ),
            "the training data come as batches",
        ),
    ],
)
def test_what_is_no_sampler_is_refused(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()
