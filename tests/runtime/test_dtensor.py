"""Sharded tensors on a mesh of one rank, and ordinary tensors, which are their own shard."""

import pytest
import torch
from torch import distributed

from descend.runtime.dtensor import copies_of, copy_into, full_tensor, is_sharded, local_shard, mesh_size, shard_like

X = torch.arange(6.0).view(3, 2)


@pytest.fixture(scope="module")
def meshes(tmp_path_factory):
    """A mesh of one dimension and one of two, of one rank."""
    from torch.distributed.device_mesh import init_device_mesh

    store = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,)), init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "parts"))
    finally:
        distributed.destroy_process_group()


@pytest.fixture
def sharded(meshes):
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(X.clone(), meshes[0], [Shard(0)])


def test_an_ordinary_tensor_is_its_own_shard():
    p = torch.nn.Parameter(X.clone())
    assert not is_sharded(p)
    assert not is_sharded(None)
    assert local_shard(p).data_ptr() == full_tensor(p).data_ptr() == p.data_ptr()
    assert not local_shard(p).requires_grad
    assert shard_like(X, p) is X
    copy_into(p, X + 1)
    assert p.equal(X + 1)


def test_a_shard_lies_in_the_memory_of_the_sharded_tensor(sharded):
    assert is_sharded(sharded)
    local_shard(sharded)[0] = 7.0
    assert full_tensor(sharded).tolist() == [[7.0, 7.0], [2.0, 3.0], [4.0, 5.0]]
    assert type(full_tensor(sharded)) is torch.Tensor


def test_full_values_are_sharded_alike_and_copied_in_place(sharded):
    place = local_shard(sharded).data_ptr()
    alike = shard_like(X * 2, sharded)
    assert is_sharded(alike)
    assert alike.placements == sharded.placements
    copy_into(sharded, X * 3)
    assert local_shard(sharded).data_ptr() == place
    assert full_tensor(sharded).equal(X * 3)


def test_ranks_and_copies_are_counted_from_mesh_and_placements(sharded, monkeypatch):
    assert (mesh_size(sharded), copies_of(sharded)) == (1, 1)

    class Mesh:
        shape = (2, 4)

        def size(self):
            return 8

    class Placed:
        def __init__(self, replicate):
            self.is_replicate = lambda: replicate

    class Sharded:
        device_mesh, placements = Mesh(), (Placed(True), Placed(False))

    assert (mesh_size(Sharded()), copies_of(Sharded())) == (8, 2)
