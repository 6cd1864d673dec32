"""Metrics with a state against scikit-learn's values over all samples, however these are cut into parts."""

import math

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn import metrics as reference
from torch import nn

import descend
from descend.errors import ConfigurationError
from descend.experiment.metrics import build_metrics
from descend.train.objective import Losses, Ratio, Totals

DRAW = torch.Generator().manual_seed(3)
SCORES = torch.randn(101, 4, generator=DRAW).round(decimals=1)  # rounded: there are ties
CLASSES = torch.randint(0, 3, (101,), generator=DRAW)  # class 3 never occurs among the targets
PAIRS, BITS = SCORES[:, :2], CLASSES.clamp(max=1)


def value(name, output, target, loss="cross_entropy", sizes=(7,), metric=None):
    """The metric by parts of these sizes, in turn."""
    made = build_metrics({"m": metric or name}, loss)["m"]
    totals, start, i = Totals(), 0, 0
    while start < len(target):
        part = slice(start, start + sizes[i % len(sizes)])
        found = Totals()
        found.add_losses(Losses(Ratio(torch.zeros(()), 1.0), {"m": made.accumulated(output[part], [target[part]])}))
        totals.join(found)
        start, i = part.stop, i + 1
    return Totals(totals.plain()).values({"m": made.compute})["m"]


@pytest.mark.parametrize("sizes", [(101,), (1,), (10, 3)])
@pytest.mark.parametrize("name", ["precision", "recall", "f1"])
def test_of_classes(name, sizes):
    of = {"precision": reference.precision_score, "recall": reference.recall_score, "f1": reference.f1_score}[name]
    expected = of(CLASSES, SCORES.argmax(1), average="macro", zero_division=0)
    assert value(name, SCORES, CLASSES, sizes=sizes) == pytest.approx(expected, rel=1e-12)
    expected = of(BITS, PAIRS.argmax(1), zero_division=0)
    assert value(name, PAIRS, BITS, sizes=sizes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["precision", "recall", "f1"])
