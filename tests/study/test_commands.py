"""`descend study`, as a user starts it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from descend.__main__ import main


@pytest.fixture
def descend(monkeypatch, capsys):
    """A function that gives what `descend study WORDS` prints; its exit code must be `code`."""

    def call(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["descend", "study", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = "".join(capsys.readouterr())
        assert (end.value.code or 0) == code, printed
        return printed

    return call


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
