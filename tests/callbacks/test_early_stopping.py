import functools
from dataclasses import replace

import pytest
import torch
from callback_runs import StopAt, follow, work
from run_builder import execute
from toys import data

import descend
from descend.callbacks import EarlyStopping
from descend.errors import ConfigurationError, Stopped
from descend.graph import text
from descend.train import Callback, Epochs, Mode, Steps


class Scores(Callback):
    """Puts made-up objectives in the place of the real ones."""

    def __init__(self, *scores):
        self.scores = scores

    def after_evaluation(self, evaluation):
        evaluation.values["objective"] = self.scores[evaluation.epoch - 1]


@pytest.mark.parametrize(
    ("patience", "scores", "epochs"),
    [
        (0, [3.0, 2.0, 2.0, 1.0], 3),  # equal is not better
        (1, [3.0, 4.0, 2.0, 2.5, 2.4, 1.0], 5),
        (2, [3.0, 4.0, 4.0, 2.9, 3.0, 3.0, 3.0, 1.0], 7),
        (1, [3.0, float("nan"), float("nan"), 1.0], 3),
        (3, [3.0, 4.0, 4.0, 4.0], 4),  # not yet
    ],
)
def test_training_ends_after_patience_evaluations_that_are_no_better(patience, scores, epochs):
    run = follow(Scores(*scores), EarlyStopping(patience=patience), validation=data(), epochs=len(scores))
    assert run.contexts["train"].epoch == epochs
    assert ("patience" in run.reason) == (epochs < len(scores))


def test_the_line_and_the_reason(capsys):
    run = follow(Scores(3.0, 2.0, 2.5, 1.0), EarlyStopping(), validation=data(), epochs=4)
    assert "Model 0 terminating training due to early stopping: 2.5 score and 2 last score" in capsys.readouterr().out
    assert run.reason == "validation objective 2.5 was not below 2 for 1 evaluations, the patience being 0"


def test_patience_survives_a_restart(tmp_path):
    def callbacks():
        return Scores(3.0, 4.0, 4.0, 4.0), EarlyStopping(patience=1)

    whole = execute(work(*callbacks()), tmp_path / "whole")
    with pytest.raises(Stopped):
        execute(work(*callbacks(), StopAt(13)), tmp_path / "parts", resume=True)
    parts = execute(work(*callbacks()), tmp_path / "parts", resume=True)
    assert parts.steps == whole.steps == 18
    assert parts.reason == whole.reason
    again = execute(work(*callbacks()), tmp_path / "parts", resume=True)
    assert (again.steps, again.reason) == (18, whole.reason)
    torch.testing.assert_close(again.weights["weight"], whole.weights["weight"], rtol=0, atol=0)


def test_a_run_without_validation_samples_is_refused():
    with pytest.raises(ConfigurationError, match="EarlyStopping needs validation samples"):
        follow(EarlyStopping())


class Values(Callback):
    """Puts made-up values of one quantity in the place of the real ones, and keeps the weights of each epoch."""

    def __init__(self, name, *values, mode=Mode.VALIDATION):
        self.name, self.values, self.mode = name, values, mode
        self.weights = []

    def after_evaluation(self, evaluation):
        if evaluation.mode is self.mode:
            evaluation.values[self.name] = self.values[evaluation.epoch - 1]
            self.weights.append(evaluation.run.module.weight.detach().clone())

    def after_epoch(self, epoch):
        if self.mode is Mode.TRAIN:
            epoch.values[self.name] = self.values[epoch.epoch]


