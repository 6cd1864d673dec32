"""What ranks compare by its content before the first step: their weights, and samples spread over their data."""

import numpy as np
import pytest
import torch
from thread_ranks import Distributed, on_ranks
from toys import Regression

import descend
from descend.callbacks.console import quiet
from descend.data import ArrayReader, Batches
from descend.data.loading.batch_iterable import BatchIterable
from descend.errors import ConfigurationError, DataError
from descend.experiment.build import build_run
from descend.experiment.ranks import require_same_configuration, sample_digests
from descend.train import BatchedIterativeOptimizer, Mode
from descend.train.module_state import bits_sum
from descend.train.run import RunConfig
from descend.train.step import train_step
from descend.train.strategies import buckets

X = np.random.default_rng(0).normal(size=(12, 3))
Y = X.sum(1, keepdims=True)


class Changing:
    """A reader that gives something else each time, as augmentation by a generator of one's own does."""

    def __init__(self):
        self.count = 0

    def __len__(self):
        return 12

    def read(self, indices, epoch=0):
        self.count += 1
        return {"x": X[indices] + self.count, "y": Y[indices]}


class Unreadable(Changing):
    def read(self, indices, epoch=0):
        raise DataError("sample 0 cannot be read")


def prepared(communicator, reader=None, change=lambda module: None, callbacks=(), functions=None):
    """The weights after the ranks were compared, and what was said."""
    task, said = Regression(), []
    task.functions = functions or {}
    change(task.module)
    run = build_run(
        RunConfig("model0", 0, BatchedIterativeOptimizer(), say=said.append),
        task=task,
        optimizer=torch.optim.SGD(task.module.parameters(), lr=0.1),
        data={Mode.TRAIN: Batches(reader or ArrayReader({"x": X, "y": Y}), 4, seed=0, shuffle=False)},
        world=communicator,
        micro_batch_size=4,
        callbacks=callbacks,
    )
    require_same_configuration(run)
    return task.module.weight.detach().clone(), said


def test_equal_ranks_have_nothing_to_say():
    assert [said for _, said in on_ranks(2, prepared)] == [[], []]


@pytest.mark.parametrize("bit", [0, 51, 63])
def test_weights_that_differ_in_one_bit_are_broadcast_and_that_is_said(bit):
    def act(communicator):
        def change(module):
            if communicator.rank == 1:
                module.weight.data.view(torch.int64)[0, 1] ^= torch.tensor(1).bitwise_left_shift(torch.tensor(bit))

        return prepared(communicator, change=change)

    (first, said), (second, _) = on_ranks(2, act)
    assert torch.equal(first, second)
    assert said == ["the weights differ between ranks: those of rank 0 are broadcast to all"]


def test_weights_that_differ_are_a_warning_where_nothing_is_printed():
    def act(communicator):
        def change(module):
            module.weight.data += communicator.rank

        with quiet():
            return prepared(communicator, change=change)

    with pytest.warns(UserWarning, match="the weights differ between ranks: those of rank 0 are broadcast to all"):
        on_ranks(2, act)


class Watching(descend.Callback):
    """A callback of the user's own, which may well watch one rank."""


def losses(*by_rank):
    """A loss of each rank."""
    return lambda rank: {"functions": {"loss": by_rank[rank]}}


