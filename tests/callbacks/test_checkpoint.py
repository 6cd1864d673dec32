import pytest
import torch
from callback_runs import work
from toys import Regression, data, session

from descend.callbacks import Checkpoint
from descend.errors import ConfigurationError
from descend.experiment.conduct import conduct
from descend.train import Epochs, Event
from descend.train.loop import train


def saved(tmp_path, checkpoint, epochs=2):
    """Names of the checkpoints that are left after a run of 3 steps an epoch whose saving makes empty folders."""
    run = session(Regression(), data(batch_size=4), callbacks=(checkpoint,))

    def save():
        folder = tmp_path / f"step-{run.contexts['train'].step}"
        folder.mkdir(exist_ok=True)
        return folder

    run.save = save
    run.callbacks.fire(Event.BEFORE_RUN, run.view())
    train(run, Epochs(epochs))
    return sorted(path.name for path in tmp_path.iterdir())


def test_every_steps_and_every_epochs(tmp_path):
    steps, epochs = tmp_path / "steps", tmp_path / "epochs"
    steps.mkdir()
    epochs.mkdir()
    assert saved(steps, Checkpoint(every_steps=2)) == ["step-2", "step-4", "step-6"]
    assert saved(epochs, Checkpoint(every_epochs=1)) == ["step-3", "step-6"]


def test_keep_removes_only_what_it_wrote_itself(tmp_path):
    (tmp_path / "step-0").mkdir()
    (tmp_path / "notes").mkdir()
    assert saved(tmp_path, Checkpoint(every_steps=1, keep=2)) == ["notes", "step-0", "step-5", "step-6"]


@pytest.mark.parametrize("settings", [{}, {"every_steps": -1}, {"every_epochs": 1, "keep": -2}])
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
