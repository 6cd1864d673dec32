"""Buffers come back as they were, also where a module has put another tensor in the place of one."""

import pytest
import torch
from torch import nn

from descend.train.buffer_snapshot import BufferSnapshot


def test_what_was_written_in_place_or_replaced_comes_back():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    snapshot = BufferSnapshot(module)
    before = {name: b.clone() for name, b in module.named_buffers()}
    snapshot.keep()
    module(torch.randn(4, 2))
    module[0].running_mean = torch.full((2,), 7.0)
    snapshot.restore()
    assert all(torch.equal(b, before[name]) for name, b in module.named_buffers())


def test_a_block_that_raises_leaves_no_trace_and_one_that_does_not_keeps_its_own():
    module = nn.BatchNorm1d(2)
    snapshot = BufferSnapshot(module)

    def interrupted():
        with snapshot.restored_on_error():
            module(torch.randn(4, 2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert int(module.num_batches_tracked) == 0
    with snapshot.restored_on_error():
        module(torch.randn(4, 2))
    assert int(module.num_batches_tracked) == 1


def test_buffers_that_change_their_tensor_type_and_shape_between_steps_come_back():
    module = nn.BatchNorm1d(2)
    module.register_buffer("seen", torch.zeros(0, dtype=torch.int64))
    module.register_buffer("wide", torch.ones(1).expand(3))
    snapshot = BufferSnapshot(module)
    for step in range(4):
        before = {name: b.clone() for name, b in module.named_buffers()}
        snapshot.keep()
        module.running_var = torch.full((2,), 3.0 + step)
        module.running_mean.fill_(step)
        snapshot.restore()
        assert all(torch.equal(b, before[name]) for name, b in module.named_buffers())
        module.running_mean.fill_(step)
        module.seen = torch.arange(step, dtype=torch.int64 if step < 2 else torch.int32)
