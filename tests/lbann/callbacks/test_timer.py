import re
import statistics
import time

import pytest
from callback_runs import follow
from toys import data

from descend.callbacks import Timer
from descend.train import Callback

STATISTICS = ("mean", "median", "max", "min", "stdev")


@pytest.fixture
def clock(monkeypatch):
    """Each training step takes a second more than the one before; everything else takes none."""
    now = {"seconds": 0.0, "step": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["seconds"])

    class Slow(Callback):
        def after_step(self, step):
            now["seconds"] += step.step

    return Slow()


def numbers(line):
    return [float(re.search(rf"([\d.e+-]+)s {name}", line)[1]) for name in STATISTICS]


@pytest.mark.parametrize("skip_steps", [0, 1])
def test_times_of_a_pass_and_of_its_mini_batches(capsys, clock, skip_steps):
    follow(clock, Timer(skip_steps=skip_steps), epochs=2)
    said = capsys.readouterr().out.splitlines()
    for epoch, times in ((0, [1.0, 2.0, 3.0]), (1, [4.0, 5.0, 6.0])):
        head = f"model0 (instance 0) training epoch {epoch}"
        assert f"{head} run time : {sum(times):g}s" in said
        line = next(line for line in said if line.startswith(f"{head} mini-batch time statistics : "))
        some = times[skip_steps:]
        expected = [statistics.fmean(some), statistics.median(some), max(some), min(some), statistics.stdev(some)]
        assert numbers(line) == pytest.approx(expected, rel=1e-3)


def test_an_evaluation_has_its_own_lines(capsys, clock):
    follow(clock, Timer(), epochs=1, validation=data(samples=9, batch_size=4))
    assert "model0 (instance 0) validation run time : 0s" in capsys.readouterr().out.splitlines()


def test_without_mini_batches_nothing_is_known(capsys, clock):
    follow(clock, Timer(skip_steps=9), epochs=1)
    assert "statistics : N/A mean, N/A median, N/A max, N/A min, N/A stdev" in capsys.readouterr().out
