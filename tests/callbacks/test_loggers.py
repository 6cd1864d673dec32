"""Loggers. Those of MLflow and W&B need their libraries, which the environment of the other tests has not:

python -m venv loggers; loggers/bin/pip install mlflow wandb -e '.[dev]'
loggers/bin/python -m pytest -m slow tests/callbacks/test_loggers.py
"""

import csv
import json
import math
import struct
import warnings

import pytest
import torch
from callback_runs import StopAt, in_one_go_and_in_two, work
from run_builder import execute
from system_needs import needs_library

from descend.callbacks import CSVLogger, GradientNorm, Logger, MLflowLogger, TensorBoardLogger, WandbLogger
from descend.errors import ConfigurationError, MissingExtra, Stopped, StorageError


class Kept(Logger):
    """Keeps what it is given."""

    def begin(self, run):
        self.begun, self.got, self.ended = (run.name, run.step), [], None

    def log(self, values, step):
        self.got.append((step, dict(values)))

    def end(self, reason, complete):
        self.ended = (reason, complete)


def expected(history):
    """What a logger is to get of the rows: their numbers by mode and name, with the step."""
    left_out = ("mode", "epoch", "step", "samples", "learning_rate")
    return [
        (
            row["step"],
            {"epoch": row["epoch"]}
            | {f"{row['mode']}/{name}": value for name, value in row.items() if name not in left_out}
            | ({"learning_rate": row["learning_rate"]} if "learning_rate" in row else {}),
        )
        for row in history
    ]


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_logger_gets_every_row_once_and_single_steps(tmp_path):
    kept = Kept(every_steps=5)
    result = execute(work(kept, GradientNorm(every_steps=7)), tmp_path / "run")
    assert kept.begun == ("toy", 0)
    assert kept.ended == (result.reason, True)
    steps = [(step, values) for step, values in kept.got if "train/step_objective" in values]
    assert [step for step, _ in steps] == [5, 10, 15, 20]
    assert all(values["learning_rate"] == 0.05 for _, values in steps)
    assert [entry for entry in kept.got if "train/step_objective" not in entry[1]] == expected(result.history)
    assert any("train/gradient_norm" in values for _, values in kept.got)


def test_rates_of_groups_are_in_the_rows(tmp_path):
    def grouped(params, lr):
        (_, weight), (_, bias) = params
        return torch.optim.SGD([{"params": [weight], "name": "body"}, {"params": [bias], "lr": lr / 2}], lr=lr)

    result = execute(work(epochs=1, optimizer=grouped), tmp_path / "run")
    train, validation = result.history
    assert train["learning_rate/body"], train["learning_rate/1"] == (0.05, 0.025)
    assert not any(name.startswith("learning_rate") for name in validation)


def test_a_logger_that_fails_is_one_warning_and_training_goes_on(tmp_path):
    class Lost(Kept):
        def log(self, values, step):
            raise ConnectionError("no route to host")

    with pytest.warns(UserWarning, match="Lost could not log, training continues: ConnectionError: no route") as caught:
        result = execute(work(Lost()), tmp_path / "run")
    assert result.steps == 24
    assert len([one for one in caught if "could not log" in str(one.message)]) == 1


def test_a_logger_that_lacks_a_method_is_an_error_and_no_warning(tmp_path):
    class Unfinished(Logger):
        def begin(self, run):
            pass

    with pytest.raises(NotImplementedError, match=r"Unfinished defines no log\(\)"):
        execute(work(Unfinished(), epochs=1), tmp_path)


def test_a_run_that_ends_by_a_signal_says_so(tmp_path):
    kept = Kept()
    with pytest.raises(Stopped):
        execute(work(kept, StopAt(8)), tmp_path / "run")
    assert kept.ended is not None
    assert kept.ended[1] is False


def test_a_table_has_a_line_a_step_with_all_digits(tmp_path):
    result = execute(work(CSVLogger(every_steps=4)), tmp_path / "run")
    lines = table(tmp_path / "run" / "metrics.csv")
    assert [int(line["step"]) for line in lines] == [4, 6, 8, 12, 16, 18, 20, 24]
    for row in result.history:
        (line,) = [line for line in lines if int(line["step"]) == row["step"]]
        assert float(line[f"{row['mode']}/objective"]) == row["objective"]
        assert int(line["epoch"]) == row["epoch"]
    assert lines[0]["validation/objective"] == ""
    assert lines[5]["train/step_objective"] == ""
    assert list(lines[0])[:4] == ["step", "epoch", "train/step_objective", "learning_rate"]


