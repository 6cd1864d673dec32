"""The callbacks in the document work as described there."""

import re
from pathlib import Path

import pytest
import torch
from callback_runs import follow, in_one_go_and_in_two

from descend import callbacks

DOCUMENT = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
CLASSES = [block for block in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL) if "(descend.Callback)" in block]


def shown(name):
    """The class of this name from the document."""
    (block,) = [block for block in CLASSES if f"class {name}(" in block]
    names = {}
    exec(block, names)  # the document's own code
    return names[name]


def test_ten_lines_print_the_objective(capsys):
    run = follow(shown("LossPrinter")(every_steps=2), epochs=1)
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"step 2, epoch 0: \d+\.\d{4}", line)
    (block,) = [block for block in CLASSES if "LossPrinter" in block]
    code = [line for line in block.splitlines() if line.strip() and '"""' not in line and "import" not in line]
    assert len(code) <= 10
    assert run.contexts["train"].step == 3


def test_what_is_remembered_survives_a_restart(tmp_path):
    made = []

    def make():
        made.append(shown("BestLoss")(enough=0.01))
        return [made[-1]]

    whole, parts = in_one_go_and_in_two(tmp_path, make)
    assert made[0].smallest == made[-1].smallest < 100
    torch.testing.assert_close(parts.weights["weight"], whole.weights["weight"], rtol=0, atol=0)


def test_a_callback_ends_training_with_its_reason():
    run = follow(shown("BestLoss")(enough=1e9), epochs=3)
    assert run.contexts["train"].step == 1
    assert re.fullmatch(r"objective \d+\.\d{4} is below 1000000000\.0", run.reason)


def test_a_logger_of_three_methods_prints_what_is_logged(capsys):
    (block,) = [
        block for block in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL) if "(descend.Logger)" in block
    ]
    exec(block, {})  # the document's own code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Linear begins at step 0 with")
    assert [line.split()[0] for line in lines[1:-1]] == ["2", "3", "4", "6", "6"]


@pytest.mark.parametrize("name", callbacks.__all__)
def test_every_callback_stands_in_the_document(name):
    """Parts of a callback stand with it."""
    parts = ("CategoricalAccuracyStrategy", "MatchType", "MinibatchScheduleStep")
    assert name in DOCUMENT or name in parts


@pytest.mark.parametrize("name", callbacks.__all__)
def test_every_callback_says_when_it_runs_what_it_reads_and_what_it_costs(name):
    kind = getattr(callbacks, name)
    if hasattr(kind, "after_run"):
        assert re.search(r"Runs: .*Reads: .*Costs: ", kind.__doc__, re.DOTALL), name
