"""Negative log-likelihoods, penalties on weights, and label smoothing; one number for each sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    AddConstant,
    L1Norm,
    Log,
    Multiply,
    Negative,
    OperatorLayer,
    Reduction,
    RowwiseWeightsNorms,
    Subtract,
    Sum,
    WeightedSum,
    WeightsLayer,
    ops,
)
from descend.zoo.modules.module import Module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from descend.graph import Layer, Weights

__all__ = [
    "CrossEntropyWithUncertainty",
    "GeometricDistributionNegativeLogLikelihood",
    "GroupLasso",
    "L1WeightRegularization",
    "LabelSmoothing",
    "PoissonDistributionNegativeLogLikelihood",
    "PolyaDistributionNegativeLogLikelihood",
]


class LabelSmoothing(Module):
    """(1 − amount) label + amount / classes: what a classifier is trained on in place of a one-hot label.

    Args:
        classes: Number of classes.
        amount: Share that is spread over all classes, 0 to below 1.
        name: `labelsmoothing<N>` without one.

    Source: Szegedy et al. 2015, section 7, https://arxiv.org/abs/1512.00567
    """

    prefix: ClassVar[str] = "labelsmoothing"

    def __init__(self, classes: int, amount: float = 0.1, name: str | None = None) -> None:
        super().__init__(name)
        if classes < 1 or not 0 <= amount < 1:
            raise ConfigurationError(
                f"LabelSmoothing '{self.name}' has {classes} classes and amount {amount!r}; expected at least 1 class "
                "and an amount of 0 to below 1"
            )
        self.classes, self.amount = classes, amount

    def forward(self, labels: Layer) -> Layer:
        """Shapes: labels (classes, ...), and so the result."""
        chain = [ops.Scale(constant=1 - self.amount), ops.AddConstant(constant=self.amount / self.classes)]
        return OperatorLayer(labels, ops=chain, name=self.label())


class CrossEntropyWithUncertainty(Module):
    """−log Σ_i label_i p_i: the label has a 1 at every class that may be the true one.

    Args:
        name: `crossentropywithuncertainty<N>` without one.
    """

    prefix: ClassVar[str] = "crossentropywithuncertainty"

    def forward(self, prediction: Layer, label: Layer) -> Layer:
        """Shapes: prediction and label (classes,); result (1,)."""
        possible = Multiply(prediction, label, name=self.label("possible"))
        total = Reduction(possible, mode="sum", name=self.label("total"))
        return Negative(Log(total, name=self.label("log")), name=self.label())


class GeometricDistributionNegativeLogLikelihood(Module):
    """−Σ log P(k), P(k) = (1 − p)ᵏ p for k = 0, 1, ...

    Args:
        name: `geometricnll<N>` without one.
    """

    prefix: ClassVar[str] = "geometricnll"

    def forward(self, p: Layer, k: Layer) -> Layer:
        """Shapes: p and k of one shape; result (1,)."""
        failures = Multiply(k, _log_of_rest(self, p), name=self.label("failures"))
        total = Add(failures, Log(p, name=self.label("success")), name=self.label("log"))
        return _negative_sum(self, total)


class PoissonDistributionNegativeLogLikelihood(Module):
    """−Σ log P(k), P(k) = λᵏ exp(−λ) / k!.

    Args:
        name: `poissonnll<N>` without one.
    """

    prefix: ClassVar[str] = "poissonnll"

    def forward(self, rate: Layer, k: Layer) -> Layer:
        """Shapes: λ and k of one shape; result (1,)."""
        power = Multiply(k, Log(rate, name=self.label("log_rate")), name=self.label("power"))
        rest = Add(rate, _log_gamma(self, k, 1.0, "factorial"), name=self.label("rest"))
        return _negative_sum(self, Subtract(power, rest, name=self.label("log")))


class PolyaDistributionNegativeLogLikelihood(Module):
    """−Σ log P(k), P(k) = Γ(k + r) / (k! Γ(r)) pᵏ (1 − p)ʳ; the negative binomial distribution with a real r.

    Args:
        name: `polyanll<N>` without one.
    """

    prefix: ClassVar[str] = "polyanll"

    def forward(self, p: Layer, r: Layer, k: Layer) -> Layer:
        """Shapes: p, r and k of one shape; result (1,)."""
        count = Add(k, r, name=self.label("count"))
        gammas = WeightedSum(
            _log_gamma(self, count, 0.0, "gamma_count"),
            _log_gamma(self, k, 1.0, "factorial"),
            _log_gamma(self, r, 0.0, "gamma_r"),
            scaling_factors=[1, -1, -1],
            name=self.label("coefficient"),
        )
        power = Multiply(k, Log(p, name=self.label("log_p")), name=self.label("power"))
        rest = Multiply(r, _log_of_rest(self, p), name=self.label("rest"))
        return _negative_sum(self, Sum(gammas, power, rest, name=self.label("log")))


def _log_of_rest(module: Module, p: Layer) -> Layer:
    chain = [ops.Negative(), ops.Log1p()]
    return OperatorLayer(p, ops=chain, name=module.label("log_rest"))


def _negative_sum(module: Module, x: Layer) -> Layer:
    return Negative(Reduction(x, mode="sum", name=module.label("sum")), name=module.label())


_SHIFT = 10  # from here up the series is right to 1e-12


def _log_gamma(module: Module, x: Layer, add: float, part: str) -> Layer:
    """log Γ(x + add) for x + add > 0: Stirling's series at z = x + add + 10, less the logarithms in between.

    (z − ½) log z − z + ½ log 2π + 1 / 12z − 1 / 360z³ + 1 / 1260z⁵ − 1 / 1680z⁷
    """
    label = lambda what: module.label(f"{part}_{what}")  # noqa: E731
    z = AddConstant(x, constant=add + _SHIFT, name=label("z"))
    half = OperatorLayer(z, ops=[ops.SubtractConstant(constant=0.5)], name=label("half"))
    main = Multiply(half, Log(z, name=label("log")), name=label("main"))
    inverse = OperatorLayer(z, ops=[ops.Reciprocal()], name=label("inverse"))
    square = OperatorLayer(inverse, ops=[ops.Square()], name=label("square"))
    series = OperatorLayer(
        square, ops=[ops.Scale(constant=-1 / 1680), ops.AddConstant(constant=1 / 1260)], name=label("term4")
    )
    for i, coefficient in enumerate((-1 / 360, 1 / 12)):
        product = Multiply(series, square, name=label(f"product{i}"))
        series = AddConstant(product, constant=coefficient, name=label(f"term{i}"))
    tail = Multiply(series, inverse, name=label("tail"))
    steps = [
        OperatorLayer(x, ops=[ops.AddConstant(constant=add + i), ops.Log()], name=label(f"step{i}"))
        for i in range(_SHIFT)
    ]
    factors = [1.0, -1.0, 1.0] + [-1.0] * _SHIFT
    total = WeightedSum(main, z, tail, *steps, scaling_factors=factors, name=label("total"))
    return AddConstant(total, constant=0.5 * math.log(2 * math.pi), name=module.label(part))


class L1WeightRegularization(Module):
    """Σ |w| over weights, as a layer of one number that an objective may name with a scale.

    Args:
        weights: The weights; another layer may use them too.
        dims: Their shape.
        name: `l1weightregularization<N>` without one.
    """

    prefix: ClassVar[str] = "l1weightregularization"

    def __init__(self, weights: Weights, dims: Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        self.weights, self.dims = weights, list(dims)

    def forward(self) -> Layer:
        """The sum, (1,)."""
        given = WeightsLayer(dims=self.dims, weights=[self.weights], name=self.label("weights"))
        return L1Norm(given, name=self.label())


class GroupLasso(Module):
    """Σ_i √(Σ_j w_ij²) over the rows of a matrix that another layer uses, as a layer of one number.

    Args:
        weights: The matrix. The rows of FullyConnected's are what goes into each neuron; with `transpose`, what comes
            from each input.
        name: `grouplasso<N>` without one.

    Source: Yuan and Lin 2006, Model selection and estimation in regression with grouped variables.
    """

    prefix: ClassVar[str] = "grouplasso"

    def __init__(self, weights: Weights, name: str | None = None) -> None:
        super().__init__(name)
        self.weights = weights

    def forward(self) -> Layer:
        """The sum, (1,)."""
        norms = RowwiseWeightsNorms(weights=[self.weights], name=self.label("norms"))
        return Reduction(norms, mode="sum", name=self.label())
