"""Weights that stay where they are and are updated by arenas all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from ranks.called import on_ranks
from ranks.start import free_port
from torch import Tensor, nn

import descend.optim
from descend.errors import NumericalError
from descend.optim.compiler.cache import compiler

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNERS = ["blocks", *(["compiled"] if compiler() else [])]
SHAPES = [(40, 1000), (3,), (33000,), (64,), (5, 7), (1,)]


def weights(dtype: torch.dtype, shared: bool) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=random).to(dtype)) for shape in SHAPES]
    return [p.share_memory_() if shared else p for p in params]


def trained(params: list[Tensor], runner: str, **options: Any) -> Any:
    """The optimizer after four steps, with a gradient that is absent in one of them."""
    optimizer = descend.optim.create("adam", params, lr=0.01, weight_decay=0.1, runner=runner, **options)
    random = torch.Generator().manual_seed(1)
    for step in range(4):
        for i, p in enumerate(params):
            g = torch.randn(p.shape, generator=random).to(p.dtype)
            p.grad = None if (step, i) == (1, 3) else g
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("runner", RUNNERS)
def test_shared_memory_is_updated_in_place_to_the_same_bits(runner: str, dtype: torch.dtype) -> None:
    ours, theirs = weights(dtype, shared=True), weights(dtype, shared=False)
    before = [p.data_ptr() for p in ours]
    optimizer = trained(ours, runner)
    trained(theirs, runner)
    (arena,) = optimizer._arenas.arenas
    assert arena.buffers.in_place
    assert [p.data_ptr() for p in ours] == before
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_another_process_writes_is_read(runner: str) -> None:
    ours, theirs = weights(torch.float32, shared=True), weights(torch.float32, shared=False)
    for params in (ours, theirs):
        optimizer = trained(params, runner)
        for p in params:
            other = p.detach().numpy()  # the same memory, of which torch counts no versions
            other *= 0.5
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("runner", RUNNERS)
def test_weights_that_went_elsewhere_are_followed(runner: str) -> None:
    params = weights(torch.float32, shared=True)
    optimizer = trained(params, runner)
    old, kept = params[0].data, params[0].detach().clone()
    params[0].data = kept.clone()
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert torch.equal(old, kept)
    assert not torch.equal(params[0], kept)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_gradient_from_before_a_cast_counts(runner: str) -> None:
    ours, theirs = weights(torch.float32, shared=True), weights(torch.float32, shared=False)
    for params in (ours, theirs):
        optimizer = trained(params, runner)
        for p in params:
            p.grad = torch.ones_like(p)
            p.data = p.data.double().share_memory_() if params is ours else p.data.double()
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


# ---- DTensors


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
    }.items():
        monkeypatch.setenv(name, value)  # and gone after the test: jobs that later ones start would take them
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_state_of_distributed_weights_is_distributed(one_rank: None, runner: str) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model: Any = fully_shard(nn.Linear(3, 5))
    optimizer = descend.optim.Adam(model.named_parameters(), runner=runner)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert len(optimizer._arenas.residents) == 2
    for p in model.parameters():
        moments = [optimizer.state[p][name] for name in ("m", "v")]
        assert all(isinstance(x, DTensor) and x.placements == p.placements for x in moments)
        assert all(x.shape == p.shape for x in moments)


@pytest.mark.slow
def test_a_gradient_that_ranks_have_to_add_up_is_added_up(one_rank: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    p: Any = nn.Parameter(distribute_tensor(torch.zeros(4), mesh))
    p.grad = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    for runner in ("plain", *RUNNERS):
        before = p.full_tensor().detach().clone()
        descend.optim.SGD([p], lr=0.5, runner=runner).step()
        assert torch.equal(p.full_tensor(), before - 0.5)


def net(width: int = 701) -> nn.Sequential:
    """Of two ranks one has no part of the last layer, and of the others they have unequal ones."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 201), nn.Tanh(), nn.Linear(201, 1))


def train(model: nn.Module, optimizer: Any, samples: slice, divisor: int, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))[samples]
        optimizer.zero_grad()
        (model(x).square().sum() / divisor).backward()
        optimizer.step()


