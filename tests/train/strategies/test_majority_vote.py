"""Packed signs come back as they were, in a 25th of the bytes; one rank that votes is Signum."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import descend
from descend.errors import ConfigurationError, Unsupported
from descend.train.strategies.majority_vote import pack, unpack


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
        (functools.partial(torch.optim.SGD, lr=0.1), {}, "the optimizer is SGD: take descend.optim.SignSGD"),
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
