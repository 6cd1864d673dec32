"""What is printed about an experiment's weights is what the run would do with them."""

import pytest
import torch

import descend
from descend.callbacks import learning_rate as rates
from descend.experiment.inspect.explain import explain_experiment
from descend.experiment.run import run
from descend.train import Callback, Epochs, Steps
from descend.zoo import digits


@pytest.fixture
def experiment():
    """Three weights: one with the default optimizer, one with its own, one frozen; and two biases."""
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


class Rates(Callback):
    """Records the learning rate of all weights at each update."""

    def __init__(self):
        self.seen = []

    def after_step(self, step):
        self.seen.append(step.run.control.rates())


CALLBACKS = {
    "none": (),
    "step": (rates.StepLearningRate(step=1, amt=0.5),),
    "power": (rates.PolyLearningRate(power=2.0, num_epochs=2, end_lr=0.001),),
    "cosine": (rates.CosineDecayLearningRate(lr_max=0.2, lr_min=0.01, decay_steps=50, warmup_steps=10),),
    "growth and drop": (
        rates.LinearGrowthLearningRate(target=0.5, num_epochs=2, delay=1),
        rates.DropFixedLearningRate(drop_epoch=(2,), amt=0.1, weights="own"),
    ),
    "some by step, all by pass": (
        rates.PolyLearningRate(power=1.0, max_iter=40, weights="own"),
        rates.SetLearningRate(step=2, val=0.3),
    ),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_the_curves_are_the_rates_of_a_run(experiment, tmp_path, name):
    """Every rate that is drawn is the one that a real run of three passes uses at that update."""
    experiment.model.epochs = 3
    experiment.model.callbacks = [*CALLBACKS[name]]
    explained = explain_experiment(experiment)
    spy = Rates()
    experiment.model.callbacks.append(spy)
    run(experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer, tmp_path / "run")
    used = {weights: [seen[weights] for seen in spy.seen] for weights in spy.seen[0]}
    changing = {weights for weights, series in used.items() if len(set(series)) > 1}
    drawn = {}
    for title, curve in explained.curves:
        names = title.removeprefix("rate of ").split(", ")
        drawn |= dict.fromkeys(used if names == ["all weights"] else names, curve)
        assert curve[-1][0] == len(spy.seen)
    assert set(drawn) == changing
    for weights, curve in drawn.items():
        for step, rate in curve:
            if step < len(spy.seen):
                assert rate == pytest.approx(used[weights][step], rel=1e-12), (weights, step)


def test_the_length_is_where_the_run_ends_and_measured_rates_are_only_named(experiment):
    experiment.model.callbacks = [
        rates.StepLearningRate(step=1, amt=0.5),
        rates.AdaptiveLearningRate(patience=1, amt=0.5),
    ]
    experiment.trainer.training_algo = descend.BatchedIterativeOptimizer(stop=Steps(50) | Epochs(9))
    explained = explain_experiment(experiment)
    assert [curve[-1][0] for _, curve in explained.curves] == [50, 50]
    assert "AdaptiveLearningRate changes learning rates by measurements" in str(explained)
    assert "50 updates" in str(explained)