def whole(model: nn.Module) -> list[Any]:
    return [p.full_tensor().detach().numpy() for p in model.parameters()]  # pyright: ignore[reportCallIssue]  # a DTensor


def rank(number: int, names: list[str], runner: str, folder: str) -> tuple[list[Any], list[Any]]:
    """Of each optimizer the weights of a run and of one that was saved and loaded; and what `moved_to_ranks` gives."""
    from torch.distributed.fsdp import fully_shard

    seen: list[Any] = []
    samples = slice(4 * number, 4 * number + 4)
    for name in names:
        model: Any = fully_shard(net())
        optimizer: Any = descend.optim.create(name, model.named_parameters(), lr=1e-2, runner=runner)
        places = [p.to_local().data_ptr() for p in model.parameters()]
        train(model, optimizer, samples, 4, range(4))
        assert places == [p.to_local().data_ptr() for p in model.parameters()]
        assert len(optimizer._arenas.residents) == sum(p.to_local().numel() > 0 for p in model.parameters())
        again: Any = fully_shard(net())
        again.load_state_dict(model.state_dict())
        other: Any = descend.optim.create(name, again.named_parameters(), lr=1e-2, runner=runner)
        restored(model, optimizer, again, other, f"{folder}/{name}")
        for one, its in ((model, optimizer), (again, other)):
            train(one, its, samples, 4, range(4, 6))
        seen.append((whole(model), whole(again)))
    moved = whole(moved_to_ranks("nadam", runner))
    assert_all_ranks_refuse(model, optimizer, number)
    return seen, moved


def moved_to_ranks(name: str, runner: str) -> nn.Module:
    """Four steps of a whole model, and two of one sharded among ranks that takes over its weights and its state."""
    from torch.distributed.fsdp import fully_shard

    model = net()
    before: Any = descend.optim.create(name, model.named_parameters(), lr=1e-2, runner=runner)
    train(model, before, slice(None), 8, range(4))
    cut: Any = net()
    cut.load_state_dict(model.state_dict())
    cut = fully_shard(cut)
    after: Any = descend.optim.create(name, cut.named_parameters(), lr=1e-2, runner=runner)
    after.load_state_dict(before.state_dict())
    train(cut, after, slice(None), 8, range(4, 6))
    return cut


def restored(model: nn.Module, optimizer: Any, again: nn.Module, other: Any, folder: str) -> None:
    """Save by torch's distributed checkpoint, and load into another."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    checkpoint.save(get_optimizer_state_dict(model, optimizer), checkpoint_id=folder)
    state = get_optimizer_state_dict(again, other)
    checkpoint.load(state, checkpoint_id=folder)
    set_optimizer_state_dict(again, other, state)


def assert_all_ranks_refuse(model: Any, optimizer: Any, number: int) -> None:
    """One rank alone sees the NaN, in its part of one tensor."""
    before = [p.to_local().clone() for p in model.parameters()]
    if number == 1:
        next(model.parameters()).grad.to_local()[0] = float("nan")
    with pytest.raises(NumericalError, match=r"the gradient of '0\.weight' is not finite"):
        optimizer.step()
    assert all(torch.equal(p.to_local(), old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_two_ranks_train_and_save_as_one_process_does(runner: str, tmp_path: Any) -> None:
    names = ["sgd", "adam", "nadam", "ftrl"]
    (seen, moved), _ = on_ranks(2, rank, tmp_path, names, runner, str(tmp_path))
    for name, (kept, loaded) in zip(names, seen, strict=True):
        model = net()
        optimizer = descend.optim.create(name, model.named_parameters(), lr=1e-2, runner="plain")
        train(model, optimizer, slice(None), 8, range(6))
        for p, one, two in zip(model.parameters(), kept, loaded, strict=True):
            torch.testing.assert_close(torch.from_numpy(one), p.detach(), rtol=1e-4, atol=1e-5, msg=name)
            assert (one == two).all(), name
        if name == "nadam":
            for p, one in zip(model.parameters(), moved, strict=True):
                torch.testing.assert_close(torch.from_numpy(one), p.detach(), rtol=1e-4, atol=1e-5)
