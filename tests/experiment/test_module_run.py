"""Runs of models that are torch modules."""

import pytest
import torch
from torch import nn

import descend
from descend.errors import ConfigurationError, TextError
from descend.experiment import load

RULE = descend.SGD(learn_rate=0.1, momentum=0.9)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))


def from_torch(module, **options):
    given = {"loss": "cross_entropy", "metrics": ["accuracy"], "epochs": 3, **options}
    return descend.Model.from_torch(module, **given)


def run(model, path, rule=RULE, **options):
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    return descend.run(trainer, model, descend.zoo.digits(), rule, run_dir=path, **options)


def test_a_module_is_trained_as_it_is(tmp_path):
    module = net()
    model = from_torch(module)
    result = run(model, tmp_path / "run")
    (test,) = [row for row in result.history if row["mode"] == "test"]
    assert test["accuracy"] > 0.85
    assert test["samples"] == 296
    assert result.module is module is model.to_torch()
    assert result.reason == "finished 3 of 3 epochs"
    assert list(result.weights) == [name for name, _ in module.named_parameters()]
    assert all(torch.equal(p, result.weights[name]) for name, p in module.named_parameters())
    assert all(part.training for part in module.modules())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_compiled_module_learns_the_same_and_is_itself_afterwards(tmp_path):
    """With a layer that draws and one that has statistics, on batches of two sizes."""
    modules = [net() for _ in range(2)]
    for module in modules:
        module.insert(2, nn.BatchNorm1d(32))
    plain, compiled = (
        run(from_torch(module, epochs=1, compile=wanted), tmp_path / str(wanted))
        for module, wanted in zip(modules, (False, True), strict=True)
    )
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(compiled.weights[name], tensor, rtol=1e-3, atol=1e-4)
    assert modules[1]._compiled_call_impl is None
    assert not any("forward" in vars(part) for part in modules[1].modules())


def test_it_repeats_to_the_last_bit_and_continues_where_it_was(tmp_path):
    whole = run(from_torch(net()), tmp_path / "whole")
    again = run(from_torch(net()), tmp_path / "again")
    run(from_torch(net(), epochs=1), tmp_path / "parts")
    parts = run(from_torch(net(seed=5)), tmp_path / "parts", resume=True)
    for name, tensor in whole.weights.items():
        assert torch.equal(again.weights[name], tensor)
        assert torch.equal(parts.weights[name], tensor)


class Pair(nn.Module):
    """Two inputs by name, two outputs, and one matrix in two places."""

    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        self.back.weight = self.there.weight

    def forward(self, samples, labels):
        return self.back(torch.tanh(self.there(samples.flatten(1)))), labels


def test_several_inputs_tuples_and_tied_weights(tmp_path):
    module = Pair()

    def reconstruction(output, *targets):
        assert targets == ()
        return output[0].square().mean()

    model = from_torch(module, loss=reconstruction, metrics={}, targets=0, epochs=1)
    result = run(model, tmp_path / "run")
    assert list(result.weights) == ["there.weight"]
    assert module.back.weight is module.there.weight
    objectives = [row["objective"] for row in result.history]
    assert objectives[-1] < objectives[0]


def test_callbacks_see_its_layers_and_weights(tmp_path):
    seen = []

    class Look(descend.Callback):
        def before_step(self, step):
            step.watch.layers(["1"])

        def after_step(self, step):
            seen.append(tuple(step.watch.outputs("1")[0].shape))

    run(from_torch(net(), callbacks=[Look()], epochs=1), tmp_path / "run")
    assert set(seen) == {(64, 32), (1201 % 64, 32)}


def test_names_that_nothing_has_are_found_before_the_run(tmp_path):
    watching = [descend.callbacks.DumpOutputs(layers="11"), descend.callbacks.CheckMetric(metric="acuracy")]
    with pytest.raises(ConfigurationError) as caught:
        run(from_torch(net(), callbacks=watching), tmp_path / "run")
    assert len(caught.value.problems) == 2
    assert not (tmp_path / "run").exists()


def test_it_has_no_text_and_its_run_says_so(tmp_path):
    model = from_torch(net(), epochs=1)
    result = run(model, tmp_path / "run")
    text = (result.run_dir / "experiment.prototext").read_text()
    assert text.startswith("# left out, because it has no text form: the module of model 'Sequential'")
    assert "mini_batch_size: 64" in text
    assert load(result.run_dir / "experiment.prototext").trainer.mini_batch_size == 64
    parts = {"trainer": descend.Trainer(4), "data_reader": descend.zoo.digits(), "optimizer": RULE}
    with pytest.raises((ConfigurationError, TextError), match=r"'Sequential' is a torch module .* holds no code"):
        descend.save_prototext(tmp_path / "x.prototext", model=model, **parts)
    assert not (tmp_path / "x.prototext").exists()


def test_fit_takes_it_too():
    module = net()
    model = from_torch(module, loss=nn.MSELoss(), metrics=["l1"])
    data = (torch.randn(40, 8, 8), torch.randn(40, 10))
    result = descend.fit(model, None, data, optimizer=RULE, batch_size=10, stop=descend.Epochs(1))
    assert result.module is module
    assert {"objective", "l1"} <= result.history[0].keys()


def test_weights_of_a_run_go_into_the_module(tmp_path):
    result = run(from_torch(net(), epochs=1), tmp_path / "run")
    other = from_torch(net(seed=3))
    assert other.to_torch(result.run_dir) is other.module
    assert torch.equal(other.module[1].weight, result.weights["1.weight"])


@pytest.mark.parametrize("given", [nn.Linear, "net", None])
def test_what_is_no_module_is_refused(given):
    with pytest.raises(ConfigurationError, match=r"Model\.from_torch was given .*; expected a torch\.nn\.Module"):
        from_torch(given)


def test_mistakes_beside_the_module_are_found_in_one_pass(tmp_path):
    reader = descend.Reader(name="digits", role="validate")
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    with pytest.raises(ConfigurationError) as caught:
        descend.run(trainer, from_torch(net()), descend.DataReader([reader]), descend.SGD(learn_rate=-1.0))
    assert len(caught.value.problems) == 2
