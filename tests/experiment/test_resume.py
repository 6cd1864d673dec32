"""A prototext run that is stopped and continued from the command line ends in the bits of one that was left alone."""

import os
import signal

import pytest

import descend
from descend.errors import ConfigurationError, Stopped, StorageError
from descend.experiment.run import run
from descend.zoo import demo_experiment


class StopAt(descend.Callback):
    def __init__(self, step):
        self.step = step

    def after_step(self, step):
        if step.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def start(run_dir, epochs=3, stop_at=None, resume=False, **changes):
    experiment = demo_experiment("digits")
    trainer, model = experiment.trainer, experiment.model
    trainer.training_algo, trainer.random_seed = None, changes.pop("seed", 1)
    model.epochs, model.callbacks = epochs, [StopAt(stop_at)] if stop_at else []
    rule = changes.pop("rule", experiment.optimizer)
    return run(trainer, model, experiment.data_reader, rule, run_dir, resume=resume)


def weights(run_dir, step):
    return (run_dir / "checkpoints" / f"step-{step}" / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("seed", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_stopped_and_continued_is_the_same_run(tmp_path, seed):
    for step in (5, 30):
        with pytest.raises(Stopped):
            start(tmp_path / "parts", stop_at=step, resume=True, seed=seed)
    result = start(tmp_path / "parts", resume=True, seed=seed)
    number = descend.runtime.stored_seed(tmp_path / "parts")
    start(tmp_path / "whole", seed=number)
    assert weights(tmp_path / "parts", 57) == weights(tmp_path / "whole", 57)
    assert [row["epoch"] for row in result.history if row["mode"] == "train"] == [1, 2, 3]


def test_more_epochs_go_on_from_the_end(tmp_path):
    start(tmp_path / "parts", epochs=1)
    start(tmp_path / "parts", epochs=2, resume=True)
    start(tmp_path / "whole", epochs=2)
    assert weights(tmp_path / "parts", 38) == weights(tmp_path / "whole", 38)


def test_another_rate_applies_and_is_shown_and_another_rule_is_refused(tmp_path, capsys):
    with pytest.raises(Stopped):
        start(tmp_path, stop_at=5)
    before = weights(tmp_path, 5)
    with pytest.raises(ConfigurationError, match="cannot be resumed"):
        start(tmp_path, resume=True, rule=descend.Adam(learn_rate=0.1, beta1=0.9, beta2=0.9, eps=1e-8))
    assert weights(tmp_path, 5) == before
    start(tmp_path, resume=True, rule=descend.SGD(learn_rate=0.01, momentum=0.9))
    assert "optimizer.lr: 0.05 -> 0.01: applies" in capsys.readouterr().out


def test_another_model_is_refused(tmp_path):
    with pytest.raises(Stopped):
        start(tmp_path, stop_at=5)
    experiment = demo_experiment("digits")
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    x = descend.Softmax(descend.FullyConnected(images, num_neurons=10))
    model = descend.Model(1, objective_function=descend.CrossEntropy(x, labels))
    with pytest.raises(StorageError, match="holds other weights than this model"):
        run(experiment.trainer, model, experiment.data_reader, experiment.optimizer, tmp_path, resume=True)
