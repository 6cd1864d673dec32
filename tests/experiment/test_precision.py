"""Half precision of graphs, and the loss scale of float16, against torch's own."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import descend
from descend.data import ArrayReader
from descend.errors import ConfigurationError, Stopped
from descend.experiment.run import run
from descend.graph import from_text, to_text
from descend.train.precision import require_castable


def graph(amp=None, **options):
    x = descend.Input(data_field="samples", name="x")
    y = descend.Input(data_field="labels", name="y")
    h = descend.Convolution(x, num_dims=2, out_channels=4, kernel_size=3, has_bias=True, name="conv", **options)
    h = descend.Relu(descend.BatchNormalization(h, name="bn"), name="relu")
    h = descend.FullyConnected(h, num_neurons=3, has_bias=True, name="fc")
    p = descend.Softmax(h, name="prob")
    return descend.Model(2, objective_function=descend.CrossEntropy(p, y, name="loss"), amp=amp)


class Look(descend.Callback):
    """The formats of the layers' outputs, and the rate and skipped steps."""

    def after_setup(self, run):
        self.seen = {}

    def before_step(self, step):
        step.watch.layers(["conv", "fc", "bn", "prob", "loss"])

    def after_step(self, step):
        for name in ("conv", "fc", "bn", "prob", "loss"):
            self.seen[name] = step.watch.outputs(name)[0].dtype


class StopAt(descend.Callback):
    def __init__(self, step):
        self.step = step

    def after_step(self, step):
        if step.step == self.step:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)


def data(scale=1.0):
    draw = np.random.default_rng(0)
    labels = draw.integers(3, size=24)
    x = draw.normal(size=(24, 1, 6, 6)).astype(np.float32) + labels[:, None, None, None].astype(np.float32)
    return {"samples": scale * x, "labels": np.eye(3, dtype=np.float32)[labels]}


def train(monkeypatch, tmp_path, model, callbacks=(), scale=1.0, epochs=4, resume=False):
    monkeypatch.setattr("descend.experiment.check.open_readers", lambda *_: {"train": ArrayReader(data(scale))})
    model.callbacks, model.epochs = list(callbacks), epochs
    trainer = descend.Trainer(8, random_seed=3)
    rule = descend.SGD(learn_rate=0.05, momentum=0.9)
    return run(trainer, model, descend.DataReader([]), rule, tmp_path / "run", resume=resume)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_layers_compute_in_half_precision_and_what_would_lose_by_it_in_float32(monkeypatch, tmp_path, name):
    look = Look()
    amp = descend.AutomaticMixedPrecision(enabled=True, format=name)
    result = train(monkeypatch, tmp_path, graph(amp), [look])
    half = getattr(torch, name)
    float32 = torch.float32
    assert look.seen == {"conv": half, "fc": half, "bn": float32, "prob": float32, "loss": float32}
    assert {tensor.dtype for tensor in result.weights.values()} == {float32}
    plain = train(monkeypatch, tmp_path / "plain", graph())
    objective, expected = (found.history[-1]["objective"] for found in (result, plain))
    assert objective == pytest.approx(expected, rel=0.05)
    assert objective < result.history[0]["objective"]


def test_an_amp_that_is_not_enabled_changes_no_bit(monkeypatch, tmp_path):
    off = train(monkeypatch, tmp_path / "off", graph(descend.AutomaticMixedPrecision(init_scale=8.0)))
    plain = train(monkeypatch, tmp_path / "plain", graph())
    assert all(torch.equal(off.weights[name], value) for name, value in plain.weights.items())


def test_float16_stopped_and_continued_ends_in_the_same_bits(monkeypatch, tmp_path):
    """The scale grows every 2 steps and overflows now and then: growth tracker, scale and skipped steps are kept."""
    amp = {"enabled": True, "init_scale": 2.0**14, "growth_interval": 2, "growth_factor": 4.0, "backoff_factor": 0.25}
    whole = train(monkeypatch, tmp_path / "whole", graph(amp), epochs=6)
    assert sum(row.get("skipped_steps", 0) for row in whole.history) >= 2
    assert whole.steps + sum(row.get("skipped_steps", 0) for row in whole.history) == 18
    for step in (4, 9):
        with pytest.raises(Stopped):
            train(monkeypatch, tmp_path / "parts", graph(amp), [StopAt(step)], epochs=6, resume=True)
    parts = train(monkeypatch, tmp_path / "parts", graph(amp), epochs=6, resume=True)
    assert all(torch.equal(parts.weights[name], value) for name, value in whole.weights.items())
    assert parts.steps == whole.steps