def test_of_one_output_it_is_on_its_side_of_the_threshold(name):
    logits = PAIRS[:, 1] - PAIRS[:, 0]
    of = {"precision": reference.precision_score, "recall": reference.recall_score, "f1": reference.f1_score}[name]
    expected = of(BITS, logits > 0)
    for output, target in ((logits, BITS), (logits.unsqueeze(1), BITS.unsqueeze(1)), (logits.unsqueeze(1), BITS)):
        assert value(name, output, target.float(), "bce_with_logits") == pytest.approx(expected, rel=1e-12)
    assert value(name, logits.sigmoid(), BITS.float(), nn.BCELoss()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sizes", [(101,), (10, 3)])
def test_area_under_the_curve(sizes):
    expected = reference.roc_auc_score(BITS, PAIRS[:, 1].double() - PAIRS[:, 0].double())
    assert value("auroc", PAIRS, BITS, sizes=sizes) == pytest.approx(expected, rel=1e-12)
    logits = SCORES[:, 2]
    assert value("auroc", logits, BITS.float(), "bce_with_logits", sizes) == pytest.approx(
        reference.roc_auc_score(BITS, logits), rel=1e-12
    )
    three = SCORES[:, :3].double()
    expected = reference.roc_auc_score(CLASSES, three.softmax(1), multi_class="ovr", average="macro")
    assert value("auroc", three, CLASSES, sizes=sizes) == pytest.approx(expected, rel=1e-12)
    assert math.isnan(value("auroc", logits, torch.ones(101), "bce_with_logits"))


@pytest.mark.parametrize("sizes", [(101,), (1,), (10, 3)])
def test_of_regressions(sizes):
    target = SCORES * 2 + 1 + torch.randn(101, 4, generator=torch.Generator().manual_seed(1))
    assert value("r2", SCORES, target, "mse", sizes) == pytest.approx(
        reference.r2_score(target.double(), SCORES.double()), rel=1e-9
    )
    expected = reference.root_mean_squared_error(target.flatten(), SCORES.flatten())
    assert value("rmse", SCORES, target, "mse", sizes) == pytest.approx(expected, rel=1e-6)
    expected = math.exp(reference.log_loss(CLASSES, SCORES.softmax(1), labels=range(4)))
    assert value("perplexity", SCORES, CLASSES, sizes=sizes) == pytest.approx(expected, rel=1e-6)


def test_ignored_targets_count_nothing():
    target = CLASSES.clone()
    target[::3] = -100
    kept = target != -100
    for name in ("f1", "auroc", "perplexity"):
        expected = value(name, SCORES[kept][:, :3], target[kept])
        assert value(name, SCORES[:, :3], target) == pytest.approx(expected, rel=1e-6)
    top = build_metrics(["top2"], "cross_entropy")["top2"].ratio(SCORES, [target], 101)
    expected = reference.top_k_accuracy_score(target[kept], SCORES[kept], k=2, labels=range(4), normalize=False)
    assert int(top.denominator) == int(kept.sum())
    assert abs(float(top.numerator) - expected) <= 3  # ties are broken differently
    distinct = SCORES + torch.arange(4) * 1e-3
    top = build_metrics(["top2"], "cross_entropy")["top2"].ratio(distinct, [target], 101)
    expected = reference.top_k_accuracy_score(target[kept], distinct[kept], k=2, labels=range(4), normalize=False)
    assert float(top.numerator) == expected


def test_of_images_every_pixel_is_a_target():
    output, target = torch.randn(6, 3, 4, 5), torch.randint(0, 3, (6, 4, 5))
    expected = reference.f1_score(target.flatten(), output.argmax(1).flatten(), average="macro")
    assert value("f1", output, target, sizes=(4, 1)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "metric",
    [
        torchmetrics.F1Score(task="multiclass", num_classes=4, average="macro"),
        torchmetrics.AUROC(task="multiclass", num_classes=4),
        torchmetrics.SpearmanCorrCoef(),
        torchmetrics.MaxMetric(),
    ],
    ids=["sums", "lists", "two lists", "maximum"],
)
def test_objects_of_torchmetrics_give_their_own_value(metric):
    one_column = isinstance(metric, torchmetrics.SpearmanCorrCoef)
    output, target = (SCORES[:, 0], SCORES[:, 1]) if one_column else (SCORES, CLASSES)
    if isinstance(metric, torchmetrics.MaxMetric):
        made = build_metrics({"m": metric}, "cross_entropy")["m"]
        parts = [made._updated(part) for part in SCORES.split(7)]
        totals = Totals()
        for part in parts:
            totals._accumulate("m", {key: [tensor.double()] for key, tensor in part.items()})
        assert totals.values({"m": made.compute})["m"] == pytest.approx(float(SCORES.max()))
        return
    expected = float(metric(output, target))
    metric.reset()
    assert value("m", output, target, metric=metric, sizes=(10, 3)) == pytest.approx(expected, rel=1e-6)
    assert metric._update_count == 0  # the user's object stays as it is


def test_what_cannot_be_put_together_or_is_no_number_is_refused():
    with pytest.raises(ConfigurationError, match="neither a sum"):
        build_metrics({"m": torchmetrics.PearsonCorrCoef()}, "mse")
    vector = torchmetrics.F1Score(task="multiclass", num_classes=4, average="none")
    with pytest.raises(ConfigurationError, match="must return one number"):
        value("m", SCORES, CLASSES, metric=vector)
    with pytest.raises(ConfigurationError, match="did you mean 'recall'"):
        build_metrics(["recal"], "mse")
    with pytest.raises(ConfigurationError, match="more than 4 classes"):
        build_metrics(["top4"], "cross_entropy")["top4"].ratio(SCORES, [CLASSES], 101)
    with pytest.raises(ConfigurationError, match="takes one target"):
        build_metrics(["f1"], "cross_entropy")["f1"].accumulated(SCORES, [CLASSES, CLASSES])
    with pytest.raises(ConfigurationError, match="must be a tensor, got a tuple"):
        build_metrics(["f1"], "cross_entropy")["f1"].accumulated((SCORES,), [CLASSES])
    for name in ("f1", "auroc"):
        with pytest.raises(ConfigurationError, match="targets of one output each must be 0 or 1, got 2"):
            value(name, SCORES[:, 0], CLASSES)
    with pytest.raises(ConfigurationError, match="not a ratio"):
        build_metrics(["f1"], "cross_entropy")["f1"].ratio(SCORES, [CLASSES], 101)


def test_a_run_measures_them_and_resumes_within_an_epoch(tmp_path):
    names = ["accuracy", "top2", "precision", "recall", "f1", "auroc", "perplexity"]

    def trained(folder, **options):
        torch.manual_seed(0)
        return descend.fit(
            nn.Linear(4, 3),
            "cross_entropy",
            (SCORES, CLASSES),
            valid=(SCORES, CLASSES),
            optimizer=descend.SGD(learn_rate=0.1),
            batch_size=10,
            metrics={**{name: name for name in names}, "object": torchmetrics.F1Score("multiclass", num_classes=3)},
            run_dir=tmp_path / folder,
            **options,
        )

    class Fails(descend.Callback):
        def after_step(self, step):
            if step.step == 15:
                raise RuntimeError("the machine is gone")

    whole = trained("whole", stop=descend.Epochs(2))
    with pytest.raises(RuntimeError):
        trained("cut", stop=descend.Epochs(2), callbacks=[Fails(), descend.Checkpoint(every_steps=14)])
    resumed = trained("cut", stop=descend.Epochs(2), resume=True)
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in run.history] for run in (whole, resumed)]
    assert [row for row in rows[0] if row["step"] == 22] == [row for row in rows[1] if row["step"] == 22]
    last = whole.history[-1]
    output = descend.predict(whole.module, SCORES).numpy()
    expected = reference.f1_score(CLASSES, output.argmax(1), average="macro", zero_division=0)
    assert last["f1"] == pytest.approx(expected, rel=1e-9)
    assert np.isfinite([last[name] for name in names]).all()


