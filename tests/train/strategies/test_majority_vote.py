"""Packed signs come back as they were, in a 25th of the bytes; one rank that votes is Signum."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thread_ranks import on_ranks
from torch import nn

import descend
from descend.errors import ConfigurationError, Unsupported
from descend.train.strategies.majority_vote import MajorityVote, MajorityVoting, pack, unpack


@given(st.lists(st.sampled_from([-1, 0, 1]), max_size=300))
def test_signs_come_back(signs):
    given = torch.tensor(signs, dtype=torch.int8)
    assert unpack(pack(given), len(given)).tolist() == signs


@pytest.mark.parametrize("zeros", ["none", "rows", "few"])
def test_a_bit_an_element_goes_over_the_wire(zeros):
    torch.manual_seed(0)
    signs = torch.randn(300, 512).sign().to(torch.int8)
    if zeros == "rows":
        signs[::3] = 0  # of a third of the rows, such as embeddings that were not used
    if zeros == "few":
        signs.view(-1)[::1000] = 0
    packed = pack(signs.view(-1))
    assert torch.equal(unpack(packed, signs.numel()), signs.view(-1))
    assert packed.numel() <= 4 * signs.numel() / 25


def fit(optimizer, **more):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x = torch.randn(10, 3, dtype=torch.float64)
    given = {"optimizer": optimizer, "batch_size": 4, "stop": descend.Epochs(3), **more}
    return descend.fit(module, "cross_entropy", (x, torch.arange(10) % 3), **given)


SIGN_SGD = functools.partial(descend.optim.SignSGD, lr=0.01)


@pytest.mark.parametrize("micro_batch_size", [None, 3])
def test_on_one_rank_it_is_signum(micro_batch_size):
    voted = fit(SIGN_SGD, gradient_compression="sign", micro_batch_size=micro_batch_size)
    plain = fit(functools.partial(descend.optim.Signum, lr=0.01, momentum=0.9), micro_batch_size=micro_batch_size)
    assert all(torch.equal(voted.weights[name], plain.weights[name]) for name in plain.weights)


@pytest.mark.parametrize(
    ("optimizer", "more", "words"),
    [
        (functools.partial(torch.optim.SGD, lr=0.1), {}, "the optimizer is SGD: use descend.optim.SignSGD"),
        (functools.partial(descend.optim.Signum, lr=0.1), {}, "the optimizer is Signum"),
        (SIGN_SGD, {"gradient_compression": "signs"}, "gradient_compression must be .*got 'signs'"),
        (SIGN_SGD, {"shard_optimizer": True}, "SignSGD has no state to shard"),
        (SIGN_SGD, {"algorithm": descend.KFAC()}, "does not go with K-FAC"),
    ],
)
def test_what_does_not_go_together_is_refused(optimizer, more, words):
    with pytest.raises(ConfigurationError, match=words):
        fit(optimizer, **{"gradient_compression": "sign", **more})


def test_momentum_out_of_range_is_refused():
    with pytest.raises(ConfigurationError, match=r"momentum must be in \[0, 1\), got 1\.0"):
        descend.MajorityVote(1.0)


def test_a_sparse_gradient_is_refused():
    table = nn.Embedding(4, 3, sparse=True)
    with pytest.raises(Unsupported, match="sparse gradient"):
        descend.fit(
            table,
            "cross_entropy",
            (torch.tensor([0, 1]), torch.tensor([0, 1])),
            optimizer=SIGN_SGD,
            batch_size=2,
            stop=descend.Epochs(1),
            gradient_compression="sign",
        )


# Ranks that are threads


def voting(communicator, momentum=0.0):
    strategy = MajorityVoting(MajorityVote(momentum))
    strategy._communicator = communicator
    return strategy


GIVEN = torch.tensor([[1.0, -2.0, 0.0, 3.0, 0.5], [4.0, -1.0, 0.0, -3.0, 0.0], [-1.0, -1.0, 1.0, 0.0, 0.0]])


def test_the_majority_of_the_ranks_decides_and_a_tie_is_zero():
    def act(communicator):
        weights = {"a": nn.Parameter(torch.zeros(3)), "none": nn.Parameter(torch.zeros(2))}
        weights["b"] = nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))
        weights["a"].grad = GIVEN[communicator.rank, :3].clone()
        weights["b"].grad = GIVEN[communicator.rank, 3:].double().view(1, 2)
        strategy = voting(communicator)
        strategy._vote(weights)
        return {name: p.grad for name, p in weights.items()}, strategy.sent_bytes

    for grads, sent in on_ranks(3, act):
        assert grads["a"].tolist() == [1, -1, 1]
        assert grads["b"].tolist() == [[0, 1]]
        assert grads["b"].dtype == torch.float64
        assert grads["none"] is None
        assert sent > 0


def test_each_rank_votes_by_its_own_running_mean():
    """m = 0.75 m + 0.25 g: after a large gradient a small one of the other sign does not turn the vote."""

    def act(communicator):
        p, votes = nn.Parameter(torch.zeros(2)), []
        strategy = voting(communicator, momentum=0.75)
        for gradient in ([4.0, 1.0], [-2.0, -4.0]):
            p.grad = torch.tensor(gradient) * (1 if communicator.rank < 2 else -9)
            strategy._vote({"w": p})
            votes.append(p.grad.tolist())
        return votes, strategy._momentum["w"].tolist(), strategy.sent_bytes

    for rank, (votes, momentum, sent) in enumerate(on_ranks(3, act)):
        assert votes == [[1, 1], [1, -1]]
        assert momentum == pytest.approx([0.25 * x * (1 if rank < 2 else -9) for x in (0.75 * 4 - 2, 0.75 * 1 - 4)])
        assert sent == 2  # a byte for two signs, twice


def test_momenta_of_all_ranks_are_kept_and_each_takes_its_own_back():
    def act(communicator):
        rank, strategy = communicator.rank, voting(communicator, 0.5)
        strategy._momentum = {"b": torch.full((2,), rank + 1.0), "a": torch.tensor([3.0 * rank])}
        return {name: held.tolist() for name, held in strategy.own_state().items()}

    kept, *others = on_ranks(3, act)
    assert kept == {"a": [[0.0], [3.0], [6.0]], "b": [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]}
    assert others == [{"a": [], "b": []}] * 2  # of the same names, without the values

    state = {name: torch.tensor(held) for name, held in kept.items()}

    def restore(communicator):
        strategy = voting(communicator, 0.5)
        strategy.load_own_state(state)
        return {name: held.tolist() for name, held in strategy._momentum.items()}

    assert on_ranks(3, restore) == [{"a": [3.0 * rank], "b": [rank + 1.0] * 2} for rank in range(3)]
    assert on_ranks(2, restore) == [{"a": [3.0], "b": [2.0, 2.0]}] * 2  # of other ranks, the mean


def test_momenta_start_over_with_the_optimizer():
    assert MajorityVoting.resets_with_optimizer


def test_without_momentum_nothing_is_kept():
    strategy = voting(descend.runtime.Communicator())
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([-3.0, 0.0])
    strategy._vote({"w": p})
    assert p.grad.tolist() == [-1.0, 0.0]
    assert strategy._momentum == {}
    assert strategy.own_state() == {}
