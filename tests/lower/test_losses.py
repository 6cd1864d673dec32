"""Losses and norms against NumPy."""

import numpy as np
import pytest
import torch

import descend
from tests.lower.single import Single, check_against, f64, gradients, random


@pytest.mark.parametrize(
    ("make", "expression", "inputs"),
    [
        (lambda a, b: descend.MeanAbsoluteError(a, b), lambda a, b: abs(a - b).mean((1, 2))[:, None], 2),
        (lambda a, b: descend.MeanSquaredError(a, b), lambda a, b: ((a - b) ** 2).mean((1, 2))[:, None], 2),
        (lambda a: descend.L2Norm2(a), lambda a: (a**2).sum((1, 2))[:, None], 1),
        (lambda a: descend.L1Norm(a), lambda a: abs(a).sum((1, 2))[:, None], 1),
    ],
)
def test_losses_are_their_expressions(make, expression, inputs):
    check_against(make, expression, *[random(3, 2, 4, seed=i) for i in range(inputs)])


def test_cross_entropy_has_gradients_for_both_parents():
    prediction, label = random(3, 4, low=0.1, high=0.9), random(3, 4, seed=1, low=0.1, high=0.9)
    check_against(
        lambda a, b: descend.CrossEntropy(a, b), lambda p, y: -(y * np.log(p)).sum(1)[:, None], prediction, label
    )


@pytest.mark.parametrize("make", [descend.CrossEntropy, descend.BinaryCrossEntropy])
def test_a_label_of_nothing_or_all_has_the_gradient_of_its_neighbours(make):
    """A term of weight 0 is left out of the value; how the value changes with that weight is not."""
    layer = Single(lambda a, b: make(a, b), (4,), (4,))
    prediction = random(2, 4, low=0.1, high=0.9)
    label = f64([0, 1, 0, 0], [1, 0.5, 0, 1]).requires_grad_()
    assert torch.autograd.gradcheck(layer, (prediction, label))
    p, y = f64([0.0, 0.5, 1.0, 0.25]).requires_grad_(), f64([0.0, 1.0, 1.0, 0.0]).requires_grad_()
    loss = layer(p, y)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert p.grad.isfinite().all()
    assert y.grad.isfinite().all()


def test_cross_entropy_of_class_indices():
    prediction, classes = random(2, 3, 2, low=0.1, high=0.9), f64([[0, 2]], [[1, 1]])
    layer = Single(lambda a, b: descend.CrossEntropy(a, b, use_labels=True), (3, 2), (1, 2))
    p = prediction.detach().numpy()
    want = [[-np.log(p[0, 0, 0] * p[0, 2, 1])], [-np.log(p[1, 1, 0] * p[1, 1, 1])]]
    np.testing.assert_allclose(layer(prediction, classes).detach(), want, rtol=1e-12)


def test_gradients_at_the_kink_are_zero():
    ones = f64([1.0, 1.0])
    assert not any(
        one.any() for one in gradients(Single(lambda a, b: descend.MeanAbsoluteError(a, b), (2,), (2,)), ones, ones)
    )
    assert gradients(Single(lambda a: descend.L1Norm(a), (3,)), f64([0.0, -2.0, 3.0]))[0].tolist() == [[0, -1, 1]]


NAN = float("nan")


@pytest.mark.parametrize("row", [[NAN] * 3, [NAN, 1, 0], [9, NAN, 0], [9, 1, NAN]], ids=str)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("make", [descend.CategoricalAccuracy, lambda a, b: descend.TopKCategoricalAccuracy(a, b, k=3)])
def test_predictions_and_labels_that_are_nan_are_no_hits(make, row, place):
    layer = Single(lambda a, b: make(a, b), (3,), (3,))
    label = [[float(i == place) for i in range(3)]] * 2
    found = layer(f64(row, label[0]), f64(*label))
    assert found.tolist() == [[0.0], [1.0]]
    assert layer(f64(label[0]), f64(row)).tolist() == [[0.0]]
