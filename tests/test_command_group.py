"""The help of groups of commands: under headings, on one screen."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import descend.__main__ as command_line
from tools.command_pages import commands


@pytest.fixture(scope="module")
def helped():
    """The help at 80 columns, by the words of the command."""
    runner = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    return lambda *words: runner.invoke(command_line.app, [*words, "--help"], prog_name="descend").output


def test_it_fits_a_screen(helped):
    lines = helped().splitlines()
    assert 24 <= len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert len(helped("study").splitlines()) <= 40


@pytest.mark.parametrize("words", [(), ("study",)])
def test_no_sentence_is_cut_off(helped, words):
    assert "..." not in helped(*words).partition("\n")[2]


def test_commands_stand_under_what_people_want_once(helped):
    text = helped()
    headings = re.findall(r"^([A-Z][\w ,]+):$", text, re.M)
    assert headings[0] == "Options"
    assert headings[1] == "Train"
    assert len(headings) == 5
    names = re.findall(r"^  (\w+)  +[A-Z]", text, re.M)
    assert len(names) == len(set(names))
    assert set(names) == {name for name in commands() if " " not in name} | {"study"}
    train = text.partition("Train:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in train.splitlines()] == ["run", "resume", "launch", "demo"]


def test_a_misspelt_command_of_a_group_is_answered_too():
    result = CliRunner().invoke(command_line.app, ["study", "stats"], prog_name="descend")
    assert result.exit_code == 2
    assert "Did you mean 'descend study status'?" in result.output


def test_letters_that_an_encoding_lacks_are_code_points():
    done = subprocess.run(
        [sys.executable, "-m", "descend", "optimizers"],
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert b"\\u03b5" in done.stdout
