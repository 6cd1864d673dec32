"""Buffers of ranks, which are threads, after a step: what one rank alone would have after all groups in order."""

import copy

import numpy as np
import pytest
import torch
from thread_ranks import Group, on_ranks
from torch import nn

from descend.data import Batch
from descend.runtime import Communicator
from descend.train.strategies.buffers import BufferSynchronizer, RunningStatistics


def norm(momentum):
    layer = nn.BatchNorm1d(2, momentum=momentum, affine=False).double()
    layer.running_mean.copy_(torch.tensor([3.0, -1.0]))
    layer.running_var.copy_(torch.tensor([2.0, 5.0]))
    layer.num_batches_tracked.fill_(4)
    return nn.Sequential(layer)


def statistics(momentum, followed):
    decay = None if momentum is None else 1 - momentum
    names = ("0.running_mean", "0.running_var")
    return [RunningStatistics(names, decay, "0.num_batches_tracked", followed)]


def share(count):
    return Batch({}, np.arange(count), 0, 0, 8, False)


@pytest.mark.parametrize("momentum", [0.1, 0.9, None])
@pytest.mark.parametrize("groups_of", [(2, 1, 3), (0, 2, 1), (3, 0, 0), (1, 1, 1)])
def test_running_statistics_are_those_of_one_rank_with_all_groups(momentum, groups_of):
    draw = torch.Generator().manual_seed(1)
    groups = [[torch.randn(4, 2, generator=draw, dtype=torch.float64) for _ in range(n)] for n in groups_of]
    alone = norm(momentum)
    for x in (x for of_rank in groups for x in of_rank):
        alone(x)

    def act(communicator):
        module = norm(momentum)
        own = groups[communicator.rank]
        synchronizer = BufferSynchronizer(module, statistics(momentum, lambda batch: len(own)), communicator)
        synchronizer.keep()
        for x in own:
            module(x)
        assert not synchronizer.others_changed()
        synchronizer.settle(share(len(own)), others=False)
        return module

    modules = on_ranks(3, act)
    for module in modules:
        for name, expected in alone.named_buffers():
            torch.testing.assert_close(module.get_buffer(name), expected, rtol=1e-12, atol=1e-14)
    for name, buffer in modules[0].named_buffers():
        assert all(torch.equal(buffer, module.get_buffer(name)) for module in modules[1:])


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_step_without_any_group_changes_nothing(momentum):
    def act(communicator):
        module = norm(momentum)
        synchronizer = BufferSynchronizer(module, statistics(momentum, lambda batch: 0), communicator)
        synchronizer.keep()
        synchronizer.settle(share(2), others=False)
        return module

    before = norm(momentum)
    for module in on_ranks(2, act):
        assert all(torch.equal(buffer, module.get_buffer(name)) for name, buffer in before.named_buffers())


def test_a_share_without_samples_has_no_groups():
    """`followed` answers for samples only: it is not asked on a rank without any."""

    def act(communicator):
        module = norm(0.1)
        synchronizer = BufferSynchronizer(module, statistics(0.1, lambda batch: 1), communicator)
        synchronizer.keep()
        if communicator.rank == 0:
            module(torch.zeros(3, 2, dtype=torch.float64))
        synchronizer.settle(share(3 if communicator.rank == 0 else 0), others=False)
        return module

    alone = norm(0.1)
    alone(torch.zeros(3, 2, dtype=torch.float64))
    for module in on_ranks(2, act):
        for name, expected in alone.named_buffers():
            torch.testing.assert_close(module.get_buffer(name), expected)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))


def test_other_buffers_take_the_values_of_the_last_rank():
    group = Group(3)

    def act(communicator):
        module = Counter()
        synchronizer = BufferSynchronizer(module, [], communicator)
        synchronizer.keep()
        changed_before = synchronizer.others_changed()
        module.seen.fill_(communicator.rank + 1.0)
        module.calls.fill_(10 * communicator.rank)
        changed = synchronizer.others_changed()
        synchronizer.settle(share(1), others=True)
        return changed_before, changed, module.seen.tolist(), int(module.calls)

    assert on_ranks(3, act, group) == [(False, True, [3.0, 3.0], 20)] * 3


def test_nothing_is_sent_where_no_buffer_has_changed():
    group = Group(2)

    def act(communicator):
        synchronizer = BufferSynchronizer(Counter(), [], communicator)
        synchronizer.keep()
        synchronizer.settle(share(1), others=False)

    on_ranks(2, act, group)
    assert group.order == [[], []]


def test_statistics_without_a_count_of_groups_follow_their_decay():
    """A layer without `num_batches_tracked`: s ← d s + (1 − d) x for each group of all ranks in turn."""
    values, decay, start = [5.0, 7.0, 11.0], 0.75, 2.0
    expected = start
    for value in values:
        expected = decay * expected + (1 - decay) * value

    def act(communicator):
        module = Counter()
        module.seen.fill_(start)
        running = [RunningStatistics(("seen",), decay, None, lambda batch: len(batch.ids))]
        synchronizer = BufferSynchronizer(module, running, communicator)
        synchronizer.keep()
        own = values[:2] if communicator.rank == 0 else values[2:]
        for value in own:
            module.seen.mul_(decay).add_((1 - decay) * value)
        before = copy.deepcopy(module.calls)
        synchronizer.settle(share(len(own)), others=False)
        assert torch.equal(before, module.calls)
        return module.seen.tolist()

    assert on_ranks(2, act) == [pytest.approx([expected] * 2)] * 2


def test_a_mean_over_all_groups_begins_with_the_first():
    """Without groups before, what the buffers hold does not count."""

    def module_of():
        module = norm(None)
        module[0].num_batches_tracked.zero_()
        return module

    draw = torch.Generator().manual_seed(2)
    groups = [torch.randn(4, 2, generator=draw, dtype=torch.float64) for _ in range(3)]
    alone = module_of()
    for x in groups:
        alone(x)

    def act(communicator):
        module, own = module_of(), groups[:1] if communicator.rank == 0 else groups[1:]
        synchronizer = BufferSynchronizer(module, statistics(None, lambda batch: len(own)), communicator)
        synchronizer.keep()
        for x in own:
            module(x)
        synchronizer.settle(share(len(own)), others=False)
        return module

    for module in on_ranks(2, act):
        for name, expected in alone.named_buffers():
            torch.testing.assert_close(module.get_buffer(name), expected, rtol=1e-12, atol=1e-14)


def test_running_statistics_do_not_count_as_other_buffers():
    module = norm(0.1)
    synchronizer = BufferSynchronizer(module, statistics(0.1, lambda batch: 1), Communicator())
    synchronizer.keep()
    module(torch.ones(3, 2, dtype=torch.float64))
    assert not synchronizer.others_changed()
