"""Buffers come back as they were before a step, or before the last but one, also where a module has put another tensor
in the place of one."""

import pytest
import torch
from torch import nn

from descend.torch_private import foreach_copy
from descend.train.module_state import BufferSnapshot, _Copies


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


class Counter(nn.Module):
    """Writes to its buffer in place."""

    def __init__(self, buffer):
        super().__init__()
        self.register_buffer("count", buffer)


def step(snapshot, module):
    with snapshot.restored_on_error():
        module.count.add_(1)


def test_a_run_goes_back_two_steps_while_one_is_under_way_and_one_step_after_it():
    module = Counter(torch.zeros(()))
    snapshot = BufferSnapshot(module)
    snapshot.keeps_two = True
    for _ in range(3):
        step(snapshot, module)
    snapshot.step_back()
    assert int(module.count) == 2
    module.count.fill_(9)
    snapshot.restore()
    assert int(module.count) == 2

    def fails():
        with snapshot.restored_on_error():
            module.count.add_(1)
            snapshot.step_back()
            assert int(module.count) == 2
            module.count.add_(1)
            raise KeyboardInterrupt

    step(snapshot, module)
    assert int(module.count) == 3
    with pytest.raises(KeyboardInterrupt):
        fails()
    assert int(module.count) == 2
    step(snapshot, module)  # no step is under way any more
    snapshot.step_back()
    assert int(module.count) == 2


def test_one_copy_of_buffers_is_enough_where_nothing_goes_back_two_steps(monkeypatch):
    taken = []
    take = _Copies.take
    monkeypatch.setattr(_Copies, "take", lambda self, owners: taken.append(self) or take(self, owners))
    module = Counter(torch.zeros(()))
    snapshot = BufferSnapshot(module)
    for _ in range(3):
        step(snapshot, module)
    assert all(one is taken[0] for one in taken)
    snapshot.keeps_two = True
    step(snapshot, module)
    assert taken[3] is not taken[0]


class Own(torch.Tensor):
    """A tensor of a class of its own, which lists of tensors are no good for."""


@pytest.mark.parametrize("own", [False, True])
def test_buffers_of_one_type_are_copied_in_one_call_and_those_of_other_classes_by_themselves(own, monkeypatch):
    calls = []
    at_once = foreach_copy
    monkeypatch.setattr(
        "descend.train.module_state.foreach_copy",
        lambda to, of: calls.append([type(x) for x in of]) or at_once(to, of),
    )
    special = torch.zeros(2).as_subclass(Own) if own else torch.zeros(2)
    module = nn.Sequential(Counter(torch.zeros(3)), Counter(special), Counter(torch.zeros((), dtype=torch.int64)))
    snapshot = BufferSnapshot(module)
    for i in range(3):
        before = [b.clone() for b in module.buffers()]
        snapshot.keep()
        for b in module.buffers():
            b.add_(1 + i)
        if i == 1:
            continue  # the copies are made again in the next step
        snapshot.restore()
        assert all(torch.equal(b, x) for b, x in zip(module.buffers(), before, strict=True))
    assert sorted(len(some) for some in calls[-2:]) == ([1, 1] if own else [1, 2])
    assert not any(Own in some for some in calls)


def test_what_one_element_stands_for_is_not_written_and_all_else_is():
    wide = torch.ones(1).expand(2)
    module = nn.Sequential(
        Counter(wide), Counter(torch.ones(1).as_strided((1,), (0,))), Counter(torch.eye(2).to_sparse())
    )
    snapshot = BufferSnapshot(module)
    snapshot.keep()
    module[1].count.zero_()
    module[2].count.zero_()
    snapshot.restore()
    assert module[0].count is wide
    assert float(module[1].count) == 1
    assert torch.equal(module[2].count.to_dense(), torch.eye(2))
