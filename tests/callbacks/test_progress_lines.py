import functools
import re

import pytest
import torch
from callback_runs import StopAt, work
from run_builder import execute

import descend
from descend.callbacks import Print, ProgressLines
from descend.callbacks.progress_bar import shown_duration, shown_rates
from descend.errors import ConfigurationError, Stopped
from descend.train import Callback

X, Y = torch.randn(30, 4), torch.arange(30) % 3


def fit(*callbacks, epochs=3, **more):
    return descend.fit(
        torch.nn.Linear(4, 3),
        "cross_entropy",
        (X, Y),
        valid=(X, Y),
        test=(X, Y),
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        batch_size=10,
        metrics=["accuracy"],
        callbacks=list(callbacks),
        **{"stop": descend.Epochs(epochs), **more},
    )


def test_fit_prints_a_line_an_epoch(capsys):
    result = fit()
    *epochs, test = capsys.readouterr().out.splitlines()
    rows = {(row["mode"], row["epoch"]): row for row in result.history}
    assert len(epochs) == 3
    for number, line in enumerate(epochs, start=1):
        found = re.fullmatch(
            r"epoch (\d)/3, step (\d): objective (\S+), accuracy (\S+); validation objective (\S+), accuracy (\S+); "
            r"lr 0\.1; \d+\.\d s(, \d+\.\d s left)?",
            line,
        )
        train, validation = rows["train", number], rows["validation", number]
        assert [int(found[1]), int(found[2])] == [number, 3 * number]
        assert [float(found[i]) for i in (3, 4)] == pytest.approx([train["objective"], train["accuracy"]], rel=1e-3)
        assert float(found[5]) == pytest.approx(validation["objective"], rel=1e-3)
        assert bool(found[7]) == (number < 3)
    assert re.fullmatch(r"test objective \S+, accuracy \S+; \d+\.\d s", test)


def test_verbose_false_prints_nothing_and_logs_all_the_same(capsys, tmp_path):
    class Says(Callback):
        def after_training(self, run):
            from descend.callbacks.console import say

            say("here I am")

    fit(Says(), verbose=False, run_dir=tmp_path / "run")
    assert capsys.readouterr() == ("", "")
    assert "here I am" in (tmp_path / "run" / "log.txt").read_text()
    with pytest.raises(ConfigurationError, match="verbose must be True or False"):
        fit(verbose=2)


def test_print_has_its_own_lines(capsys):
    fit(Print())
    shown = capsys.readouterr().out
    assert "objective function : " in shown
    assert "; lr " not in shown


def test_an_epoch_that_is_cut_short_says_so(capsys):
    fit(stop=descend.Steps(4))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch 1, step 3: ")
    assert lines[1].startswith("epoch 2 (part of it), step 4: ")
    assert " left" not in "".join(lines)


def test_every_few_epochs_and_after_a_restart(capsys, tmp_path):
    with pytest.raises(Stopped):
        execute(work(ProgressLines(every_epochs=3), StopAt(8), epochs=6), tmp_path / "run")
    execute(work(ProgressLines(every_epochs=3), epochs=6), tmp_path / "run", resume=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert [line.split(",")[0] for line in lines] == ["epoch 1/6", "epoch 4/6", "epoch 6/6"]


def test_durations_and_rates_are_readable():
    assert [shown_duration(s) for s in (0.04, 59.9, 61, 3_600, 90_061)] == [
        "0.0 s",
        "59.9 s",
        "1 min 01 s",
        "1 h 00 min",
        "25 h 01 min",
    ]
    weights = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    groups = [{"params": [w], "lr": rate} for w, rate in zip(weights, (0.1, 0.001, 0.01), strict=True)]
    assert shown_rates(torch.optim.SGD(groups)) == "lr 0.001 to 0.1"
    assert shown_rates(torch.optim.SGD(weights, lr=0.25)) == "lr 0.25"
