"""Modules that LBANN keeps apart from the others."""

from descend.zoo.modules import (
    CrossEntropyWithUncertainty,
    FFTShift,
    GeometricDistributionNegativeLogLikelihood,
    GroupLasso,
    L1WeightRegularization,
    LabelSmoothing,
    PoissonDistributionNegativeLogLikelihood,
    PolyaDistributionNegativeLogLikelihood,
    RadialProfile,
)

__all__ = [
    "CrossEntropyWithUncertainty",
    "FFTShift",
    "GeometricDistributionNegativeLogLikelihood",
    "GroupLasso",
    "L1WeightRegularization",
    "LabelSmoothing",
    "PoissonDistributionNegativeLogLikelihood",
    "PolyaDistributionNegativeLogLikelihood",
    "RadialProfile",
]
