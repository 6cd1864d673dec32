"""Metrics by name and as functions; accuracy worked out by hand."""

import pytest
import torch
from torch import nn

import descend
from descend.errors import ConfigurationError
from descend.experiment.losses import looked_at
from descend.experiment.metrics import build_metrics

OUTPUT = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 5.0], [4.0, 0.0, 0.0]])
TARGET = torch.tensor([0, 1, 0, -100])


def ratio(metric, output=OUTPUT, target=TARGET):
    found = looked_at(metric, output, [target], len(output))
    return float(found.numerator), float(found.denominator)


def test_accuracy_counts_the_largest_output_and_leaves_out_what_the_loss_ignores():
    assert ratio(build_metrics(["accuracy"], "cross_entropy")["accuracy"]) == (2.0, 3.0)
    assert ratio(build_metrics("accuracy", nn.CrossEntropyLoss(ignore_index=0))["accuracy"], target=TARGET.abs()) == (
        1.0,
        2.0,
    )
    assert ratio(build_metrics(["accuracy"], "mse")["accuracy"]) == (2.0, 4.0)


def test_accuracy_of_probabilities_is_that_of_their_largest_and_of_positions_counts_each():
    shares = nn.functional.one_hot(TARGET.clamp(min=0), 3).double() * 0.9 + 0.03
    assert ratio(build_metrics(["accuracy"], "cross_entropy")["accuracy"], target=shares) == (3.0, 4.0)
    output, target = OUTPUT.t()[None], torch.tensor([[0, 1, 2, 2]])  # (1, classes, positions)
    assert ratio(build_metrics(["accuracy"], "cross_entropy")["accuracy"], output, target) == (3.0, 4.0)


def test_names_functions_and_losses_of_torch_under_names_of_ones_own():
    found = build_metrics({"mse": "mse", "far": lambda o, t: (o - t).abs().max(), "huber": nn.HuberLoss()}, "mse")
    assert list(found) == ["mse", "far", "huber"]
    x, y = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
    assert ratio(found["mse"], x, y) == (10.0, 2.0)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["acuracy"], "metric must be one of accuracy, .*got 'acuracy'; did you mean 'accuracy'"),
        ({"mine": 3}, "metric 'mine' must be a name such as 'accuracy', .* got 3"),
        (3, "metrics must be a list of names such as 'accuracy'.*got 3"),
    ],
)
def test_what_is_no_metric(wanted, message):
    with pytest.raises(ConfigurationError, match=message):
        build_metrics(wanted, "mse")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            (OUTPUT, OUTPUT),
            "the output must be a tensor .samples, classes, ....*, got a tuple: return that tensor alone",
        ),
        (OUTPUT[:, 0], r"the output must have shape \(samples, classes, ...\), got \(4,\)"),
        (OUTPUT[:, :1], r"got \(4, 1\): pass a function"),
    ],
)
def test_accuracy_needs_scores_of_classes(output, message):
    metric = build_metrics(["accuracy"], "mse")["accuracy"]
    with pytest.raises(ConfigurationError, match=message):
        looked_at(metric, output, [TARGET], 4)


@pytest.mark.parametrize("name", ["accuracy", "top2"])
def test_targets_that_are_no_classes_are_refused(name):
    """The largest of three real numbers is no class; float classes have no dimension of classes."""
    metric = build_metrics([name], "mse")[name]
    with pytest.raises(ConfigurationError, match=r"from 0 to 1, got values from -2 to 1: .* 'rmse' or 'r2'"):
        ratio(metric, target=torch.tensor([[-2.0, 0.5, 1.0]] * 4))
    with pytest.raises(ConfigurationError, match=rf"metric '{name}': targets are torch.float32 .* shape \(4,\)"):
        ratio(metric, target=TARGET.float())


def test_perplexity_needs_a_dimension_of_classes():
    metric = build_metrics(["perplexity"], "bce_with_logits")["perplexity"]
    with pytest.raises(ConfigurationError, match=r"metric 'perplexity': the output must have shape .* got \(4,\)"):
        metric.accumulated(torch.zeros(4), [torch.ones(4)])