def test_the_scale_is_that_of_torch_s_own_loop():
    """Scales after each step against torch.amp.GradScaler driven by hand, overflow included."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 4, generator=draw), torch.randint(0, 3, (8,), generator=draw)
    amp = descend.AutomaticMixedPrecision(
        enabled=True, init_scale=2.0**22, growth_factor=8.0, backoff_factor=0.125, growth_interval=2
    )

    def net():
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return nn.Linear(4, 3)

    class Scales(descend.Callback):
        def after_setup(self, run):
            self.seen = []

        def before_step(self, step):
            self.seen.append(step.run.control._run.precision.loss_scale)

    scales, ours = Scales(), net()
    optimizer = functools.partial(torch.optim.SGD, lr=0.1)
    options = {"optimizer": optimizer, "batch_size": 8, "shuffle": False, "callbacks": [scales]}
    result = descend.fit(ours, "cross_entropy", (x, y), stop=descend.Epochs(9), precision=amp, **options)

    theirs, expected, steps = net(), [], 0
    made = optimizer(theirs.parameters())
    scaler = torch.amp.GradScaler("cpu", 2.0**22, 8.0, 0.125, 2)
    for _ in range(9):
        expected.append(scaler.get_scale())
        made.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(theirs(x), y)
        scaler.scale(loss).backward()
        scaler.step(made)
        scaler.update()
        steps += scaler.get_scale() >= expected[-1]
    assert len(set(expected)) > 2
    assert scales.seen == expected
    assert result.steps == steps
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-6, atol=1e-7)


def test_a_step_that_overflowed_does_not_move_the_schedule():
    rates = []

    def schedule(t):
        return 0.1 / (1 + t)

    class Rates(descend.Callback):
        def after_step(self, step):
            rates.append(step.run.control.rates()["weight"])

    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    amp = descend.AutomaticMixedPrecision(enabled=True, init_scale=2.0**30)
    optimizer = functools.partial(descend.optim.SGD, lr=schedule)
    options = {"optimizer": optimizer, "batch_size": 8, "stop": descend.Epochs(30), "callbacks": [Rates()]}
    result = descend.fit(nn.Linear(4, 3), "cross_entropy", (x, y), precision=amp, **options)
    skipped = sum(row.get("skipped_steps", 0) for row in result.history)
    assert skipped > 5
    assert result.steps == 30 - skipped == len(rates)
    assert rates == [schedule(t) for t in range(len(rates))]


def test_the_text_of_amp_comes_back():
    amp = descend.AutomaticMixedPrecision(enabled=True, init_scale=1024.0, format="float16")
    assert from_text(to_text(graph(amp))).amp == amp


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"growth_factor": 0.5}, "growth_factor is 0.5; expected above 1, or 0 for 2"),
        ({"backoff_factor": 1.5}, "backoff_factor is 1.5"),
        ({"init_scale": -1.0}, "init_scale is -1.0"),
        ({"format": "float61"}, "did you mean 'float16'"),
        ({"format": "bfloat16", "init_scale": 2.0}, "bfloat16 needs none"),
    ],
)
def test_settings_out_of_range_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        descend.AutomaticMixedPrecision(enabled=True, **options)


@pytest.mark.parametrize("datatype", ["COMPLEX_FLOAT", "COMPLEX_DOUBLE"])
def test_a_datatype_that_is_not_to_be_had_is_refused_by_name(monkeypatch, tmp_path, datatype):
    with pytest.raises(ConfigurationError, match=f"layer 'conv' has datatype {datatype}, which is not supported"):
        train(monkeypatch, tmp_path, graph(datatype=datatype))
    weights = descend.Weights(datatype=datatype, name="w")
    with pytest.raises(ConfigurationError, match=f"weights 'w' has datatype {datatype}"):
        train(monkeypatch, tmp_path, graph(weights=[weights]))
    model = graph()
    descend.Relu(model.layers[-1], name="unused")
    op = descend.OperatorLayer(model.layers[0], ops=[descend.graph.kinds.operators.Abs(input_datatype=datatype)])
    model = descend.Model(1, objective_function=descend.L2Norm2(descend.FullyConnected(op, num_neurons=1)))
    with pytest.raises(ConfigurationError, match=f"operator Abs that has input_datatype {datatype}"):
        train(monkeypatch, tmp_path, model)


def test_the_format_of_all_graphs_may_be_said(monkeypatch, tmp_path):
    assert train(monkeypatch, tmp_path, graph(datatype="FLOAT"), epochs=1).steps == 3


def test_weights_that_a_precision_is_not_for_are_warned_of(recwarn):
    single, half, double = (
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(kind) for kind in (None, torch.half, torch.double)
    )
    for scaled in (True, False):
        require_castable(single, torch.float16, scaled=scaled)
    require_castable(half, torch.bfloat16, scaled=False)
    require_castable(double, None, scaled=False)
    assert not recwarn
    with pytest.raises(ConfigurationError, match=r"'0\.weight' is float16, so that its gradient cannot be scaled"):
        require_castable(half, torch.float16, scaled=True)
    with pytest.warns(UserWarning, match=r"precision='bfloat16' has no effect: '0\.weight' is float64"):
        require_castable(double, torch.bfloat16, scaled=False)
    single[1].double()
    with pytest.warns(UserWarning, match=r"no effect where such weights are used: '1\.weight' is float64"):
        require_castable(single, torch.bfloat16, scaled=False)


def test_fit_refuses_weights_of_half_precision_under_a_loss_scale():
    with pytest.raises(ConfigurationError, match="'weight' is float16"):
        descend.fit(
            nn.Linear(2, 2).half(),
            "mse",
            (torch.ones(4, 2).half(), torch.ones(4, 2).half()),
            optimizer=functools.partial(torch.optim.SGD, lr=0.1),
            batch_size=2,
            stop=descend.Steps(1),
            precision="float16",
        )