def test_accuracy_of_one_output_is_on_its_side_of_the_threshold():
    logits = PAIRS[:, 1] - PAIRS[:, 0]
    hits = float(reference.accuracy_score(BITS, logits > 0, normalize=False))
    for loss, output in (("bce_with_logits", logits), (nn.BCELoss(), logits.sigmoid())):
        for rows in (output, output.unsqueeze(1)):
            found = build_metrics(["accuracy"], loss)["accuracy"].ratio(rows, [BITS.float()], 101)
            assert (float(found.numerator), float(found.denominator)) == (hits, 101.0)


NAN = float("nan")


@pytest.mark.parametrize("name", ["precision", "recall", "f1"])
@pytest.mark.parametrize("loss", ["cross_entropy", "bce_with_logits"])
def test_outputs_that_are_nan_are_wrong_whatever_the_class(name, loss):
    """A model gains nothing by an output that is NaN: scikit-learn's value where these name a wrong class."""
    if loss == "cross_entropy":
        output, target, wrong = PAIRS.clone(), BITS, 1 - BITS
        named = PAIRS.argmax(1)
    else:
        output, target, wrong = PAIRS[:, :1].clone(), BITS[:, None].float(), 1 - BITS
        named = (PAIRS[:, 0] > 0).long()
    output[::3] = NAN
    named[::3] = wrong[::3]
    score = getattr(reference, {"f1": "f1_score"}.get(name, f"{name}_score"))
    assert value(name, output, target, loss) == pytest.approx(score(BITS, named, zero_division=0), rel=1e-12)


@pytest.mark.parametrize("name", ["precision", "recall", "f1"])
def test_of_several_classes_each_value_falls_with_every_nan(name):
    best = value(name, nn.functional.one_hot(CLASSES, 4).float(), CLASSES)
    output = nn.functional.one_hot(CLASSES, 4).float()
    output[::4, 2] = NAN
    assert best == 1
    assert 0 < value(name, output, CLASSES) < 1
    assert value(name, torch.full((101, 4), NAN), CLASSES) == 0


def test_areas_of_outputs_that_are_nan_are_nan():
    scores = SCORES.clone()
    scores[5, 2] = NAN
    assert math.isnan(value("auroc", scores, CLASSES))
    assert math.isnan(value("auroc", scores[:, 2:3], BITS[:, None].float(), "bce_with_logits"))