@pytest.mark.parametrize("name", ["objective", "samples", "epoch", "learning_rate"])
def test_a_metric_cannot_hide_another_entry_of_a_row(name):
    with pytest.raises(ConfigurationError, match=f"metric '{name}' has the name of another entry of a row"):
        build_metrics({name: lambda output, target: output.mean()}, "mse")


def test_a_metric_that_is_no_mean_over_samples_is_named_once():
    def f1(output, target):
        hits = output.argmax(1) == 1
        return 2 * (hits & (target == 1)).sum() / (hits.sum() + (target == 1).sum())

    metric = build_metrics({"mine": f1}, "cross_entropy")["mine"]
    target = torch.tensor([0, 1, 1, 0])
    with pytest.warns(UserWarning, match=r"metric 'mine' is not a mean .* its value depends on the batch size"):
        metric.look_at_parts(OUTPUT, [target], 4)
    metric.look_at_parts(OUTPUT, [target], 4)  # warnings are errors in tests
    with pytest.raises(ConfigurationError, match=r"metric 'wide' must return \(numerator, denominator\)"):
        ratio(build_metrics({"wide": lambda output, target: output}, "cross_entropy")["wide"])


def test_a_metric_that_does_not_take_the_targets_is_named_as_one():
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    with pytest.raises(ConfigurationError, match=r"^metric 'accuracy' is called with the output and 2 targets"):
        descend.fit(
            torch.nn.Linear(4, 3),
            lambda output, a, b: torch.nn.functional.cross_entropy(output, a),
            (x, y, y),
            optimizer=descend.SGD(lr=0.1),
            batch_size=4,
            stop=descend.Steps(1),
            targets=2,
            metrics=["accuracy"],
        )


NAN = float("nan")


@pytest.mark.parametrize("name", ["accuracy", "top2"])
@pytest.mark.parametrize(
    "row", [[NAN] * 3, [NAN, 1.0, 0.0], [1.0, NAN, 0.0], [9.0, 1.0, NAN], [9.0, float("inf"), NAN]], ids=str
)
@pytest.mark.parametrize("label", [0, 1, 2])
def test_an_output_that_is_nan_is_no_hit_and_is_counted(name, row, label):
    output, target = torch.tensor([row, [2.0, 1.0, 0.0], row]), torch.tensor([label, 0, label])
    metric = build_metrics([name], "cross_entropy")[name]
    assert ratio(metric, output, target) == (1.0, 3.0)
    shares = nn.functional.one_hot(target, 3).float()
    assert ratio(build_metrics([name], "cross_entropy")[name], output, shares) == (1.0, 3.0)


def test_nan_at_a_position_is_no_hit_there_and_none_that_is_ignored_counts():
    output, target = OUTPUT.t()[None].clone(), torch.tensor([[0, 1, 2, 2]])  # (1, classes, positions)
    output[0, 1, 0] = NAN
    assert ratio(build_metrics(["accuracy"], "cross_entropy")["accuracy"], output, target) == (2.0, 4.0)
    assert ratio(build_metrics(["accuracy"], nn.CrossEntropyLoss(ignore_index=0))["accuracy"], output, target) == (2, 3)


@pytest.mark.parametrize("loss", ["bce_with_logits", nn.BCELoss()])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_binary_output_that_is_nan_is_no_hit(loss, label):
    output, target = torch.tensor([[NAN], [0.9], [NAN]]), torch.tensor([[label], [1.0], [label]])
    assert ratio(build_metrics(["accuracy"], loss)["accuracy"], output, target) == (1.0, 3.0)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "top2", "precision", "recall"])
def test_a_broken_model_is_never_kept_as_the_best(metric):
    """All samples are of class 0, which is what NaN was taken for."""
    output, target = torch.full((6, 3), NAN), torch.zeros(6, dtype=torch.int64)
    found = descend.evaluate(nn.Identity(), "cross_entropy", (output, target), batch_size=4, metrics=[metric])
    assert found[metric] == 0
