"""A description is checked before anything runs, with all its problems at once, and once however it is run."""

from dataclasses import replace

import pytest

import descend
from descend.callbacks import Checkpoint, PrintModelDescription
from descend.errors import ConfigurationError, DataError
from descend.experiment import check as module
from descend.experiment import run, runner
from descend.experiment.check import check, check_parts
from descend.zoo import demo_experiment


@pytest.fixture
def experiment():
    return demo_experiment("digits")


@pytest.fixture
def checks(monkeypatch):
    """The graphs that were checked."""
    seen = []

    def counted(model, fields, pieces, *, plain=module.check_graph):
        seen.append(model)
        return plain(model, fields, pieces)

    monkeypatch.setattr(module, "check_graph", counted)
    return seen


def short(experiment, **trainer):
    experiment.trainer = replace(experiment.trainer, mini_batch_size=600, training_algo=None, **trainer)
    experiment.model.epochs = 1
    return experiment


@pytest.mark.parametrize("seed", [3, None])
def test_a_text_that_is_run_is_checked_once(experiment, checks, command, tmp_path, seed):
    short(experiment, random_seed=seed)
    parts = {name: getattr(experiment, name) for name in ("trainer", "model", "data_reader", "optimizer")}
    descend.save_prototext(tmp_path / "a.prototext", **parts)
    assert "finished 1 of 1 epochs" in command("run", tmp_path / "a.prototext", "--run-dir", tmp_path / "run")
    assert len(checks) == 1


def test_two_trainers_of_a_process_are_checked_once(experiment, checks, tmp_path):
    short(experiment, random_seed=3)
    parts = (experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer)
    result = descend.run(*parts, tmp_path / "run", trainers=2)
    assert len(result.trainers) == 2
    assert len(checks) == 1


def test_what_was_checked_with_another_seed_has_the_samples_of_the_runs_own(experiment, monkeypatch):
    """Which samples are held out for validation follows from the seed of the run, not from that of the check."""
    short(experiment, random_seed=5)
    found = []

    def stop(experiment, options, context, several, checked):
        found.append(checked)
        raise ConfigurationError("built enough")

    monkeypatch.setattr(run, "build_experiment", stop)
    of_another, of_the_same = check(experiment, 0), check(experiment, 5)
    for checked in (of_another, of_the_same):
        with pytest.raises(ConfigurationError, match="built enough"):
            run.run_experiment(experiment, runner.RunOptions(keep_files=False), checked)
    assert [checked.seed for checked in found] == [5, 5]
    assert found[0].readers["train"] is not of_another.readers["train"]
    assert found[0].plan is of_another.plan
    assert found[1] is of_the_same


def test_it_knows_plan_readers_unit_and_modes(experiment):
    checked = check(experiment, 7)
    assert {layer.name for layer in checked.plan.layers} >= {"conv1", "fc1"}
    assert [mode.role for mode in checked.modes] == [mode for mode in checked.readers if mode in checked.readers]
    assert (checked.unit, checked.seed, checked.warnings) == (1, 7, ())
    assert {*check_parts(experiment, 7)} == {*checked.readers}


def test_problems_of_graph_numbers_and_callbacks_come_together(experiment):
    experiment.optimizer = descend.Adam(learn_rate=-1.0)
    experiment.trainer.callbacks = [Checkpoint(every_steps=1), PrintModelDescription()]
    experiment.model.callbacks = [descend.DumpOutputs(layers="conv9")]
    with pytest.raises(ConfigurationError) as caught:
        check(experiment)
    text = str(caught.value)
    assert "learn_rate" in text
    assert "PrintModelDescription is a callback of a model" in text
    assert "conv9" in text
    assert "did you mean 'conv" in text


def test_damaged_data_alone_are_an_error_of_data(experiment, tmp_path):
    reader = descend.Reader(name="mnist", role="train", data_filedir=str(tmp_path), data_filename="none.idx")
    experiment.data_reader = descend.DataReader([reader])
    with pytest.raises(DataError, match=r"none\.idx"):
        check(experiment)


def test_nothing_to_train_on_and_no_objective_are_refused(experiment):
    experiment.data_reader = descend.DataReader(
        [replace(one, role="test") for one in experiment.data_reader.reader[:1]]
    )
    with pytest.raises(ConfigurationError, match="no reader has the role 'train'"):
        check_parts(experiment, 0)


def test_a_learning_rate_of_zero_is_a_warning_and_a_schedule_that_sets_one_is_none(experiment):
    experiment.optimizer = descend.SGD(learn_rate=0.0)
    experiment.model.callbacks = []
    (warning,) = check(experiment).warnings
    assert "have a learning rate of 0" in warning
    experiment.model.callbacks = [descend.SetLearningRate(step=1, val=0.1)]
    assert check(experiment).warnings == ()
