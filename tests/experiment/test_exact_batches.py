"""A batch is a batch: whatever it is cut into and whatever happens meanwhile, the update is that of the big batch."""

import functools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import descend
from descend.data import ArrayReader
from descend.experiment.run import run
from descend.lower import lower
from descend.optim.rules import ALL_RULES
from descend.optim.schedules import PiecewisePolynomial
from descend.train import Mode

X = np.random.default_rng(0).normal(size=(14, 5))


class Net(nn.Module):
    """Layers whose output may depend on how a batch is cut. There is no bias before batch norm: its gradient is nothing
    but rounding, which Adam makes a step of."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.body = nn.Sequential(
                nn.Linear(5, 8, bias=False),
                nn.BatchNorm1d(8),
                nn.RReLU(),
                nn.Dropout(0.3),
                nn.Linear(8, 8),
                nn.LayerNorm(8),
                nn.Tanh(),
            ).double()
            self.conv = nn.Sequential(nn.Conv1d(2, 4, 2), nn.Dropout1d(0.3), nn.AlphaDropout(0.2)).double()
            self.out = nn.Linear(12, 3).double()

    def forward(self, x):
        return self.out(self.conv(self.body(x).view(-1, 2, 4)).flatten(1))


class InTheWindow(descend.Callback):
    """Evaluates between two micro-batches, where gradients of the first are there and of the second not yet."""

    def after_setup(self, run):
        self.losses = []

    def after_part(self, part):
        if part.index == 0:
            part.run.control.evaluate(Mode.VALIDATION)

    def after_step(self, step):
        self.losses.append(step.loss)


def one(micro_batch_size, targets, watch=False, rule=None, **options):
    given = {"batch_size": 14, "stop": descend.Epochs(2), "batch_norm_group_size": 4, **options}
    optimizer = rule or functools.partial(torch.optim.Adam, lr=0.05, weight_decay=0.1)
    loss = nn.CrossEntropyLoss(torch.tensor([0.2, 1.0, 3.0]).double(), label_smoothing=0.1)
    callback = InTheWindow()
    if not watch:
        callback.after_part = lambda part: None
    data = (torch.tensor(X), torch.tensor(targets))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = descend.fit(
            Net(),
            loss,
            data,
            valid=data,
            micro_batch_size=micro_batch_size,
            optimizer=optimizer,
            callbacks=[callback],
            **given,
        )
    return result, callback.losses


def agree(a, b, rtol=1e-12):
    for name, value in a.module.state_dict().items():
        torch.testing.assert_close(b.module.state_dict()[name], value, rtol=rtol, atol=1e-13, msg=name)


labels = st.lists(st.sampled_from([0, 1, 2, -100]), min_size=14, max_size=14).map(np.array)
clipping = st.sampled_from([{}, {"clip_value": 0.01}, {"clip_norm": 0.02}, {"clip_global_norm": 0.05}])


@pytest.mark.slow
@given(targets=labels, batch_size=st.sampled_from([14, 11, 8, 7]), micro_batch_size=st.integers(1, 14), clip=clipping)
@settings(max_examples=25)
def test_any_cut_with_any_labels_ignored_is_the_whole_batch(targets, batch_size, micro_batch_size, clip):
    """Batches of 14, 11 + 3, 8 + 6 and 7 + 7 in parts of any size, clipping, decay, and passes in the window."""
    options = {"batch_size": batch_size, **clip}
    whole, whole_losses = one(None, targets, **options)
    cut, losses = one(micro_batch_size, targets, watch=True, **options)
    agree(whole, cut)
    assert losses == pytest.approx(whole_losses, rel=1e-12, nan_ok=True)
    rows = [[row["objective"] for row in found.history if row["mode"] == "train"] for found in (whole, cut)]
    assert rows[1] == pytest.approx(rows[0], rel=1e-12, nan_ok=True)


# Without SOAP: its basis are eigenvectors, and those of eigenvalue 0 (a gradient of less than full rank) are rounding.
# One of each class: a rule sees gradients of the whole batch either way, which its options cannot change.
@pytest.mark.parametrize(
    "rule", [r for r in {type(r): r for r in ALL_RULES}.values() if type(r).__name__ != "SOAP"], ids=repr
)
def test_every_rule_steps_as_on_the_whole_batch(rule):
    """Uneven parts, ignored labels and decay."""
    targets = np.array([0, 1, -100, 2, 2, 1, -100, 0, 1, 2, 0, -100, 1, 2])
    made = functools.partial(descend.optim.Optimizer, rule=rule, lr=0.01, weight_decay=0.05, decay=rule.default_decay)
    whole, _ = one(None, targets, rule=made, batch_size=8)
    cut, _ = one(4, targets, rule=made, batch_size=8)
    agree(whole, cut, rtol=1e-11)


@pytest.mark.slow
@given(targets=labels, room=st.integers(1, 14))
@settings(max_examples=10)
def test_memory_that_runs_out_anywhere_changes_nothing(targets, room):
    """A device that holds `room` samples, or one group, whichever is more; the failure comes after the statistics."""

    class Tight(Net):
        def forward(self, x):
            result = super().forward(x)
            if self.training and len(x) > max(room, 4):
                raise torch.OutOfMemoryError("simulated")
            return result

    whole, _ = one(14, targets)
    optimizer = functools.partial(torch.optim.Adam, lr=0.05, weight_decay=0.1)
    loss = nn.CrossEntropyLoss(torch.tensor([0.2, 1.0, 3.0]).double(), label_smoothing=0.1)
    found = descend.fit(
        Tight(),
        loss,
        (torch.tensor(X), torch.tensor(targets)),
        optimizer=optimizer,
        batch_size=14,
        stop=descend.Epochs(2),
        batch_norm_group_size=4,
    )
    agree(whole, found)


# ---- graphs


def noisy(group=0):
    """Random layers of every sort, batch normalization, L2, two terms, and a metric."""
    x = descend.Input(data_field="samples", name="x")
    y = descend.Input(data_field="labels", name="y")
    h = descend.FullyConnected(x, num_neurons=6, name="fc1")
    h = descend.BatchNormalization(h, name="bn")
    h = descend.Add(h, descend.Gaussian(neuron_dims=[6], stdev=0.1, name="noise"), name="sum")
    h = descend.Multiply(h, descend.Bernoulli(neuron_dims=[6], prob=0.8, name="mask"), name="masked")
    h = descend.SeluDropout(descend.Dropout(descend.Selu(h), keep_prob=0.7, name="drop"), keep_prob=0.8, name="sd")
    p = descend.Softmax(descend.FullyConnected(h, num_neurons=3, has_bias=True, name="fc2"), name="prob")
    terms = [
        descend.LayerTerm(descend.CrossEntropy(p, y, name="ce"), scale=0.7),
        descend.LayerTerm(descend.L2Norm2(h, name="norm"), scale=0.01),
        descend.L2WeightRegularization(scale=0.1),
    ]
    metrics = [descend.Metric(descend.CategoricalAccuracy(p, y, name="acc"), name="accuracy")]
    return descend.Model(2, objective_function=terms, metrics=metrics, batch_norm_group_size=group)


def graph_run(tmp_path, monkeypatch, micro_batch_size, callbacks=()):
    data = {"samples": X, "labels": np.eye(3)[np.arange(14) % 3]}
    readers = {"train": ArrayReader(data), "validate": ArrayReader(data, "validate")}
    monkeypatch.setattr("descend.experiment.check.open_readers", lambda *_: readers)
    monkeypatch.setattr("descend.experiment.build_experiment.lower", lambda *a, **k: lower(*a, **k).double())
    model = noisy(group=3)
    model.callbacks = [descend.ClipGradientNorm(global_norm=True, value=0.3), *callbacks]
    rule = descend.Adam(learn_rate=0.05, beta1=0.9, beta2=0.99, eps=1e-8, adamw_weight_decay=0.1)
    trainer = descend.Trainer(8, random_seed=3, micro_batch_size=micro_batch_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(trainer, model, descend.DataReader([]), rule, tmp_path)


@pytest.mark.parametrize("micro_batch_size", [1, 3, 5, 6, 7])
def test_a_graph_of_random_layers_in_parts_is_the_whole_batch(tmp_path, monkeypatch, micro_batch_size):
    whole = graph_run(tmp_path / "whole", monkeypatch, 0)
    cut = graph_run(tmp_path / "cut", monkeypatch, micro_batch_size, [InTheWindow()])
    for name, value in whole.weights.items():
        torch.testing.assert_close(cut.weights[name], value, rtol=1e-12, atol=1e-13, msg=name)
    for mode in ("train", "validation"):
        expected, found = (
            [(row["objective"], row["accuracy"]) for row in result.history if row["mode"] == mode][-1]
            for result in (whole, cut)
        )
        assert found == pytest.approx(expected, rel=1e-12)


def test_a_graph_that_does_not_fit_is_cut_by_itself(tmp_path, monkeypatch, capsys):
    fits = graph_run(tmp_path / "fits", monkeypatch, 3)

    class Full(descend.Callback):
        """Refuses a fourth sample, as a device without room for it does."""

        def before_step(self, step):
            step.watch.listen(self.look)

        def look(self, name, outputs):
            if len(outputs[0]) > 3:
                raise torch.OutOfMemoryError("simulated")

    found = graph_run(tmp_path / "full", monkeypatch, 0, [Full()])
    assert all(torch.equal(found.weights[name], value) for name, value in fits.weights.items())
    assert "out of memory: micro-batches of 3 from here on" in capsys.readouterr().out


# ---- names and schedules


@given(order=st.permutations(range(4)))
@settings(max_examples=10)
def test_state_follows_names_whatever_the_order_of_the_layers(order, tmp_path_factory):
    """Layers of one shape in another order of registration, so that positions would give each the state of another."""

    class Ordered(nn.Module):
        def __init__(self, order):
            super().__init__()
            for i in order:
                with torch.random.fork_rng():
                    torch.manual_seed(i)
                    self.add_module(f"layer{i}", nn.Linear(5, 5).double())

        def forward(self, x):
            for i in range(4):
                x = torch.tanh(getattr(self, f"layer{i}")(x))
            return x

    folder = tmp_path_factory.mktemp("run")
    data = (torch.tensor(X), torch.tensor(np.arange(14) % 5))
    options = {"optimizer": functools.partial(descend.optim.Adam, lr=0.05), "batch_size": 4}
    descend.fit(Ordered(range(4)), "cross_entropy", data, stop=descend.Steps(5), run_dir=folder, **options)
    whole = descend.fit(Ordered(range(4)), "cross_entropy", data, stop=descend.Steps(9), **options)
    again = {"run_dir": folder, "resume": True, "stop": descend.Steps(9)}
    found = descend.fit(Ordered(order), "cross_entropy", data, **again, **options)
    assert all(torch.equal(found.weights[name], value) for name, value in whole.weights.items())


@given(micro_batch_size=st.sampled_from([None, 1, 2]), stop=st.integers(1, 29), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_rates_in_a_run_are_the_printed_curve(micro_batch_size, stop, seed, tmp_path_factory):
    """Accumulation or not, stopped and continued after any step, and past the end of the schedule."""
    schedule = PiecewisePolynomial(peak=0.3, warmup_steps=7, steps=20, final=1e-3, warmup_power=2, decay_power=2)
    rates = []

    class Rates(descend.Callback):
        def after_step(self, step):
            rates.append(step.run.control.rates()["weight"])

    folder = tmp_path_factory.mktemp("run")
    data = (torch.tensor(X), torch.tensor(np.arange(14) % 3))
    options = {"optimizer": functools.partial(descend.optim.SGD, lr=schedule), "batch_size": 4, "run_dir": folder}
    for steps in (stop, 30):
        module = nn.Linear(5, 3).double()
        limits = {"stop": descend.Steps(steps), "micro_batch_size": micro_batch_size, "seed": seed}
        descend.fit(module, "cross_entropy", data, resume=steps == 30, callbacks=[Rates()], **limits, **options)
    curve = dict(schedule.curve(30))
    assert rates == [schedule(t) for t in range(30)]
    assert all(rates[t] == rate for t, rate in curve.items() if t < 30)
    assert (rates[0], rates[7], rates[20], rates[29]) == (0.0, 0.3, 1e-3, 1e-3)
