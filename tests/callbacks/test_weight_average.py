import copy
import functools
import warnings
from types import SimpleNamespace

import pytest
import torch
from callback_runs import in_one_go_and_in_two, work
from run_builder import execute
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import descend
from descend.callbacks import EMA, SWA, Checkpoint, EarlyStopping
from descend.errors import ConfigurationError
from descend.train import Callback

X, Y = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)), torch.arange(30) % 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def fit(module, *callbacks, epochs=4, **more):
    settings = {"optimizer": functools.partial(torch.optim.SGD, lr=0.2), "batch_size": 10, **more}
    stop = descend.Epochs(epochs)
    return descend.fit(module, "cross_entropy", (X, Y), valid=(X, Y), stop=stop, callbacks=list(callbacks), **settings)


class Torchs(Callback):
    """Averages as torch does, and keeps the weights of training and the evaluated ones."""

    def __init__(self, *, each_epoch=False, since=0, **options):
        self.each_epoch, self.since, self.options = each_epoch, since, options

    def after_setup(self, run):
        self.model = AveragedModel(run.module, use_buffers=True, **self.options)
        self.trained = self.evaluated = None

    def after_step(self, step):
        ends_epoch = step.batch.last
        if (step.epoch >= self.since and ends_epoch) if self.each_epoch else True:
            self.model.update_parameters(step.module)
        self.trained = copy.deepcopy(step.module.state_dict())

    def after_evaluation(self, evaluation):
        self.evaluated = copy.deepcopy(evaluation.run.module.state_dict())


def close(ours, theirs):
    for name, value in theirs.items():
        if value.is_floating_point():
            torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "torchs"),
    [
        (lambda: EMA(0.9), {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}),
        (lambda: SWA(start_epoch=1), {"each_epoch": True, "since": 1}),
    ],
)
def test_the_average_is_torchs_and_is_evaluated_and_given_back(make, torchs):
    module = net()
    result = fit(module, watch := Torchs(**torchs), make())
    average = watch.model.module.state_dict()
    close(watch.evaluated, average)
    close(module.state_dict(), average)
    close(result.weights, average)
    evaluated = descend.evaluate(module, "cross_entropy", (X, Y), batch_size=10)
    assert evaluated["objective"] == pytest.approx(result.history[-1]["objective"], rel=1e-6)
    plain = net()
    fit(plain)
    close(watch.trained, plain.state_dict())  # training does not notice


def test_a_warmup_forgets_the_first_weights_and_steps_can_be_left_out():
    kept = []

    class Keeps(Callback):
        def after_step(self, step):
            kept.append(copy.deepcopy(dict(step.module.named_parameters())))

    module = net()
    fit(module, Keeps(), EMA(0.99, warmup=True, every_steps=2, start_step=4))
    part = dict(module.named_parameters())["0.weight"]
    assert float((part - kept[-1]["0.weight"]).abs().max().detach()) > 1e-3
    # counted from the weights that are in the average when the next come
    expected = kept[3]["0.weight"].detach().clone()
    for n, weights in enumerate(kept[5::2], start=1):
        expected += (1 - min(0.99, (1 + n) / (10 + n))) * (weights["0.weight"].detach() - expected)
    torch.testing.assert_close(part.detach(), expected)


@pytest.mark.parametrize("make", [lambda: EMA(0.8), lambda: SWA(1, every_epochs=2, lr=0.01)])
def test_a_run_in_parts_is_the_same_to_the_bit(tmp_path, make):
    whole, parts = in_one_go_and_in_two(tmp_path, lambda: [make()])
    assert all(torch.equal(value, parts.weights[name]) for name, value in whole.weights.items())
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in run.history] for run in (whole, parts)]
    assert rows[0] == rows[1]


def test_a_run_that_has_ended_goes_on_from_the_weights_of_training(tmp_path):
    three = fit(net(), EMA(0.9), epochs=3, run_dir=tmp_path / "a")
    five = fit(net(), EMA(0.9), epochs=5, run_dir=tmp_path / "a", resume=True)
    whole = fit(net(), EMA(0.9), epochs=5)
    assert not torch.equal(three.weights["0.weight"], five.weights["0.weight"])
    assert all(torch.equal(value, five.weights[name]) for name, value in whole.weights.items())