DIFFERENT = {
    "frozen weights": lambda rank: {"change": lambda module: module.bias.requires_grad_(rank == 0)},
    "a callback more": lambda rank: {"callbacks": (descend.EMA(),) * rank},
    "options of a callback": lambda rank: {"callbacks": (descend.EMA(decay=0.5 + 0.1 * rank),)},
    "lambdas": losses(lambda o, t: o - t, lambda o, t: t - o),
    "a constant": losses(lambda o: 2 * o, lambda o: 3 * o),
    "inner functions": losses(lambda o: sum(1 for _ in o), lambda o: sum(2 for _ in o)),
}
EQUAL = {
    "callbacks": lambda rank: {"callbacks": (descend.EMA(),)},
    "one of one's own on one rank": lambda rank: {"callbacks": (Watching(),) * rank},
    "lambdas of two places": losses(lambda o: o in {"a", "b"}, lambda o: o in {"a", "b"}),
    "what has no code": losses(torch.nn.functional.cosine_similarity, torch.nn.functional.cosine_similarity),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_settings_that_differ_are_refused_before_anything_is_summed(what):
    with pytest.raises(ConfigurationError, match="the settings of the run differ between ranks; make them equal:"):
        on_ranks(2, lambda communicator: prepared(communicator, **DIFFERENT[what](communicator.rank)))


@pytest.mark.parametrize("what", EQUAL)
def test_settings_that_are_the_same_pass(what):
    assert len(on_ranks(2, lambda communicator: prepared(communicator, **EQUAL[what](communicator.rank)))) == 2


def fitted(communicator, batches, callbacks=()):
    """The strategy of a run over these batches of one rank after a few steps."""
    task = Regression()
    run = build_run(
        RunConfig("model0", 0, BatchedIterativeOptimizer()),
        task=task,
        optimizer=torch.optim.SGD(task.module.parameters(), lr=0.1),
        data={Mode.TRAIN: BatchIterable(batches, 4, "train", communicator.rank, communicator.world_size)},
        world=communicator,
        micro_batch_size=4,
        callbacks=callbacks,
    )
    require_same_configuration(run)
    for batch in run.strategy.batches():
        train_step(run, batch)


def split(x):
    return [{"x": torch.from_numpy(x[at : at + 4]), "y": torch.from_numpy(Y[at : at + 4])} for at in range(0, 12, 4)]


def test_a_list_of_batches_is_compared_and_an_iterable_as_soon_as_it_yields(monkeypatch):
    monkeypatch.setattr(buckets, "distributed", Distributed)

    def of_list(communicator):
        fitted(communicator, split(X + communicator.rank))

    def of_function(communicator):
        fitted(communicator, lambda: split(X + communicator.rank))

    with pytest.raises(ConfigurationError, match="the data differ between ranks"):
        on_ranks(2, of_list)
    with pytest.warns(UserWarning, match="the first mini-batch differs between ranks"):
        on_ranks(2, of_function)
    on_ranks(2, lambda communicator: fitted(communicator, lambda: split(X)))  # a warning would be an error


def test_a_learning_rate_that_one_rank_changes_is_found_in_its_step(monkeypatch):
    monkeypatch.setattr(buckets, "distributed", Distributed)

    class Faster(descend.Callback):
        def __init__(self, factor):
            self.factor = factor

        def after_step(self, step):
            for group in step.run.optimizer.param_groups:
                group["lr"] *= self.factor

    with pytest.raises(DataError, match=r"different places: .*mini-batch 2 .*learning rates \[0.1\].*\[0.2\]"):
        on_ranks(2, lambda communicator: fitted(communicator, lambda: split(X), (Faster(1.0 + communicator.rank),)))


def of_many(communicator, change, rows=400):
    """A run over many samples, of which rank 1 has changed some."""
    x = np.arange(3.0 * rows).reshape(rows, 3)
    if communicator.rank == 1:
        change(x)
    return prepared(communicator, ArrayReader({"x": x, "y": x.sum(1, keepdims=True)}))


def shifted(rows):
    def change(x):
        x[rows] += 5

    return change


@pytest.mark.parametrize(
    ("change", "sample"),
    [
        (shifted(slice(0, 1)), 0),
        (shifted(slice(399, 400)), 399),
        (shifted(slice(150, 250)), 152),
        (shifted(slice(200, 207)), 203),
        (lambda x: x.__setitem__(slice(1, 399), x[1:399][::-1].copy()), 6),
    ],
)
def test_samples_that_differ_are_refused_with_their_number(change, sample):
    with pytest.raises(ConfigurationError, match="the data differ between ranks; make them equal:") as caught:
        on_ranks(2, lambda communicator: of_many(communicator, change))
    assert f"train sample {sample}: " in str(caught.value)


def test_a_list_of_batches_is_compared_in_the_middle_too():
    def act(communicator):
        batches = split(X)
        batches[1]["x"] = batches[1]["x"] + communicator.rank
        feed = BatchIterable(batches, 4, "train", communicator.rank, communicator.world_size)
        return feed.digests

    first, second = on_ranks(2, act)
    assert [key for key in first if first[key] != second[key]] == ["batch 1"]


class Sometimes(ArrayReader):
    """A reader that changes each sample but the first and the last by a draw of this rank's."""

    def __init__(self, rank):
        super().__init__({"x": X, "y": Y})
        self.draws = np.random.default_rng(rank)

    def read(self, indices, epoch=0):
        fields = super().read(indices, epoch)
        inner = (np.asarray(indices) > 0) & (np.asarray(indices) < 11)
        noise = self.draws.normal(size=(len(inner), 1)) * inner[:, None]
        return {**fields, "x": fields["x"] + noise}


def test_samples_that_are_drawn_again_or_cannot_be_read_are_not_compared():
    for kind in (Changing, Unreadable):
        assert sample_digests(Batches(kind(), 4, 0, False)) == {}
        assert [said for _, said in on_ranks(2, lambda communicator, kind=kind: prepared(communicator, kind()))] == [
            [],
            [],
        ]
    on_ranks(2, lambda communicator: prepared(communicator, Sometimes(communicator.rank)))
    assert sample_digests(iter(())) == {}


def test_a_digest_is_of_names_and_contents_of_arrays_tensors_and_texts():
    def digest(**fields):
        return sample_digests(Batches(ArrayReader(fields), 1, 0, False))

    rows = np.arange(6.0).reshape(3, 2)
    assert digest(a=rows) == digest(a=rows.copy())
    found = [digest(a=rows), digest(b=rows), digest(a=rows + 1), digest(a=rows[::-1].copy())]
    assert len({tuple(one.values()) for one in found}) == 4
    changed = digest(a=rows + np.array([[0], [1], [0]]))
    assert [name for name, value in digest(a=rows).items() if changed[name] != value] == ["sample 1"]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128, torch.bool, torch.int64]
)
def test_bits_of_tensors_of_every_type_and_shape_are_summed(dtype):
    x = torch.ones(3, 4, dtype=dtype)
    y = x.clone()
    y[1, 2] = 0
    assert bits_sum(x) == bits_sum(x.t()) != bits_sum(y)
    assert bits_sum(torch.ones((), dtype=dtype)) == bits_sum(torch.ones(1, dtype=dtype))
    assert bits_sum(torch.empty(0, dtype=dtype)) == 0


def test_what_has_no_dense_memory_counts_as_nothing():
    assert bits_sum(torch.ones(2, 2).to_sparse()) == 0
    assert bits_sum(torch.ones(2, device="meta")) == 0
