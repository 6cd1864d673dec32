"""Gradients reduced to their owners, on ranks that are threads: against plain sums of what each rank computed."""

import pytest
import torch
from thread_ranks import Distributed, on_ranks
from torch import nn

from descend.runtime import Communicator
from descend.train.strategies import buckets, zero
from descend.train.strategies.zero import OwnerBuckets, ReduceScatter

SHAPES = {"a": (2,), "b": (3,), "c": (4,), "d": (5,), "e": (1,)}
OWNERS = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr(buckets, "distributed", Distributed)
    monkeypatch.setattr(zero, "distributed", Distributed)


def parameters():
    draw = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=draw)) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(
    ("bucket_bytes", "names"),
    [
        (1 << 20, [["d", "b"], ["e", "c", "a"]]),  # 'a' is complete last, and with it the bucket of rank 0
        (20, [["d"], ["e", "c"], ["b"], ["a"]]),
        (1, [["e"], ["d"], ["c"], ["b"], ["a"]]),
    ],
)
def test_a_bucket_has_one_owner_and_comes_when_its_gradients_are_complete(bucket_bytes, names):
    found = OwnerBuckets(OWNERS, parameters(), Communicator(), bucket_bytes, pytest.fail).allocate(list(SHAPES))
    assert [one.names for one in found] == names


def step(communicator, everywhere, bucket_bytes, rank_loss):
    weights = parameters()
    reducer = ReduceScatter(weights, communicator, bucket_bytes, owners=OWNERS, everywhere=everywhere)
    reducer.begin(2.0)
    reducer.watch()
    rank_loss(weights, communicator.rank).backward()
    reducer.send()
    counts = communicator.all_reduce(reducer.counts())
    reducer.wait()
    reducer.scatter(counts)
    reducer.close()
    return {name: p.grad for name, p in weights.items()}, reducer


def square(weights, rank):
    return (rank + 1) * sum(p.square().sum() for p in weights.values())


@pytest.mark.parametrize("bucket_bytes", [1, 20, 1 << 20])
@pytest.mark.parametrize("everywhere", [False, True])
def test_an_owner_gets_the_sums_of_its_parameters_and_no_other_rank_does(everywhere, bucket_bytes):
    found = on_ranks(3, lambda rank: step(rank, everywhere, bucket_bytes, square))
    for rank, (grads, reducer) in enumerate(found):
        for name, p in parameters().items():
            if everywhere or OWNERS[name] == rank:
                torch.testing.assert_close(grads[name], 2 * p.detach() * (1 + 2 + 3) / 2.0)
            else:
                assert grads[name] is None
        assert reducer.present == list(SHAPES)
        held = sum(4 * SHAPES[name][0] for name in SHAPES if not everywhere and OWNERS[name] == rank)
        assert reducer.sent_bytes == 4 * 15 - held


def test_a_gradient_that_only_another_rank_has_reaches_its_owner():
    def loss(weights, rank):
        return (weights["a"] if rank else weights["b"]).sum()

    (first, reducer), (second, _) = on_ranks(2, lambda rank: step(rank, False, 1 << 20, loss))
    assert (first["a"].tolist(), second["b"].tolist()) == ([0.5, 0.5], [0.5, 0.5, 0.5])
    assert [first[name] for name in "bcde"] == [second[name] for name in "acde"] == [None] * 4
    assert reducer.present == ["a", "b"]