def test_a_table_of_a_run_in_parts_is_that_of_one_in_one_go(tmp_path):
    in_one_go_and_in_two(tmp_path, lambda: [CSVLogger(every_steps=1)])
    whole, parts = (table(tmp_path / name / "metrics.csv") for name in ("whole", "parts"))
    seconds = ("train/seconds", "validation/seconds")
    strip = [[{k: v for k, v in line.items() if k not in seconds} for line in lines] for lines in (whole, parts)]
    assert strip[0] == strip[1]


def test_a_file_that_is_no_table_is_not_overwritten(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("name,price\na,1\n")
    with pytest.raises(StorageError, match="not a table that it wrote"):
        execute(work(CSVLogger(path=str(other))), tmp_path / "run")
    assert other.read_text() == "name,price\na,1\n"


def test_wrong_settings_are_refused():
    for make, words in (
        (lambda: CSVLogger(every_steps=-1), "every_steps must be an integer >= 0"),
        (lambda: CSVLogger(path=""), "path must be a str or a Path"),
        (lambda: MLflowLogger(experiment=" "), "experiment must be a non-empty string"),
        (lambda: WandbLogger(mode="of"), "mode must be one of"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            make()


@pytest.mark.parametrize(("kind", "library"), [(MLflowLogger, "mlflow"), (WandbLogger, "wandb")])
def test_a_missing_library_is_named(kind, library, tmp_path, monkeypatch):
    monkeypatch.setattr("descend.callbacks.loggers.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=f"needs the library {library}: pip install {library}"):
        execute(work(kind()), tmp_path / "run")


@needs_library("tensorboard")
def test_tensorboard_reads_the_rows(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = execute(work(TensorBoardLogger(every_steps=6)), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for mode in ("train", "validation"):
        seen = [(event.step, event.value) for event in events.Scalars(f"{mode}/objective")]
        rows = [row for row in result.history if row["mode"] == mode]
        assert seen == [(row["step"], pytest.approx(row["objective"])) for row in rows]
    assert [event.value for event in events.Scalars("learning_rate")] == [pytest.approx(0.05)] * 8


@pytest.mark.slow
@needs_library("mlflow")
def test_mlflow_holds_the_rows_of_one_run_after_a_restart(tmp_path):
    from mlflow import MlflowClient

    place = f"sqlite:///{tmp_path}/mlflow.db"

    def logger():
        return MLflowLogger(experiment="toys", tracking_uri=place, run_name="one", tags={"kind": "test"})

    settings = {"settings": {"batch_size": 4, "loss": "mse", "nothing": None}}
    with pytest.raises(Stopped):
        execute(work(logger(), StopAt(13), **settings), tmp_path / "run")
    result = execute(work(logger(), **settings), tmp_path / "run", resume=True)
    client = MlflowClient(tracking_uri=place)
    (run,) = client.search_runs([client.get_experiment_by_name("toys").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["batch_size"] == "4"
    assert run.data.tags["kind"] == "test"
    seen = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "validation/objective")]
    rows = [row for row in result.history if row["mode"] == "validation"]
    assert sorted(seen) == [(row["step"], row["objective"]) for row in rows]


@pytest.mark.slow
@needs_library("wandb")
def test_wandb_writes_the_rows_offline(tmp_path):
    result = execute(work(WandbLogger(project="toys", mode="offline", options={"tags": ["a"]})), tmp_path / "run")
    (path,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    points = [point for point in history_of(path) if "validation/objective" in point]
    rows = [row for row in result.history if row["mode"] == "validation"]
    assert [(point["step"], point["validation/objective"]) for point in points] == [
        (row["step"], row["objective"]) for row in rows
    ]


def history_of(path):
    """The points of a file of wandb, which is a log of LevelDB's form with protocol messages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from wandb.proto import wandb_internal_pb2

    data, at, message, points = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # no record begins in the last bytes of a block
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(message)
            message = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                points.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return points


def test_numbers_that_are_not_finite_are_logged_as_they_are(tmp_path):
    class Infinite(GradientNorm):
        def after_backward(self, step):
            step.run.control.record({"ratio": math.inf}, step.step)

    execute(work(Infinite(), CSVLogger(), epochs=1), tmp_path / "run")
    assert {line["train/ratio"] for line in table(tmp_path / "run" / "metrics.csv")} == {"inf"}


def test_a_tool_that_cannot_begin_is_refused_in_words(tmp_path, monkeypatch):
    """A server that does not answer, a store that the tool no longer has."""

    def begin(self, run):
        raise RuntimeError("no such store\nand more")

    begin.__module__ = Logger.__module__  # as one of ours
    monkeypatch.setattr(CSVLogger, "begin", begin)
    with pytest.raises(ConfigurationError, match="CSVLogger cannot begin: RuntimeError: no such store; correct its"):
        execute(work(CSVLogger(), epochs=1), tmp_path)
