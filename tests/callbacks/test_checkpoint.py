import pytest
import torch
from callback_runs import work

from descend.callbacks import Checkpoint
from descend.errors import ConfigurationError
from descend.experiment.conduct import conduct


def saved(run_dir, *callbacks, epochs=2, resume=False, **settings):
    """Numbers of the checkpoints that are left after a run of 6 steps an epoch; the last one is that of its end."""
    conduct(work(*callbacks, epochs=epochs, **settings), run_dir, resume=resume)
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
        conduct(work(callback), tmp_path / f"run-{name}")
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
        return conduct(work(Checkpoint(every_epochs=1, **given), epochs=epochs), tmp_path / name)

    whole = go("whole", 4)
    go("first", 2, checkpoint_dir=str(tmp_path / "c"))
    second = go("second", 4, restart_dir=str(tmp_path / "c"))
    assert second.steps == whole.steps
    assert [row["epoch"] for row in second.history if row["mode"] == "train"] == [1, 2, 3, 4]
    torch.testing.assert_close(second.weights["weight"], whole.weights["weight"], rtol=0, atol=0)


def test_checkpoints_in_parts_are_refused():
    with pytest.raises(ConfigurationError, match="per_rank_dir asks for a checkpoint in parts"):
        Checkpoint.from_fields({"checkpoint_steps": 1, "per_rank_dir": "x"})
