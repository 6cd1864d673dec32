"""Where tensors lie in an arena."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import descend.optim
from descend.optim.compiler.layout import BLOCK
from descend.optim.engine.arena_layout import HUGE_PAGE, LARGE, fits_arena

if TYPE_CHECKING:
    from pathlib import Path

    from descend.optim.engine.arena import Arena


def arenas(params: list[Tensor], **options: Any) -> list[Arena]:
    """Those of an optimizer after one step."""
    for p in params:
        p.grad = torch.ones_like(p)
    ours = descend.optim.Adam(params, runner="blocks", **options)
    ours.step()
    return ours._arenas.arenas


def parameter(*shape: int, **kind: Any) -> Tensor:
    return torch.nn.Parameter(torch.randn(shape, **kind))


def test_each_tensor_begins_on_a_block_and_small_ones_come_first() -> None:
    params = [parameter(LARGE), parameter(3), parameter(BLOCK), parameter(BLOCK + 1)]
    (arena,) = arenas(params)
    assert [m.param for m in arena.layout.slots][:3] == params[1:]
    assert [(m.start, m.stop) for m in arena.layout.slots] == [(0, 1), (1, 2), (2, 4), (4, 4 + LARGE // BLOCK)]
    assert arena.layout.valid.tolist()[:4] == [3, BLOCK, BLOCK, 1]
    assert arena.layout.index.tolist()[:5] == [0, 1, 2, 2, 3]
    assert arena.layout.small == 3


def test_weights_and_state_are_views_that_keep_values_shape_and_strides() -> None:
    p = torch.nn.Parameter(torch.randn(5, 7).t())
    q = torch.nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    before = [p.detach().clone(), q.detach().clone()]
    strides = [p.stride(), q.stride()]
    for x in (p, q):
        x.grad = torch.zeros_like(x)
    ours = descend.optim.Adam([p, q], runner="blocks")
    ours.step()
    assert torch.equal(p, before[0])
    assert torch.equal(q, before[1])
    assert [p.stride(), q.stride()] == strides
    (arena,) = ours._arenas.arenas
    storages = {arena.buffers.elements[name].untyped_storage().data_ptr() for name in ("s.m", "s.v")}
    held = [ours.state[x][name] for x in (p, q) for name in ("m", "v")]
    assert {x.untyped_storage().data_ptr() for x in held} == storages
    assert [x.data_ptr() for x in (p, q)] == [
        m.view(arena.buffers.elements["p"]).data_ptr() for m in arena.layout.slots
    ]
    assert ours.state[q]["m"].stride() == q.stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_saved_and_asked_for_ties_as_if_they_lay_alone(dtype: torch.dtype, tmp_path: Path) -> None:
    """Saving a layer saves that layer only, and adjacent parameters are not taken for tied ones."""
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 2)).to(dtype)
    for x in model.parameters():
        x.grad = torch.zeros_like(x)
    torch.save(model[1].state_dict(), tmp_path / "one")
    descend.optim.Adam(model.named_parameters(), runner="blocks").step()
    torch.save(model[1].state_dict(), tmp_path / "two")
    assert (tmp_path / "two").stat().st_size == (tmp_path / "one").stat().st_size
    for x in model.parameters():
        assert x.untyped_storage().nbytes() == x.numel() * x.element_size()
        assert (x.untyped_storage().data_ptr(), x.storage_offset()) == (x.data_ptr(), 0)
    safetensors.torch.save_model(model, str(tmp_path / "whole"))
    assert safetensors.torch.load_file(str(tmp_path / "whole")).keys() == model.state_dict().keys()


def test_padding_stays_zero() -> None:
    params = [parameter(3), parameter(70)]
    (arena,) = arenas(params, weight_decay=0.1)
    for name, buffer in arena.buffers.elements.items():
        assert not buffer[0, 3:].any(), name
        assert not buffer[2, 6:].any(), name


def test_other_precisions_have_arenas_of_their_own() -> None:
    kinds = (torch.float32, torch.float64, torch.bfloat16)
    found = arenas([parameter(3, dtype=kind) for kind in kinds])
    assert [arena.layout.slots[0].param.dtype for arena in found] == list(kinds)
    assert [arena.buffers.elements["p"].dtype for arena in found] == [torch.float32, torch.float64, torch.float32]


@pytest.mark.parametrize("elements", [HUGE_PAGE // 4, HUGE_PAGE // 4 + 5, 3 * HUGE_PAGE])
def test_large_buffers_begin_where_a_large_page_may(elements: int) -> None:
    p = parameter(elements)
    before = p.detach().clone()
    (arena,) = arenas([p], lr=0.0)
    assert all(buffer.data_ptr() % HUGE_PAGE == 0 for buffer in arena.buffers.elements.values())
    assert torch.equal(p, before)


def test_who_may_not_live_in_an_arena() -> None:
    assert fits_arena(parameter(3))
    assert not fits_arena(parameter(0))
    assert not fits_arena(torch.nn.Parameter(torch.zeros(4, 4)[:, :2]))
    assert not fits_arena(torch.nn.Parameter(torch.zeros(3, device="meta")))
