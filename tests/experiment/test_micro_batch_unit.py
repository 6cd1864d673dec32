"""How many samples of a mini-batch stay together, from a description alone."""

import pytest

import descend
from descend.arguments.leniency import lenient
from descend.errors import ConfigurationError
from descend.experiment.check import check as check_experiment
from descend.experiment.experiment import Experiment
from descend.experiment.micro_batch_unit import graph_unit, last_group, tell_of_whole_groups
from descend.graph import check


@pytest.mark.parametrize(
    ("size", "group", "last"), [(10, None, 10), (10, 4, 2), (8, 4, 4), (3, 4, 3), (4, 4, 4), (1, 4, 1)]
)
def test_the_last_group_of_a_mini_batch(size, group, last):
    assert last_group(size, group) == last


def plan(kind=None, group=0, images=False):
    x = descend.Input(data_field="x", name="x")
    y = kind(x, name="layer") if kind else x
    loss = descend.L2Norm2(y, name="loss")
    model = descend.Model(1, objective_function=loss, batch_norm_group_size=group)
    return check(model, {"x": (2, 3, 3) if images else (4,)})


NORM = descend.BatchNormalization


@pytest.mark.parametrize(
    ("given", "sizes", "micro", "unit"),
    [
        ((None,), {10}, 0, 1),
        ((None,), {10}, 3, 1),
        ((NORM,), {10, 2}, 0, None),
        ((NORM, 4), {8}, 0, 4),
        ((NORM, 4), {8}, 8, 4),
        ((descend.BatchwiseReduceSum,), {10}, 0, None),
        ((descend.BatchwiseReduceSum,), {10}, 10, None),
    ],
)
def test_the_unit(given, sizes, micro, unit):
    assert graph_unit(plan(*given), sizes, micro) == unit


@pytest.mark.parametrize(
    ("given", "sizes", "micro", "message"),
    [
        ((None, 4), {8}, 0, "batch_norm_group_size=4: the model has no batch normalization"),
        ((NORM,), {8}, 4, "'layer' .BatchNormalization. needs the whole mini-batch.*batch_norm_group_size=4"),
        ((descend.BatchwiseReduceSum,), {8}, 4, "needs the whole mini-batch.*leave micro_batch_size out"),
        (
            (NORM,),
            {8, 1},
            0,
            "statistics of 1 value: a mini-batch of 1 leaves a group of 1 sample; choose mini_batch_size ",
        ),
        ((NORM, 4), {8, 5}, 0, "a mini-batch of 5 leaves.*choose mini_batch_size or batch_norm_group_size"),
    ],
)
def test_what_cannot_be_split(given, sizes, micro, message):
    with pytest.raises(ConfigurationError, match=message):
        graph_unit(plan(*given), sizes, micro)


def test_a_group_of_one_image_has_many_values():
    assert graph_unit(plan(NORM, 4, images=True), {8, 5}, 0) == 4


@pytest.mark.parametrize(("size", "unit", "warns"), [(8, 4, False), (6, 4, True), (6, None, False), (3, 1, False)])
def test_micro_batches_that_are_not_whole_groups_are_reported(recwarn, size, unit, warns):
    tell_of_whole_groups(size, unit)
    assert [("whole batch-norm groups of 4 samples" in str(w.message)) for w in recwarn] == [True] * warns


@pytest.mark.parametrize(("kind", "unit"), [(None, 1), (NORM, 1), (descend.BatchwiseReduceSum, None)])
def test_a_model_without_training_samples_is_split_where_no_layer_sums_over_samples(kind, unit, tmp_path):
    """Several ranks then share its mini-batches; a unit of None is refused there."""
    x = descend.Input(data_field="samples")
    layers = [x, kind(x) if kind else descend.Relu(x)]
    model = descend.Model(0, layers, metrics=[descend.Metric(descend.L1Norm(layers[1]), name="m")])
    readers = descend.DataReader([descend.Reader(name="synthetic", role="test", num_samples=4, synth_dimensions="2")])
    with lenient():
        made = check_experiment(Experiment(descend.Trainer(2), model, readers, descend.SGD(learn_rate=0.1)), 1)
    assert made.unit == unit
