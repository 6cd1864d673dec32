"""Layers, weights, objective and metrics as plain values, and their text. No torch.

`check(model, fields)` works out every tensor's shape and finds everything that does not fit; `descend.lower` makes a
module of the plan that it returns. `to_text` and `from_text` are mirrors. `descend.graph.text` reads and writes the
text form of any description.
"""

from descend.graph import kinds
from descend.graph.check import check
from descend.graph.enums import ConvTensorOpsMode, DataType, DeviceAllocation, ShardingStrategy, SubGraphCommunication
from descend.graph.kinds import *  # noqa: F403  # the families' own lists say what is public
from descend.graph.kinds import operators as ops
from descend.graph.layer import Incoming, Layer, ParallelStrategy, Shape, WeightSlot
from descend.graph.metrics import BaseMetric, ExecutableMetric, Metric, PythonMetric
from descend.graph.model import AutomaticMixedPrecision, Model, Trained, from_text, to_text
from descend.graph.objective import L2WeightRegularization, LayerTerm, ObjectiveFunction
from descend.graph.optimizers import (
    SGD,
    AdaGrad,
    Adam,
    HypergradientAdam,
    NoOptimizer,
    Optimizer,
    RMSprop,
    check_optimizer,
)
from descend.graph.order import prediction_outputs, traverse_layer_graph
from descend.graph.plan import (
    Plan,
    PlannedL2,
    PlannedLayer,
    PlannedMetric,
    PlannedObjective,
    PlannedTerm,
    PlannedWeights,
)
from descend.graph.registry import CLASSES
from descend.graph.torch_model import TorchModel
from descend.graph.weights import (
    ConstantInitializer,
    GlorotNormalInitializer,
    GlorotUniformInitializer,
    HeNormalInitializer,
    HeUniformInitializer,
    Initializer,
    LeCunNormalInitializer,
    LeCunUniformInitializer,
    NormalInitializer,
    NumpyInitializer,
    UniformInitializer,
    ValueInitializer,
    Weights,
)

__all__ = [
    "CLASSES",
    "SGD",
    "AdaGrad",
    "Adam",
    "AutomaticMixedPrecision",
    "BaseMetric",
    "ConstantInitializer",
    "ConvTensorOpsMode",
    "DataType",
    "DeviceAllocation",
    "ExecutableMetric",
    "GlorotNormalInitializer",
    "GlorotUniformInitializer",
    "HeNormalInitializer",
    "HeUniformInitializer",
    "HypergradientAdam",
    "Incoming",
    "Initializer",
    "L2WeightRegularization",
    "Layer",
    "LayerTerm",
    "LeCunNormalInitializer",
    "LeCunUniformInitializer",
    "Metric",
    "Model",
    "NoOptimizer",
    "NormalInitializer",
    "NumpyInitializer",
    "ObjectiveFunction",
    "Optimizer",
    "ParallelStrategy",
    "Plan",
    "PlannedL2",
    "PlannedLayer",
    "PlannedMetric",
    "PlannedObjective",
    "PlannedTerm",
    "PlannedWeights",
    "PythonMetric",
    "RMSprop",
    "Shape",
    "ShardingStrategy",
    "SubGraphCommunication",
    "TorchModel",
    "Trained",
    "UniformInitializer",
    "ValueInitializer",
    "WeightSlot",
    "Weights",
    "check",
    "check_optimizer",
    "from_text",
    "ops",
    "prediction_outputs",
    "to_text",
    "traverse_layer_graph",
]
__all__ += kinds.__all__
