"""The help of groups of commands: under headings, on one screen."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import descend.__main__ as command_line
from tools.command_pages import commands, exit_codes


@pytest.fixture(scope="module")
def helped():
    """The help at 80 columns, by the words of the command."""
    runner = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    return lambda *words: runner.invoke(command_line.app, [*words, "--help"], prog_name="descend").output


def test_it_fits_a_terminal_of_24_lines(helped):
    """With a line to spare for the prompt."""
    for words in ((), ("study",)):
        lines = helped(*words).splitlines()
        assert len(lines) <= 23
        assert max(map(len, lines)) < 80


@pytest.mark.parametrize("words", [(), ("study",)])
def test_no_sentence_is_cut_off(helped, words):
    assert "..." not in helped(*words).partition("\n")[2]


def rows(text):
    """Heading, command and sentence of each command."""
    heading = ""
    for line in text.splitlines():
        if row := re.match(r"(\w[\w ]*?|)  +(\w+)  +([A-Z].*\.)$", line):
            heading = row[1] or heading
            yield heading, row[2], row[3]


def test_commands_stand_under_what_people_want_once(helped):
    found = list(rows(helped()))
    assert list(dict.fromkeys(heading for heading, _, _ in found)) == ["Train", "Inspect", "Results", "Optimizers"]
    names = [name for _, name, _ in found]
    assert len(names) == len(set(names))
    assert set(names) == {name for name in commands() if " " not in name} | {"study"}
    assert [name for heading, name, _ in found if heading == "Train"] == ["run", "resume", "launch", "demo"]
    of_study = [name for _, name, _ in rows(helped("study"))]
    assert sorted(of_study) == sorted(name.split()[1] for name in commands() if name.startswith("study "))


def test_the_last_lines_have_options_and_exit_codes(helped):
    text = helped()
    assert "\nOptions: --version, --install-completion, --show-completion, --help\n" in text
    named = re.findall(r"\b(\d+) \w+", text.partition("Exit codes:")[2])
    assert [int(code) for code in named] == sorted(set(exit_codes()) - {0, 1, 130})


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
