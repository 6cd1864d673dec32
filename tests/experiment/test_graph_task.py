"""A graph under the training loop: what layers learn of the mini-batch that they see a part of."""

import numpy as np
import pytest
import torch
from toys import run_of

import descend
from descend.data import ArrayReader, Batches
from descend.errors import Unsupported
from descend.experiment.graph_task import GraphTask
from descend.graph import check
from descend.lower import lower
from descend.runtime import generator
from descend.train import Epochs, Mode
from descend.train.evaluation import evaluate
from descend.train.loop import train


def noisy(x):
    """Layers that draw random numbers, and the sample's place in the mini-batch."""
    x = descend.Dropout(x, keep_prob=0.5, name="drop")
    noise = descend.Gaussian(stdev=0.1, neuron_dims=[4], name="noise")
    place = descend.Divide(descend.MiniBatchIndex(), descend.MiniBatchSize())
    place = descend.Tessellate(place, dims=[4])
    return descend.Sum(x, noise, place)


def run(middle, micro_batch_size=None, seed=5):
    x, y = descend.Input(data_field="x"), descend.Input(data_field="y")
    z = descend.FullyConnected(middle(x), num_neurons=1, name="fc")
    model = descend.Model(1, objective_function=descend.MeanSquaredError(z, y, name="loss"))
    plan = check(model, {"x": (4,), "y": (1,)})
    task = GraphTask(lower(plan, lambda name: generator(1, name)).double(), plan, seed)
    draw = np.random.default_rng(0)
    reader = ArrayReader({"x": draw.normal(size=(23, 4)), "y": draw.normal(size=(23, 1))})
    batches = [Batches(reader, 10, seed=3, shuffle=shuffle) for shuffle in (True, False)]
    return run_of(task, *batches, micro_batch_size=micro_batch_size, seed=seed)


def trained(*args, **settings):
    made = run(*args, **settings)
    train(made, Epochs(2))
    return made, made.task.module.named_weights()


@pytest.mark.parametrize("micro_batch_size", [1, 3, 9])
def test_random_layers_draw_the_same_however_a_mini_batch_is_cut(micro_batch_size):
    whole, weights = trained(noisy)
    cut, cut_weights = trained(noisy, micro_batch_size=micro_batch_size)
    torch.testing.assert_close(cut_weights["fc_linearity_weights"], weights["fc_linearity_weights"], rtol=1e-12, atol=0)
    for row, cut_row in zip(whole.state.history, cut.state.history, strict=True):
        assert cut_row["objective"] == pytest.approx(row["objective"], rel=1e-12)


def test_every_step_and_every_seed_draws_again():
    _, weights = trained(noisy)
    _, again = trained(noisy)
    _, other = trained(noisy, seed=6)
    assert torch.equal(weights["fc_linearity_weights"], again["fc_linearity_weights"])
    assert not torch.equal(weights["fc_linearity_weights"], other["fc_linearity_weights"])


def test_every_batch_of_training_and_of_evaluation_draws_again():
    seeds = []
    made = run(noisy)
    forward = made.task.module.forward

    def watched(fields, seed, position, batch_size):
        seeds.append(seed)
        return forward(fields, seed=seed, position=position, batch_size=batch_size)

    made.task.module.forward = watched
    train(made, Epochs(2))
    assert len(set(seeds)) == len(seeds) == 12  # three steps of training and three of validation, twice


def test_batch_normalization_follows_the_training_batches_and_is_still_in_evaluation():
    made = run(lambda x: descend.BatchNormalization(x, name="bn"))
    train(made, Epochs(1))
    weights = made.task.module.named_weights()
    mean = torch.zeros(4, dtype=torch.float64)
    with_order = made.data[Mode.TRAIN]
    for batch in with_order.epoch(0):
        mean = 0.9 * mean + 0.1 * torch.as_tensor(batch.fields["x"]).double().mean(0)
    torch.testing.assert_close(weights["bn_running_mean"], mean, rtol=1e-6, atol=1e-9)
    before = weights["bn_running_variance"].clone()
    first = evaluate(made, Mode.VALIDATION)["objective"]
    assert evaluate(made, Mode.VALIDATION)["objective"] == first
    assert torch.equal(weights["bn_running_variance"], before)


def test_batch_normalization_of_micro_batches_is_refused_by_name():
    made = run(lambda x: descend.BatchNormalization(x, name="bn"), micro_batch_size=3)
    with pytest.raises(Unsupported, match="layer 'bn'"):
        train(made, Epochs(1))
