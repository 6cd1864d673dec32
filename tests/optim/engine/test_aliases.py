"""Parameters whose memory is held elsewhere are updated where they are; all others may move."""

from __future__ import annotations

import copy
import gc
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import descend.optim
from descend.optim.compiler.cache import compiler
from descend.optim.engine import aliases
from descend.optim.engine.aliases import in_place

if TYPE_CHECKING:
    from collections.abc import Callable

RUNNERS = ["plain", "blocks", *(["compiled"] if compiler() else [])]
SHAPES = [(40, 1000), (3,), (5, 7)]  # one that is read where it lies, and small ones that are packed
every_runner = pytest.mark.parametrize("runner", RUNNERS)


def fresh() -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]


def step(params: list[nn.Parameter], optimizer: Any, steps: range) -> None:
    for t in steps:
        random = torch.Generator().manual_seed(t)
        for p in params:
            p.grad = torch.randn(p.shape, generator=random, dtype=p.dtype)
        optimizer.step()


def expected(steps: int, runner: str) -> list[Tensor]:
    """Of parameters that are held nowhere else; "blocks" and "compiled" agree to the bit."""
    params = fresh()
    step(params, descend.optim.Adam(params, lr=0.01, runner="plain" if runner == "plain" else "blocks"), range(steps))
    return [p.detach() for p in params]


