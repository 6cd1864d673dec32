"""The page on studies: its code runs, its commands and files exist."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from descend.study.commands import app
from descend.study.design import make_study
from descend.study.suite import read_suite

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "studies.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("code", blocks("python"))
def test_python(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0


def test_the_file_is_a_study_and_says_what_its_trials_need():
    text, _, needs = (tomllib.loads(block) for block in blocks("toml"))
    study = make_study(text | needs)
    assert study.needs.all_cores == 8
    assert study.arms["nesterov"].space["roles.vectors.lr_mult"].size == "2 decades"


def test_the_file_of_several_workloads_is_a_suite(tmp_path):
    file = tmp_path / "suite.toml"
    file.write_text(blocks("toml")[1])
    assert {name: study.workload for name, study in read_suite(file).items()} == {
        "digits": "zoo:MLP",
        "text": "text.py:task",
    }


def test_every_command_is_named():
    named = set(re.findall(r"descend study (\w+)", PAGE))
    assert {command.callback.__name__ for command in app.registered_commands} == named