@pytest.mark.parametrize(
    ("settings", "name", "values", "epochs"),
    [
        ({"monitor": "validation/accuracy"}, "accuracy", [0.5, 0.7, 0.6, 0.9], 3),  # higher is better by its name
        ({"monitor": "validation/accuracy", "mode": "min"}, "accuracy", [0.5, 0.7, 0.6], 2),
        ({"monitor": "validation/score", "mode": "max"}, "score", [1.0, 2.0, 2.0], 3),
        ({"monitor": "validation/objective", "min_delta": 0.5}, "objective", [3.0, 2.6, 1.0], 2),
        ({"monitor": "validation/objective", "min_delta": 0.5}, "objective", [3.0, 2.4, 1.0], 3),
        ({"monitor": "validation/objective", "min_delta": 0.5, "patience": 1}, "objective", [3.0, 2.6, 2.4, 1.0], 4),
        ({"monitor": "validation/accuracy", "patience": 2}, "accuracy", [0.5, 0.4, 0.5, 0.3, 0.9], 4),
    ],
)
def test_any_metric_in_its_direction_with_a_margin(settings, name, values, epochs):
    run = follow(Values(name, *values), EarlyStopping(**settings), validation=data(), epochs=len(values))
    assert run.contexts["train"].epoch == epochs
    assert ("patience" in run.reason) == (epochs < len(values) or values[-1] == 2.0)


def test_a_value_of_the_training_samples_needs_no_validation_samples():
    watch = Values("objective", 3.0, 2.0, 2.5, 1.0, mode=Mode.TRAIN)
    run = follow(watch, EarlyStopping("train/objective"), epochs=4)
    assert run.contexts["train"].epoch == 3
    assert run.reason == "train objective 2.5 was not below 2 for 1 evaluations, the patience being 0"


def test_the_reason_names_metric_direction_and_margin():
    watch = Values("accuracy", 0.5, 0.55)
    stopping = EarlyStopping("validation/accuracy", min_delta=0.1)
    run = follow(watch, stopping, validation=data(), epochs=4)
    assert run.reason == (
        "validation accuracy 0.55 was not above 0.5 by more than 0.1 for 1 evaluations, the patience being 0"
    )


def test_restore_best_puts_back_the_weights_of_the_best_epoch_before_the_test_samples():
    watch = Values("objective", 3.0, 1.0, 2.0, 2.0)
    run = follow(watch, EarlyStopping(patience=1, restore_best=True), validation=data(), epochs=4)
    torch.testing.assert_close(run.task.module.weight.detach(), watch.weights[1], rtol=0, atol=0)
    without = Values("objective", 3.0, 1.0, 2.0, 2.0)
    run = follow(without, EarlyStopping(patience=1), validation=data(), epochs=4)
    torch.testing.assert_close(run.task.module.weight.detach(), without.weights[3], rtol=0, atol=0)
    assert not torch.equal(watch.weights[1], without.weights[3])


def test_restore_best_also_holds_where_a_limit_ends_the_run():
    watch = Values("objective", 1.0, 2.0, 3.0)
    run = follow(watch, EarlyStopping(patience=9, restore_best=True), validation=data(), epochs=3)
    torch.testing.assert_close(run.task.module.weight.detach(), watch.weights[0], rtol=0, atol=0)


def test_the_best_weights_survive_restarts(tmp_path):
    def callbacks():
        return Values("objective", 3.0, 1.0, 4.0, 4.0), EarlyStopping(patience=9, restore_best=True)

    whole = execute(work(*callbacks()), tmp_path / "whole")
    for step in (13, 20):  # the best epoch is that of steps 7 to 12
        with pytest.raises(Stopped):
            execute(work(*callbacks(), StopAt(step)), tmp_path / "parts", resume=True)
    parts = execute(work(*callbacks()), tmp_path / "parts", resume=True)
    short = execute(work(Values("objective", 3.0, 1.0), epochs=2), tmp_path / "short")
    for name, tensor in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], tensor, rtol=0, atol=0)
        torch.testing.assert_close(short.weights[name], tensor, rtol=0, atol=0)


def test_a_run_that_ended_with_its_best_weights_is_continued_from_its_last_ones(tmp_path):
    def callbacks():
        return Values("objective", 1.0, 4.0, 4.0, 0.5), EarlyStopping(patience=9, restore_best=True)

    whole = execute(work(*callbacks()), tmp_path / "whole")
    execute(work(*callbacks(), epochs=2), tmp_path / "parts")
    parts = execute(work(*callbacks()), tmp_path / "parts", resume=True)
    assert parts.steps == whole.steps == 24
    for name, tensor in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], tensor, rtol=0, atol=0)


