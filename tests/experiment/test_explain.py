"""What is printed about an experiment's weights is what the run would do with them."""

import pytest
import torch

import descend
from descend.experiment.explain import explain_experiment
from descend.experiment.run import run
from descend.zoo import digits


@pytest.fixture
def experiment():
    """Three weights objects: one under the default rule, one with its own, one frozen, and two biases."""
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    own = descend.Weights(name="own", optimizer=descend.Adam(learn_rate=0.01, beta1=0.8, beta2=0.99, eps=1e-8))
    still = descend.Weights(name="still", optimizer=descend.NoOptimizer())
    hidden = descend.FullyConnected(images, num_neurons=8, has_bias=True, name="hidden", weights=[own])
    narrow = descend.FullyConnected(hidden, num_neurons=8, has_bias=False, name="narrow", weights=[still])
    scores = descend.FullyConnected(narrow, num_neurons=10, has_bias=True, name="scores")
    loss = descend.CrossEntropy(descend.Softmax(scores), labels)
    model = descend.Model(layers=descend.traverse_layer_graph(loss), objective_function=loss, epochs=1, name="small")
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    return descend.Experiment(trainer, model, digits(), descend.SGD(learn_rate=0.1, momentum=0.9))


def test_each_weights_object_has_one_row_with_what_decided(experiment):
    rows = {row.name: row for row in explain_experiment(experiment).rows}
    assert rows["own"].decided_by == "the optimizer of these weights"
    assert rows["own"].rule.startswith("AdamW(beta1=0.8")
    assert rows["own"].lr == 0.01
    assert rows["still"].decided_by == "frozen"
    assert rows["still"].state_bytes == 0
    others = [row for name, row in rows.items() if name not in ("own", "still")]
    assert {row.decided_by for row in others} == {"the default optimizer"}
    assert {row.lr for row in others} == {0.1}


def test_state_bytes_are_those_that_a_run_keeps(experiment, tmp_path):
    explained = explain_experiment(experiment)
    result = run(experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer, tmp_path / "run")
    assert {row.name for row in explained.rows} == set(result.weights)
    assert {row.name: row.shape for row in explained.rows} == {n: tuple(w.shape) for n, w in result.weights.items()}
    momentum = [row for row in explained.rows if row.rule.startswith("SGD")]
    assert all(row.state_bytes == 8 + 4 * torch.Size(row.shape).numel() for row in momentum)  # a buffer and a count


def test_the_text_names_the_model_and_counts_frozen_weights(experiment):
    text = str(explain_experiment(experiment))
    assert "small: 5 tensors, 1 of them frozen" in text