def test_the_best_epoch_is_that_of_the_average(tmp_path):
    keep = Checkpoint(keep_best="validation/objective")
    result = fit(net(), EMA(0.5), keep, run_dir=tmp_path / "run")
    loaded, raw = net(), net()
    descend.load_weights(loaded, tmp_path / "run")
    objective = descend.evaluate(loaded, "cross_entropy", (X, Y), batch_size=10)["objective"]
    assert objective == pytest.approx(result.best.value, rel=1e-6)
    descend.load_weights(raw, tmp_path / "run", which=9, averaged=False)
    assert not torch.equal(raw[0].weight, loaded[0].weight)
    descend.load_weights(loaded, tmp_path / "run", which="last")
    assert torch.equal(loaded[0].weight, result.weights["0.weight"])


@pytest.mark.parametrize("first", [True, False])
def test_early_stopping_restores_the_best_average(first, tmp_path):
    stopping = EarlyStopping(patience=9, restore_best=True)
    callbacks = [EMA(0.5), stopping] if first else [stopping, EMA(0.5)]
    optimizer = functools.partial(torch.optim.SGD, lr=20.0)
    module = net()
    result = fit(module, *callbacks, epochs=6, optimizer=optimizer, run_dir=tmp_path / "run")
    rows = [row["objective"] for row in result.history if row["mode"] == "validation"]
    objective = descend.evaluate(module, "cross_entropy", (X, Y), batch_size=10)["objective"]
    assert objective == pytest.approx(min(rows), rel=1e-6)
    assert min(rows) < rows[-1]
    descend.load_weights(other := net(), tmp_path / "run")
    assert torch.equal(other[0].weight, module[0].weight)


def test_half_precision_is_averaged_in_single_precision():
    module = nn.Linear(1, 1, bias=False).bfloat16()
    with torch.no_grad():
        module.weight.fill_(1.0)
    callback = EMA(0.999)
    held = SimpleNamespace(trained=dict(module.named_parameters()))
    callback._run = SimpleNamespace(module=module, control=SimpleNamespace(evaluated=held))
    for _ in range(100):
        callback._add(1 - callback.decay)
        with torch.no_grad():
            module.weight.fill_(2.0)
    assert callback.average["weight"].dtype == torch.float32
    assert float(callback.average["weight"]) == pytest.approx(2 - 0.999**99, rel=1e-5)


def test_the_rate_of_the_last_epochs(tmp_path):
    result = execute(work(SWA(2, lr=0.003)), tmp_path / "run")
    rates = [row["learning_rate"] for row in result.history if row["mode"] == "train"]
    assert rates == [0.05, 0.05, 0.003, 0.003]


def test_what_cannot_be_averaged_is_refused():
    free = functools.partial(descend.optim.ScheduleFreeSGD, lr=0.1)
    with pytest.raises(ConfigurationError, match="EMA: ScheduleFreeSGD averages the weights by itself"):
        fit(net(), EMA(), optimizer=free)
    scheduled = functools.partial(descend.optim.SGD, lr=lambda updates: 0.1)
    with pytest.raises(ConfigurationError, match="SWA: lr sets a constant learning rate"):
        fit(net(), SWA(0, lr=0.1), optimizer=scheduled)
    for make, words in (
        (lambda: EMA(1.0), r"EMA: decay must be a number"),
        (lambda: EMA(every_steps=0), "every_steps must be an integer >= 1"),
        (lambda: SWA(-1), "SWA: start_epoch must be an integer >= 0"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            make()


def test_averaged_statistics_of_batch_norm_are_warned_of():
    with pytest.warns(UserWarning, match=r"SWA: 1\.running_mean is averaged as the weights are.*update_bn"):
        fit(net(), SWA(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(net(), SWA(0, average_buffers=False))
        fit(nn.Linear(5, 3), SWA(0))
