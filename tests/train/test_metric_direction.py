"""Which way a metric is better, by its name."""

import math

import pytest

from descend.experiment.losses import NAMED
from descend.train.metric_direction import better, direction_of, range_of, unknown_direction


@pytest.mark.parametrize("name", [*NAMED, "objective", "train/objective", "val_loss", "Word Error Rate", "top5_error"])
def test_losses_and_errors_are_better_when_lower(name):
    assert direction_of(name) == "min"


@pytest.mark.parametrize(
    "name", ["accuracy", "validation/accuracy", "top-5 accuracy", "top5", "top_1_accuracy", "F1", "macro-F1", "ROC AUC"]
)
def test_accuracy_and_its_like_are_better_when_higher(name):
    assert direction_of(name) == "max"


@pytest.mark.parametrize(
    "name", ["loss_scale", "gradient_norm", "accuracy/epoch", "score", "skipped_steps", "log likelihood", "", "train/"]
)
def test_names_that_say_nothing_of_a_direction(name):
    assert direction_of(name) is None


def test_the_longest_ending_decides():
    assert direction_of("accuracy_loss") == "min"
    assert direction_of("loss_accuracy") == "max"


@pytest.mark.parametrize(
    ("name", "width"),
    [("validation/accuracy", 1.0), ("macro-F1", 1.0), ("top-5 accuracy", 1.0), ("top5", 1.0)]
    + [(name, None) for name in ("loss", "accuracy_loss", "rmse", "r2", "psnr", "score", "")],
)
def test_the_range_of_a_metric(name, width):
    assert range_of(name) == width


def test_better_needs_more_than_the_margin_and_nan_is_never_better():
    assert better(0.8, 1.0, "min", 0.1)
    assert not better(0.9, 1.0, "min", 0.1)
    assert better(1.2, 1.0, "max", 0.1)
    assert not better(1.0, 1.0, "max")
    assert not better(math.nan, 1.0, "min")
    assert not better(math.nan, 1.0, "max")
    assert better(5.0, math.inf, "min")


def test_the_sentence_names_the_metric_and_the_remedy():
    assert unknown_direction("Reached('score')", "train/score", "pass at_most=") == (
        "Reached('score'): it is not known whether a lower or a higher 'score' is better; pass at_most="
    )
    assert "'acuracy' is better; did you mean 'accuracy'? pass" in unknown_direction("X", "acuracy", "pass at_most=")
