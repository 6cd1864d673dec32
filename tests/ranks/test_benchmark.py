"""The benchmark of ranks runs: what it prints of a step of two ranks and of many that were not started."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "ranks.py"


def printed(*arguments):
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_timeline_of_a_step_has_its_backward_pass_and_a_sum_for_each_4_mb_of_gradients():
    lines = printed("--timeline", "--width=1024", "--batch-size=64", "--steps=4").splitlines()
    spans = [re.match(r"(\w[\w. ]+?) +([\d.]+) to +([\d.]+) ms \|", line) for line in lines[:-1]]
    names = [span[1] for span in spans]
    assert names[0] == "backward pass"
    assert names[1:] == ["sum of 4.2 MB"] * 2  # of 8.4 MB: the last layer's go with those before it
    began = [float(span[2]) for span in spans]
    assert began[1] < float(spans[0][3])  # the first sum begins within the backward pass
    assert re.fullmatch(r"\d+% of the time of sums lies within the backward pass", lines[-1])


@pytest.mark.slow
def test_the_table_has_both_networks_on_up_to_4096_ranks():
    parts = printed("--table").split("\n\n")
    assert parts[1].startswith("ResNet-50, 224 x 224: 25.6 M elements")
    assert any(part.startswith("GPT of 1.3 B parameters, sequences of 2,048 tokens: 1,31") for part in parts)
    rows = [line.split() for line in "\n".join(parts).splitlines() if line.strip().startswith("4,096")]
    assert len(rows) == 2
    assert rows[0][-3:-1] == ["511.1", "325.6"]  # weights, gradients, sums and Adam's state; state shared out
