"""Each block of the README works as it stands, in a fresh directory."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"))
def test_python(code, tmp_path):
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


def commands():
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("descend ")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    # One needs a data set that may not be there, the other one writes into the user's own shell files.
    [line for line in commands() if "fashion" not in line and "--install-completion" not in line],
)
def test_commands(line, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.csv").write_text("x,kind\n" + "".join(f"{i / 7},{'ab'[i % 2]}\n" for i in range(20)))
    done = run([sys.executable, "-m", *shlex.split(line)], tmp_path)
    assert done.returncode == ("conformance" in line), done.stderr  # torch's own optimizers have failures to show


def test_every_command_and_file_that_is_named_exists():
    assert commands()
    for line in commands():
        for word in shlex.split(line):
            assert not word.endswith(".prototext") or (ROOT / word).is_file(), word
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_examples_are_what_their_script_writes(tmp_path):
    import descend

    for name in ("digits", "fashion-mnist"):
        experiment = descend.zoo.demo_experiment(name)
        parts = {part: getattr(experiment, part) for part in ("trainer", "model", "data_reader", "optimizer")}
        descend.save_prototext(tmp_path / "made.prototext", **parts)
        kept = ROOT / "examples" / f"lenet_{name.replace('-', '_')}.prototext"
        assert kept.read_text() == (tmp_path / "made.prototext").read_text()
