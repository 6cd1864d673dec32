"""A save of sharded tensors on a mesh of one rank; `tests/ranks/test_wrapped.py` has several."""

import os

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

from descend.errors import StorageError
from descend.runtime import (
    CheckpointManager,
    Communicator,
    SaveRequest,
    Snapshot,
    read_state,
    read_weights,
    sharded_save,
    verify,
)
from descend.runtime.checkpoint import remove, remove_leftovers
from descend.runtime.sharded_save import stage_shards

X = torch.arange(6.0).view(3, 2)
SHARD = "shards/weights-00000-of-00001.safetensors"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    from torch.distributed.device_mesh import init_device_mesh

    store = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.fixture
def snapshot(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    def sharded(values):
        return distribute_tensor(values, mesh, [Shard(0)])

    weights = {"a/b": sharded(X.clone()), "whole": torch.ones(2)}
    optimizer = {"optimizer/weights/a%2Fb/m": sharded(X * 2), "optimizer/weights/whole/m": torch.zeros(2)}
    return Snapshot(4, weights, optimizer, {"parts": {}}, trained=frozenset(weights))


def save(snapshot, folder):
    staged = stage_shards(snapshot, Communicator(), folder)
    return CheckpointManager(folder).save(staged, SaveRequest())


def test_shards_lie_in_files_of_their_own_and_are_read_as_whole_tensors(snapshot, tmp_path):
    checkpoint = save(snapshot, tmp_path)
    verify(checkpoint)
    assert set(load_file(checkpoint / "weights.safetensors")) == {"whole"}
    assert load_file(checkpoint / SHARD)["a%2Fb"].equal(X)
    assert read_weights(checkpoint)["a/b"].equal(X)
    assert read_state(checkpoint)[0]["optimizer/weights/a%2Fb/m"].equal(X * 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4"]
    assert remove(checkpoint)


def test_a_snapshot_without_shards_is_left_as_it_is(tmp_path):
    snapshot = Snapshot(1, {"w": X}, {}, {})
    assert stage_shards(snapshot, Communicator(), tmp_path) is snapshot
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["a byte", "missing", "a file of others"])
def test_a_damaged_shard_is_found_and_named(damage, snapshot, tmp_path):
    checkpoint = save(snapshot, tmp_path)
    path = checkpoint / SHARD
    if damage == "a byte":
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    elif damage == "missing":
        path.unlink()
    else:
        (checkpoint / "shards" / "notes.txt").write_text("mine")
        assert not remove(checkpoint)
        return
    with pytest.raises(StorageError, match="weights-00000-of-00001"):
        read_weights(checkpoint)


def test_a_shard_that_is_not_finite_marks_the_checkpoint(snapshot, tmp_path):
    snapshot.weights["a/b"].to_local()[1, 0] = float("nan")
    with pytest.warns(UserWarning, match="not finite \\('a/b'\\)"):
        checkpoint = save(snapshot, tmp_path)
    with pytest.raises(StorageError, match="not finite"):
        verify(checkpoint)


def test_a_rank_that_cannot_write_ends_the_save_and_not_the_run(snapshot, tmp_path, monkeypatch):
    def full(path, tensors):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded_save, "RETRY_SECONDS", (0.0,))
    monkeypatch.setattr(sharded_save, "write_shards", full)
    with pytest.warns(UserWarning, match="NO CHECKPOINT of step 4: rank 0 cannot write its shards .*No space left"):
        assert save(snapshot, tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_has_left_of_shards_is_removed(tmp_path):
    (tmp_path / ".step-7.shards.part").mkdir()
    assert remove_leftovers(tmp_path) == [".step-7.shards.part"]


def test_a_file_system_without_hard_links_gets_copies(snapshot, tmp_path, monkeypatch):
    def refused(source, target):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert read_weights(save(snapshot, tmp_path))["a/b"].equal(X)
