"""A save of sharded tensors on a mesh of one rank; `tests/ranks/test_wrapped.py` has several."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

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
    assert remove(checkpoint) is None


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
        assert "holds files" in remove(checkpoint)
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
    with pytest.warns(UserWarning, match="NO CHECKPOINT of step 4: rank 0 cannot write its shards .*: No space"):
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


class OfTwo:
    """Rank 0 of two; the other one reports `theirs`."""

    rank, world_size = 0, 2

    def __init__(self, theirs):
        self.theirs, self.sent = theirs, None
        self.busy = 0
        self.status = SimpleNamespace(busy=self._busy)

    def _busy(self):
        self.busy += 1
        return nullcontext()

    def on_rank_zero(self, act):
        return act()

    def all_gather_object(self, sent):
        self.sent = sent
        return [sent, {"files": {}, "problems": [], "not_finite": None, **self.theirs}]


def test_files_of_all_ranks_go_into_the_checkpoint(snapshot, tmp_path):
    two = OfTwo({"files": {"shards/weights-00001-of-00002.safetensors": {"bytes": 7}}, "not_finite": "b"})
    shards = stage_shards(snapshot, two, tmp_path).shards
    assert shards.folder == tmp_path / ".step-4.shards.part"
    own = {"shards/weights-00000-of-00002.safetensors", "shards/optimizer-00000-of-00002.safetensors"}
    assert set(two.sent["files"]) == own
    assert set(shards.files) == own | {"shards/weights-00001-of-00002.safetensors"}
    assert {path.name for path in shards.folder.iterdir()} == {name.partition("/")[2] for name in own}
    assert (shards.not_finite, shards.problems) == ("b", [])
    assert two.busy == 1  # the others have less to write, and wait
    assert two.sent["not_finite"] is None


def test_the_problem_of_another_rank_is_the_problem_of_the_save(snapshot, tmp_path):
    shards = stage_shards(snapshot, OfTwo({"problems": ["rank 1 has no space"]}), tmp_path).shards
    assert shards.problems == ["rank 1 has no space"]
    assert shards.not_finite is None


def test_a_folder_that_cannot_be_made_is_the_one_problem_and_nothing_is_written(snapshot, tmp_path):
    (tmp_path / "file").write_text("")
    two = OfTwo({})
    shards = stage_shards(snapshot, two, tmp_path / "file").shards
    assert shards.problems == [f"cannot make {tmp_path}/file/.step-4.shards.part: Not a directory"]
    assert (two.busy, two.sent["files"], two.sent["problems"]) == (0, {}, [])


def test_what_lies_in_the_folder_of_the_shards_is_removed_and_the_parent_is_made(snapshot, tmp_path):
    folder = tmp_path / "checkpoints"
    left = folder / ".step-4.shards.part"
    stage_shards(snapshot, OfTwo({}), folder)
    (left / "weights-00001-of-00002.safetensors").write_text("of another attempt")
    stage_shards(snapshot, OfTwo({}), folder)
    assert len(list(left.iterdir())) == 2


def test_a_shard_that_is_not_trained_may_be_infinite(snapshot, tmp_path):
    snapshot.weights["a/b"].to_local()[0, 0] = float("inf")
    assert stage_shards(snapshot, OfTwo({}), tmp_path).shards.not_finite == "a/b"
    frozen = Snapshot(4, snapshot.weights, {}, {}, trained=frozenset({"whole"}))
    two = OfTwo({})
    assert stage_shards(frozen, two, tmp_path).shards.not_finite is None
    assert set(two.sent["files"]) == {"shards/weights-00000-of-00002.safetensors"}  # no file without tensors


def test_state_alone_may_be_sharded(snapshot, tmp_path):
    alone = Snapshot(4, {"whole": X}, snapshot.optimizer, {}, trained=frozenset({"whole"}))
    staged = stage_shards(alone, OfTwo({}), tmp_path)
    assert set(staged.shards.files) == {"shards/optimizer-00000-of-00002.safetensors"}
    assert list(staged.weights) == ["whole"]
    assert list(staged.optimizer) == ["optimizer/weights/whole/m"]


def attempts(monkeypatch, problems):
    """Let files have these problems when they are compared, one list an attempt; gives the pauses that are made."""
    pauses = []
    monkeypatch.setattr(sharded_save.time, "sleep", pauses.append)
    monkeypatch.setattr(sharded_save, "file_problems", lambda folder, name, facts: problems.pop(0) if problems else [])
    return pauses


def test_a_file_that_is_not_what_was_written_is_written_again(snapshot, tmp_path, monkeypatch):
    pauses = attempts(monkeypatch, [["a byte differs"], []])
    shards = stage_shards(snapshot, OfTwo({}), tmp_path).shards
    assert shards.problems == []
    assert pauses == [sharded_save.RETRY_SECONDS[0]]
    assert len(shards.files) == 2


def test_after_four_attempts_the_last_problems_are_reported(snapshot, tmp_path, monkeypatch):
    pauses = attempts(monkeypatch, [["one"], ["two"], ["three"], ["four", "and five"]])
    shards = stage_shards(snapshot, OfTwo({}), tmp_path).shards
    beginning = f"rank 0 cannot write its shards to {shards.folder}: "
    assert shards.problems == [beginning + "four", beginning + "and five"]
    assert [pause for pause in pauses if pause] == list(sharded_save.RETRY_SECONDS)
    assert shards.files == {}
