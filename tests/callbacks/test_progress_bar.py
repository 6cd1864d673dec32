import io
import re
import sys
import time

import pytest
from callback_runs import StopAt, follow, work
from run_builder import execute

from descend.callbacks import ProgressBar
from descend.errors import Stopped
from descend.train import Callback


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch):
    """To be called within a test: pytest puts another standard output in the place of one that a fixture has set."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


class Pause(Callback):
    """Long enough at the end of each epoch for the bar to be drawn, ten times a second."""

    def after_step(self, step):
        if step.batch.last:
            time.sleep(0.25)


class Keep(Callback):
    def __init__(self):
        self.seen: list[float] = []

    def after_step(self, step):
        self.seen.append(step.loss)


def drawn(screen):
    """What was on the screen, without the codes that put it there."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())


def test_a_terminal_shows_epoch_steps_rate_objective_and_memory(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    session = follow(ProgressBar(interval=1, moving_average_length=1, print_mem_usage=True), Pause(), epochs=2)
    shown = drawn(terminal)
    assert re.search(r"epoch 1/?2? .* 3/3 .*steps/s", shown)
    assert "epoch 2" in shown
    assert re.search(r"objective \d\.\d{4}, [\d,]+ MiB", shown)
    assert session.reason


def test_a_terminal_shows_the_learning_rate_and_the_newest_validation(monkeypatch, tmp_path):
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    result = execute(work(ProgressBar(interval=1), Pause(), epochs=2), tmp_path / "run")
    (first,) = [row for row in result.history if row["mode"] == "validation" and row["epoch"] == 1]
    assert re.search(rf"objective \S+, lr 0\.05, validation objective {first['objective']:.4g}", drawn(terminal))


def test_the_objective_is_that_of_the_newest_steps(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    keep = Keep()
    follow(keep, ProgressBar(interval=3, moving_average_length=2, scientific_notation=True), Pause(), epochs=2)
    assert f"objective {(keep.seen[2] + keep.seen[5]) / 2:.3e}" in drawn(terminal)


def test_a_bar_of_an_epoch_that_is_continued_begins_where_the_epoch_stands(monkeypatch, tmp_path):
    with pytest.raises(Stopped):
        execute(work(StopAt(4)), tmp_path / "run")
    terminal = on_a_terminal(monkeypatch)
    execute(work(ProgressBar(interval=1), Pause(), epochs=1), tmp_path / "run", resume=True)
    assert re.search(r"epoch 1.* 6/6 ", drawn(terminal))


def test_what_is_no_terminal_stays_quiet(capsys):
    follow(ProgressBar(interval=1), epochs=2)
    assert capsys.readouterr() == ("", "")
