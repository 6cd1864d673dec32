"""Inference and evaluation against a plain loop, whatever the size of a batch."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import descend
from descend.data import ArrayReader
from descend.errors import ConfigurationError, DataError, DescendError
from descend.experiment.run import run

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(23, 5, dtype=torch.float64, generator=DRAW)
Y = torch.randint(0, 3, (23,), generator=DRAW)
IGNORING = Y.clone()
IGNORING[[0, 7, 22]] = -100


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)).double()


sizes = {"batch_size": st.integers(1, 30), "micro_batch_size": st.one_of(st.none(), st.integers(1, 30))}


@given(**sizes)
@settings(max_examples=20)
def test_outputs_are_those_of_one_call(batch_size, micro_batch_size):
    module = net()
    with torch.no_grad():
        expected = module.eval()(X)
        hidden = module[1](module[0](X))
    module.train()
    found = descend.infer(module, X, batch_size=batch_size, micro_batch_size=micro_batch_size, layers=["1"])
    torch.testing.assert_close(found.outputs, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.layers["1"], hidden, rtol=1e-12, atol=1e-13)
    assert (found.samples, module.training, module[1].num_batches_tracked) == (23, True, 0)


@given(**sizes)
@settings(max_examples=20)
def test_values_are_those_of_one_call(batch_size, micro_batch_size):
    module = net().eval()
    with torch.no_grad():
        output = module(X)
    counted = IGNORING != -100
    expected = {
        "objective": float(nn.functional.cross_entropy(output, IGNORING)),
        "accuracy": float((output.argmax(1) == IGNORING)[counted].double().mean()),
    }
    options = {"batch_size": batch_size, "micro_batch_size": micro_batch_size, "metrics": ["accuracy"]}
    found = descend.evaluate(module, "cross_entropy", (X, IGNORING), **options)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "data",
    [
        (X,),
        (X, Y),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=10),
        {"input": X},
        {"input": X, "label": Y},
        [(X[:10], Y[:10]), (X[10:], Y[10:])],
    ],
    ids=["tensor", "pair", "dataset", "loader", "dictionary", "with label", "batches"],
)
def test_data_of_any_form(data):
    module = net().eval()
    size = None if isinstance(data, (list, DataLoader)) else 10
    with torch.no_grad():
        torch.testing.assert_close(descend.infer(module, data, batch_size=size).outputs, module(X))


def test_a_module_may_return_several_things():
    class Several(nn.Module):
        def forward(self, a, b):
            return {"sum": a + b, "parts": (a, [b, a * b])}

    found = descend.infer(Several(), (X, 2 * X), batch_size=4, targets=0).outputs
    assert torch.equal(found["sum"], 3 * X)
    assert torch.equal(found["parts"][1][1], 2 * X * X)


def test_memory_that_runs_out_is_answered_with_smaller_parts(capsys):
    class Tight(nn.Module):
        def forward(self, x):
            if len(x) > 6:
                raise torch.OutOfMemoryError("simulated")
            return 2 * x

    assert torch.equal(descend.infer(Tight(), X, batch_size=20).outputs, 2 * X)
    assert "micro-batches of 5" in capsys.readouterr().out
    with pytest.raises(torch.OutOfMemoryError):
        descend.infer(Tight(), X, batch_size=20, micro_batch_size=20)


def test_a_graph_needs_the_fields_of_the_wanted_layers_alone(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    data = {"samples": draw.normal(size=(20, 6)).astype(np.float32), "labels": np.eye(3, dtype=np.float32)[[0, 1] * 10]}
    monkeypatch.setattr("descend.experiment.check.open_readers", lambda *_: {"train": ArrayReader(data)})
    x, y = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    h = descend.Dropout(descend.FullyConnected(x, num_neurons=3, has_bias=True, name="fc"), keep_prob=0.5)
    p = descend.Softmax(h, name="prob")
    model = descend.Model(1, objective_function=descend.CrossEntropy(p, y, name="loss"))
    rule = descend.SGD(learn_rate=0.1)
    result = run(descend.Trainer(8, random_seed=1), model, descend.DataReader([]), rule, tmp_path)
    module = result.module
    w, b = (result.weights[f"fc_{name}_weights"].numpy() for name in ("linearity", "bias"))
    scores = data["samples"] @ w.T + b
    found = descend.infer(module, {"samples": data["samples"]}, batch_size=7, layers=["fc", "prob"])
    np.testing.assert_allclose(found.outputs["fc"].numpy(), scores, rtol=1e-4, atol=1e-5)
    e = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(found.outputs["prob"].numpy(), e / e.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match="loss need the field 'labels'"):
        descend.infer(module, {"samples": data["samples"]}, batch_size=7, layers=["loss"])
    with pytest.raises(ConfigurationError, match="did you mean 'prob'"):
        descend.infer(module, {"samples": data["samples"]}, batch_size=7, layers=["prop"])
    with pytest.raises(ConfigurationError, match="name the layers"):
        descend.infer(module, {"samples": data["samples"]}, batch_size=7)


def test_layers_that_do_not_exist_are_named():
    with pytest.raises(ConfigurationError, match="there is no layer '9'"):
        descend.infer(net(), X, batch_size=4, layers=["9"])


def test_predict_takes_what_fit_takes_without_ceremony():
    module = net()
    with torch.no_grad():
        expected = net().eval()(X)
    forms = {
        "tensor": X,
        "array": X.numpy(),
        "samples and targets": (X, Y),
        "data set": TensorDataset(X, Y),
        "loader": DataLoader(TensorDataset(X, Y), batch_size=7),
        "batches": [(X[:9], Y[:9]), (X[9:], Y[9:])],
    }
    for name, data in forms.items():
        torch.testing.assert_close(descend.predict(module, data), expected, rtol=1e-12, atol=1e-13, msg=name)
    assert module.training


def test_parts_that_train_in_a_module_that_does_not_are_evaluated_and_train_again():
    module = net().eval()
    expected = module(X)
    module[2].train()
    torch.testing.assert_close(descend.predict(module, X), expected)
    assert [part.training for part in module] == [False, False, True, False, False]
    module.eval()
    torch.testing.assert_close(descend.predict(module, X), expected)


def test_predict_returns_the_structure_of_the_output():
    class Two(nn.Module):
        def forward(self, x):
            return {"sum": x.sum(1), "both": (x, -x)}

    found = descend.predict(Two(), X)
    torch.testing.assert_close(found["sum"], X.sum(1))
    torch.testing.assert_close(found["both"][1], -X)


def test_an_output_that_is_none_stays_none():
    class Scores(nn.Module):
        """Gives a loss where it is given labels, as modules of Hugging Face do."""

        def __init__(self):
            super().__init__()
            self.scores = net()

        def forward(self, x, labels=None):
            scores = self.scores(x)
            return {"loss": None if labels is None else nn.functional.cross_entropy(scores, labels), "logits": scores}

    found = descend.predict(Scores(), X, batch_size=7)
    assert found["loss"] is None
    assert found["logits"].shape == (23, 3)


NOT_FITTING = [object(), "x", 1.5, [5], 10**400, torch.ones(2), int, lambda: 0]
ARGUMENTS = {  # of each function those whose values are looked at
    descend.predict: ["module", "data", "batch_size", "targets", "precision", "workers"],
    descend.infer: ["module", "data", "batch_size", "micro_batch_size", "layers", "targets", "precision", "workers"],
    descend.evaluate: ["module", "data", "batch_size", "metrics", "targets", "precision"],
    descend.load_weights: ["module", "run_dir", "which"],
    descend.fit: [
        *("module", "data", "batch_size", "stop", "valid", "callbacks", "targets", "transforms", "algorithm"),
        *("clip_global_norm", "seed", "workers", "strategy"),
    ],
}


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda function: function.__name__)
def test_arguments_of_a_wrong_kind_are_errors_of_ours(function, tmp_path):
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    arguments = {"module": torch.nn.Linear(3, 2), "data": (x, y)}
    more = {
        descend.evaluate: {"loss": "cross_entropy"},
        descend.fit: {
            "loss": "cross_entropy",
            "optimizer": descend.SGD(lr=0.1),
            "batch_size": 2,
            "verbose": False,
            "stop": descend.Steps(1),
        },
    }
    if function is descend.load_weights:
        arguments = {"module": arguments["module"], "run_dir": tmp_path}
    for name in ARGUMENTS[function]:
        for value in NOT_FITTING:
            if name == "data" and isinstance(value, torch.Tensor):
                continue  # samples of another shape than the module's
            with contextlib.suppress(DescendError):
                function(**{**arguments, **more.get(function, {}), name: value})


@pytest.mark.parametrize("wrong", [-1, 1.5, [5], {"y"}, True])
def test_targets_that_are_none_are_named(wrong):
    with pytest.raises(ConfigurationError, match="targets must be names of fields in a list, how many"):
        descend.predict(torch.nn.Linear(3, 2), torch.randn(4, 3), targets=wrong)


class _Turned(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        return {"scores": x, "more": (x, self.form(x))}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (torch.t, r"in \[1\] the shape \(4, 5\) for 5 samples: to be joined"),
        (torch.mean, r"the shape \(\) for 5 samples"),
        (
            lambda x: x[:, : 1 + int(x[0, 0] == 20)],
            r"the shape \(5, 2\) for 5 samples and \(5, 1\) for 5: to be joined",
        ),
    ],
    ids=["turned", "mean", "longer"],
)
def test_outputs_without_a_row_for_each_sample_are_not_joined(form, said):
    x = torch.arange(40.0).reshape(10, 4)
    with pytest.raises(ConfigurationError, match=rf"^the module returned in 'more' .*{said}"):
        descend.predict(_Turned(form), x, batch_size=5)
    assert torch.equal(descend.predict(_Turned(form), x, batch_size=10)["more"][1], form(x))


def test_a_layer_that_returns_no_tensor_is_named():
    module = nn.Sequential(nn.LSTM(4, 3), _First())
    with pytest.raises(ConfigurationError, match="infer: layer '0' returns no tensor"):
        descend.infer(module, torch.ones(10, 2, 4), layers=["0"])


class _First(nn.Module):
    def forward(self, outputs):
        return outputs[0]


def test_a_reader_says_its_targets(tmp_path):
    (tmp_path / "a.csv").write_text("x,kind\n1,0\n2,1\n3,1\n")
    (tmp_path / "b.csv").write_text("x,label\n1,0\n2,1\n3,1\n")
    module, x = torch.nn.Linear(1, 2), torch.tensor([[1.0], [2.0], [3.0]])
    truth = torch.nn.functional.cross_entropy(module(x), torch.tensor([0, 1, 1])).item()
    for reader in (descend.data.read(tmp_path / "a.csv", target="kind"), descend.data.read(tmp_path / "b.csv")):
        assert descend.evaluate(module, "cross_entropy", reader)["objective"] == pytest.approx(truth)
        torch.testing.assert_close(descend.predict(module, reader), module(x))
