"""Messages between two ranks, which are threads: what arrives has the words, the types, the shapes and the bits."""

import pytest
import torch
from thread_ranks import Distributed, on_ranks

from descend.train.strategies import channel
from descend.train.strategies.channel import Channel

MIXED = [
    torch.arange(6.0).reshape(2, 3),
    torch.tensor([True, False]),
    torch.tensor(7.5),
    torch.tensor([[1], [2**40]]),
    torch.zeros(0, 3),
    torch.tensor([0.1, -0.0, float("inf")], dtype=torch.float64),
    torch.tensor([[9.0]]),
]


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr(channel, "distributed", Distributed)


def exchanged(words, tensors, forms=MIXED):
    def act(communicator):
        talk = Channel(communicator)
        if communicator.rank == 0:
            return talk.send(1, words, tensors)
        return talk.receive(0, forms)

    return on_ranks(2, act)[1]


def test_tensors_of_several_types_come_back_in_their_order_and_shapes():
    words, found = exchanged({"step": 3, "name": "Ä", "rates": [0.1, None]}, MIXED)
    assert words == {"step": 3, "name": "Ä", "rates": [0.1, None]}
    assert [(t.dtype, t.shape) for t in found] == [(t.dtype, t.shape) for t in MIXED]
    assert all(torch.equal(one, sent) for one, sent in zip(found, MIXED, strict=True))
    assert torch.signbit(found[5][1])


def test_a_message_may_bring_words_alone_whatever_was_expected():
    assert exchanged({"end": True}, ()) == ({"end": True}, [])
    assert exchanged({}, (), forms=()) == ({}, [])


def test_parameters_are_sent_without_their_graph_and_from_any_layout():
    p = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    _, [found] = exchanged({}, [p.T], forms=[torch.zeros(3, 2)])
    assert found.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert not found.requires_grad


def test_what_is_sent_is_a_copy():
    """The sender may go on to change its tensors as soon as `send` returns."""
    sent = torch.ones(3)

    def act(communicator):
        talk = Channel(communicator)
        if communicator.rank == 0:
            talk.send(1, {"number": 0}, [sent])
            sent.fill_(2.0)
            return talk.send(1, {"number": 1}, [sent])
        return [talk.receive(0, [torch.zeros(3)]) for _ in range(2)]

    [(first, [one]), (second, [two])] = on_ranks(2, act)[1]
    assert (first, one.tolist(), second, two.tolist()) == ({"number": 0}, [1.0] * 3, {"number": 1}, [2.0] * 3)


def test_messages_of_two_senders_are_received_by_their_rank():
    def act(communicator):
        talk = Channel(communicator)
        if communicator.rank:
            return talk.send(0, {"from": communicator.rank})
        return [talk.receive(source, ())[0]["from"] for source in (2, 1)]

    assert on_ranks(3, act)[0] == [2, 1]


def test_a_group_of_another_backend_gets_a_gloo_group_of_its_own(monkeypatch):
    """NCCL sends no tensors of CPUs, and messages are made of them."""
    asked = []

    class Nccl(Distributed):
        get_backend = staticmethod(lambda group: "nccl")
        new_group = staticmethod(lambda backend: asked.append(backend))

    monkeypatch.setattr(channel, "distributed", Nccl)
    on_ranks(1, Channel)
    assert asked == ["gloo"]
