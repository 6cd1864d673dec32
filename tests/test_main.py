"""The command line, as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from descend.__main__ import main

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "lenet_digits.prototext"


@pytest.fixture
def descend(monkeypatch, capsys):
    """A function that gives what `descend WORDS` prints on both streams; its exit code must be `code`."""

    def call(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["descend", *words])
        with pytest.raises(SystemExit) as end:
            main()
        printed = "".join(capsys.readouterr())
        assert (end.value.code or 0) == code, printed
        return printed

    return call


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


def test_conformance_exits_with_1_on_failures_and_0_without(descend):
    text = descend("conformance", "torch.optim:Adam", "--args", "lr=0.1", "betas=(0.8,0.99)", code=1)
    assert "Adam(lr=0.1, betas=(0.8, 0.99)): 20 ok" in text
    assert "29 of 29 weights became NaN or infinite" in text
    assert "FAIL" not in descend("conformance", "descend.optim:AdamW")


def test_conformance_finds_a_class_in_the_working_directory(descend, tmp_path, monkeypatch):
    lines = ["import torch", "class SGD(torch.optim.SGD):", "    pass", "class Mine(torch.optim.Adam):", "    pass"]
    (tmp_path / "own_optimizers.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = descend("conformance", "own_optimizers:Mine", "--rule", "Adam", code=1)
    assert "Kingma and Ba 2015, Algorithm 1: equal to" in text
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
