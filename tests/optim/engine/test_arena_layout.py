"""Where parameters are in an arena."""

import pytest
import torch
from optimizer_inputs import group_settings

from descend.optim.compiler.layout import BLOCK
from descend.optim.engine.arena_layout import LARGE, ArenaLayout, fits_arena, small_first
from descend.optim.engine.step_inputs import TensorUpdate
from descend.optim.rules import SGD


def updates(*params):
    settings = group_settings(SGD(), lr=0.1)
    return [TensorUpdate(str(i), i % 2, p, torch.zeros_like(p), settings, {}) for i, p in enumerate(params)]


def layout(*params):
    ordered = small_first(updates(*params))
    return ArenaLayout.of(ordered, [update.param for update in ordered])


def test_each_parameter_begins_on_a_block_and_small_ones_come_first():
    made = layout(torch.zeros(LARGE), torch.zeros(3), torch.zeros(BLOCK), torch.zeros(BLOCK + 1))
    assert [slot.name for slot in made.slots] == ["1", "2", "3", "0"]
    assert [(slot.start, slot.stop) for slot in made.slots] == [(0, 1), (1, 2), (2, 4), (4, 4 + LARGE // BLOCK)]
    assert made.valid.tolist()[:4] == [3, BLOCK, BLOCK, 1]
    assert made.index.tolist()[:5] == [0, 1, 2, 2, 3]
    assert made.bounds.tolist() == [0, 1, 2, 4, 4 + LARGE // BLOCK]
    assert (made.small, made.small_rows, made.rows) == (3, 4, 4 + LARGE // BLOCK)
    assert made.groups == [0, 1]


@pytest.mark.parametrize(
    "p",
    [
        torch.randn(5, 7),
        torch.randn(7, 5).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(()),
    ],
)
def test_a_slot_keeps_shape_and_strides(p):
    made = layout(torch.zeros(3), p)
    slot, buffer = made.slots[1], torch.zeros(made.rows, BLOCK)
    slot.view(buffer).copy_(p)
    assert torch.equal(slot.view(buffer), p)
    assert slot.view(buffer).stride() == p.stride()
    assert torch.equal(buffer.view(-1)[BLOCK : BLOCK + p.numel()], slot.flat(p))
    assert buffer.count_nonzero() == p.numel()
    assert slot.lies_alike(p)
    assert slot.lies_alike(torch.randn(p.shape)) is p.is_contiguous()


def test_a_slot_may_be_cut_from_a_later_block_on():
    slot = layout(torch.zeros(BLOCK), torch.zeros(70)).slots[1]
    buffer = torch.arange(2.0 * BLOCK).view(2, BLOCK)
    assert slot.view(buffer, first=1).tolist() == list(range(70))


def test_which_parameters_fit():
    assert fits_arena(torch.zeros(3))
    assert fits_arena(torch.zeros(4, 3).t())
    assert not fits_arena(torch.zeros(0))
    assert not fits_arena(torch.zeros(4, 4)[:, :2])
    assert not fits_arena(torch.zeros(3, device="meta"))
    assert not fits_arena(torch.eye(3).to_sparse())