def test_the_validation_of_an_epoch_that_a_limit_cuts_short_does_not_count(tmp_path):
    def callbacks():
        return Values("objective", 3.0, 3.5, 2.0, 3.0), EarlyStopping(patience=1)

    class Cut(Values):
        def after_evaluation(self, evaluation):
            evaluation.values["objective"] = 99.0 if evaluation.step in (8, 10) else self.values[evaluation.epoch - 1]

    whole = execute(work(*callbacks()), tmp_path / "whole")
    for steps in (8, 10):
        limited = work(Cut("objective", 3.0, 3.5, 2.0, 3.0), EarlyStopping(patience=1))
        cut = replace(limited, algorithm=descend.BatchedIterativeOptimizer(stop=Steps(steps)))
        execute(cut, tmp_path / "parts", resume=True)
    parts = execute(work(*callbacks()), tmp_path / "parts", resume=True)
    assert (parts.steps, parts.reason) == (whole.steps, whole.reason) == (24, "finished 4 of 4 epochs")


def test_fit_stops_early_on_accuracy():
    x, y = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    result = descend.fit(
        torch.nn.Linear(5, 2),
        "cross_entropy",
        (x, y),
        valid=(x, y),
        metrics=["accuracy"],
        optimizer=functools.partial(torch.optim.SGD, lr=0.0),
        batch_size=20,
        stop=Epochs(9),
        callbacks=[EarlyStopping(monitor="validation/accuracy", patience=2)],
    )
    assert result.steps == 2 * 4
    assert "validation accuracy" in result.reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"monitor": "validation/score"}, "whether a lower or a higher 'score' is better; pass mode='min' or"),
        ({"monitor": "validation/acuracy"}, "did you mean 'accuracy'"),
        ({"monitor": "val_loss"}, "monitor must be 'train/NAME' or 'validation/NAME'.*got 'val_loss'"),
        ({"monitor": "test/objective"}, "monitor must be"),
        ({"mode": "lowest"}, "mode must be one of 'min', 'max' or None, got 'lowest'"),
        ({"patience": -1}, "patience must be an integer >= 0, got -1"),
        ({"min_delta": -0.5}, "min_delta must be a finite number >= 0, got -0.5"),
        ({"monitor": 3}, "monitor"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        EarlyStopping(**settings)


def test_a_metric_that_the_run_does_not_measure_is_refused_before_it_begins():
    x, y = torch.randn(8, 5), torch.arange(8) % 2
    with pytest.raises(ConfigurationError, match="names a metric 'accuracy' that does not exist"):
        descend.fit(
            torch.nn.Linear(5, 2),
            "cross_entropy",
            (x, y),
            valid=(x, y),
            optimizer=functools.partial(torch.optim.SGD, lr=0.1),
            batch_size=4,
            stop=Epochs(1),
            callbacks=[EarlyStopping(monitor="validation/accuracy")],
        )


def test_what_has_no_place_in_a_text_is_refused_there():
    assert "patience: 4" in text.render(EarlyStopping(patience=4))
    with pytest.raises(ConfigurationError, match="no place for monitor, restore_best"):
        text.render(EarlyStopping("train/objective", restore_best=True))


@pytest.mark.parametrize("every", [1, 2, 3])
def test_an_epoch_counts_once_however_often_it_is_evaluated(every):
    """Three equal epochs after the first end a run of patience 2, also where the last step of each is evaluated."""
    result = descend.fit(
        torch.nn.Linear(3, 1),
        "mse",
        (torch.ones(6, 3), torch.ones(6, 1)),
        valid=(torch.ones(2, 3), torch.ones(2, 1)),
        optimizer=functools.partial(torch.optim.SGD, lr=1e-30),
        batch_size=1,
        stop=descend.Epochs(9),
        callbacks=[
            descend.EvaluateProgress(batch_interval=every, metric="objective"),
            EarlyStopping(patience=2, restore_best=True),
        ],
        verbose=False,
    )
    assert result.history[-1]["epoch"] == 4


def test_the_value_of_a_second_average_is_refused_by_name():
    problem = "a value of an average behind the first one is not monitored"
    with pytest.raises(ConfigurationError, match=problem):
        descend.EarlyStopping(monitor="validation/slow/objective")
    with pytest.raises(ConfigurationError, match=problem):
        descend.Checkpoint(keep_best="validation/slow/objective")
