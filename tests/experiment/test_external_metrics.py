"""Metrics of programs and of Python functions, in whole runs."""

import dataclasses
import json
import stat

import numpy as np
import pytest
import torch

import descend
from descend.errors import ConfigurationError, GraphError
from descend.experiment.external_metrics import ExternalMetrics
from descend.experiment.run import run
from descend.zoo import demo_experiment


def started(tmp_path, *metrics, callbacks=()):
    experiment = demo_experiment("digits")
    trainer = dataclasses.replace(experiment.trainer, training_algo=None)
    model = experiment.model
    model.epochs = 1
    model.metrics += metrics
    model.callbacks += callbacks
    return run(trainer, model, experiment.data_reader, experiment.optimizer, run_dir=tmp_path / "run")


def module(tmp_path, text, name="score"):
    (tmp_path / f"{name}.py").write_text(text)
    return descend.PythonMetric(name="score", module=name, module_dir=str(tmp_path))


def program(tmp_path, text, **fields):
    path = tmp_path / "program.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return descend.ExecutableMetric(name="printed", filename=str(path), **fields)


def test_a_run_reports_them_after_each_pass(tmp_path, capsys):
    counted = module(tmp_path, "calls = []\ndef evaluate(path, rank):\n    calls.append(path)\n    return len(calls)\n")
    printed = program(tmp_path, 'pwd > where.txt; echo "$@" > arguments.txt; echo 2.5', other_args="--deep 'a b'")
    result = started(tmp_path, counted, printed)
    modes = [(row["mode"], row["score"], row["printed"]) for row in result.history]
    assert modes == [("train", 1.0, 2.5), ("validation", 2.0, 2.5), ("test", 3.0, 2.5)]
    assert (tmp_path / "run" / "arguments.txt").read_text() == "--deep a b trainer0/lenet\n"
    assert (tmp_path / "run" / "where.txt").read_text().strip() == str((tmp_path / "run").resolve())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["score"] for row in rows] == [1.0, 2.0, 3.0]
    out = capsys.readouterr().out
    assert "lenet (instance 0) test printed : 2.5" in out


def test_they_can_be_checked_like_any_other(tmp_path):
    scored = module(tmp_path, "def evaluate(path, rank):\n    return 3\n")
    check = descend.CheckMetric(metric="score", lower_bound=4, upper_bound=5, error_on_failure=True)
    with pytest.raises(descend.errors.DescendError, match="score"):
        started(tmp_path, scored, callbacks=[check])


def test_a_function_gets_directory_and_rank(tmp_path):
    metric = module(tmp_path, "def twice(path, rank):\n    return len(path) + 100 * rank\n")
    metric = dataclasses.replace(metric, function="twice")
    asked = ExternalMetrics([metric], "trainer0/model0")
    assert asked(tmp_path)["score"] == len(str(tmp_path / "trainer0" / "model0"))
    assert ExternalMetrics([], "trainer0/model0")(None) == {}


@pytest.mark.parametrize("value", ["torch.tensor(1.5)", "numpy.float32(1.5)", "'1.5'", "numpy.array([1.5])[0]"])
def test_what_is_a_number_counts_as_one(tmp_path, value):
    metric = module(tmp_path, f"import numpy, torch\ndef evaluate(path, rank):\n    return {value}\n")
    assert ExternalMetrics([metric], "t/m")(tmp_path) == {"score": 1.5}
    assert np.float32(1.5) == torch.tensor(1.5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def evaluate(path, rank):\n    return 'much'\n", "metric 'score' must be a number, got 'much'"),
        ("def evaluate(path, rank):\n    return None\n", "metric 'score' must be a number, got 'None'"),
        ("def other(path, rank):\n    return 1\n", "module .score. has no function 'evaluate'"),
        ("1 / 0\n", "cannot be imported .ZeroDivisionError"),
    ],
)
def test_functions_that_give_no_number_are_refused(tmp_path, text, problem):
    with pytest.raises(ConfigurationError, match=problem):
        ExternalMetrics([module(tmp_path, text)], "t/m")(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo broken >&2; exit 3", "program.sh t/m exited with 3: broken"),
        ("echo many words", "metric 'printed' must be a number, got 'many words"),
        ("true", "metric 'printed' must be a number, got ''"),
    ],
)
def test_programs_that_give_no_number_are_refused(tmp_path, text, problem):
    with pytest.raises(ConfigurationError, match=problem):
        ExternalMetrics([program(tmp_path, text)], "t/m")(tmp_path)


def test_what_is_not_there_is_named(tmp_path):
    gone = descend.ExecutableMetric(name="gone", filename=str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match=r"metric 'gone': .*gone cannot be started"):
        ExternalMetrics([gone], "t/m")(tmp_path)
    missing = descend.PythonMetric(name="missing", module="nowhere", module_dir=str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"metric 'missing': there is not Python file .*nowhere.py"):
        ExternalMetrics([missing], "t/m")
    x = descend.Input(data_field="x")
    model = descend.Model(
        1, objective_function=descend.L2Norm2(x), metrics=[descend.PythonMetric(), descend.ExecutableMetric(name="e")]
    )
    with pytest.raises(GraphError) as caught:
        descend.graph.check(model, {"x": (1,)})
    assert list(caught.value.problems) == [
        "metric '' (PythonMetric) needs name=",
        "metric '' (PythonMetric) needs module=",
        "metric 'e' (ExecutableMetric) needs filename=",
    ]


def test_a_function_gets_the_path_as_lbann_has_it_where_files_lie_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metric = module(tmp_path, "def evaluate(path, rank):\n    return path == 'trainer0/model0'\n", "placed")
    assert ExternalMetrics([metric], "trainer0/model0")(tmp_path) == {"score": 1.0}


def test_a_module_may_import_its_neighbours(tmp_path):
    (tmp_path / "beside_a_metric.py").write_text("VALUE = 2.5\n")
    text = "from beside_a_metric import VALUE\ndef evaluate(path, rank):\n    return VALUE\n"
    metric = module(tmp_path, text, "asks")
    assert ExternalMetrics([metric], "t/m")(tmp_path) == {"score": 2.5}
