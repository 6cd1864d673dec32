"""Losses, accuracies and norms as kinds of layers: one number for each sample, and what they refuse."""

import pytest

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of

PAIRS = [
    g.CrossEntropy(),
    g.MeanSquaredError(),
    g.MeanAbsoluteError(),
    g.CategoricalAccuracy(),
    g.TopKCategoricalAccuracy(k=5),
]


@pytest.mark.parametrize("shape", [(10,), (1,), (2, 3, 4)])
@pytest.mark.parametrize("loss", PAIRS, ids=kind)
def test_a_prediction_and_a_label_of_one_shape_give_one_number(loss, shape):
    assert loss.num_parents == 2
    assert shape_of(loss, shape, shape) == (1,)


@pytest.mark.parametrize("loss", PAIRS, ids=kind)
def test_a_prediction_and_a_label_of_two_shapes_are_refused(loss):
    assert refusal(loss, (10,), (11,)) == (
        "needs parents of one shape; 'p0' gives 10 and 'p1' gives 11: the layers before must give equally many "
        "entries, such as num_neurons equal to the number of classes"
    )


@pytest.mark.parametrize("norm", [g.L1Norm(), g.L2Norm2()], ids=kind)
def test_a_norm_gives_one_number(norm):
    assert norm.num_parents == 1
    assert shape_of(norm, (2, 3)) == (1,)


@pytest.mark.parametrize(
    ("prediction", "label"), [((10,), (1,)), ((21, 8, 8), (1, 8, 8)), ((1,), (1,)), ((1, 3), (1, 3))]
)
def test_class_indices_have_a_first_dimension_of_one(prediction, label):
    assert shape_of(g.CrossEntropy(use_labels=True), prediction, label) == (1,)


@pytest.mark.parametrize(("prediction", "label"), [((10,), (10,)), ((21, 8, 8), (8, 8)), ((3, 2), (1, 3)), ((3,), ())])
def test_class_indices_of_another_shape_are_refused(prediction, label):
    assert "uses class indices; 'p0' gives" in refusal(g.CrossEntropy(use_labels=True), prediction, label)


def test_the_label_of_a_cross_entropy_is_kept_from_narrow_formats():
    """float16 does not have every integer above 2048; accuracies compare values and hold no indices."""
    assert g.CrossEntropy.index_parents == (1,)
    assert g.CategoricalAccuracy.index_parents == ()


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.TopKCategoricalAccuracy(), [(3,), (3,)], "has k 0; it must be at least 1"),
        (g.CrossEntropy(), [(10,), (1,)], "needs parents of one shape; 'p0' gives 10 and 'p1' gives 1"),
        (
            g.CrossEntropy(),
            [(2, 5), (10,)],
            "'p0' gives 2 x 5 and 'p1' gives 10: put a Reshape in front of one of them",
        ),
        (g.CrossEntropy(use_labels=True), [(10,), (10,)], "so the label must be 1; 'p1' gives 10"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
