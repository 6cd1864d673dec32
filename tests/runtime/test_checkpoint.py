import hashlib
import json
import os
import pathlib

import pytest
import torch
from safetensors.torch import load_file

from descend.errors import StorageError
from descend.runtime import checkpoint as module
from descend.runtime import newest_checkpoint, read_weights, save_checkpoint, verify
from descend.runtime.checkpoint import (
    file_problems,
    good_checkpoints,
    read_plain_state,
    read_state,
    remove,
    remove_leftovers,
)


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


def rewrite(checkpoint, **changes):
    """Change the manifest, with a checksum that fits; None takes an entry away."""
    path = checkpoint / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changes}
    manifest = {key: value for key, value in manifest.items() if value is not None or key == "not_finite"}
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    manifest["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(manifest))


def files_of(checkpoint):
    return json.loads((checkpoint / "manifest.json").read_text())["files"]


def replace_by(path, data):
    """Other content, which the manifest lists as though it had been written so."""
    path.write_bytes(data)
    checkpoint = path.parent if (path.parent / "manifest.json").exists() else path.parent.parent
    facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(checkpoint, files={**files_of(checkpoint), str(path.relative_to(checkpoint)): facts})


def refusal(act, *arguments):
    with pytest.raises(StorageError) as caught:
        act(*arguments)
    return "\n".join(caught.value.problems)


def test_the_manifest_says_what_is_there_and_seals_itself(tmp_path):
    checkpoint = save(tmp_path)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert manifest["format_version"] == 4
    assert manifest["not_finite"] is None
    assert set(manifest["files"]) == {"weights.safetensors", "training/optimizer.safetensors", "training/state.json"}
    for name, facts in manifest["files"].items():
        data = (checkpoint / name).read_bytes()
        assert (facts["bytes"], facts["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    text = (checkpoint / "manifest.json").read_text()
    (checkpoint / "manifest.json").write_text(text.replace('"descend"', '"Descend"'))
    assert "does not have the content that was written: its own SHA-256 differs" in refusal(verify, checkpoint)


def test_the_state_comes_back(tmp_path):
    tensors, plain = read_state(save(tmp_path))
    assert plain == {"step": 3, "random_seed": 7}
    assert torch.equal(tensors["kernel/m"], torch.zeros(3, 2))


@pytest.mark.parametrize("step", ["3", -1, None, 2.0, True])
def test_a_step_that_is_no_count_is_refused(tmp_path, step):
    checkpoint = save(tmp_path)
    replace_by(checkpoint / "training" / "state.json", json.dumps({"step": step}).encode())
    assert f"step must be an integer >= 0, got {step!r}" in refusal(read_state, checkpoint)


def test_step_zero_is_a_step_and_a_list_is_no_state(tmp_path):
    assert read_state(save(tmp_path, step=0))[1]["step"] == 0
    checkpoint = save(tmp_path)
    replace_by(checkpoint / "training" / "state.json", b"[3]")
    assert "step must be an integer" in refusal(read_state, checkpoint)
    replace_by(checkpoint / "training" / "state.json", b"{")
    assert "cannot be read" in refusal(read_state, checkpoint)
    assert "state.json cannot be read" in refusal(verify, checkpoint)


def test_weights_that_are_not_finite_are_saved_and_never_resumed_from(tmp_path):
    good = save(tmp_path, step=1)
    bad = save_checkpoint(tmp_path, 2, {"w": torch.tensor(torch.nan)}, {}, {}, not_finite="w")
    assert f"{bad} holds weights that are not finite ('w')" in refusal(verify, bad)
    with pytest.warns(UserWarning, match="not finite.*trying the checkpoint before it"):
        assert newest_checkpoint(tmp_path) == good
    assert good_checkpoints(tmp_path) == [good]


def test_files_that_no_manifest_of_ours_lists_are_refused(tmp_path):
    checkpoint = save(tmp_path)
    files = files_of(checkpoint)
    rewrite(checkpoint, files={**files, "more.bin": {"bytes": 0, "sha256": ""}})
    assert "lists 'more.bin', so descend has not written it" in refusal(verify, checkpoint)
    rewrite(checkpoint, files={name: facts for name, facts in files.items() if name != "weights.safetensors"})
    assert "does not list 'weights.safetensors'" in refusal(verify, checkpoint)


@pytest.mark.parametrize(
    "facts", [{"bytes": "9", "sha256": "0"}, {"bytes": 9, "sha256": 0}, {"bytes": 9}], ids=["bytes", "sum", "none"]
)
def test_a_manifest_without_sizes_and_checksums_is_not_trusted(tmp_path, facts):
    checkpoint = save(tmp_path)
    rewrite(checkpoint, files={**files_of(checkpoint), "weights.safetensors": facts})
    assert "no readable manifest.json, so it cannot be trusted" in refusal(verify, checkpoint)


def test_a_manifest_that_does_not_say_whether_weights_are_finite_is_not_trusted(tmp_path):
    checkpoint = save(tmp_path)
    path = checkpoint / "manifest.json"
    manifest = {
        key: value for key, value in json.loads(path.read_text()).items() if key not in ("not_finite", "sha256")
    }
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(manifest))
    assert "it lists no sizes and checksums" in refusal(verify, checkpoint)


def test_a_newer_format_is_an_error_and_not_a_reason_to_take_an_older_checkpoint(tmp_path):
    save(tmp_path, step=1)
    newer = save(tmp_path, step=2)
    rewrite(newer, format_version=5, descend="99.0")
    text = refusal(newest_checkpoint, tmp_path)
    assert "was written by descend 99.0 in format 5" in text
    assert "reads up to format 4: install a newer descend" in text
    path = newer / "manifest.json"
    path.write_text(path.read_text().replace("99.0", "98.0"))  # or its number is the damage
    assert "its own SHA-256 differs (or: " in refusal(verify, newer)
    with pytest.warns(UserWarning, match="trying the checkpoint before it"):
        assert newest_checkpoint(tmp_path) == tmp_path / "step-1"


def test_damaged_tensors_are_named_three_at_most(tmp_path):
    weights = {name: torch.full((8,), 1.0) for name in "abcde"}
    for damaged, words in [
        (2, "in 'a', 'b'"),
        (3, "in 'a', 'b', 'c'"),
        (4, "in 'a', 'b', 'c' and 1 more"),
        (5, "in 'a', 'b', 'c' and 2 more"),
    ]:
        checkpoint = save_checkpoint(tmp_path, 1, weights, {}, {})
        path = checkpoint / "weights.safetensors"
        data = bytearray(path.read_bytes())
        begin = len(data) - 5 * 8 * 4
        for i in range(damaged):
            data[begin + 32 * i] ^= 1
        path.write_bytes(data)
        assert refusal(verify, checkpoint).splitlines()[0].endswith(f"its SHA-256 differs, {words}")
    data = bytearray((save_checkpoint(tmp_path, 1, weights, {}, {}) / "weights.safetensors").read_bytes())
    data[12] ^= 1
    path.write_bytes(data)
    assert ", in the header" in refusal(verify, checkpoint)


@pytest.mark.parametrize("name", ["weights.safetensors", "training/state.json", "manifest.json"])
def test_links_out_of_a_checkpoint_are_not_followed(tmp_path, name):
    checkpoint = save(tmp_path / "checkpoints")
    outside = tmp_path / "outside"
    (checkpoint / name).rename(outside)
    (checkpoint / name).symlink_to(outside)
    assert f"{name} is a link out of the checkpoint; nothing outside it is opened" in refusal(verify, checkpoint)


def test_a_checkpoint_that_is_a_link_out_of_the_folder_is_no_checkpoint(tmp_path):
    elsewhere = save(tmp_path / "elsewhere", step=7)
    folder = tmp_path / "checkpoints"
    good = save(folder, step=1)
    (folder / "step-7").symlink_to(elsewhere)
    assert good_checkpoints(folder) == [good]
    with pytest.warns(UserWarning, match="is a link out of the checkpoint"):
        assert newest_checkpoint(folder) == good
    assert "holds files" in remove(folder / "step-7")
    assert "holds 'step-7', which no run has written" in refusal(save, folder, 7)
    assert elsewhere.is_dir()


def test_files_of_others_are_neither_replaced_nor_removed(tmp_path):
    checkpoint = save(tmp_path)
    (checkpoint / "notes.txt").write_text("mine")
    assert "holds 'notes.txt', which no run has written: move the folder elsewhere" in refusal(save, tmp_path)
    assert "holds files" in remove(checkpoint)
    assert "holds files" in remove(tmp_path / "step-9")
    (checkpoint / "notes.txt").unlink()
    (tmp_path / ".step-3.gone" / "training").mkdir(parents=True)  # of a process that was killed while it removed one
    assert remove(checkpoint) is None
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_cannot_be_removed_is_said_and_stays_out_of_the_way(tmp_path, monkeypatch):
    checkpoint = save(tmp_path)

    def fails(path):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(module.shutil, "rmtree", fails)
    assert remove(checkpoint) == "it cannot be removed: Permission denied"
    assert not checkpoint.exists()


def test_only_leftovers_of_saves_are_removed(tmp_path):
    save(tmp_path, step=2)
    for name in (".step-1.123.part", ".step-1.gone", ".step-1.kept", ".step-2.old"):
        (tmp_path / name).mkdir()
    save(tmp_path, step=5).rename(tmp_path / ".step-5.old")  # the only one of its step
    (tmp_path / "mine").mkdir()
    (tmp_path / ".step-6.gone").symlink_to(tmp_path / "mine")
    assert remove_leftovers(tmp_path) == [".step-1.123.part", ".step-1.gone"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-2", "step-5", ".step-1.kept", "mine", ".step-6.gone"}


def test_a_save_that_fails_at_the_last_rename_puts_the_old_one_back(tmp_path, monkeypatch):
    save(tmp_path, value=1.0)
    replace = pathlib.Path.replace

    def fails(path, target):
        if path.name.endswith(".part") and path.is_dir():
            raise OSError(5, "Input/output error")
        return replace(path, target)

    monkeypatch.setattr(pathlib.Path, "replace", fails)
    text = refusal(save, tmp_path, 3, 2.0)
    assert text == f"cannot write checkpoint {tmp_path / 'step-3'}: Input/output error"
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
    assert float(read_weights(tmp_path / "step-3")["kernel"][0, 0]) == 1.0


def test_what_a_killed_process_of_this_number_left_does_not_hinder_a_save(tmp_path):
    beside = tmp_path / f".step-3.{os.getpid()}.part"
    beside.mkdir()
    (beside / "weights.safetensors").write_text("half")
    verify(save(tmp_path))
    (tmp_path / ".step-3.old").mkdir()
    (tmp_path / ".step-3.old" / "x").write_text("older")
    verify(save(tmp_path, value=2.0))
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_every_file_and_folder_is_flushed_and_closed(tmp_path, monkeypatch):
    flushed, fsync, opened = [], os.fsync, pathlib.Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(str((opened / str(file)).readlink())), fsync(file)))
    before = len(list(opened.iterdir()))
    save(tmp_path)
    part = f".step-3.{os.getpid()}.part"
    for folder in (tmp_path, tmp_path / part, tmp_path / part / "training"):
        assert str(folder) in flushed
    assert flushed[-1] == str(tmp_path)
    assert len(list(opened.iterdir())) == before


def test_the_newest_is_by_number_and_other_names_are_left_alone(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    saved = [save(tmp_path, step=step) for step in (9, 10, 0)]
    (tmp_path / "step-11x").mkdir()
    assert newest_checkpoint(tmp_path) == saved[1]
    assert good_checkpoints(tmp_path) == [saved[1], saved[0], saved[2]]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_where_all_are_damaged_nothing_is_taken(tmp_path):
    for step in range(1, 8):
        (save(tmp_path, step=step) / "manifest.json").unlink()
    lines = refusal(newest_checkpoint, tmp_path).splitlines()
    assert len(lines) == 6
    assert lines[0].startswith(f"{tmp_path / 'step-7'} has no readable manifest.json")
    assert lines[-1] == f"no checkpoint in {tmp_path} can be used; start over in another directory"
    assert good_checkpoints(tmp_path) == []


def test_a_file_that_is_larger_than_any_state_is_not_read(tmp_path, monkeypatch):
    checkpoint = save(tmp_path)
    size = (checkpoint / "manifest.json").stat().st_size
    monkeypatch.setattr(module, "_LARGEST_JSON", size)
    verify(checkpoint)
    monkeypatch.setattr(module, "_LARGEST_JSON", size - 1)
    assert f"has {size:,} bytes, more than descend writes" in refusal(verify, checkpoint)


def test_a_state_gives_equal_bytes_in_whatever_order_it_was_made(tmp_path):
    one = save_checkpoint(tmp_path / "a", 1, {}, {}, {"b": {"y": 1, "x": 2}, "a": 3})
    other = save_checkpoint(tmp_path / "b", 1, {}, {}, {"a": 3, "b": {"x": 2, "y": 1}})
    state = pathlib.Path("training", "state.json")
    assert (one / state).read_bytes() == (other / state).read_bytes()


def test_step_zero_counts_and_other_names_do_not(tmp_path):
    checkpoints = [save(tmp_path, step=step) for step in (0, 12, 3)]
    (tmp_path / "step-x").mkdir()
    assert good_checkpoints(tmp_path) == [checkpoints[i] for i in (1, 2, 0)]
    for checkpoint in checkpoints[1:]:
        remove(checkpoint)
    assert newest_checkpoint(tmp_path) == checkpoints[0]


def test_a_folder_that_cannot_be_cleaned_is_left(tmp_path, monkeypatch):
    def fails(path, *, dir_fd=None):
        raise OSError(13, "Permission denied")

    save(tmp_path, step=2)
    for name in (".step-1.123.part", ".step-2.old"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "rmdir", fails)
    assert remove_leftovers(tmp_path) == [".step-1.123.part"]
    assert {path.name for path in tmp_path.iterdir()} == {".step-1.123.part", ".step-2.old", "step-2"}


def test_a_file_with_the_right_checksum_and_a_wrong_layout_is_found(tmp_path):
    """As one that a faulty writer, and no disk, has damaged."""
    checkpoint = save(tmp_path)
    path = checkpoint / "weights.safetensors"
    data = path.read_bytes().replace(b'"F32"', b'"F64"', 1)
    path.write_bytes(data)
    facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert file_problems(checkpoint, path.name, facts)
    assert not file_problems(checkpoint, path.name, facts, content=False)


def test_the_state_of_a_newer_version_is_not_read(tmp_path):
    checkpoint = save(tmp_path)
    assert read_plain_state(checkpoint)["random_seed"] == 7
    rewrite(checkpoint, format_version=5, descend="99.0")
    assert "in format 5" in refusal(read_plain_state, checkpoint)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_folder_in_the_place_of_a_checkpoint_is_no_obstacle_for_readers(tmp_path, make):
    good = save(tmp_path)
    make(tmp_path / "step-4")
    make(tmp_path / ".step-3.old")
    make(tmp_path / ".step-5.old")
    make(tmp_path / ".step-6.77.part")
    with pytest.warns(UserWarning, match="trying the checkpoint before it"):
        assert newest_checkpoint(tmp_path) == good
    remove_leftovers(tmp_path)
    assert not (tmp_path / ".step-3.old").exists()
    with pytest.raises(StorageError, match="holds 'step-4', which no run has written"):
        save(tmp_path, step=4)


def test_a_file_that_is_a_link_to_itself_is_damage(tmp_path):
    manifest = save(tmp_path) / "manifest.json"
    manifest.unlink()
    manifest.symlink_to(manifest)
    with pytest.raises(StorageError, match=r"manifest\.json"):
        verify(manifest.parent)
