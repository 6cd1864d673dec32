import json
import math

import pytest
import torch
from callback_runs import StopAt, work
from run_builder import execute

from descend.callbacks import Checkpoint
from descend.errors import ConfigurationError, Stopped
from descend.train import Callback


def saved(run_dir, *callbacks, epochs=2, resume=False, **settings):
    """Numbers of the checkpoints that are left after a run of 6 steps an epoch; the last one is that of its end."""
    execute(work(*callbacks, epochs=epochs, **settings), run_dir, resume=resume)
    return numbers(run_dir)


def numbers(run_dir):
    return sorted(int(path.name.removeprefix("step-")) for path in (run_dir / "checkpoints").glob("step-*"))


def test_every_steps_and_every_epochs(tmp_path):
    assert saved(tmp_path / "steps", Checkpoint(every_steps=4)) == [4, 8, 12]
    assert saved(tmp_path / "epochs", Checkpoint(every_epochs=1)) == [6, 12]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"every_steps": -1},
        {"every_epochs": 1, "keep": -2},
        {"every_steps": 2.5},
        {"every_seconds": float("nan")},
        {"keep_best": "objective"},
        {"keep_best": "validation/accuracy"},
        {"every_steps": 1, "best": "lowest"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigurationError, match="Checkpoint"):
        Checkpoint(**settings)


def test_copies_lie_where_lbann_s_scripts_look_and_do_not_differ_between_runs(tmp_path):
    def files(name):
        callback = Checkpoint(every_epochs=2, every_steps=7, checkpoint_dir=str(tmp_path / name))
        execute(work(callback), tmp_path / f"run-{name}")
        folder = tmp_path / name / "trainer0"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}, folder

    (ours, folder), (theirs, _) = files("a"), files("b")
    assert ours == theirs
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "sgd.shared.batch_end.epoch.1.step.7",
        "sgd.shared.batch_end.epoch.2.step.14",
        "sgd.shared.batch_end.epoch.3.step.21",
        "sgd.shared.epoch_end.epoch.2.step.12",
        "sgd.shared.epoch_end.epoch.4.step.24",
    ]
    assert (folder / "sgd.last.shared.checkpoint").read_text() == "sgd.shared.epoch_end.epoch.4.step.24\n"


def test_a_new_run_begins_where_the_newest_copy_stands(tmp_path):
    def go(name, epochs, **given):
        return execute(work(Checkpoint(every_epochs=1, **given), epochs=epochs), tmp_path / name)

    whole = go("whole", 4)
    go("first", 2, checkpoint_dir=str(tmp_path / "c"))
    second = go("second", 4, restart_dir=str(tmp_path / "c"))
    assert second.steps == whole.steps
    assert [row["epoch"] for row in second.history if row["mode"] == "train"] == [1, 2, 3, 4]
    torch.testing.assert_close(second.weights["weight"], whole.weights["weight"], rtol=0, atol=0)


def test_checkpoints_in_parts_are_refused():
    with pytest.raises(ConfigurationError, match="per_rank_dir asks for a checkpoint in parts"):
        Checkpoint.from_fields({"checkpoint_steps": 1, "per_rank_dir": "x"})


# ---- what is kept


class Scores(Callback):
    """Puts numbers of its own in the place of the validation's objective."""

    def __init__(self, *scores):
        self.scores = scores

    def after_evaluation(self, evaluation):
        evaluation.values["objective"] = self.scores[evaluation.epoch - 1]


def test_keep_leaves_the_newest_and_what_it_did_not_write(tmp_path):
    run_dir = tmp_path / "run"

    class Meddle(Callback):
        def after_step(self, step):
            if step.step == 5:
                (run_dir / "checkpoints/step-4/notes.txt").write_text("mine")
                (run_dir / "checkpoints/step-3000").mkdir()

    with pytest.warns(UserWarning, match="step-4 is kept: it holds files that this run has not written"):
        assert saved(run_dir, Checkpoint(every_steps=1, keep=2), Meddle()) == [4, 11, 12, 3000]
    assert (run_dir / "checkpoints/step-4/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_best_stays_beside_the_newest(tmp_path, asynchronous):
    """NaN is never best, also after restarts and in a directory that was moved."""
    callbacks = [
        Scores(3.0, 1.0, math.nan, 2.0, 1.0, 5.0),
        Checkpoint(every_steps=2, keep=2, keep_best="validation/objective", asynchronous=asynchronous),
    ]
    try:
        execute(work(*callbacks, StopAt(14), epochs=6), tmp_path / "a")
    except Stopped:
        (tmp_path / "a").rename(tmp_path / "b")
    assert 12 in numbers(tmp_path / "b")  # the second pass
    left = saved(tmp_path / "b", *callbacks, epochs=6, resume=True)
    assert 12 in left
    assert left[-1] == 36
    assert len(left) <= 4
    assert 14 not in left  # the one of the signal is superseded


def test_the_best_by_the_highest(tmp_path):
    callbacks = [Scores(3.0, 9.0, 1.0, 2.0), Checkpoint(keep_best="validation/objective", best="highest", keep=1)]
    assert saved(tmp_path, *callbacks, epochs=4) == [12, 24]


def test_two_rules_keep_their_own(tmp_path):
    left = saved(tmp_path, Checkpoint(every_steps=1, keep=1), Checkpoint(every_epochs=1, keep=3), epochs=5)
    assert left == [18, 24, 30]


def test_restarts_remove_nothing_that_another_rule_keeps(tmp_path):
    saved(tmp_path, Checkpoint(every_epochs=1), epochs=3)
    assert saved(tmp_path, Checkpoint(every_steps=1, keep=1), epochs=4, resume=True) == [6, 12, 18, 24]


def test_saving_in_the_background_changes_no_byte(tmp_path):
    """Neither of the run nor of its checkpoints."""

    def all_bytes(name, asynchronous):
        execute(work(Checkpoint(every_steps=1, asynchronous=asynchronous)), tmp_path / name)
        folder = tmp_path / name / "checkpoints"
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    assert all_bytes("a", False) == all_bytes("b", True)


def test_equal_runs_give_equal_checkpoints_however_often_they_were_stopped(tmp_path):
    """Every file of them, so no time and no name of a machine is inside; times are beside them."""

    def last(name):
        folder = tmp_path / name / "checkpoints/step-24"
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    execute(work(), tmp_path / "whole")
    for step in (4, 9, 12):
        with pytest.raises(Stopped):
            execute(work(StopAt(step)), tmp_path / "parts", resume=True)
    execute(work(), tmp_path / "parts", resume=True)
    assert last("parts") == last("whole")
    times = json.loads((tmp_path / "parts/checkpoints.json").read_text())["step-24"]["times"]
    assert times["seconds"] > 0


def test_a_run_without_a_directory_cannot_save():
    with pytest.raises(ConfigurationError, match=r"keeps no files.*run_dir="):
        execute(work(Checkpoint(every_steps=1)), None, keep_files=False)
