"""`descend study`, as a user starts it."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture
def descend(command):
    """A function that gives what `descend study WORDS` prints; its exit code must be `code`."""
    return functools.partial(command, "study")


def test_simulate_draws_steps_against_batch_size(descend):
    text = descend("simulate", "--rules", "sgd,heavy_ball", "--batch-sizes", "1024,65536")
    assert text.splitlines()[1].split() == ["sgd", "10,442", "6,956"]
    assert "x heavy_ball   . perfect scaling" in text
    assert (
        "heavy_ball: the best setting lies on an edge of its grid at batch size 1,024 (momentum); 65,536 (rate)" in text
    )


def test_simulate_answers_a_misspelt_rule(descend):
    assert "did you mean 'nesterov'" in descend("simulate", "--rules", "nestrov", code=2)


def test_help_needs_no_torch():
    code = "import sys; sys.argv = ['descend', 'study', 'simulate', '--batch-sizes', '65536']; "
    code += "from descend.__main__ import app; app(standalone_mode=False); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A small study of the digits."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(Path(__file__).parents[1].joinpath("study_tasks.py").read_text())
    text = """
name = "digits"
workload = "task.py:mlp"
batch_sizes = 32
steps = 10
trials = 4
searches = 2
shortlist = 1
confirmation_seeds = 6

[arms.sgd]
optimizer = "SGD"
fixed = { momentum = 0.5 }
space = { lr = { log = [0.05, 1.0] } }

[arms.adam]
optimizer = "Adam"
space = { lr = { log = [1e-3, 1e-1] } }
"""
    (tmp_path / "study.toml").write_text(text)
    return tmp_path / "study.toml"


def test_a_study_from_lint_to_report(descend, file):
    assert "freedom: adam: the ranges of 'lr'" not in descend("lint", file, code=1)
    assert "about" in descend("plan", file)
    text = descend("run", file, "kept", "--executor", "one")
    assert text.startswith("cannot rank")
    assert "digits: 40 of 40 trials" in descend("status", "kept")
    shown = descend("show", "kept")
    assert "median of re-runs" in shown
    assert descend("report", "kept", "--to", "elsewhere").strip() == "elsewhere/report.html"
    assert Path("elsewhere/report.html").read_bytes() == Path("kept/report.html").read_bytes()
    (file.parent / "taken").write_text("")
    assert "cannot make the directory taken" in descend("report", "kept", "--to", "taken", code=5)
    assert "differs in nothing" in descend("minimize", "kept", "--arm", "sgd", "--to", "sgd", code=2)
    assert "adam with that of sgd" in descend("swap", "kept", "--setting", "lr", "--seeds", "2")
    assert "configurations were tried" in descend("minimize", "kept", "--arm", "sgd", "--to", "adam", "--seeds", "6")


def test_what_names_a_ray_cluster_is_for_ray_alone(descend, file):
    assert "say --executor ray" in descend("run", file, "runs", "--address", "auto", code=2)
    assert "remove --processes" in descend("run", file, "runs", "--executor", "ray", "--processes", "2", code=2)


def test_a_study_on_a_gpu_is_refused_before_it_runs_where_there_is_none(descend, file, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    file.write_text(file.read_text().replace("[arms.sgd]", "[needs]\ndevice = 'cuda'\n\n[arms.sgd]"))
    assert "this machine has none that torch can use" in descend("run", file, "runs", code=2)
    assert not list(Path("runs/records").iterdir())


def test_a_new_study_is_a_file_that_can_be_read(descend, tmp_path):
    wanted = tmp_path / "t2.toml"
    given = ("--workload", "task.py:mlp", "--batch-size", "64", "--steps", "20", "--file", wanted)
    assert "next: descend study lint" in descend("new", "table2", *given)
    assert "nothing unfair found" in descend("lint", wanted)
    assert "exists" in descend("new", "table2", *given, code=2)
    elsewhere = (*given[:-1], tmp_path / "none" / "x.toml")
    assert "cannot write" in descend("new", "table2", *elsewhere, code=5)
    broken = ("--workload", "tt", *given[2:-1], tmp_path / "tt.toml")
    assert "workload 'tt' must be of the form" in descend("new", "aa", *broken, code=2)
    assert not (tmp_path / "tt.toml").exists()
    absent = ("--workload", "none.py:mlp", *given[2:-1], tmp_path / "absent.toml")
    assert "note: workload 'none.py:mlp': there is no file none.py" in descend("new", "aa", *absent)
    several = ("--workload", "t.py:t", "--batch-size", "32,64", "--steps", "5", "--file", tmp_path / "y.toml")
    assert "one batch size, and 2 are given" in descend("new", "table2", *several, code=2)
    assert "did you mean 'table2'" in descend("new", "tabel2", *given[:-1], tmp_path / "x", code=2)


def test_a_new_scaling_study_has_a_budget_for_each_size(descend, tmp_path):
    given = ("--workload", "t.py:t", "--batch-size", "32:512:x4", "--steps", "1000", "--file", tmp_path / "s.toml")
    assert "--target" in descend("new", "scaling", *given, code=2)
    descend("new", "scaling", *given, "--target", "0.4")
    assert "steps = { 32 = 1000, 128 = 1000, 512 = 250 }" in (tmp_path / "s.toml").read_text()


@pytest.mark.parametrize("wrong", ["6.5", "[]", "'many'", "true", "{ 32 = 6.5 }", "{ small = 6 }"])
def test_a_number_of_steps_that_is_none_is_said_in_one_line(descend, file, wrong):
    file.write_text(file.read_text().replace("steps = 10", f"steps = {wrong}"))
    printed = descend("lint", file, code=2)
    assert printed.startswith(f"error: {file}: steps ")
    assert "expected an integer" in printed
    assert len(printed.splitlines()) == 1


def test_a_directory_without_a_study_is_a_mistake(descend, tmp_path):
    assert "holds no study" in descend("status", tmp_path, code=2)


def of_a_script(folder, model, **arms):
    """The directory of a comparison that was made in Python."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data = {"train": (x[:40], x[:40, :2].argmax(1)), "validation": (x[40:], x[40:, :2].argmax(1))}
    import descend

    given = {"batch_size": 10, "steps": 3, "trials": 2, "seeds": 6, "searches": 2, "evaluations": 2, "shortlist": 1}
    loss = torch.nn.CrossEntropyLoss()
    descend.compare(model, loss, data, arms or {"a": "SGD", "b": "Adam"}, **given, executor="one", directory=folder)
    return folder


