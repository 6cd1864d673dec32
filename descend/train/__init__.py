"""Training algorithms, stopping criteria, callbacks and the trainer, for any nn.Module; knows nothing of graphs.

The names here describe a run and import no torch, those of strategies aside; `descend.train.loop` runs it.
"""

from typing import TYPE_CHECKING

from descend.lazy import lazy_names

if TYPE_CHECKING:
    from descend.train.algorithms import SGD, BatchedIterativeOptimizer, TrainingAlgorithm
    from descend.train.batch_inference import BatchedInference
    from descend.train.callback import Callback, Callbacks
    from descend.train.events import EpochView, EvaluationView, Event, PartView, RunView, StepView
    from descend.train.population.ltfb import (
        LTFB,
        ExchangeStrategy,
        MetaLearningStrategy,
        MetricStrategy,
        MutationStrategy,
        RandomPairwiseExchange,
        RegularizedEvolution,
        TruncationSelectionExchange,
    )
    from descend.train.progress import ExecutionContext, Mode, Progress
    from descend.train.stopping import (
        AllOf,
        AllOfLimits,
        AnyOf,
        AnyOfLimits,
        Epochs,
        Limits,
        Reached,
        ReachedLimit,
        Seconds,
        SecondsPerRun,
        Steps,
        Stop,
    )
    from descend.train.strategies.majority_vote import MajorityVote
    from descend.train.strategies.parameter_server import ParameterServer
    from descend.train.trainer import DataCoordinator, Trainer, TransformDataField
    from descend.train.transforms.kfac import KFAC


__all__ = [
    "KFAC",
    "LTFB",
    "SGD",
    "AllOf",
    "AllOfLimits",
    "AnyOf",
    "AnyOfLimits",
    "BatchedInference",
    "BatchedIterativeOptimizer",
    "Callback",
    "Callbacks",
    "DataCoordinator",
    "EpochView",
    "Epochs",
    "EvaluationView",
    "Event",
    "ExchangeStrategy",
    "ExecutionContext",
    "Limits",
    "MajorityVote",
    "MetaLearningStrategy",
    "MetricStrategy",
    "Mode",
    "MutationStrategy",
    "ParameterServer",
    "PartView",
    "Progress",
    "RandomPairwiseExchange",
    "Reached",
    "ReachedLimit",
    "RegularizedEvolution",
    "RunView",
    "Seconds",
    "SecondsPerRun",
    "StepView",
    "Steps",
    "Stop",
    "Trainer",
    "TrainingAlgorithm",
    "TransformDataField",
    "TruncationSelectionExchange",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "algorithms": ("SGD", "BatchedIterativeOptimizer", "TrainingAlgorithm"),
        "batch_inference": ("BatchedInference",),
        "callback": ("Callback", "Callbacks"),
        "events": ("EpochView", "EvaluationView", "Event", "PartView", "RunView", "StepView"),
        "population.ltfb": (
            "LTFB",
            "ExchangeStrategy",
            "MetaLearningStrategy",
            "MetricStrategy",
            "MutationStrategy",
            "RandomPairwiseExchange",
            "RegularizedEvolution",
            "TruncationSelectionExchange",
        ),
        "progress": ("ExecutionContext", "Mode", "Progress"),
        "stopping": (
            "AllOf",
            "AllOfLimits",
            "AnyOf",
            "AnyOfLimits",
            "Epochs",
            "Limits",
            "Reached",
            "ReachedLimit",
            "Seconds",
            "SecondsPerRun",
            "Steps",
            "Stop",
        ),
        "strategies.majority_vote": ("MajorityVote",),
        "strategies.parameter_server": ("ParameterServer",),
        "trainer": ("DataCoordinator", "Trainer", "TransformDataField"),
        "transforms.kfac": ("KFAC",),
    },
)