def views_of_a_flat_parameter(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    """As FSDP1 and ZeroRedundancyOptimizer do."""
    flat = nn.utils.parameters_to_vector(params).detach()
    parts = list(flat.split([p.numel() for p in params]))
    for p, part in zip(params, parts, strict=True):
        p.data = part.view_as(p)
    return lambda: [flat.split([p.numel() for p in params])[i].view_as(p) for i, p in enumerate(params)]


def a_vector_that_was_put_in(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    vector = nn.utils.parameters_to_vector(params).detach()
    nn.utils.vector_to_parameters(vector, params)
    return lambda: [part.view_as(p) for p, part in zip(params, vector.split([p.numel() for p in params]), strict=True)]


def slices(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    held = [p.detach()[:1] for p in params]
    return lambda: [x.as_strided(p.shape, p.stride()) for x, p in zip(held, params, strict=True)]


def a_state_dict(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    held = nn.ParameterList(params).state_dict()
    return lambda: list(held.values())


def numpy_arrays_below(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    arrays = [p.detach().numpy().copy() for p in params]
    for p, array in zip(params, arrays, strict=True):
        p.data = torch.from_numpy(array)
    return lambda: [torch.from_numpy(array.copy()) for array in arrays]


def numpy_arrays_above(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    arrays = [p.detach().numpy() for p in params]
    return lambda: [torch.from_numpy(array.copy()) for array in arrays]


def storages(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    held = [p.untyped_storage() for p in params]
    return lambda: [torch.tensor([]).set_(x).view_as(p) for x, p in zip(held, params, strict=True)]


def shared_memory(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    for p in params:
        p.share_memory_()
    held = [p.detach() for p in params]
    return lambda: held


def assigned_tensors(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    """As `load_state_dict(assign=True)` does."""
    held = [p.detach().clone() for p in params]
    for p, x in zip(params, held, strict=True):
        p.data = x
    return lambda: held


def a_second_module(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    twin = [nn.Parameter(p.detach()) for p in params]
    return lambda: [p.detach() for p in twin]


def gaps_between(params: list[nn.Parameter]) -> Callable[[], list[Tensor]]:
    """Views at addresses that are no multiple of 16 bytes."""
    flat = torch.zeros(sum(p.numel() + 1 for p in params))
    at, held = 1, []
    for p in params:
        held.append(flat[at : at + p.numel()].view_as(p))
        p.data = held[-1].copy_(p.detach())
        at += p.numel() + 1
    return lambda: held


OTHERS = [
    views_of_a_flat_parameter,
    a_vector_that_was_put_in,
    slices,
    a_state_dict,
    numpy_arrays_below,
    numpy_arrays_above,
    storages,
    shared_memory,
    assigned_tensors,
    a_second_module,
    gaps_between,
]
every_other = pytest.mark.parametrize("hold", OTHERS, ids=lambda hold: hold.__name__)


@every_runner
@every_other
def test_who_held_the_memory_before_the_first_step_sees_every_update(hold: Any, runner: str) -> None:
    params = fresh()
    read = hold(params)
    step(params, descend.optim.Adam(params, lr=0.01, runner=runner), range(3))
    for p, seen, right in zip(params, read(), expected(3, runner), strict=True):
        assert torch.equal(p, right)
        assert torch.equal(seen, right)


@every_runner
@every_other
def test_who_takes_the_memory_between_two_steps_sees_every_update(hold: Any, runner: str) -> None:
    params = fresh()
    optimizer = descend.optim.Adam(params, lr=0.01, runner=runner)
    step(params, optimizer, range(2))
    read = hold(params)
    step(params, optimizer, range(2, 4))
    optimizer.load_state_dict(optimizer.state_dict())  # lays the parameters out again
    step(params, optimizer, range(4, 6))
    for p, seen, right in zip(params, read(), expected(6, runner), strict=True):
        assert torch.equal(p, right)
        assert torch.equal(seen, right)


@every_runner
@every_other
def test_what_others_write_there_counts(hold: Any, runner: str) -> None:
    ours, theirs = fresh(), fresh()
    written = hold is not numpy_arrays_below and hold is not numpy_arrays_above
    read = hold(ours)
    for params, how in ((ours, runner), (theirs, runner)):
        optimizer = descend.optim.Adam(params, lr=0.01, runner=how)
        step(params, optimizer, range(2))
        if written:
            with torch.no_grad():
                for x in read() if params is ours else params:
                    x.mul_(0.5)
        step(params, optimizer, range(2, 4))
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


def moved(params: list[nn.Parameter]) -> list[bool]:
    before = [p.data_ptr() for p in params]
    step(params, descend.optim.Adam(params, runner="blocks"), range(1))
    return [p.data_ptr() != at for p, at in zip(params, before, strict=True)]


def test_memory_that_is_held_nowhere_else_is_moved_each_time() -> None:
    params = fresh()
    assert moved(params) == [True] * 3
    assert moved(params) == [True] * 3  # by the next optimizer, from the first one's arena
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    again = copy.deepcopy(model)
    again.load_state_dict(model.state_dict())
    for net in (model, again, model.double()):
        net(torch.ones(2, 3, dtype=next(net.parameters()).dtype, requires_grad=True)).sum().backward()
        assert moved(list(net.parameters())) == [True] * 6


def test_only_the_parameter_that_is_held_stays() -> None:
    params = fresh()
    held = params[1].detach()
    assert moved(params) == [True, False, True]
    del held
    assert moved(params) == [True, True, True]


def test_parameters_in_the_arena_of_another_optimizer_stay_there() -> None:
    params = fresh()
    one = descend.optim.Adam(params, runner="blocks")
    two = descend.optim.SGD(params, lr=0.1, runner="blocks")
    step(params, one, range(1))
    places, arenas = [p.data_ptr() for p in params], list(one._arenas.arenas)
    for t in range(1, 4):
        step(params, two, range(t, t + 1))
        step(params, one, range(t, t + 1))
    assert [p.data_ptr() for p in params] == places
    assert one._arenas.arenas == arenas


def test_a_graph_that_still_needs_the_weights_is_no_reason_to_fail() -> None:
    model = nn.Linear(3, 4)
    model(torch.ones(2, 3, requires_grad=True)).sum().backward(retain_graph=True)
    assert moved(list(model.parameters()))[1]


def test_memory_of_a_gpu_counts_as_shared_for_torch_and_is_not() -> None:
    class OnGpu(nn.Parameter):
        device = torch.device("cuda")

        def is_shared(self) -> bool:
            return True

    probe: Any = OnGpu(torch.zeros(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aliases, "PLAIN_TYPES", (OnGpu,))
        assert not aliases._is_elsewhere_too(probe)


def test_captured_graphs_keep_everything_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[dict[str, Any]] = [{"segment_pool_id": (0, 0)}]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: pools)
    assert not aliases._has_cuda_graphs()
    pools.append({"segment_pool_id": (0, 1)})
    assert aliases._has_cuda_graphs()


def test_a_torch_that_cannot_count_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    params = fresh()
    assert not in_place(params, params)
    monkeypatch.setattr(aliases, "_references", lambda p: (1, 1))
    aliases._references_to_one.cache_clear()
    try:
        assert in_place(params, params) == set(map(id, params))
    finally:
        monkeypatch.undo()
        aliases._references_to_one.cache_clear()
    assert not in_place(params, params)


def test_the_record_of_placements_keeps_nothing_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    params = fresh()
    step(params, descend.optim.Adam(params, runner="blocks"), range(1))
    gc.collect()
    mine = {aliases._storage(p) for p in params}
    assert mine <= aliases._placements.keys()
    gone = [aliases._placements[storage].is_gone for storage in mine]
    assert not any(one() for one in gone)
    params.clear()
    gc.collect()
    assert all(one() for one in gone)
    monkeypatch.setattr(aliases, "_limit", 0)
    later = fresh()
    step(later, descend.optim.Adam(later, runner="blocks"), range(1))
    kept = [entry.is_gone for entry in aliases._placements.values()]
    assert not set(gone) & set(kept)


def test_the_record_is_searched_for_what_is_gone_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand parameters in as many places took 20 seconds when each new place was a reason to search."""
    monkeypatch.setattr(aliases, "_placements", {})
    monkeypatch.setattr(aliases, "_limit", 8)
    monkeypatch.setattr(aliases, "_FEWEST", 8)
    asked: Counter[str] = Counter()
    weak = aliases.weak_storage

    def counting(storage: Any) -> Any:
        is_gone = weak(storage)

        def ask() -> bool:
            asked["is gone"] += 1
            return is_gone()

        return ask

    monkeypatch.setattr(aliases, "weak_storage", counting)
    kept = [torch.zeros(1) for _ in range(500)]
    for p in kept:
        aliases.note_placement(p, aliases)
    assert len(aliases._placements) == 500
    assert asked["is gone"] <= 1100
    del p, kept
    gc.collect()
    for p in [torch.zeros(1) for _ in range(1200)]:
        aliases.note_placement(p, aliases)
    assert len(aliases._placements) <= 1200 + 8
    assert asked["is gone"] <= 4 * 1700


@every_runner
def test_a_module_that_swaps_its_parameters_can_do_so_after_steps(runner: str) -> None:
    """`torch.utils.swap_tensors` refuses tensors that weak references point to."""
    params = fresh()
    optimizer = descend.optim.Adam(params, lr=0.01, runner=runner)
    step(params, optimizer, range(2))
    for p in params:
        torch.utils.swap_tensors(p, nn.Parameter(p.detach().clone()))
    step(params, optimizer, range(2, 3))
    for p, right in zip(params, expected(3, runner), strict=True):
        assert torch.equal(p, right)


def test_numbers_are_those_of_numpy() -> None:
    """An array given to `torch.from_numpy` is the parameter, as with torch's optimizers."""
    array = np.zeros(4, dtype=np.float32)
    p = nn.Parameter(torch.from_numpy(array))
    p.grad = torch.ones(4)
    descend.optim.SGD([p], lr=0.5).step()
    assert array.tolist() == [-0.5] * 4
