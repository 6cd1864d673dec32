"""Layers, operator layers, weights, initializers, metrics and objective functions: the classes of `descend.graph`.

They have LBANN's names and arguments, so modules and models of this package and layers of a script go together.
"""

from descend.graph import (
    BaseMetric,
    ConstantInitializer,
    ExecutableMetric,
    GlorotNormalInitializer,
    GlorotUniformInitializer,
    HeNormalInitializer,
    HeUniformInitializer,
    Initializer,
    L2WeightRegularization,
    Layer,
    LayerTerm,
    LeCunNormalInitializer,
    LeCunUniformInitializer,
    Metric,
    NormalInitializer,
    NumpyInitializer,
    ObjectiveFunction,
    ParallelStrategy,
    PythonMetric,
    UniformInitializer,
    ValueInitializer,
    Weights,
    kinds,
    traverse_layer_graph,
)
from descend.graph.kinds import *  # noqa: F403  # the names of all kinds are LBANN's

__all__ = [
    "BaseMetric",
    "ConstantInitializer",
    "ExecutableMetric",
    "GlorotNormalInitializer",
    "GlorotUniformInitializer",
    "HeNormalInitializer",
    "HeUniformInitializer",
    "Initializer",
    "L2WeightRegularization",
    "Layer",
    "LayerTerm",
    "LeCunNormalInitializer",
    "LeCunUniformInitializer",
    "Metric",
    "NormalInitializer",
    "NumpyInitializer",
    "ObjectiveFunction",
    "ParallelStrategy",
    "PythonMetric",
    "UniformInitializer",
    "ValueInitializer",
    "Weights",
    "traverse_layer_graph",
]
__all__ += kinds.__all__
