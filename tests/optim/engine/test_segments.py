"""Segments of an arena and the gradients that they find."""

import pytest
import torch
from optimizer_inputs import group_settings

from descend.optim.compiler.layout import BLOCK
from descend.optim.engine import arena_layout, segments
from descend.optim.engine.arena_layout import ArenaBuffers, ArenaLayout
from descend.optim.engine.segments import InPlaceSegment, KernelArgs, PackedSegment, SegmentPlanner
from descend.optim.engine.step_inputs import TensorUpdate
from descend.optim.rules import SGD

SHAPES = [(3,), (BLOCK + 1,), (2, 5), (20, BLOCK // 4)]  # the last is large here: 5 whole blocks


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch):
    monkeypatch.setattr(arena_layout, "LARGE", 5 * BLOCK)
    monkeypatch.setattr(segments, "PACKED", 3 * BLOCK)


def planner(shapes=SHAPES, draws=False, in_place=False):
    params = [torch.zeros(shape) for shape in shapes]
    settings = group_settings(SGD(), lr=0.1)
    updates = [TensorUpdate(str(i), 0, p, p, settings, {}) for i, p in enumerate(params)]
    layout = ArenaLayout.of(updates, params)
    rows = layout.small_rows if in_place else layout.rows
    buffers = ArenaBuffers({"p": torch.zeros(rows, BLOCK)}, {}, None, in_place)
    return SegmentPlanner(layout, buffers, draws=draws)


def gradients(shapes=SHAPES):
    return [torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape) for shape in shapes]


def padded(*found):
    """The gradients one after the other, each filled up with zeros to whole blocks."""
    return torch.cat([torch.nn.functional.pad(g.reshape(-1), (0, -g.numel() % BLOCK)) for g in found]).view(-1, BLOCK)


def test_small_parameters_are_packed_and_large_ones_read_in_place():
    first, second, large = planner().segments(())
    assert isinstance(first, PackedSegment)
    assert [(s.start, s.stop, s.first, s.last) for s in (first, second, large)] == [
        (0, 3, 0, 2),
        (3, 4, 2, 3),
        (4, 9, 3, 4),
    ]
    g = gradients()
    assert torch.equal(first.rows(g), padded(g[0], g[1]))
    assert torch.equal(second.rows(g), padded(g[2]))
    assert isinstance(large, InPlaceSegment)
    assert large.rows(g).data_ptr() == g[3].data_ptr()


def test_absent_parameters_are_left_out():
    plan = planner()
    assert [(s.first, s.last) for s in plan.segments((1,))] == [(0, 1), (2, 3), (3, 4)]
    assert [(s.first, s.last) for s in plan.segments((0, 1, 2, 3))] == []
    assert plan.segments((1,)) is plan.segments((1,))


def test_a_gradient_in_another_order_is_copied():
    *_, large = planner().segments(())
    g = gradients()
    turned = [*g[:3], g[3].t().contiguous().t()]
    assert torch.equal(large.rows(turned), large.rows(g))
    assert large.rows(turned).data_ptr() != turned[3].data_ptr()
    odd = [*g[:3], torch.zeros(5 * BLOCK + 1)[1:].view(20, -1).copy_(g[3])]  # no multiple of 16 bytes
    assert large.rows(odd).data_ptr() % 16 == 0
    assert torch.equal(large.rows(odd), large.rows(g))


def test_the_rest_after_whole_blocks_is_a_copy():
    shapes = [(5 * BLOCK + 7,)]
    whole, rest = planner(shapes).segments(())
    g = gradients(shapes)
    assert torch.equal(torch.cat([whole.rows(g), rest.rows(g)]), padded(*g))


def test_with_noise_every_segment_is_of_one_parameter():
    found = planner(draws=True).segments((2,))
    assert all(isinstance(segment, KernelArgs) for segment in found)
    assert [segment.first for segment in found] == [0, 1, 3]
    g = gradients()
    assert torch.equal(torch.cat([segment.rows(g) for segment in found]), padded(g[0], g[1], g[3]))


def test_parameters_outside_the_arena_are_copied_where_they_are_small():
    first, _, large = planner(in_place=True).segments(())
    assert len(first.copies) == 2
    assert large.copies == ()
    assert large.weights is not None
    assert large.weights.shape == (5, BLOCK)