class OfAScript(torch.optim.SGD):
    pass


class Maker:
    def __call__(self):
        return torch.nn.Linear(4, 2)


def local():
    def model():
        return torch.nn.Linear(4, 2)

    return model


MODELS = {
    "lambda": lambda: torch.nn.Linear(4, 2),
    "local function": local(),
    "function": Maker.__call__.__get__(Maker()),
    "partial": functools.partial(torch.nn.Linear, 4, 2),
    "module": torch.nn.Linear(4, 2),
    "object": Maker(),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_study_of_a_script_is_read_by_every_command_that_reads(descend, tmp_path, monkeypatch, name):
    """Reading needs no workload, wherever the command is given."""
    folder = of_a_script(tmp_path / "study", MODELS[name])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "of 32 trials" in descend("status", folder)
    assert "batch 10, 3 steps" in descend("show", folder)
    assert descend("report", folder).strip() == str(folder / "report.html")
    assert (folder / "report.md").read_text()
    descend("export", folder, tmp_path / "board", "--to", "tensorboard")


def test_a_study_with_optimizers_of_a_script_is_read(descend, tmp_path):
    class Local(torch.optim.SGD):
        pass

    folder = of_a_script(tmp_path / "study", MODELS["lambda"], a=OfAScript, b=Local)
    assert "batch 10, 3 steps" in descend("show", folder)
    assert "OfAScript" in (folder / "study.json").read_text()


def test_going_on_with_a_study_of_a_script_says_what_it_needs(descend, tmp_path):
    folder = of_a_script(tmp_path / "study", MODELS["lambda"])
    for words in (("swap", folder, "--setting", "lr"), ("noise", folder, "--arm", "a")):
        said = descend(*words, code=2)
        assert "is a Python object of the script that made the study" in said
        assert "by the same call with the same directory" in said
    assert "trials" in descend("status", folder)


def test_the_same_call_goes_on_with_its_study(tmp_path):
    folder = of_a_script(tmp_path / "study", MODELS["lambda"])
    (file,) = (folder / "records").glob("*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:5]))
    of_a_script(folder, MODELS["lambda"])
    assert sum(len(one.read_text().splitlines()) for one in (folder / "records").glob("*.jsonl")) == len(lines)
