import pytest
from toys import Regression, data, session

from descend.callbacks import Checkpoint
from descend.errors import ConfigurationError
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
