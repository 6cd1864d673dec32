"""Likelihoods against torch.distributions and SciPy, penalties and softer labels against their sums."""

import numpy as np
import pytest
import torch
from scipy import special
from torch import distributions

import descend
from descend.errors import ConfigurationError
from descend.zoo import modules
from tests.zoo.lowered import agree, lowered, random

K = torch.tensor([[0.0, 1.0, 3.0], [2.0, 40.0, 7.0]], dtype=torch.float64)


def fraction(seed):
    return torch.sigmoid(random(2, 3, seed=seed))


def total(log):
    return -log.sum(1, keepdim=True)


def test_counts_have_their_likelihoods():
    agree(
        lambda p, k: modules.GeometricDistributionNegativeLogLikelihood()(p, k),
        lambda _, p, k: total(k * torch.log1p(-p) + p.log()),
        fraction(0),
        K,
    )
    torch.testing.assert_close(
        total(K * torch.log1p(-fraction(0)) + fraction(0).log()),
        total(distributions.Geometric(fraction(0)).log_prob(K)),
    )
    agree(
        lambda rate, k: modules.PoissonDistributionNegativeLogLikelihood()(rate, k),
        lambda _, rate, k: total(k * rate.log() - rate - torch.lgamma(k + 1)),
        random(2, 3).exp(),
        K,
    )
    agree(
        lambda p, r, k: modules.PolyaDistributionNegativeLogLikelihood()(p, r, k),
        lambda _, p, r, k: total(
            torch.lgamma(k + r) - torch.lgamma(k + 1) - torch.lgamma(r) + k * p.log() + r * torch.log1p(-p)
        ),
        fraction(0),
        random(2, 3, seed=1).exp(),
        K,
    )


def test_the_logarithm_of_a_factorial_is_right_from_zero_to_many():
    k = torch.cat([torch.arange(30.0), torch.logspace(2, 6, 10)]).double()[None]
    make = lambda rate, k: modules.PoissonDistributionNegativeLogLikelihood()(rate, k)  # noqa: E731
    _, call, _ = lowered(make, (40,), (40,))
    got = call(torch.ones(1, 40, dtype=torch.float64), k)
    np.testing.assert_allclose(got.item(), 40 + special.gammaln(k.numpy() + 1).sum(), rtol=1e-13)


def test_a_label_may_leave_classes_open():
    labels = torch.tensor([[1.0, 0, 1], [0, 1, 0]], dtype=torch.float64)
    agree(
        lambda p, y: modules.CrossEntropyWithUncertainty()(p, y),
        lambda _, p, y: -(p * y).sum(1, keepdim=True).log(),
        fraction(0),
        labels,
    )


@pytest.mark.parametrize("amount", [0.01, 0.1, 0.5])
def test_smooth_labels_give_torchs_loss(amount):
    labels = torch.eye(4, dtype=torch.float64)[[0, 3, 1]]

    def make(logits, y):
        smooth = modules.LabelSmoothing(4, amount)(y)
        return descend.CrossEntropy(descend.Softmax(logits), smooth)

    def twin(_, logits, y):
        own = torch.nn.functional.cross_entropy(logits, y, label_smoothing=amount, reduction="none")
        return own.unsqueeze(1)

    agree(make, twin, random(3, 4), labels)


def test_penalties_are_sums_over_weights_that_a_layer_uses():
    def penalized(penalty):
        def make(x):
            w = descend.Weights(descend.HeNormalInitializer(), name="w")
            y = descend.L2Norm2(descend.FullyConnected(x, num_neurons=3, weights=[w]))
            return descend.Add(y, penalty(w))

        return make

    def with_penalty(sum_of):
        return lambda get, x: (x @ get("w").T).square().sum(1, keepdim=True) + sum_of(get("w"))

    x = random(2, 5)
    lasso = lambda w: modules.L1WeightRegularization(w, [3, 5])()  # noqa: E731
    agree(penalized(lasso), with_penalty(lambda w: w.abs().sum()), x)
    agree(penalized(lambda w: modules.GroupLasso(w)()), with_penalty(lambda w: w.norm(dim=1).sum()), x)


@pytest.mark.parametrize(("classes", "amount"), [(0, 0.1), (3, 1.0), (3, -0.1), (3, float("nan"))])
def test_amounts_that_are_none_are_refused(classes, amount):
    with pytest.raises(ConfigurationError, match="expected at least 1 class and an amount of 0 to below 1"):
        modules.LabelSmoothing(classes, amount)
