"""The command line, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "lenet_digits.prototext"


@pytest.fixture
def descend(command):
    return command


def test_optimizers_lists_all_with_their_defaults(descend):
    text = descend("optimizers")
    assert "LAMB               Adam's direction, stretched tensor by tensor to the length of the weights." in text
    assert "lr=0.001, weight_decay=0.01, decay='decoupled', beta1=0.9, beta2=0.999, eps=1e-06" in text


def test_one_optimizer_comes_with_equations_options_source_and_deviations(descend):
    text = descend("optimizers", "nadam")
    for part in ("Nadam(lr=0.001", "beta1: β₁ in [0, 1).", "Source: Dozat 2016", "| torch `NAdam` |", "mₜ = β₁ mₜ₋₁"):
        assert part in text


def test_an_unknown_optimizer_is_a_usage_error(descend):
    assert "no optimizer 'adaam'; did you mean 'Adam'?" in descend("optimizers", "adaam", code=2)
    assert "no optimizer 'lbfgs': it needs several evaluations" in descend("optimizers", "lbfgs", code=2)


def test_optimizers_does_not_import_torch():
    code = "import sys; sys.argv = ['descend', 'optimizers']; from descend.__main__ import app; "
    code += "app(standalone_mode=False); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_explain_prints_a_row_for_each_weights(descend):
    text = descend("explain", str(EXAMPLE))
    assert text.count("the default optimizer") == 8
    assert "lenet: 8 tensors, 13,706 elements" in text


def test_explain_answers_a_mistake_with_its_place(descend, tmp_path):
    wrong = tmp_path / "wrong.prototext"
    wrong.write_text(EXAMPLE.read_text().replace("momentum", "momentun", 1))
    assert "did you mean 'momentum'" in descend("explain", str(wrong), code=2)


def test_conformance_exits_with_1_on_failures_and_0_without(descend, tmp_path, monkeypatch):
    """And finds a class in the working directory."""
    (tmp_path / "own_adam.py").write_text("import torch\nclass Mine(torch.optim.Adam):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ("own_adam:Mine", "--rule", "Adam", "--args", "lr=0.1", "betas=(0.8,0.99)")
    text = descend("conformance", *words, code=1)
    assert "Mine(lr=0.1, betas=(0.8, 0.99)): 22 ok" in text
    assert "Kingma and Ba 2015, Algorithm 1: equal to" in text
    assert "29 of 29 weights became NaN or infinite" in text
    assert "FAIL" not in descend("conformance", "descend.optim:AdamW")


@pytest.mark.slow
def test_conformance_surveys_a_module_in_the_working_directory(descend, tmp_path, monkeypatch):
    lines = ["import torch", "class SGD(torch.optim.SGD):", "    pass", "class Mine(torch.optim.Adam):", "    pass"]
    (tmp_path / "own_optimizers.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    survey = descend("conformance", "own_optimizers", code=1).splitlines()
    assert [line.partition(":")[0] for line in survey] == ["Mine", "SGD"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("torch.optim:Adm",), "did you mean 'Adam'?"),
        (("torch.optim:Adam", "lrr=1"), "did you mean 'lr'?"),
        (("torch.optim:Adam", "--rule", "lamp"), "did you mean 'LAMB'?"),
        (("torch.optim", "lr=1"), "for one class"),
    ],
)
def test_conformance_answers_mistakes_with_2(descend, words, said):
    assert said in descend("conformance", *words, code=2)


# ---- continuing a run


@pytest.fixture
def one_epoch(descend, tmp_path):
    """A run of one epoch in tmp_path/run, and a function that writes its text with changes."""

    def written(name="changed", **changes):
        text = EXAMPLE.read_text()
        for old, new in {"max_epochs: 20": "max_epochs: 1", **changes.pop("lines", {})}.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / f"{name}.prototext").write_text(text)
        return str(tmp_path / f"{name}.prototext")

    descend("run", written("first"), "--run-dir", str(tmp_path / "run"))
    return written


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "log.txt"}


def test_resume_shows_each_change_and_what_becomes_of_it(descend, one_epoch, tmp_path):
    run, two = str(tmp_path / "run"), {"max_epochs: 20": "max_epochs: 2", "learn_rate: 0.05": "learn_rate: 0.02"}
    changed = one_epoch(lines=two)
    before = files(tmp_path / "run")
    for words in (["resume", run, changed], ["run", changed, "--run-dir", run, "--resume"]):
        shown = descend(*words, "--show-changes")
        assert "optimizer.lr: 0.05 -> 0.02: applies" in shown
        assert "epoch_count=1" in shown
        assert "applies, counted from the start of the run" in shown
        assert files(tmp_path / "run") == before
    assert "finished 2 of 2 epochs" in descend("resume", run, changed)
    assert "learn_rate: 0.02" in (tmp_path / "run/experiment.prototext").read_text()
    assert "learn_rate: 0.05" in (tmp_path / "run/earlier-1-experiment.prototext").read_text()
    assert "nothing has changed" in descend("resume", run, "--show-changes")
    assert "finished 2 of 2 epochs" in descend("resume", run)


def test_another_optimizer_is_refused_unless_its_state_may_be_empty(descend, one_epoch, tmp_path):
    run = str(tmp_path / "run")
    sgd = next(line.strip() for line in EXAMPLE.read_text().splitlines() if "learn_rate" in line)
    text = EXAMPLE.read_text().replace("max_epochs: 20", "max_epochs: 2")
    start = text.index("optimizer {")
    end = text.index("}", text.index(sgd)) + 1
    adam = "optimizer {\n  adam { learn_rate: 0.01 beta1: 0.9 beta2: 0.99 eps: 1e-8 }"
    (tmp_path / "adam.prototext").write_text(text[:start] + adam + text[end:])
    before = files(tmp_path / "run")
    said = descend("resume", run, str(tmp_path / "adam.prototext"), code=2)
    assert "optimizer" in said
    assert "--reset-optimizer" in said
    assert files(tmp_path / "run") == before
    assert "finished 2 of 2 epochs" in descend("resume", run, str(tmp_path / "adam.prototext"), "--reset-optimizer")


def test_weights_alone_start_over(descend, one_epoch, tmp_path):
    run = tmp_path / "run"
    said = descend("resume", str(run), "--weights-only")
    assert "starts over with the weights of step-19" in said
    assert (run / "earlier-1/checkpoints/step-19").is_dir()
    assert (run / "checkpoints/step-19").is_dir()


@pytest.mark.parametrize("word", ["--weights-only", "--check"])
def test_changes_are_those_of_a_run_that_goes_on(descend, tmp_path, word):
    words = ["run", str(EXAMPLE), "--run-dir", str(tmp_path / "run"), "--resume", "--show-changes", word]
    assert f"remove {word}" in descend(*words, code=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_changes_of_several_trainers_are_those_of_the_first(descend, one_epoch, tmp_path):
    run = str(tmp_path / "two")
    descend("run", one_epoch("same"), "--run-dir", run, "--trainers", "2")
    before = files(tmp_path / "two")
    assert "nothing has changed" in descend("resume", run, "--show-changes")
    changed = one_epoch(lines={"learn_rate: 0.05": "learn_rate: 0.02"})
    assert "optimizer.lr: 0.05 -> 0.02: applies" in descend("resume", run, changed, "--show-changes")
    assert "has 2 trainers" in descend("run", changed, "--run-dir", run, "--resume", "--trainers", "3", code=2)
    assert files(tmp_path / "two") == before


@pytest.mark.parametrize("words", [["--weights-only"], ["--reset-optimizer", "--resume"], ["--show-changes"]])
def test_ways_to_continue_need_a_run_to_continue(descend, words):
    assert "add --resume --run-dir DIR" in descend("run", str(EXAMPLE), *words, code=2)


def test_there_is_nothing_to_continue(descend, tmp_path):
    assert "cannot be resumed, it has no experiment.prototext" in descend("resume", str(tmp_path), code=2)
    assert "cannot be resumed, there is no such directory" in descend("resume", str(tmp_path / "nowhere"), code=2)
    (tmp_path / "run.json").touch()
    assert "it is a run of descend.fit, or of a script: call" in descend("resume", str(tmp_path), code=2)


@pytest.mark.parametrize("words", [("resume",), ("view",), ("report",)])
def test_a_named_pipe_is_no_directory_of_a_run(descend, tmp_path, words):
    os.mkfifo(tmp_path / "pipe")
    said = descend(*words, str(tmp_path / "pipe"), code=2)
    assert "it is a named pipe, and a directory was expected" in said


@pytest.mark.parametrize("words", [(), ("run",), ("study",), ("study", "run")])
def test_help_has_a_short_option(descend, words):
    assert descend(*words, "-h") == descend(*words, "--help")


@pytest.mark.parametrize("word", ["-v", "-V"])
def test_the_version_has_short_options(descend, word):
    assert descend(word) == descend("--version")


def test_a_file_that_is_not_there_is_answered_with_the_nearest_beside_it(descend, tmp_path):
    (tmp_path / "lenet.prototext").touch()
    assert "no such file; did you mean 'lenet.prototext'?" in descend(
        "show", str(tmp_path / "lenett.prototext"), code=2
    )
    assert f"no such file, and no folder {tmp_path / 'x'}" in descend("show", str(tmp_path / "x" / "lenet"), code=2)
    assert f"such as {tmp_path / 'lenet.prototext'}" in descend("show", str(tmp_path), code=2)
    assert "is not a file; a prototext or" in descend("launch", str(tmp_path), code=2)
    file = str(tmp_path / "lenet.prototext")
    assert f"{file} is not the directory of a run with several trainers" in descend("lineage", file, code=5)


@pytest.mark.parametrize(
    ("word", "meant"), [("trian", "run"), ("train", "run"), ("resum", "resume"), ("Optimizer", "optimizers")]
)
def test_a_mistyped_command_is_answered_with_the_nearest(descend, word, meant):
    assert f"No such command '{word}'. Did you mean 'descend {meant}'?" in descend(word, code=2)


def test_a_command_that_is_near_to_none(descend):
    assert "No such command 'xyz\\x1b'.\n" in descend("xyz\x1b", code=2)


def test_a_named_pipe_is_refused_instead_of_waited_for(descend, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is a named pipe; a file was expected" in descend("run", str(tmp_path / "pipe"), "--check", code=2)


def test_a_check_allocates_nothing_of_the_size_of_a_sample(descend, tmp_path):
    """100000 x 100000 numbers take 37 GiB."""
    reader = 'reader { name: "synthetic" role: "train" num_samples: 8 synth_dimensions: "100000 100000"'
    text = EXAMPLE.read_text()
    start = text.index("data_reader")
    other = text[start:].replace(text[start:], f"data_reader {{ {reader} transforms {{ scale {{ scale: 0.5 }} }} }} }}")
    (tmp_path / "large.prototext").write_text(text[:start] + other)
    printed = descend("run", str(tmp_path / "large.prototext"), "--check", code=2)
    assert "MemoryError" not in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("words", [("run", "--check"), ("show",), ("explain",)], ids=lambda words: words[0])
def test_escape_sequences_in_names_do_not_reach_the_terminal(descend, tmp_path, words):
    """A layer's name could set the title of the window, or hide what follows."""
    text = EXAMPLE.read_text().replace('"fc1"', r'"fc1\033]0;owned\007"')
    assert text != EXAMPLE.read_text()
    (tmp_path / "escape.prototext").write_text(text)
    name, *options = words
    printed = descend(name, str(tmp_path / "escape.prototext"), *options)
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert r"fc1\x1b]0;owned\x07" in printed


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("bash", {"COMP_WORDS": "descend re", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "descend re"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "descend re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_shells_complete_commands(descend, monkeypatch, shell, words):
    for name, value in {"_DESCEND_COMPLETE": f"complete_{shell}", **words}.items():
        monkeypatch.setenv(name, value)
    shown = descend()
    assert "resume" in shown
    assert "export" not in shown


def test_data_are_shown_as_text_json_and_a_page(descend, tmp_path):
    (tmp_path / "train.csv").write_text("x,kind\n" + "".join(f"{i / 7},{'ab'[i % 2]}\n" for i in range(10)))
    (tmp_path / "test.csv").write_text("x,kind\n0.0,a\n5.0,b\n")
    page = tmp_path / "a.html"
    found = json.loads(descend("data", str(tmp_path), "-o", "label=kind", "--json", "--html", str(page)))
    assert found["counts"] == {"train": 10, "test": 2}
    assert found["fields"]["kind"]["values"] == {"a": 5, "b": 5}
    assert found["samples"][1]["kind"] == 1
    assert [problem["kind"] for problem in found["problems"]] == ["leak"]
    assert page.read_text().startswith("<!doctype html>")
    train, test = str(tmp_path / "train.csv"), str(tmp_path / "test.csv")
    assert "no problems were found" in descend("data", train, "--check")
    assert "1 problems were found" in descend("data", train, "--test", test, "-o", "label=kind", "--check", code=3)
    assert "there is no file" in descend("data", str(tmp_path / "none.csv"), code=3)
    assert "did you mean 'label'" in descend("data", train, "-o", "lable=kind", code=2)


PARTS = {
    "model": 'trainer { mini_batch_size: 2 }\nmodel { layer { name: "x" input { data_field: "samples" } } }',
    "reader": 'data_reader { reader { name: "synthetic" role: "test" num_samples: 2 synth_dimensions: "1" } }',
    "optimizer": "optimizer { sgd { learn_rate: 0.1 } }",
}


@pytest.fixture
def parts(tmp_path):
    for name, text in PARTS.items():
        (tmp_path / f"{name}.prototext").write_text(text)
    return {name: str(tmp_path / f"{name}.prototext") for name in PARTS}


def test_several_files_hold_a_part_each(descend, parts):
    assert "nothing wrong found" in descend("run", *parts.values(), "--check")
    assert "data_reader (training data) is missing" in descend("run", parts["model"], parts["optimizer"], code=2)


def test_the_text_of_a_single_part_can_be_read_alone(descend, parts, tmp_path):
    assert f"{parts['optimizer']}: nothing wrong found; read optimizer" in descend(
        "run", parts["optimizer"], "--parse-only"
    )
    assert "read model, trainer, optimizer" in descend("run", parts["model"], parts["optimizer"], "--parse-only")
    wrong = tmp_path / "wrong.prototext"
    wrong.write_text("optimizer { sgd { learn_rat: 0.1 } }")
    assert f"{wrong}:1:19: " in descend("run", str(wrong), "--parse-only", code=2)
