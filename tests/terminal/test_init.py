"""Tables for a terminal: columns where they fit, records where they do not, and plain text for a pipe."""

import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys

import pytest
from faults.doors import in_a_process

from descend import terminal
from descend.terminal import Bar, TextTable, aligned, emit, is_terminal, is_tty, write

TABLE = TextTable(
    [("name", "size", "what it is"), ("a", "1,000", "first\nremark"), ("[bold]b\x1b[31m", "2", "")], ("size",)
)
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


class Screen(io.StringIO):
    """A terminal of a given encoding."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    def on(width, *parts, encoding="utf-8", **environment):
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": str(width), **environment}.items():
            monkeypatch.setenv(name, value)
        screen = Screen()
        monkeypatch.setattr(Screen, "encoding", encoding)
        write("plain", parts, screen)
        return screen.getvalue()

    return on


def test_columns_are_aligned_as_plain_text():
    rows = [("name", "size"), ("a", "1,000"), ("longer", "2")]
    assert aligned(TextTable(rows, ("size",))) == ["name     size", "a       1,000", "longer      2"]
    assert aligned(TextTable(rows)) == ["name    size", "a       1,000", "longer  2"]


def test_a_terminal_gets_a_table_whose_cells_are_text(shown):
    text = ESCAPE.sub("", shown(60, TABLE))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "name              size  what it is"
    assert set(lines[1]) == {"─"}
    assert lines[2:4] == ["a                1,000  first", "                        remark"]
    assert lines[4] == "[bold]b\\x1b[31m      2"  # neither markup of rich nor an escape sequence


@pytest.mark.parametrize("width", [20, 31, 32, 33, 40, 80])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(shown, width):
    words = "seventeen_letters short another"
    text = ESCAPE.sub("", shown(width, TextTable([("head", "text"), ("aaaa bbb", words), ("c", f"{words} word")])))
    assert max(map(len, text.splitlines())) <= width
    assert text.count("seventeen_letters") == 2


def test_a_narrow_terminal_gets_a_block_for_each_row(shown):
    wide = TextTable([("layer", "kind", "weights"), ("fc1", "FullyConnected", "a" * 20), ("r", "Relu", "")])
    text = ESCAPE.sub("", shown(40, wide))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines == ["layer fc1", "  kind FullyConnected; weights", "  " + "a" * 20, "layer r", "  kind Relu"]


def test_what_all_rows_have_in_common_is_said_once_where_the_terminal_is_narrow(shown):
    rows = [
        ("batch", "arm", "rule", "none"),
        ("64", "a", "SGD(momentum=0.9)", ""),
        ("64", "b", "SGD(momentum=0.9)", ""),
    ]
    text = ESCAPE.sub("", shown(25, TextTable(rows)))
    lines = [line.rstrip() for line in text.splitlines()]
    assert " ".join(lines[:2]) == "in all rows: batch 64; rule SGD(momentum=0.9)"
    assert lines[2] == "arm"
    assert lines[-2:] == ["a", "b"]


def test_the_widest_column_is_the_first_to_be_wrapped(shown):
    rows = [("output", "weights"), ("16 x 8 x 8", "kernel (16 x 1 x 3 x 3), bias (16)")]
    lines = ESCAPE.sub("", shown(35, TextTable(rows))).splitlines()
    assert "16 x 8 x 8  kernel (16 x 1 x" in lines[2]


def test_no_colour_where_none_is_wanted(shown):
    colour = re.compile(r"\x1b\[(?:[\d;]*;)?(?:3\d|4\d|38;[\d;]+)m")
    assert colour.search(shown(60, TABLE))
    assert not colour.search(shown(60, TABLE, NO_COLOR="1"))


def test_an_encoding_without_lines_gets_letters(shown):
    shown(60, TABLE, Bar(1, 4), encoding="ascii").replace("\x1b", "").encode("ascii")


def test_a_bar_says_its_share(shown):
    assert "25%" in shown(60, Bar(1, 4))
    assert "0%" in shown(60, Bar(0, 0))


@pytest.mark.parametrize("term", ["dumb", ""])
def test_pipes_and_dumb_terminals_get_the_plain_text(shown, term):
    assert shown(60, TABLE, TERM=term) == "plain\n"
    pipe = io.StringIO()
    write("a\x1b[0m\nb", [TABLE], pipe)
    assert pipe.getvalue() == "a\\x1b[0m\nb\n"


def test_rich_is_not_imported_for_a_pipe(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)  # importing it would raise
    write("plain", [TABLE], io.StringIO())


def on_a_terminal(*words):
    """What a command of ours prints on a pseudo-terminal of 100 columns."""
    child, descriptor = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100"}
        os.execv(sys.executable, [sys.executable, "-m", "descend", *words])
    said = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        said += part
    os.waitpid(child, 0)
    os.close(descriptor)
    return said.decode()


def test_a_command_asks_whether_it_is_on_a_terminal():
    said = on_a_terminal("optimizers")
    assert "\x1b[36mLAMB" in said
    assert "Traceback" not in said
    assert terminal.is_terminal(Screen()) is bool(os.environ.get("TERM", "dumb").replace("dumb", ""))


def test_text_is_lost_with_a_stream_that_is_closed_full_or_missing_and_nothing_else_happens(tmp_path):
    assert not emit("text\n", None)
    closed = (tmp_path / "closed").open("w")
    closed.close()
    assert not emit("text\n", closed)
    assert not is_tty(closed)
    assert not is_tty(None)
    assert not is_terminal(None)
    with (tmp_path / "read").open("w"), (tmp_path / "read").open() as readable:
        assert not emit("text\n", readable)


def test_letters_that_an_encoding_lacks_are_escaped():
    held = io.BytesIO()
    stream = io.TextIOWrapper(held, encoding="ascii")
    assert emit("λ = 1\n", stream)
    assert held.getvalue() == b"\\u03bb = 1\n"


SCRIPT = """
import os, sys
{before}
import descend
from faults.doors import fit
result = fit(stop=descend.Epochs(3), run_dir=sys.argv[1])
assert result.steps == 12
"""
ENDS = {
    "closed in the process": "os.close(1)",
    "its object is closed": "sys.stdout.close()",
    "missing": "sys.stdout = None",
    "a full disk": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "a pipe without a reader": "r, w = os.pipe(); os.close(r); os.dup2(w, 1)",
    "read-only": "os.dup2(os.open('/dev/null', os.O_RDONLY), 1)",
    "all of them": "os.close(0); os.close(1); os.close(2)",
}


@pytest.mark.slow(seconds=25)
@pytest.mark.parametrize("what", ENDS)
def test_a_run_whose_output_is_gone_trains_to_its_end(tmp_path, what):
    """And the process ends well, though Python writes what a stream holds back once more at its end."""
    ended = in_a_process(SCRIPT.format(before=ENDS[what]), tmp_path, str(tmp_path / "run"))
    assert ended.returncode == 0, ended.stderr
    assert "epoch 3/3" in (tmp_path / "run" / "log.txt").read_text()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["end"]["exit_code"] == 0


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("redirected", [">&-", "> /dev/full", "| true", ">&- 2>&- <&-"])
def test_a_command_whose_output_is_gone_trains_to_its_end(tmp_path, redirected):
    text = f"{shlex.quote(sys.executable)} -m descend demo --run-dir run {redirected}; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment, check=False, stderr=subprocess.PIPE)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["end"]["exit_code"] == 0


@pytest.mark.parametrize("before", ["os.close(1)", "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"])
def test_a_bar_on_a_terminal_that_is_gone_stops_nothing(tmp_path, before):
    text = f"""
import os, sys
os.environ["TERM"] = "xterm"
import descend.callbacks.progress_bar as bars, descend.terminal, descend.experiment.build as build
bars.is_tty = build.is_tty = lambda stream: True
{before}
import descend
from faults.doors import fit
assert fit(stop=descend.Epochs(3)).steps == 12
"""
    ended = in_a_process(text, tmp_path)
    assert ended.returncode == 0, ended.stderr
