"""Batched inference as an algorithm: outputs and values of a graph, whatever the size of a mini-batch."""

import numpy as np
import pytest
import torch
from callback_runs import graph_work, samples
from run_builder import execute

import descend
from descend.data import ArrayReader
from descend.errors import ConfigurationError
from descend.experiment.run import run
from descend.experiment.text import classes
from descend.graph import text
from descend.train import BatchedInference, Callback, Mode


def conducted(algorithm, batch_size=8, callbacks=(), **options):
    work = graph_work(batch_size=batch_size)
    given = {**vars(work), "algorithm": algorithm, "callbacks": tuple(callbacks), **options}
    return execute(type(work)(**given), None, keep_files=False)


@pytest.mark.parametrize("batch_size", [1, 7, 20, 100])
def test_outputs_and_values_do_not_depend_on_the_batch(batch_size):
    algorithm = BatchedInference(modes="train validation", layers="fc2 prob")
    found = conducted(algorithm, batch_size)
    assert found.reason == "went through 20 train samples and 12 validation samples"
    weights = {name: value.numpy() for name, value in found.weights.items()}
    for mode, seed, count in (("train", 0, 20), ("validation", 1, 12)):
        data = samples(count, seed=seed)
        hidden = data["samples"].reshape(count, -1) @ weights["fc1_linearity_weights"].T + weights["fc1_bias_weights"]
        scores = np.maximum(hidden, 0) @ weights["fc2_linearity_weights"].T + weights["fc2_bias_weights"]
        np.testing.assert_allclose(found.outputs[f"{mode}/fc2"].numpy(), scores, rtol=1e-4, atol=1e-5)
        logs = torch.log_softmax(torch.tensor(scores), 1).numpy()
        row = next(row for row in found.history if row["mode"] == mode)
        assert row["objective"] == pytest.approx(-(data["labels"] * logs).sum(1).mean(), rel=1e-4)
        assert row["samples"] == count
    assert found.steps == 0


def test_the_weights_stay_and_the_context_of_each_mode_goes_on():
    class Contexts(Callback):
        def after_run(self, run):
            self.contexts = run.control._run.state.contexts

    contexts, work = Contexts(), graph_work()
    before = {name: value.clone() for name, value in work.task.module.state_dict().items()}
    found = execute(
        type(work)(**{**vars(work), "algorithm": BatchedInference(), "callbacks": (contexts,)}), None, keep_files=False
    )
    assert all(torch.equal(found.weights[name], value) for name, value in before.items())
    test = contexts.contexts[Mode.TEST]
    assert (test.step, test.samples, test.epoch) == (2, 10, 1)
    assert contexts.contexts[Mode.TRAIN].step == 0
    assert [row["mode"] for row in found.history] == ["test"]


def test_the_text_says_what_the_value_says():
    trainer = descend.Trainer(8, training_algo=BatchedInference("scores", modes="test train", layers="prob"))
    again = text.to_value(text.parse(text.render(trainer), "again", "Trainer"), classes())
    assert again.training_algo == trainer.training_algo


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigurationError, match="did you mean 'validation'"):
        BatchedInference(modes="validaton")
    with pytest.raises(ConfigurationError, match="there are no data for tournament"):
        conducted(BatchedInference(modes="tournament"))
    with pytest.raises(ConfigurationError, match="did you mean 'prob'"):
        conducted(BatchedInference(layers="prop"))


def test_test_samples_and_layers_are_enough(tmp_path, monkeypatch):
    """No objective, no training samples, no label: a text that applies a trained model."""
    data = {"samples": samples(10)["samples"]}
    monkeypatch.setattr("descend.experiment.check.open_readers", lambda *_: {"test": ArrayReader(data, "test")})
    x = descend.Input(data_field="samples", name="x")
    model = descend.Model(0, layers=descend.Softmax(descend.FullyConnected(x, num_neurons=3, name="fc"), name="prob"))
    trainer = descend.Trainer(4, random_seed=1, training_algo=BatchedInference(layers="prob"))
    found = run(trainer, model, descend.DataReader([]), descend.SGD(learn_rate=0.1), tmp_path)
    scores = data["samples"].reshape(10, -1) @ found.weights["fc_linearity_weights"].numpy().T
    expected = torch.softmax(torch.tensor(scores), 1)
    torch.testing.assert_close(found.outputs["test/prob"], expected, rtol=1e-4, atol=1e-5)


def test_names_and_modes_are_checked_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.experiment.check.open_readers", lambda *_: {"test": ArrayReader(samples(10), "test")})
    x = descend.Input(data_field="samples", name="x")
    model = descend.Model(0, layers=descend.Softmax(descend.FullyConnected(x, num_neurons=3, name="fc"), name="prob"))
    for algorithm, message in (
        (BatchedInference(layers="prop"), "BatchedInference.layers names a layer 'prop' that does not exist"),
        (BatchedInference(modes="validation"), "there are no data for validation"),
        (descend.KFAC(disable_layers="fc9"), "KFAC.disable_layers names a layer 'fc9' that does not exist"),
    ):
        trainer = descend.Trainer(4, random_seed=1, training_algo=algorithm)
        with pytest.raises(ConfigurationError, match=message):
            run(trainer, model, descend.DataReader([]), descend.SGD(learn_rate=0.1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
