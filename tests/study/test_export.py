"""What the viewers of others are given, read back with their libraries."""

import math

import pytest
from study_tasks import mlp
from system_needs import library

from descend.errors import ConfigurationError, StorageError
from descend.study import Arm, Study, choice, integer, linear, log, one_minus_log, run_study
from descend.study.export import export_study


@pytest.fixture(scope="module")
def result():
    space = {
        "lr": log(0.05, 1.0),
        "momentum": one_minus_log(0.1, 0.5),
        "weight_decay": linear(0.0, 1e-3),
        "nesterov": choice(True, False),
        "workload.width": integer(8, 9),
    }
    arms = {"sgd": Arm("SGD", space), "wild": Arm("SGD", {"lr": log(1e28, 1e30)}, {"momentum": 0.9})}
    return run_study(
        Study(
            workload=mlp, batch_sizes=32, steps=10, arms=arms, trials=3, searches=1, shortlist=1, confirmation_seeds=2
        ),
        executor="one",
    )


def test_optuna_gets_every_trial_with_its_space_and_its_end(result, tmp_path):
    optuna = library("optuna")
    file = tmp_path / "study.journal"
    assert "optuna-dashboard" in export_study(result, file, "optuna")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
    kept = {one.study_name.split(": ")[1]: one for one in optuna.get_all_study_summaries(storage)}
    assert set(kept) == {"sgd, batch 32, 10 updates", "wild, batch 32, 10 updates"}
    trials = {
        trial.user_attrs["trial"]: trial
        for name in kept
        for trial in optuna.load_study(study_name=f"study: {name}", storage=storage).trials
    }
    assert set(trials) == set(result.records)
    for name, record in result.records.items():
        trial, value = trials[name], record.final("validation", "accuracy")
        assert trial.user_attrs["status"] == record.status
        assert trial.state.name == ("FAIL" if math.isnan(value) else "COMPLETE")
        assert trial.value == (None if math.isnan(value) else value)
        assert trial.params == {key: record.trial.configuration[key] for key in trial.params}
    assert trials["sgd/b32/s10/search0/search/000"].distributions["lr"].log
    assert any(trial.state.name == "FAIL" for trial in trials.values())


def test_tensorboard_gets_settings_and_scores(result, tmp_path):
    library("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    export_study(result, tmp_path / "board", "tensorboard")
    name, record = next((n, r) for n, r in result.records.items() if r.trial.phase == "search" and r.status == "done")
    events = EventAccumulator(str(tmp_path / "board" / name)).Reload()
    scores = [(one.step, one.value) for one in events.Scalars("validation/accuracy")]
    assert scores == [
        (s, pytest.approx(v)) for s, v in zip(record.steps, record.scores["validation"]["accuracy"], strict=True)
    ]
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["lr"].number_value == pytest.approx(record.trial.configuration["lr"])
    assert settings["phase"].string_value == "search"


def test_a_form_or_a_path_that_cannot_be_is_a_mistake(result, tmp_path):
    with pytest.raises(ConfigurationError, match="did you mean 'optuna'"):
        export_study(result, tmp_path / "new", "optun")
    with pytest.raises(ConfigurationError, match="exists"):
        export_study(result, tmp_path, "optuna")


def test_a_folder_that_is_not_there_is_made(result, tmp_path):
    library("optuna")
    export_study(result, tmp_path / "new" / "deeper" / "study.journal", "optuna")
    assert (tmp_path / "new" / "deeper" / "study.journal").is_file()
    with pytest.raises(StorageError, match="cannot make the directory"):
        export_study(result, tmp_path / "new" / "deeper" / "study.journal" / "x", "optuna")
