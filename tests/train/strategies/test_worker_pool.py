"""Workers of a parameter server over a channel that answers by itself, in this process."""

from types import SimpleNamespace

import pytest
import torch

from descend.errors import LostPeer
from descend.runtime.communicator import RankStatus
from descend.train.strategies.worker_pool import WorkerPool


class FakeChannel:
    """Answers each message of the server with words that were prepared, or with an error."""

    def __init__(self, asked=None, broken=()):
        self.sent, self.asked, self.broken = [], asked or {}, broken

    def send(self, to, words, tensors=()):
        self.sent.append((to, dict(words), [t.clone() for t in tensors]))

    def receive(self, source, forms):
        if source in self.broken:
            raise RuntimeError("connection closed")
        return {"asked": self.asked.get(source), "from": source}, [torch.full_like(t, source) for t in forms]


class FakeStop:
    def __init__(self):
        self.calls = []

    def waiting(self, waiting):
        self.calls.append(waiting)


def pool_of(workers=2, **settings):
    world = SimpleNamespace(world_size=workers + 1, status=RankStatus())
    channel = FakeChannel(**settings)
    return WorkerPool(world, channel), channel, world.status


STATE = [torch.tensor([1.0, 2.0]), torch.tensor(3)]


def assigned(pool, *numbers, epoch=4, version=7):
    for i, number in enumerate(numbers):
        pool.assign(epoch, number, 8, version, 10 + i, {"w": STATE[0]}, STATE)


def test_idle_workers_are_given_mini_batches_with_the_parameters():
    pool, channel, status = pool_of()
    assert status.served == range(1, 3)
    assert pool.has_idle
    assigned(pool, 5, 6)
    assert not pool.has_idle
    assert [(to, words) for to, words, _ in channel.sent] == [
        (1, {"epoch": 4, "number": 5, "size": 8, "step": 10}),
        (2, {"epoch": 4, "number": 6, "size": 8, "step": 11}),
    ]
    assert all(torch.equal(a, b) for _, _, tensors in channel.sent for a, b in zip(tensors, STATE, strict=True))
    pending = pool.pending
    assert [(one.worker, one.epoch, one.number, one.version) for one in pending] == [(1, 4, 5, 7), (2, 4, 6, 7)]
    assert pending[0].stale["w"] is STATE[0]
    pool.dismiss({"end": {}})


def test_a_gradient_that_arrives_makes_its_worker_idle_again():
    pool, _, status = pool_of(workers=1)
    assigned(pool, 5)
    stop = FakeStop()
    arrived = pool.next_arrival(stop)
    assert (arrived.worker, arrived.number, arrived.words["from"]) == (1, 5, 1)
    assert [t.tolist() for t in arrived.tensors] == [[1.0, 1.0], 1]
    assert stop.calls == [True, False]  # a signal may interrupt the wait, and nothing else
    assert pool.has_idle
    assert pool.pending == []
    assert pool.signal is None
    assert status.waiting is None
    assigned(pool, 6)
    assert pool.next_arrival(stop).number == 6


def test_workers_take_turns():
    pool, channel, _ = pool_of(workers=2)
    assigned(pool, 0)
    pool.next_arrival(FakeStop())
    assigned(pool, 1)
    assert [to for to, _, _ in channel.sent] == [1, 2]  # the one that has been idle longest
    pool.next_arrival(FakeStop())


def test_the_first_signal_of_a_worker_is_kept():
    pool, _, _ = pool_of(workers=2, asked={1: "SIGTERM", 2: "SIGINT"})
    assigned(pool, 0)
    pool.next_arrival(FakeStop())
    assert pool.signal == "SIGTERM"
    assigned(pool, 1)
    pool.next_arrival(FakeStop())
    assert pool.signal == "SIGTERM"


def test_a_worker_that_is_gone_is_an_error_with_its_rank():
    pool, _, _ = pool_of(workers=1, broken={1})
    assigned(pool, 0)
    with pytest.raises(LostPeer, match="rank 1 ended with a gradient under way: connection closed"):
        pool.next_arrival(FakeStop())
    assert not pool.has_idle


def test_all_workers_end_with_the_last_message_once_their_gradients_have_come():
    pool, channel, status = pool_of(workers=2)
    assigned(pool, 0)
    pool.dismiss({"end": {"reason": "done"}}, STATE[:1])
    assert pool.pending == []
    last = channel.sent[1:]
    assert sorted(to for to, _, _ in last) == [1, 2]
    assert all(words == {"end": {"reason": "done"}} and len(tensors) == 1 for _, words, tensors in last)
    assert status.waiting is None
    assert not status.patient
