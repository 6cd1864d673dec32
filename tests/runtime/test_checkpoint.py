import os
import pathlib

import pytest
import torch
from safetensors.torch import load_file

from descend.errors import StorageError
from descend.runtime import newest_checkpoint, read_weights, save_checkpoint, verify
from descend.runtime.checkpoint import remove_leftovers


def save(folder, step=3, value=1.0):
    weights = {"kernel": torch.full((2, 3), value).t(), "bias": torch.tensor(0.5)}
    return save_checkpoint(folder, step, weights, {"kernel/m": torch.zeros(3, 2)}, {"random_seed": 7})


def test_weights_come_back_under_their_names(tmp_path):
    checkpoint = save(tmp_path)
    assert checkpoint == tmp_path / "step-3"
    weights = read_weights(checkpoint)
    torch.testing.assert_close(weights["kernel"], torch.ones(3, 2))
    torch.testing.assert_close(weights["bias"], torch.tensor(0.5))
    assert [path.name for path in checkpoint.glob("*.safetensors")] == ["weights.safetensors"]
    assert set(load_file(checkpoint / "training" / "optimizer.safetensors")) == {"kernel/m"}


def test_equal_content_gives_equal_files(tmp_path):
    one, two = save(tmp_path / "a"), save(tmp_path / "b")
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert files
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in files)


@pytest.mark.parametrize("name", ["weights.safetensors", "training/state.json", "training/optimizer.safetensors"])
def test_one_flipped_byte_is_found_and_named(tmp_path, name):
    checkpoint = save(tmp_path)
    data = bytearray((checkpoint / name).read_bytes())
    data[len(data) // 2] ^= 1
    (checkpoint / name).write_bytes(data)
    with pytest.raises(StorageError, match=name.replace(".", r"\.")):
        verify(checkpoint)


def test_a_truncated_and_a_missing_file_are_both_reported(tmp_path):
    checkpoint = save(tmp_path)
    weights = checkpoint / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    (checkpoint / "training" / "state.json").unlink()
    with pytest.raises(StorageError) as caught:
        read_weights(checkpoint)
    assert "bytes where" in str(caught.value)
    assert "state.json is missing" in str(caught.value)


def test_a_failed_save_leaves_older_checkpoints_and_no_leftovers(tmp_path, monkeypatch):
    save(tmp_path, step=1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        save(tmp_path, step=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    verify(tmp_path / "step-1")


def test_a_step_that_is_saved_again_is_there_at_every_instant(tmp_path, monkeypatch):
    """The process ends between putting the old one aside and putting the new one in its place."""
    save(tmp_path, value=1.0)
    replace = pathlib.Path.replace

    def ends(path, target):
        if path.name.endswith(".part") and path.is_dir():
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(pathlib.Path, "replace", ends)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, value=2.0)
    monkeypatch.undo()
    remove_leftovers(tmp_path)
    found = newest_checkpoint(tmp_path)
    assert found == tmp_path / "step-3"
    assert float(read_weights(found)["kernel"][0, 0]) == 1.0


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, value=1.0)
    save(tmp_path, value=2.0)
    assert float(read_weights(tmp_path / "step-3")["kernel"][0, 0]) == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
