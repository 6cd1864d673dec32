import re

import pytest
from callback_runs import follow, in_one_go_and_in_two
from toys import Regression, data, run_of

from descend.callbacks import CategoricalAccuracyStrategy, Print, ProgressBar, Timer
from descend.errors import ConfigurationError
from descend.train import Event, Mode
from descend.train.evaluation import evaluate


def lines(capsys, *callbacks, **settings):
    run = follow(*callbacks, validation=data(samples=9, batch_size=4), **settings)
    return capsys.readouterr().out.splitlines(), run


def test_values_of_each_pass_in_the_words_of_lbann(capsys):
    said, run = lines(capsys, Print(), epochs=2)
    values = [line for line in said if "(instance 0)" in line]
    heads = [
        f"model0 (instance 0) {word} {name} : "
        for epoch in (0, 1)
        for word in ("validation", f"training epoch {epoch}")  # an epoch ends once it has been validated
        for name in ("objective function", "absolute")
    ]
    assert [line[: len(head)] for line, head in zip(values, heads, strict=True)] == heads
    rows = [run.history[i] for i in (1, 0, 3, 2)]
    numbers = [row[name] for row in rows for name in ("objective", "absolute")]
    assert [line.rpartition(" : ")[2] for line in values] == [f"{number:g}" for number in numbers]


def test_a_percentage_is_a_hundred_times_the_value_with_its_unit(capsys):
    said, run = lines(capsys, Print(), epochs=1, task=percent())
    printed = next(line for line in said if "training epoch 0 absolute" in line)
    assert printed.endswith(f" absolute : {100 * run.history[0]['absolute']:g}%")


def percent():
    task = Regression()
    task.units = {"absolute": "%"}
    return task


def test_the_banner_has_steps_and_sizes_of_each_mode(capsys):
    said, _ = lines(capsys, Print(), epochs=1)
    assert "[0] Epoch : stats formatted [tr/v] iterations/epoch = [3/3]" in said
    assert "    global MB = [   4/   4] global last MB = [   2/   1]" in said


def test_an_interval_leaves_epochs_out(capsys):
    said, _ = lines(capsys, Print(interval=2), epochs=4)
    assert re.findall(r"training epoch (\d) objective", "\n".join(said)) == ["0", "2"]
    assert sum("validation objective" in line for line in said) == 2


def test_a_test_is_always_printed(capsys):
    given = run_of(Regression(), data(batch_size=4), callbacks=(Print(interval=5),))
    given.data = {**given.data, Mode.TEST: data(samples=9, batch_size=4)}
    given.callbacks.fire(Event.BEFORE_RUN, given.views.of_run())
    evaluate(given, Mode.TEST)
    assert "model0 (instance 0) test objective function : " in capsys.readouterr().out


def test_an_epoch_has_one_banner_however_often_the_run_was_stopped_within_it(capsys, tmp_path):
    in_one_go_and_in_two(tmp_path, lambda: [Print()], at=(2, 4, 6, 12))
    banners = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "Epoch : stats" in line]
    assert banners == 2 * ["[0]", "[1]", "[2]", "[3]"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Print, "interval"),
        (ProgressBar, "interval"),
        (ProgressBar, "bar_width"),
        (Timer, "skip_steps"),
        (CategoricalAccuracyStrategy, "num_images_per_epoch"),
    ],
)
def test_negative_numbers_are_refused(kind, name):
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}: {name} must be a number >= 0, got -1"):
        kind(**{name: -1})
