"""What is read from a run directory, whole or damaged."""

import json
import os
import time

import pytest

from descend.errors import ConfigurationError, StorageError
from descend.experiment.run_page.read import is_run_directory, read_run, stamp

ROWS = [
    {"mode": "train", "epoch": 1, "step": 10, "objective": 2.0, "learning_rate": 0.1, "samples": 100, "seconds": 2.0},
    {"mode": "validation", "epoch": 1, "step": 10, "objective": 1.5, "samples": 50, "seconds": 0.5},
    {"mode": "restart", "epoch": 1, "step": 10, "time": "2026-01-01"},
    {"mode": "train", "epoch": 2, "step": 20, "objective": float("nan"), "learning_rate": 0.1, "samples": 9},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"end": {"exit_code": 0, "reason": "finished"}, "torch": "2"}))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS) + '{"mode": "tra')
    (tmp_path / "log.txt").write_text("begins\nwarning: a\nwarning: b\nwarning: a\n")
    for step in (9, 10, 100):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    return tmp_path


def test_a_run_is_read_without_its_restarts_and_half_a_line(folder):
    run = read_run(folder)
    assert run.metrics[0].last["train"]["step"] == 20
    assert run.restarts == (10,)
    assert run.warnings == {"a": 2, "b": 1}
    assert run.checkpoints == ("step-9", "step-10", "step-100")
    assert run.modes == ["train", "validation"]
    assert run.quantities == ["objective", "learning_rate"]
    assert run.series("objective", "validation") == [(10.0, 1.5)]
    assert (run.step, run.status) == (20, "finished")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ({"exit_code": 75}, "stopped on request"),
        ({"exit_code": 130}, "interrupted"),
        ({"exit_code": 4}, "ended with exit code 4"),
        (None, "ended without saying how, as after a kill"),
    ],
)
def test_how_it_ended_in_words(folder, end, status):
    (folder / "run.json").write_text(json.dumps({"end": end}))
    assert read_run(folder).status == status


def test_a_run_that_a_process_owns_is_under_way_and_a_stale_owner_is_none(folder):
    (folder / "run.json").write_text(json.dumps({"end": None}))
    (folder / "owner.json").write_text("{}")
    assert read_run(folder).status == "under way"
    long_ago = time.time() - 600
    os.utime(folder / "owner.json", (long_ago, long_ago))
    assert not read_run(folder).is_active


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", '{"end": 3, "trainers": "x", "monitored": 1}'])
def test_a_damaged_description_leaves_the_rows(folder, text):
    (folder / "run.json").write_text(text)
    run = read_run(folder)
    assert run.metrics[0].last["validation"]["objective"] == 1.5
    assert not run.has_several
    assert run.facts.exit_code is None
    assert any("run.json" in problem for problem in run.problems)


def test_several_trainers_have_their_rows_together(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"trainers": 2, "end": {}}))
    for number in range(2):
        (tmp_path / f"trainer{number}").mkdir()
        row = {"mode": "train", "epoch": 1, "step": 5, "objective": float(number)}
        (tmp_path / f"trainer{number}" / "metrics.jsonl").write_text(json.dumps(row))
    run = read_run(tmp_path)
    assert run.trainers == [0, 1]
    assert run.series("objective", "train", 1) == [(5.0, 1.0)]


def test_weights_are_named_from_the_header_of_the_newest_checkpoint(folder):
    torch = pytest.importorskip("safetensors.torch")
    import torch as tensors

    file = folder / "checkpoints" / "step-100" / "weights.safetensors"
    torch.save_file({"w": tensors.zeros(2, 3), "b": tensors.zeros(())}, file)
    assert sorted(read_run(folder).weights) == [("b", (), "F32"), ("w", (2, 3), "F32")]
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(StorageError, match=r"step-100/weights.safetensors cannot be read: its header has"):
        _ = read_run(folder).weights


def test_the_stamp_changes_with_every_row(folder):
    before = stamp(folder)
    assert stamp(folder) == before
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\n")
    assert stamp(folder) != before


def test_another_directory_is_refused(tmp_path):
    assert not is_run_directory(tmp_path)
    with pytest.raises(ConfigurationError, match=r"has no run\.json and no metrics\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(ConfigurationError, match="is not a directory"):
        read_run(tmp_path / "none")
