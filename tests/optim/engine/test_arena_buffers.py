"""The memory of an arena."""

import pytest
import torch
from optimizer_inputs import group_settings

from descend.optim.compiler.layout import BLOCK
from descend.optim.compiler.trace import trace
from descend.optim.engine.arena_layout import HUGE_PAGE, ArenaBuffers, ArenaLayout
from descend.optim.engine.segments import Segment
from descend.optim.engine.step_inputs import LOW_PRECISION, TensorUpdate, open_entry
from descend.optim.rules import Adam, HypergradientAdam


def filled(rule, *params, in_place=False):
    """Buffers with these parameters and the state that their rule begins with, plus 1."""
    settings = group_settings(rule, lr=0.1)
    updates = [TensorUpdate(str(i), 0, p, torch.zeros_like(p), settings, {}) for i, p in enumerate(params)]
    layout = ArenaLayout.of(updates, params)
    made = ArenaBuffers.allocate(trace(settings, params[0].dtype in LOW_PRECISION), layout, in_place=in_place)
    for i, slot in enumerate(layout.slots):
        open_entry(slot.entry, rule, slot.param)
        for value in slot.entry.values():
            value.add_(1)
        made.adopt(i, slot)
    return layout, made


def test_parameters_and_state_become_views_with_their_values():
    p, q = torch.nn.Parameter(torch.randn(5, 7)), torch.nn.Parameter(torch.randn(3))
    before = p.detach().clone()
    layout, made = filled(Adam(), p, q)
    assert torch.equal(p, before)
    assert p.data_ptr() == made.elements["p"].data_ptr()
    assert q.data_ptr() == made.elements["p"][1].data_ptr()
    m = layout.slots[0].entry["m"]
    assert m.tolist() == torch.ones(5, 7).tolist()
    made.elements["s.m"][0, 0] = 5.0
    assert m[0, 0] == 5.0
    assert not made.elements["p"][0, 35:].any()  # padding


def test_low_precision_has_a_master():
    p = torch.nn.Parameter(torch.full((3,), 2.0, dtype=torch.bfloat16))
    layout, made = filled(Adam(), p)
    assert (made.outer, made.low, made.dtype) == ("w", torch.bfloat16, torch.float32)
    assert made.elements["w"][0, :3].tolist() == [2.0] * 3
    assert layout.slots[0].entry["master"].data_ptr() == made.elements["p"].data_ptr()


def test_one_number_for_each_parameter_is_a_column():
    layout, made = filled(HypergradientAdam(), *(torch.nn.Parameter(torch.ones(3)) for _ in range(2)))
    (name, column), *_ = made.numbers.items()
    column[1] = 7.0
    assert layout.slots[1].entry[name.removeprefix("s.")] == 7.0


def test_a_parameter_that_stays_keeps_its_address():
    p = torch.nn.Parameter(torch.randn(3))
    address = p.data_ptr()
    layout, made = filled(Adam(), p, in_place=True)
    assert p.data_ptr() == address
    assert layout.slots[0].entry["m"].data_ptr() == made.elements["s.m"].data_ptr()
    outside = torch.ones(1, BLOCK)
    assert made.blocks("p", Segment(0, 1, 0, 1, weights=outside), 0, 1).data_ptr() == outside.data_ptr()
    assert made.blocks("s.m", Segment(0, 1, 0, 1, weights=outside), 0, 1).data_ptr() == made.elements["s.m"].data_ptr()


@pytest.mark.parametrize("elements", [HUGE_PAGE // 4, HUGE_PAGE // 4 + 5])
def test_large_buffers_begin_at_a_huge_page(elements):
    _, made = filled(Adam(), torch.nn.Parameter(torch.zeros(elements)))
    assert all(buffer.data_ptr() % HUGE_PAGE == 0 for buffer in made.elements.values())
