"""Padding that gives ranks, which are threads, equally many micro-batches, and leaves no trace in the module."""

import copy

import numpy as np
import pytest
import torch
from thread_ranks import Group, on_ranks
from torch import nn

from descend.data import Batch
from descend.train.micro_batch import split_into_micro_batches
from descend.train.strategies.data_parallel import no_side_effects, padding_micro_batches


def share(first, end):
    """Samples first to end − 1 of a mini-batch of 6, whose values are their numbers from 1."""
    ids = np.arange(first, end)
    return Batch({"x": np.stack([ids + 1.0] * 2, 1), "y": ids + 1}, ids, 2, 5, 6, False, first)


def padded(shares, size, group=None):
    def act(communicator):
        batch = shares[communicator.rank]
        own = split_into_micro_batches(batch, communicator, size)
        return own, padding_micro_batches(batch, own, 7, communicator)

    return on_ranks(len(shares), act, group)


def test_every_rank_has_as_many_as_the_one_that_has_most():
    found = padded([share(0, 4), share(4, 5), share(5, 6)], size=1)
    assert [(len(own), len(padding)) for own, padding in found] == [(4, 0), (1, 3), (1, 3)]
    for _, padding in found[1:]:
        for part in padding:
            assert (part.counts, part.count, part.step, part.position) == (False, 1, 7, 0)


def test_padding_is_a_copy_of_the_first_own_sample():
    [(_, _), (own, [part, *_])] = padded([share(0, 4), share(4, 6)], size=1)
    assert part.fields["x"].tolist() == [[5.0, 5.0]]
    assert part.fields["y"].tolist() == [5]
    part.fields["x"].zero_()
    assert own[0].fields["x"].tolist() == [[5.0, 5.0]]


def test_a_rank_without_samples_gets_one_of_the_first_rank_that_has_some():
    found = padded([share(0, 0), share(0, 0), share(0, 2), share(2, 3)], size=1)
    for _, padding in found[:2]:
        assert [part.fields["x"].tolist() for part in padding] == [[[1.0, 1.0]]] * 2
        assert padding[0].fields["y"].dtype == torch.int64


def test_ranks_that_have_equally_many_send_no_samples():
    group = Group(2)
    assert [padding for _, padding in padded([share(0, 3), share(3, 6)], 2, group)] == [[], []]
    assert [len(sent) for sent in group.order] == [1, 1]  # the numbers of micro-batches


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).train()


@pytest.mark.parametrize("keep_training", [True, False])
def test_buffers_and_modes_are_restored(keep_training):
    module, x = network(), torch.randn(5, 2)
    before = copy.deepcopy(module.state_dict())
    with no_side_effects(module, keep_training):
        assert module[1].training is keep_training
        assert module[2].training
        y = module[:2](x)
        changed = not torch.equal(module[1].running_mean, before["1.running_mean"])
        assert changed is keep_training
    expected = network()
    expected[1].train(keep_training)
    torch.testing.assert_close(y, expected[:2](x))
    assert all(part.training for part in module.modules())
    assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())


def test_layers_that_were_in_evaluation_mode_stay_so():
    module = network()
    module[1].eval()
    with no_side_effects(module, keep_training=False):
        pass
    assert [part.training for part in module] == [True, False, True]


def failing_pass(module, keep_training):
    with no_side_effects(module, keep_training):
        module(torch.ones(4, 2))
        raise ZeroDivisionError


@pytest.mark.parametrize("keep_training", [True, False])
def test_an_error_within_leaves_no_trace_either(keep_training):
    module = network()
    with pytest.raises(ZeroDivisionError):
        failing_pass(module, keep_training)
    assert module[1].training
    assert module[1].num_batches_tracked == 0
